//! The mail that other threads send to a shard.

use std::sync::Arc;

use simurgh_core::{ChannelId, HandedOver, NETWORK, Received, ToChannel};
use simurgh_proto::ws::{Event, FrameError};
use simurgh_reactor::Key;
use simurgh_socket::{Connect, OffShard, Regrant};

pub mod driver;
pub mod driver_event;
pub mod order;
pub mod poll;
pub mod question;
pub mod survey;

pub use driver::Answer;
use driver::DriverCommand;
use order::{Counted, Order};
pub use poll::Opener;
use poll::PollCommand;
use question::{Answered, Question};
use survey::ShardQuery;

/// The `transport` of a long-poll session's record.
pub const POLLED: u8 = NETWORK - 1;

/// A message that another thread has read.
pub enum Read {
    /// It was decoded; `None` if it is malformed.
    Decoded(Option<Received<'static>>),
    /// It was compressed.
    Inflated(Result<Event<'static>, FrameError>),
}

pub enum Mail {
    Core(simurgh_core::Mail),
    /// For one channel. If its shard ends before it takes this, it may be the last to hold
    /// something of the application's.
    ToChannel(ChannelId, OffShard<ToChannel>),
    /// The application has decided a connect, or panicked; the number tells it from an earlier wait
    /// of the same connection.
    Connected(Key, u32, Option<Connect>),
    /// The grant of a socket was decided again.
    Regrant(Key, Regrant),
    /// A long message was read on another thread.
    Read(Key, u32, Read),
    Drive(Box<DriverCommand>),
    LongPoll(Box<PollCommand>),
    Observe(Box<ShardQuery>),
    /// A back end's order, and where to report how many sockets or channels it concerned.
    Order(Arc<Order>, Counted),
    /// A back end's question, and where to send the answer.
    Question(Arc<Question>, Answered),
    /// There are other settings and user sockets; this is dropped when the shard has them.
    Reload(Arc<()>),
    /// Another process takes over the histories; where to send this shard's.
    HandOver(Box<dyn FnOnce(HandedOver) + Send>),
    /// That process has ended. `true`: the broadcasts that it has kept have been passed on.
    TakeBack(bool),
    /// Does nothing: that it is taken shows that the shard is alive.
    Pulse,
    Stop,
}

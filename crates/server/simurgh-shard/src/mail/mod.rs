//! The mail that other threads send to a shard.

use simurgh_core::{ChannelId, NETWORK, Received, ToChannel};
use simurgh_reactor::Key;
use simurgh_socket::{Connect, OffShard};

pub mod driver;
pub mod driver_event;
pub mod poll;
pub mod survey;

pub use driver::Answer;
use driver::DriverCommand;
pub use poll::Opener;
use poll::PollCommand;
use survey::ShardQuery;

/// What the record of a long-poll session says of its transport.
pub const POLLED: u8 = NETWORK - 1;

/// Mail for a shard.
pub enum Mail {
    /// For its core.
    Core(simurgh_core::Mail),
    /// For one channel. Whose shard ends before it takes this, it may be the last to hold something
    /// of the application's.
    ToChannel(ChannelId, OffShard<ToChannel>),
    /// The application has decided about a connect, or panicked over it; the number tells it from
    /// what the connection waited for before.
    Connected(Key, u32, Option<Connect>),
    /// A long message was decoded; `None` if it is malformed.
    Read(Key, u32, Option<Received<'static>>),
    /// A driver's command for its sockets.
    Drive(Box<DriverCommand>),
    /// A long-poll request.
    LongPoll(Box<PollCommand>),
    /// An observer asks for rows, or disconnects a socket.
    Observe(Box<ShardQuery>),
    /// Does nothing: that it is taken shows that the shard is alive.
    Pulse,
    /// End now.
    Stop,
}

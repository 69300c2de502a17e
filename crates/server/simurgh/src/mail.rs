//! What other threads ask of a shard.

use simurgh_core::{ChannelId, Received, ToChannel};
use simurgh_reactor::Key;

use crate::asynchronous::OffShard;
use crate::driver::DriverCommand;
use crate::longpoll::PollCommand;
use crate::observe::ShardQuery;
use crate::socket::Connect;

/// All that other threads may ask of a shard.
pub(crate) enum Mail {
    /// What its core is asked.
    Core(simurgh_core::Mail),
    /// For one channel. Whose shard ends before it takes this, it may be the last to hold something
    /// of the application's.
    ToChannel(ChannelId, OffShard<ToChannel>),
    /// The application has decided about a connect, or panicked over it; the number tells it from
    /// what the connection waited for before.
    Connected(Key, u32, Option<Connect>),
    /// A long message was read; none, if it is none.
    Read(Key, u32, Option<Received<'static>>),
    /// What a driver asks of its sockets.
    Drive(Box<DriverCommand>),
    /// What a long poll asks, or a message that was posted.
    LongPoll(Box<PollCommand>),
    /// Somebody looks, or disconnects what he has looked at.
    Observe(Box<ShardQuery>),
    /// Asks nothing: that it is taken shows that the shard lives.
    Pulse,
    /// End now.
    Stop,
}

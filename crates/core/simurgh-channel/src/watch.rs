//! The calls of a shard into code of the application.

use core::time::Duration;

/// Which of the application's functions a shard is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Callback {
    /// The decision about a connection.
    Connect = 1,
    /// The decision about a join.
    Join,
    /// [`ShardChannel::after_join`](crate::ShardChannel::after_join).
    AfterJoin,
    /// [`ShardChannel::handle_in`](crate::ShardChannel::handle_in).
    HandleIn,
    /// [`ShardHandleInfo::handle_info`](crate::ShardHandleInfo::handle_info).
    HandleInfo,
    /// [`ShardChannel::handle_out`](crate::ShardChannel::handle_out).
    HandleOut,
    /// [`ShardChannel::handle_broadcast`](crate::ShardChannel::handle_broadcast).
    HandleBroadcast,
    /// [`ShardChannel::terminate`](crate::ShardChannel::terminate).
    Terminate,
    /// [`ShardChannel::hibernate`](crate::ShardChannel::hibernate).
    Hibernate,
}

impl Callback {
    /// All of them, in the order of their numbers, which begin with 1.
    pub const ALL: &'static [Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name in the application's code.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Knows which shard is in a callback, and for how long.
pub trait CallbackWatch {
    /// A shard enters code of the application.
    fn enter_callback(&self, _shard: usize, _callback: Callback) {}

    /// The shard has returned. Returns how long the callback took.
    fn leave_callback(&self, _shard: usize) -> Duration {
        Duration::ZERO
    }

    /// Runs code of the application; `None` if it panicked.
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R>;
}

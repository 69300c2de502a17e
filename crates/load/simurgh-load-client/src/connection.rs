//! An orderly close, for all kinds of connections.

use std::collections::VecDeque;

use simurgh_reactor::{Io, Key};

/// A key that belongs to no connection.
pub const NO_KEY: Key = Key { slot: u32::MAX, generation: u32::MAX };

/// Connections that are no longer used and wait for their server's close. If we closed them first,
/// the port could not be used for a minute (TIME_WAIT).
#[derive(Debug, Default)]
pub struct Leaving(VecDeque<(u64, Key)>);

impl Leaving {
    /// Waits until this time for the server's close. Times must not decrease.
    pub fn push(&mut self, until_ns: u64, key: Key) {
        self.0.push_back((until_ns, key));
    }

    /// Closes connections whose servers did not close in time.
    pub fn close_due<T>(&mut self, io: &mut Io<T>, now_ns: u64) {
        while let Some((until_ns, key)) = self.0.front().copied() {
            if until_ns > now_ns && io.conn_ref(key).is_some() {
                return;
            }
            self.0.pop_front();
            io.close(key);
        }
    }

    /// When [`Leaving::close_due`] must be called next; `None`: never.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.front().map(|(until_ns, _)| *until_ns)
    }
}

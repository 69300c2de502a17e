//! Sockets with messages that a turn had no time for.
//!
//! A read may bring a thousand messages, and each may cost a signature check or a broadcast. When a
//! turn has used its time, the bytes that are left wait with their connection, which is not read
//! meanwhile, behind the sockets that had to wait before it.

use std::collections::VecDeque;

use simurgh_reactor::{Key, Next};

use crate::shard::{Io, Shard};

/// The clock is looked at after messages from this size on, among which are joins with tokens.
const COSTLY_BYTES: usize = 128;

/// Whether a message of this many bytes may take longer than reading the clock is worth.
pub(super) fn is_costly(bytes: usize) -> bool {
    bytes >= COSTLY_BYTES
}

/// In the order in which they are served.
pub(crate) type Unfinished = VecDeque<Key>;

impl Shard {
    /// Keeps what was read of a connection for a later turn.
    #[cold]
    pub(super) fn finish_later(&mut self, io: &mut Io, key: Key, rest: &[u8]) {
        self.stash(io, key, rest);
        // What else holds the connection also resumes it.
        if !io.is_held(key) {
            io.hold(key);
            self.unfinished.get_or_insert_default().push_back(key);
        }
    }

    /// Goes on with connections that were not finished, each once, while the turn has time.
    pub(crate) fn go_on(&mut self, io: &mut Io) -> Next {
        let waiting = self.unfinished.as_ref().map_or(0, |unfinished| unfinished.len());
        for _ in 0..waiting {
            let first = self.unfinished.as_mut().and_then(|unfinished| unfinished.pop_front());
            let Some(key) = first else { break };
            let is_pending = io.conn_ref(key).is_none_or(|conn| conn.socket.phase().is_pending());
            // Whoever has held or released it meanwhile resumes it.
            if io.is_held(key) && !is_pending && !self.core.is_held_back(key) {
                io.release(key);
                self.resume(io, key);
            }
            if io.is_late() {
                break;
            }
        }
        self.unfinished.take_if(|unfinished| unfinished.is_empty());
        if self.unfinished.is_some() { Next::Now } else { Next::Idle }
    }
}

//! Connections that are given to the HTTP side, with the bytes read so far.
//!
//! The queue to the HTTP side holds some hundred kilobytes. When it is full a connection waits
//! here, in order and without being read; requests for the server's own paths come first. Its
//! timeout for a whole head continues. It also waits a moment for a place: an address that takes
//! more than its share loses places at once.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use simurgh_core::nanoseconds;
use simurgh_reactor::{HandOffError, Key, Next};

use super::upgrade::keep_head;
use super::waiting::take_passing;
use crate::shard::{Io, Passing, Shard, relay};

/// Connections that wait; further ones are refused.
const WAITING_MAX: usize = 1024;
/// When the way is tried again.
const AGAIN: Duration = Duration::from_millis(1);

/// How long a connection waits for a place.
const PLACE_WAIT: Duration = Duration::from_millis(100);

/// In the order in which they go, whether each is for one of the server's own paths, and since when
/// it waits, ns.
pub(crate) type HandingOff = VecDeque<(Key, bool, u64)>;

impl Shard {
    /// Gives the connection to the HTTP side, where some places are reserved for the server's own
    /// paths.
    pub(super) fn hand_off(&mut self, io: &mut Io, key: Key, head: &[u8], is_reserved: bool) {
        let is_first = is_reserved || self.handing_off.is_none();
        let since_ns = io.now().ns;
        if is_first && self.pass_on(io, key, head, is_reserved, since_ns) {
            return;
        }
        let waiting = self.handing_off.get_or_insert_default();
        if waiting.len() >= WAITING_MAX {
            return self.refuse_for_now(io, key);
        }
        match is_reserved {
            true => waiting.push_front((key, true, since_ns)),
            false => waiting.push_back((key, false, since_ns)),
        }
        keep_head(io, key, head.to_vec(), None);
        io.hold(key);
    }

    /// Goes on with the connections that wait.
    pub(crate) fn hand_off_waiting(&mut self, io: &mut Io) -> Next {
        while let Some(first) = self.handing_off.as_mut().and_then(|it| it.pop_front()) {
            let (key, is_reserved, since_ns) = first;
            let is_head = |passing: &Passing| matches!(passing, Passing::Head { .. });
            if let Some((before, Passing::Head { bytes, .. })) = take_passing(io, key, is_head) {
                io.release(key);
                let is_done = self.pass_on(io, key, &bytes, is_reserved, since_ns);
                if !is_done {
                    keep_head(io, key, bytes, None);
                    io.hold(key);
                }
                self.account_inbound(io, key, before);
                if !is_done {
                    self.handing_off.get_or_insert_default().push_front(first);
                    return Next::After(AGAIN);
                }
            } else if io.is_held(key) {
                // Its time was up.
                io.release(key);
            }
            if io.is_late() {
                return Next::Now;
            }
        }
        self.handing_off = None;
        Next::Idle
    }

    /// Whether the connection was passed on or refused; `false` if it has to wait.
    fn pass_on(
        &mut self,
        io: &mut Io,
        key: Key,
        head: &[u8],
        is_reserved: bool,
        since_ns: u64,
    ) -> bool {
        if !self.server.http_connections.take(is_reserved) {
            let is_over = io.now().ns.saturating_sub(since_ns) >= nanoseconds(PLACE_WAIT);
            if is_over {
                self.server.http_connections.refused.fetch_add(1, Relaxed);
                self.refuse_full(io, key);
            }
            return is_over;
        }
        let handed = match io.is_secure(key) {
            true => relay::begin(io, key, head),
            false => io.hand_off(key, head).map(drop),
        };
        let Err(error) = handed else { return true };
        self.server.http_connections.give_back();
        if error == HandOffError::Full {
            return false;
        }
        self.refuse_for_now(io, key);
        true
    }
}

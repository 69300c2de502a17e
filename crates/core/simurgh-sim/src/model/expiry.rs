//! Lifetimes of sockets, such as those of their tokens (PROTOCOL §7.7): a socket is closed with
//! 3000 when its time is over, at most as much later as PROTOCOL §7.2 allows.

use simurgh_core::{Reason, TICK, nanoseconds};

use super::{Call, Model};
use crate::limits::lifetime;
use crate::model::steps::Input;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    pub(crate) every_ns: u64,
    /// Whether the last tick had no time for all that is due: the next one follows at once.
    pub(crate) has_more: bool,
    sockets: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Time {
    ends_ns: Option<u64>,
    /// When its shard first ended a turn after that.
    due_ns: Option<u64>,
    /// It was over in this step, before a callback changed it.
    was_over: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expired {
    /// Sockets that were certainly closed because their time was over, and that may have been.
    sockets: (u64, u64),
    /// Channels that ended because of it, and that asked for it.
    channels: (u64, u64),
}

impl Expired {
    pub(crate) fn range(self) -> (u64, u64) {
        (self.sockets.0 + self.channels.0, self.sockets.1 + self.channels.1)
    }
}

impl Model {
    pub(crate) fn lives_for(&mut self, conn: u32, time_ns: Option<u64>) {
        self.counts.count("times of sockets set", 1);
        let (now_ns, step, was_over) = (self.now.ns, self.step, self.is_over(conn));
        let Some(it) = self.conn_mut(conn) else { return };
        if was_over {
            it.time.was_over = Some(step);
        }
        (it.time.ends_ns, it.time.due_ns) = (time_ns.map(|it| now_ns.saturating_add(it)), None);
        if !self.clock.sockets.contains(&conn) {
            self.clock.sockets.push(conn);
        }
    }

    pub(super) fn expires_in(&mut self, conn: u32, call: Call, in_closing: bool, word: u32) {
        let has_closed = self.now.closing.contains(&conn) && !in_closing;
        if call != Call::Terminate(Reason::Closed) && !has_closed {
            self.lives_for(conn, lifetime(word).map(nanoseconds));
        }
    }

    fn is_over(&self, conn: u32) -> bool {
        let ends_ns = self.conn(conn).and_then(|it| it.time.ends_ns);
        ends_ns.is_some_and(|it| it <= self.now.ns)
    }

    pub(super) fn has_expired(&mut self, conn: u32) -> bool {
        let was_over = self.conn(conn).and_then(|it| it.time.was_over) == Some(self.step);
        was_over || self.is_over(conn)
    }

    /// After a sweep of a shard no socket is open whose time was over long ago.
    pub(super) fn check_expired(&mut self, shard: Option<usize>) {
        if self.clock.sockets.is_empty() || self.clock.has_more {
            return;
        }
        let mut sockets = std::mem::take(&mut self.clock.sockets);
        let (now_ns, every_ns) = (self.now.ns, self.clock.every_ns);
        // The server counts in ticks, of which the first and the last are partial.
        let slack_ns = 2 * TICK.as_nanos() as u64;
        sockets.retain(|&conn| {
            let Some(it) = self.conns.get_mut(conn as usize).filter(|it| it.is_open) else {
                return false;
            };
            let ends_ns = it.time.ends_ns.map(|it| it.saturating_add(slack_ns));
            if Some(it.shard) != shard || ends_ns.is_none_or(|it| it > now_ns) {
                return true;
            }
            let due_ns = *it.time.due_ns.get_or_insert(now_ns);
            if now_ns - due_ns >= every_ns && now_ns > due_ns {
                let late = std::time::Duration::from_nanos(now_ns - due_ns);
                self.fail("expiry", format!("socket {conn} is open, late by {late:?}"));
            }
            true
        });
        self.clock.sockets = sockets;
    }

    pub(super) fn expires(&mut self, chan: u32, has_ended: bool) {
        let Some(conn) = self.chan(chan).map(|it| it.conn) else { return };
        let Some(Expired { channels, .. }) = self.shard_of_conn(conn).map(|it| &mut it.expired)
        else {
            return;
        };
        match has_ended {
            true => channels.0 += 1,
            false => channels.1 += 1,
        }
    }

    pub(super) fn may_have_expired(&mut self, conn: u32, has_expired: bool, is_sure: bool) {
        if !has_expired || self.input != Input::Tick {
            return;
        }
        self.counts.count("sockets whose time was over", 1);
        let Some(it) = self.shard_of_conn(conn) else { return };
        it.expired.sockets.0 += u64::from(is_sure);
        it.expired.sockets.1 += 1;
    }
}

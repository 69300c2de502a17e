//! The model: every socket, channel and broadcast as it must be, derived from the inputs of the
//! cores and the effects of the application, and compared with what clients see.
//!
//! It has no cursors, logs or slices: a broadcast that a shard accepts is at once in the queue of
//! each member, as in a mailbox of Phoenix. A callback becomes a [`Frame`]: its effects take place
//! in order, those of a nested callback first.
//!
//! A topic of a socket has two queues. `own` has everything in order, where no channel intercepts.
//! For a channel that intercepts, `out` has what its interceptor makes and what bypasses it; an
//! entry of `own` has a horizon, and follows all of `out` that was accepted before it.
//!
//! It is exact with two exceptions: what a socket is sent in the step in which it closes may be
//! missing, and an interceptor may get any part of what is broadcast in the step in which it ends.

mod accept;
mod calls;
mod expiry;
mod joins;
pub(crate) mod limits;
mod listeners;
pub(crate) mod presence;
mod seen;
mod steps;
mod waits;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use simurgh_core::{Reason, ReplyRef, Stop, Wire};
use simurgh_proto::message::Payload;

use crate::kit::delivery::{Delivery, DeliveryKind};
use crate::kit::findings::Findings;
use crate::kit::topics::{FIELD_BYTES_MAX, IDS, Topics};
use crate::kit::{EVENTS, NONE, payload, refs};
use crate::limits::{Limited, Limits};
pub(crate) use accept::{DISCONNECT, PUSHED};
pub(crate) use calls::{Action, Answer, Call, CallbackEnd, CallbackRecord};
use expiry::{Clock, Expired, Time};
pub(crate) use joins::Joining;
use limits::{Counted, RateUse};
pub(crate) use listeners::{LISTENER, ListenerState};
use presence::{Presence, View};
pub(crate) use steps::{Due, Input, Intent};
pub(crate) use waits::{Handler, Task};
use waits::{Waits, Work};

/// The channel that a join makes, which has no number yet.
pub(crate) const SPEAKER: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadInfo {
    pub(crate) topic: u8,
    pub(crate) event: u8,
    pub(crate) is_binary: bool,
    /// How many broadcasts led to it, one causing the next.
    pub(crate) depth: u8,
    pub(crate) except: u32,
    pub(crate) weight: u32,
    pub(crate) sum: u32,
    pub(crate) record: u32,
}

impl PayloadInfo {
    pub(crate) fn plain(topic: u8, depth: u8) -> Self {
        let (event, is_binary, except, record) = (PUSHED, false, NONE, NONE);
        Self { topic, event, is_binary, depth, except, weight: 0, sum: 0, record }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) own: VecDeque<Expected>,
    pub(crate) out: VecDeque<Expected>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) line: Delivery,
    pub(crate) step: u32,
    /// Of `own`: all of `out` below this comes first. Of `out`: its number.
    pub(crate) horizon: u64,
    pub(crate) is_broadcast: bool,
    pub(crate) is_optional: bool,
    /// Its interceptor does not intercept this event.
    pub(crate) passes: bool,
    /// Of presence: the channel, and the record.
    pub(crate) heard: Option<(u32, u32)>,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) shard: usize,
    pub(crate) wire: Wire,
    pub(crate) is_open: bool,
    pub(crate) id: Option<u8>,
    pub(crate) channels: Vec<(u8, u32)>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) awaiting: Option<Awaiting>,
    pub(crate) replaced: Option<Replaced>,
    pub(crate) waits: Waits,
    pub(crate) assigned: Option<u32>,
    /// Codes it may be closed with.
    pub(crate) codes: u32,
    /// Its use of rates, and the limit for which it is closed.
    pub(crate) said: Option<Box<RateUse>>,
    pub(crate) over: Option<Limited>,
    pub(crate) time: Time,
    pub(crate) is_disconnected: bool,
    pub(crate) closed_step: u32,
    /// Whether it was closed before all that was accepted was sent.
    pub(crate) is_cut: bool,
    pub(crate) has_said_close: bool,
    pub(crate) is_lost: bool,
}

#[derive(Debug)]
pub(crate) struct Awaiting {
    pub(crate) joining: Joining,
    pub(crate) replaced: Option<Replaced>,
    pub(crate) ticket: Option<u32>,
    pub(crate) since_tick: u32,
}

#[derive(Debug)]
pub(crate) struct Replaced {
    pub(crate) chan: u32,
    pub(crate) pushes: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Life {
    #[default]
    Unborn,
    Live,
    Ended,
}

#[derive(Debug, Default)]
pub(crate) struct Chan {
    pub(crate) conn: u32,
    pub(crate) topic: u8,
    pub(crate) life: Life,
    /// How many of [`EVENTS`] it intercepts, and bits of [`presence`].
    pub(crate) intercepts: u8,
    /// The join_ref of its pushes, and whether the client sent it.
    pub(crate) join_ref: u32,
    pub(crate) is_given: bool,
    pub(crate) pending: VecDeque<(u64, u32)>,
    pub(crate) relays: Vec<Relay>,
    pub(crate) must_end: Option<Reason>,
    /// The broadcast in whose interception it has ended itself.
    pub(crate) ended_in: Option<u64>,
    pub(crate) owes_after_join: bool,
    pub(crate) hibernates: bool,
    pub(crate) refs: Vec<(ReplyRef, u32)>,
    pub(crate) work: Work,
    pub(crate) view: View,
}

#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) topic: u8,
    pub(crate) pending: VecDeque<u32>,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) did: CallbackRecord,
    pub(crate) at: usize,
    /// What its channel must catch up with before it sends.
    pub(crate) horizon: Option<u64>,
    /// Its socket was about to close, and its channel caught up for that.
    pub(crate) in_closing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) members: Vec<Vec<u32>>,
    pub(crate) relays: Vec<Vec<u32>>,
    pub(crate) sockets: Vec<u32>,
    pub(crate) listeners: Vec<(u8, u32)>,
    pub(crate) accepted: u64,
    pub(crate) open: u64,
    pub(crate) channels: u64,
    /// Joins that were refused, and messages for topics that are not joined or unknown.
    pub(crate) refused: u64,
    pub(crate) unmatched: u64,
    pub(crate) refused_perhaps: u64,
    pub(crate) limited: Counted,
    pub(crate) expired: Expired,
    pub(crate) drains: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) topics: Topics,
    pub(crate) channels_max: usize,
    pub(crate) broadcast_bytes_max: usize,
    findings: Findings,
    pub(crate) seq: u64,
    pub(crate) conns: Vec<Conn>,
    pub(crate) chans: Vec<Chan>,
    pub(crate) made: Vec<PayloadInfo>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) running: Option<usize>,
    pub(crate) input: Input,
    pub(crate) now: Now,
    pub(crate) joining: Option<Joining>,
    pub(crate) prepared: Option<u32>,
    pub(crate) waiting: Vec<u32>,
    pub(crate) listeners: Vec<ListenerState>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) handlers: Vec<Handler>,
    /// Ticks for which a channel may hold its socket; the second once the client has shut its half.
    pub(crate) waits_max: [u32; 2],
    pub(crate) presence: Presence,
    pub(crate) limits: Option<Limits>,
    pub(crate) clock: Clock,
    /// Values of channels that are not dropped.
    pub(crate) alive: i64,
    pub(crate) seats: i64,
    /// Lists to be used again.
    pub(crate) spare: Vec<Vec<Action>>,
}

/// The results of the current step so far.
#[derive(Debug, Default)]
pub(crate) struct Now {
    /// [`Model::seq`] when the step began.
    pub(crate) seq: u64,
    pub(crate) tick: u32,
    pub(crate) ns: u64,
    pub(crate) ending: Vec<u32>,
    pub(crate) closed: Vec<u32>,
    pub(crate) closing: Vec<u32>,
    pub(crate) joined: Vec<u32>,
    pub(crate) publishers: Vec<u32>,
    pub(crate) waits: Vec<u32>,
    /// Channels that proceeded, and since when they had held their socket.
    pub(crate) proceeded: Vec<(u32, u32)>,
    /// Work that was notified, and work that had no channel to end with.
    pub(crate) told: Vec<u32>,
    pub(crate) unlinked: Vec<u32>,
    pub(crate) listeners: Vec<u32>,
}

impl Shard {
    fn new(topics: usize) -> Self {
        Self {
            members: vec![Vec::new(); topics],
            relays: vec![Vec::new(); topics],
            ..Self::default()
        }
    }

    fn is_empty(&self) -> bool {
        let lists = self.members.iter().chain(&self.relays).chain([&self.sockets]);
        lists.into_iter().all(Vec::is_empty) && self.open + self.channels == 0
    }
}

impl Deref for Model {
    type Target = Findings;

    fn deref(&self) -> &Findings {
        &self.findings
    }
}

impl DerefMut for Model {
    fn deref_mut(&mut self) -> &mut Findings {
        &mut self.findings
    }
}

impl Model {
    pub(crate) fn new(
        topics: Topics,
        shards: usize,
        channels_max: usize,
        bytes_max: usize,
    ) -> Self {
        let shards = (0..shards).map(|_| Shard::new(topics.names.len())).collect();
        // The first are the `disconnect`s of socket ids, whose payload is empty.
        let disconnect = |n| {
            let topic = topics.id(n);
            let weight = (2 + topics.name(topic).len() + "disconnect".len() + 64) as u32;
            let event = DISCONNECT;
            PayloadInfo { event, weight, ..PayloadInfo::plain(topic, 9) }
        };
        let made = (0..IDS).map(disconnect).collect();
        Self {
            topics,
            channels_max,
            broadcast_bytes_max: bytes_max,
            seq: 1,
            made,
            shards,
            ..Self::default()
        }
    }

    pub(crate) fn make(&mut self, made: PayloadInfo) -> u32 {
        self.made.push(made);
        self.made.len() as u32 - 1
    }

    pub(crate) fn payload(
        &mut self,
        made: PayloadInfo,
        word: u32,
        pad: usize,
    ) -> (u32, Payload<'static>) {
        let id = self.make(made);
        let payload = payload::make(id, word, pad, made.is_binary);
        let weight = match EVENTS.get(usize::from(made.event)) {
            Some(event) => self.weight(made.topic, event, &payload),
            None => 0,
        };
        let made = &mut self.made[id as usize];
        (made.sum, made.weight) = (payload::sum(&payload), weight);
        (id, payload)
    }

    /// The bytes a broadcast is charged with; 0 for one that is too large, or has too long a topic.
    pub(crate) fn weight(&self, topic: u8, event: &str, payload: &Payload<'_>) -> u32 {
        let bytes = payload.len();
        let weight = bytes + self.topics.name(topic).len() + event.len() + 64;
        let is_refused = bytes > self.broadcast_bytes_max || self.topics.over == Some(topic);
        if is_refused { 0 } else { weight as u32 }
    }

    /// The number and the word of a payload, which must have the very bytes it was made of.
    pub(crate) fn given(&mut self, payload: &Payload<'_>) -> (u32, u32) {
        let (id, word) = payload::parse(payload);
        if self.made(id).is_some_and(|it| it.sum != payload::sum(payload)) {
            self.fail("payload", format!("#{id} is handed over in other bytes"));
        }
        (id, word)
    }

    pub(crate) fn made(&self, id: u32) -> Option<&PayloadInfo> {
        self.made.get(id as usize)
    }

    pub(crate) fn conn(&self, conn: u32) -> Option<&Conn> {
        self.conns.get(conn as usize)
    }

    pub(crate) fn conn_mut(&mut self, conn: u32) -> Option<&mut Conn> {
        self.conns.get_mut(conn as usize)
    }

    pub(crate) fn chan(&self, chan: u32) -> Option<&Chan> {
        self.chans.get(chan as usize)
    }

    pub(crate) fn chan_mut(&mut self, chan: u32) -> Option<&mut Chan> {
        self.chans.get_mut(chan as usize)
    }

    pub(crate) fn is_live(&self, chan: u32) -> bool {
        self.chan(chan).is_some_and(|it| it.life == Life::Live)
    }

    pub(crate) fn joined(&self, conn: u32, topic: u8) -> Option<u32> {
        let channels = &self.conn(conn)?.channels;
        channels.iter().find(|(it, _)| *it == topic).map(|(_, chan)| *chan)
    }

    pub(crate) fn has_no_form(&self, wire: Wire, topic: u8, line: &Delivery) -> bool {
        let is_wide = |it: u32| refs::field_bytes(it) > FIELD_BYTES_MAX;
        match wire {
            Wire::V1 => true,
            Wire::V2 => {
                self.topics.is_wide(topic) || is_wide(line.join_ref) || is_wide(line.msg_ref)
            }
            Wire::Plain | Wire::Values => false,
        }
    }

    pub(crate) fn shard_of_conn(&mut self, conn: u32) -> Option<&mut Shard> {
        let shard = self.conn(conn)?.shard;
        self.shards.get_mut(shard)
    }

    /// New shards take the places of those that have all ended. What clients have received from the
    /// old shards, and are still to receive, remains; their channels cannot be reached any more.
    pub(crate) fn restart(&mut self) {
        if let Some(shard) = self.shards.iter().position(|it| !it.is_empty()) {
            self.fail("left", format!("shard {shard} has ended, and not all that was on it"));
        }
        if !self.waiting.is_empty() {
            self.findings.fail("left", format!("{:?} wait for joins", self.waiting));
        }
        let topics = self.topics.names.len();
        self.shards.iter_mut().for_each(|it| *it = Shard::new(topics));
        self.chans.iter_mut().for_each(|it| it.refs.clear());
        self.handlers.clear();
        self.presence.restart();
        self.counts.count("restarts", 1);
    }

    pub(crate) fn new_chan(&mut self, conn: u32, topic: u8, intercepts: u8) -> u32 {
        self.alive += 1;
        self.chans.push(Chan { conn, topic, intercepts, ..Chan::default() });
        self.chans.len() as u32 - 1
    }

    pub(crate) fn open(&mut self, shard: usize, wire: Wire, id: Option<u8>) -> u32 {
        let conn = self.conns.len() as u32;
        let queues = (0..self.topics.names.len()).map(|_| Queue::default()).collect();
        self.conns.push(Conn {
            shard,
            wire,
            is_open: true,
            id,
            channels: Vec::new(),
            queues,
            awaiting: None,
            replaced: None,
            waits: Waits::default(),
            assigned: None,
            codes: 0,
            said: None,
            over: None,
            time: Time::default(),
            is_disconnected: false,
            closed_step: 0,
            is_cut: false,
            has_said_close: false,
            is_lost: false,
        });
        self.seats += 1;
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.open += 1;
            shard.sockets.push(conn);
        }
        conn
    }
}

/// The bit of a close code in [`Conn::codes`].
pub(crate) fn code_bit(code: u16) -> u32 {
    1 << (code.wrapping_sub(1000) & 31)
}

/// The notice to the client that a channel ended for this reason, if there is one.
pub(crate) fn notice_of(reason: Reason) -> Option<DeliveryKind> {
    match reason {
        Reason::Left | Reason::Stopped(Stop::Normal | Stop::Shutdown) => Some(DeliveryKind::Close),
        Reason::Stopped(Stop::Abnormal | Stop::Expired) | Reason::Crashed => {
            Some(DeliveryKind::Error)
        }
        Reason::Rejoined | Reason::Closed => None,
    }
}

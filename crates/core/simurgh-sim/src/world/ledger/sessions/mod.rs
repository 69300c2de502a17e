//! Sessions on one node: what each client is to receive, and which callbacks are due.
//!
//! Nothing here predicts how a shard works. The ledger has the order in which each shard accepted
//! broadcasts, what the callbacks did, and what each client was promised in reply. It follows from
//! these what a client may see: each broadcast once, in the shard's order, from its join to its
//! end; each push and reply once, in their order, behind all that was accepted in earlier steps and
//! before all that was accepted in later ones.
//!
//! In the step in which a socket closes, messages may be missing.

mod calls;
mod joins;
mod limits;
mod outside;
mod requests;
mod steps;
mod streams;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use simurgh_core::{Broadcast, ChannelHandle, ChannelId, Reason, ReplyRef, Wire};

pub(crate) use self::calls::{Act, Call, CallEnd, Called};
pub(crate) use self::joins::{Answer, Joining};
use self::limits::{KINDS, RateUse};
pub(crate) use self::limits::{Limited, Size};
pub(crate) use self::outside::ListenerGuard;
use self::outside::{Listening, Told};
pub(crate) use self::requests::Due;
pub(crate) use self::steps::{Input, Time, ticks};
use super::{BroadcastInfo, LineEntry};
use crate::kit::delivery::Delivery;
use crate::kit::presence::PresenceEvent;
use crate::kit::presences::View;
use crate::kit::topics::{IDS, Topics};
use crate::kit::{NONE, payload};
use crate::world::plan::Plan;
use crate::world::single::Actor;

/// Bits of [`Chan::intercepts`] besides the number of broadcasts' events.
pub(crate) const INTERCEPTS_DIFF: u8 = 4;
pub(crate) const INTERCEPTS_STATE: u8 = 8;
/// Left out of a broadcast: the channel that its join makes.
pub(crate) const JOINER: u32 = NONE - 1;
/// The event of a broadcast that closes sockets.
pub(crate) const DISCONNECT: &str = "disconnect";

/// A reply or a push that a client is to be sent.
#[derive(Clone, Copy, Debug)]
struct Own {
    line: Delivery,
    step: u32,
    /// What its shard had accepted before this is sent before it.
    from: usize,
    /// The channel that begins with it.
    begins: u32,
    /// Whether the current channel ends with it.
    ends: bool,
}

/// What a client is sent on one topic.
#[derive(Debug)]
struct Stream {
    own: VecDeque<Own>,
    chan: u32,
    /// The place of the next broadcast in its shard's order.
    cursor: usize,
}

impl Default for Stream {
    fn default() -> Self {
        Self { own: VecDeque::new(), chan: NONE, cursor: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) shard: usize,
    pub(crate) wire: Wire,
    pub(crate) id: Option<u8>,
    pub(crate) is_open: bool,
    /// The step in which it closed.
    closed_step: u32,
    streams: Vec<Stream>,
    pub(crate) channels: Vec<(u8, u32)>,
    /// A join that is not decided, its ticket, and since which tick.
    awaiting: Option<(Joining, Option<u32>, u32)>,
    /// The channel that a join replaces, and what it pushed at its end.
    replaced: Option<(u32, Vec<Delivery>)>,
    /// The channel that holds it, and since which tick.
    full: Option<(u32, u32)>,
    pub(crate) is_reading: bool,
    pub(crate) has_shut: bool,
    /// The value that is kept with it, the last step in which it was replaced, and others of that:
    /// callbacks may run before the effects of those that began earlier.
    pub(crate) assigned: Option<u32>,
    assigned_step: u32,
    assigned_before: Vec<Option<u32>>,
    /// Codes that it may be closed with.
    pub(crate) codes: u32,
    over: Option<Limited>,
    rates: Option<Box<RateUse>>,
    time: Time,
    is_disconnected: bool,
    /// It was closed before all that was accepted was sent.
    pub(crate) is_cut: bool,
    /// Its client receives nothing more.
    pub(crate) is_lost: bool,
    has_received_close: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Life {
    #[default]
    Unborn,
    Live,
    Ended,
}

/// A further topic of a channel.
#[derive(Clone, Copy, Debug)]
struct Relay {
    topic: u8,
    /// The place of the next broadcast that it is to receive.
    from: usize,
    /// The step in which it subscribed.
    since: u32,
    /// Callbacks within each other subscribed and unsubscribed: it may have ended.
    is_unsure: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Chan {
    pub(crate) conn: u32,
    pub(crate) topic: u8,
    pub(crate) life: Life,
    /// How many of the `EVENTS` it intercepts, and bits of presence.
    intercepts: u8,
    join_ref: u32,
    /// Whether its client sent the join_ref.
    is_given: bool,
    /// Its part of its shard's order; the end is `None` while it lives.
    from: usize,
    end: Option<usize>,
    ended_step: u32,
    /// The next that it is to intercept, and what it sent for earlier ones, by their places.
    out_cursor: usize,
    outs: VecDeque<(usize, Delivery)>,
    relays: Vec<Relay>,
    /// Reasons for which it may end.
    must_end: Vec<Reason>,
    has_ended_itself: bool,
    owes_after_join: bool,
    hibernates: bool,
    /// Messages that are not answered yet.
    pub(crate) refs: Vec<(ReplyRef, u32)>,
    /// Messages on their way to it, and the refs of answers.
    infos: VecDeque<u32>,
    tasks: Vec<u32>,
    view: View,
    has_asked: bool,
}

/// Counts of a shard that its metrics must equal.
#[derive(Debug, Default)]
struct ShardCounts {
    accepted: u64,
    open: u64,
    channels: u64,
    refused: u64,
    /// Refusals that a closing socket may have prevented.
    refused_perhaps: u64,
    unmatched: u64,
    limited: [u64; KINDS],
    /// Expirations, at least and at most.
    expired: (u64, u64),
    drains: bool,
    sockets: Vec<u32>,
}

/// The current step.
#[derive(Debug, Default)]
struct Now {
    input: Input,
    tick: u32,
    due: Option<Due>,
    joining: Option<Joining>,
    /// For each callback the socket of its channel, and its broadcasts that are to be accepted:
    /// those of later callbacks come first.
    pending: Vec<(u32, VecDeque<u32>)>,
    /// Calls of presence that are to be posted, and their channels.
    calls: Vec<(u32, Act)>,
    /// Channels that held or released their sockets, and those sockets.
    holds: Vec<(u32, u32)>,
    /// Channels that subscribed or unsubscribed, topics, and the numbers of the callbacks.
    relays: Vec<(u32, Act, usize)>,
    /// Channels that let their sockets be read again, and since when they had held them.
    proceeded: Vec<(u32, u32)>,
    ending: Vec<u32>,
    closed: Vec<u32>,
    closing: Vec<u32>,
    joined: Vec<u32>,
    publishers: Vec<u32>,
    /// Works that were notified, and works without a channel.
    told: Vec<u32>,
    unlinked: Vec<u32>,
    listeners: Vec<u32>,
}

#[derive(Debug, Default)]
struct Task {
    chan: u32,
    is_finished: bool,
    is_notified: bool,
}

#[derive(Default)]
pub(crate) struct Sessions {
    pub(crate) topics: Topics,
    bytes_max: usize,
    pub(crate) conns: Vec<Conn>,
    pub(crate) chans: Vec<Chan>,
    pub(crate) handles: HashMap<u32, ChannelHandle<Actor>>,
    names: HashMap<ChannelId, u32>,
    shards: Vec<ShardCounts>,
    now: Now,
    /// Events of presence by the numbers of their payloads.
    events: HashMap<u32, Arc<PresenceEvent>>,
    told: Vec<Told>,
    /// The last event for all.
    last_event: Option<Arc<Broadcast>>,
    listeners: Vec<Listening>,
    tasks: Vec<Task>,
    waiting: Vec<u32>,
    expiring: Vec<u32>,
    /// Whether the last tick had no time for all that is due.
    pub(crate) has_more: bool,
    /// A shard has ended, and what its homes knew is lost.
    is_partial: bool,
    /// Values of channels that are not dropped, values kept with sockets, and prepared ones.
    pub(crate) alive: i64,
    pub(crate) assigned: u32,
    pub(crate) prepared: Option<u32>,
}

impl Sessions {
    pub(crate) fn new(plan: &Plan) -> Self {
        let Some(single) = &plan.single else { return Self::default() };
        let (topics, shards) = (single.topics(), plan.nodes[0]);
        Self {
            told: vec![Told::default(); topics.names.len()],
            bytes_max: plan.config.broadcast_bytes_max(),
            shards: (0..shards).map(|_| ShardCounts::default()).collect(),
            topics,
            ..Self::default()
        }
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
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

    fn chan_mut(&mut self, chan: u32) -> Option<&mut Chan> {
        self.chans.get_mut(chan as usize)
    }

    pub(crate) fn is_live(&self, chan: u32) -> bool {
        self.chan(chan).is_some_and(|chan| chan.life == Life::Live)
    }

    pub(crate) fn joined(&self, conn: u32, topic: u8) -> Option<u32> {
        let channels = &self.conn(conn)?.channels;
        channels.iter().find(|(joined, _)| *joined == topic).map(|(_, chan)| *chan)
    }

    pub(crate) fn is_closing(&self, conn: u32) -> bool {
        self.now.closing.contains(&conn)
    }

    /// Its socket is to close in this step.
    pub(crate) fn may_close(&mut self, conn: u32, code: u16) {
        if let Some(conn) = self.conns.get_mut(conn as usize) {
            conn.codes |= code_bit(code);
        }
    }

    fn must_close(&mut self, conn: u32, code: u16) {
        self.may_close(conn, code);
        self.now.closing.push(conn);
    }

    pub(crate) fn shard_of(&self, conn: u32) -> usize {
        self.conn(conn).map_or(0, |conn| conn.shard)
    }

    pub(crate) fn name_channel(&mut self, name: ChannelId, chan: u32) {
        self.names.insert(name, chan);
    }

    pub(crate) fn open(&mut self, shard: usize, wire: Wire, id: Option<u8>) -> u32 {
        let streams = self.topics.names.iter().map(|_| Stream::default()).collect();
        self.conns.push(Conn {
            shard,
            wire,
            id,
            is_open: true,
            closed_step: u32::MAX,
            streams,
            channels: Vec::new(),
            awaiting: None,
            replaced: None,
            full: None,
            is_reading: false,
            has_shut: false,
            assigned: None,
            assigned_step: 0,
            assigned_before: Vec::new(),
            codes: 0,
            over: None,
            rates: None,
            time: Time::default(),
            is_disconnected: false,
            is_cut: false,
            is_lost: false,
            has_received_close: false,
        });
        let conn = self.conns.len() as u32 - 1;
        self.shards[shard].open += 1;
        self.shards[shard].sockets.push(conn);
        conn
    }

    pub(crate) fn new_chan(&mut self, conn: u32, topic: u8, intercepts: u8) -> u32 {
        self.alive += 1;
        self.chans.push(Chan { conn, topic, intercepts, ..Chan::default() });
        self.chans.len() as u32 - 1
    }
}

impl Chan {
    fn takes(&self, entry: &LineEntry) -> bool {
        match entry.word {
            b'D' => self.intercepts & INTERCEPTS_DIFF != 0,
            b'S' => self.intercepts & INTERCEPTS_STATE != 0,
            b'U' => false,
            word => word.wrapping_sub(b'a') < self.intercepts & 3,
        }
    }

    /// Whether it may not see all events of presence.
    fn is_blind(&self) -> bool {
        self.intercepts & (INTERCEPTS_DIFF | INTERCEPTS_STATE) != 0
    }
}

/// The bit of a close code in [`Conn::codes`].
pub(crate) fn code_bit(code: u16) -> u32 {
    1 << (code.wrapping_sub(1000) & 31)
}

/// The broadcasts that disconnect the ids of sockets: they have the first numbers.
pub(crate) fn disconnects(topics: &Topics) -> impl Iterator<Item = BroadcastInfo> + '_ {
    (0..IDS).map(|n| {
        let topic = topics.id(n);
        let weight = (2 + topics.name(topic).len() + DISCONNECT.len() + 64) as u32;
        BroadcastInfo { event: DISCONNECT, weight, ..BroadcastInfo::new(usize::from(topic), 0) }
    })
}

/// The number of a broadcast.
pub(crate) fn number_of(broadcast: &Broadcast) -> u32 {
    match broadcast.event() {
        // Its payload is empty.
        DISCONNECT => payload::number(broadcast.topic().as_bytes().get(4..).unwrap_or(&[])).0,
        _ => payload::parse(broadcast.payload()).0,
    }
}

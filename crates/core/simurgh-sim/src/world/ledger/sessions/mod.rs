//! Sessions: what each client is to receive, and which callbacks are due.
//!
//! Nothing here predicts how a shard works. The ledger has the order in which each shard accepted
//! broadcasts, what the callbacks did, and what each client was promised in reply. It follows from
//! these what a client may see: each broadcast once, in the shard's order, from its join to its
//! end; each push and reply once, in their order, behind all that was accepted in earlier steps and
//! before all that was accepted in later ones.
//!
//! In the step in which a socket closes, messages may be missing. On topics that have a history,
//! pushes and replies wait for broadcasts to be stored, and may be dropped if they are not.

mod calls;
mod limits;
mod outside;
mod requests;
mod steps;
pub(super) mod streams;

use super::*;
pub(crate) use crate::world::ledger::sessions::calls::{Act, Call, CallEnd, Called};
use crate::world::ledger::sessions::limits::{LIMITS, RateUse};
pub(crate) use crate::world::ledger::sessions::limits::{Limited, Size};
pub(crate) use crate::world::ledger::sessions::outside::ListenerGuard;
use crate::world::ledger::sessions::outside::{Listening, Told};
pub(crate) use crate::world::ledger::sessions::requests::{Answer, Awaiting, Due, Joining};
pub(crate) use crate::world::ledger::sessions::steps::{Input, Time, ticks};

/// Bits of [`Chan::intercepts`] besides the number of broadcasts' events.
pub(crate) const INTERCEPTS_DIFF: u8 = 4;
pub(crate) const INTERCEPTS_STATE: u8 = 8;
/// Left out of a broadcast: the channel that its join makes.
pub(crate) const JOINER: u32 = NONE - 1;
/// The event of a broadcast that closes sockets.
pub(crate) const DISCONNECT: &str = "disconnect";

/// A reply or a push that a client is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    line: Delivery,
    step: u32,
    /// What its shard had accepted before this is sent before it.
    from: usize,
    /// The channel that begins with it; `NONE` if the current one ends.
    chan: Option<u32>,
    /// It waits until a broadcast is stored, and may be dropped.
    is_late: bool,
}

/// What a client is sent on one topic.
#[derive(Debug, Default)]
struct Stream {
    own: VecDeque<Own>,
    chan: Option<u32>,
    /// The place of the next broadcast in its shard's order.
    cursor: usize,
}

/// A channel that its client has joined again, and what it pushed as it ended.
type Replaced = (u32, Vec<Delivery>);

#[derive(Debug, Default)]
pub(crate) struct Conn {
    /// Its shard, among all shards.
    pub(crate) shard: usize,
    pub(crate) client: u32,
    pub(crate) wire: Wire,
    pub(crate) id: Option<u8>,
    pub(crate) is_open: bool,
    closed_step: u32,
    streams: Vec<Stream>,
    pub(crate) channels: Vec<(u8, u32)>,
    awaiting: Option<Awaiting>,
    /// The refs of its client's last joins, by topic; 0 for none.
    pub(crate) joins: Vec<u32>,
    /// A join that was admitted and waits for something else, with its channel and its reply.
    pub(crate) admitted: Option<(Joining, u32, u32)>,
    /// The channel that a join replaces, and what it pushed at its end.
    replaced: Option<Replaced>,
    /// Refs of joins that timed out.
    timed_out: Vec<(u32, Option<Replaced>)>,
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
    pub(crate) infos: VecDeque<u32>,
    tasks: Vec<u32>,
    pub(crate) view: View,
    has_asked: bool,
}

/// Counts of a shard that its metrics must equal.
#[derive(Debug, Default)]
pub(crate) struct ShardCounts {
    /// The start of its node.
    start: usize,
    accepted: u64,
    refused: u64,
    /// Refusals that a closing socket may have prevented.
    refused_perhaps: u64,
    unmatched: u64,
    limited: [u64; LIMITS],
    /// Expirations, at least and at most.
    expired: (u64, u64),
    pub(crate) drains: bool,
    pub(crate) sockets: Vec<u32>,
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
    /// What a callback has done waits until its broadcast is stored.
    is_late: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Task {
    chan: u32,
    is_finished: bool,
    pub(crate) is_notified: bool,
}

#[derive(Default)]
pub(crate) struct Sessions {
    pub(crate) bytes_max: usize,
    pub(crate) conns: Vec<Conn>,
    pub(crate) chans: Vec<Chan>,
    pub(crate) handles: HashMap<u32, ChannelHandle<Actor>>,
    /// By the start of its node and its name.
    names: HashMap<(usize, ChannelId), u32>,
    pub(crate) shards: Vec<ShardCounts>,
    now: Now,
    /// Events of presence by the numbers of their payloads.
    events: HashMap<u32, Arc<PresenceEvent>>,
    told: Vec<Told>,
    last_event: Option<Arc<Broadcast>>,
    pub(crate) listeners: Vec<Listening>,
    pub(crate) tasks: Vec<Task>,
    /// Whether the last tick had no time for all that is due.
    pub(crate) has_more: bool,
    /// A shard has ended, and what its homes knew is lost.
    pub(crate) is_partial: bool,
    /// The last value kept with a socket, and a value prepared from the current message.
    pub(crate) assigned: u32,
    pub(crate) prepared: Option<u32>,
}

impl Sessions {
    pub(crate) fn new(plan: &Plan) -> Self {
        let told = vec![Told::default(); plan.topics.names.len()];
        Self { told, bytes_max: plan.config.broadcast_bytes_max(), ..Self::default() }
    }

    pub(super) fn add_shards(&mut self, start: usize, count: usize) {
        // Homes of another process know nothing.
        self.told.fill(Told::default());
        self.is_partial = false;
        let shard = || ShardCounts { start, ..ShardCounts::default() };
        self.shards.extend((0..count).map(|_| shard()));
    }

    /// A node has ended, with all that was on these shards.
    pub(super) fn node_ended(&mut self, shards: Range<usize>) {
        let Self { conns, chans, handles, listeners, .. } = self;
        for it in conns.iter_mut().filter(|it| it.is_open && shards.contains(&it.shard)) {
            (it.is_open, it.is_lost) = (false, true);
            it.channels.clear();
        }
        let is_over = |conn: u32| conns.get(conn as usize).is_none_or(|conn| !conn.is_open);
        for (chan, it) in (0..).zip(chans).filter(|(_, it)| is_over(it.conn)) {
            it.life = Life::Ended;
            handles.remove(&chan);
        }
        let listeners = listeners.iter_mut().filter(|it| shards.contains(&it.shard));
        listeners.for_each(|it| it.is_on = false);
        self.shards[shards].iter_mut().for_each(|shard| shard.sockets.clear());
    }

    pub(crate) fn start_of(&self, shard: usize) -> usize {
        self.shards.get(shard).map_or(0, |shard| shard.start)
    }

    pub(crate) fn client_of(&self, chan: u32) -> Option<u32> {
        Some(self.conn(self.chan(chan)?.conn)?.client)
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

    pub(crate) fn is_live(&self, chan: u32) -> bool {
        self.chan(chan).is_some_and(|chan| chan.life == Life::Live)
    }

    pub(crate) fn joined(&self, conn: u32, topic: u8) -> Option<u32> {
        let channels = &self.conn(conn)?.channels;
        channels.iter().find(|(joined, _)| *joined == topic).map(|(_, chan)| *chan)
    }

    /// Whether it is not known if some channel receives the broadcasts of a further topic.
    pub(crate) fn is_unsure(&self, topic: u8) -> bool {
        let live = self.chans.iter().filter(|chan| chan.life == Life::Live);
        live.flat_map(|chan| &chan.relays).any(|relay| relay.is_unsure && relay.topic == topic)
    }

    pub(crate) fn is_closing(&self, conn: u32) -> bool {
        self.now.closing.contains(&conn)
    }

    /// Its socket is to close in this step.
    pub(crate) fn may_close(&mut self, conn: u32, code: u16) {
        self.conn_mut(conn).into_iter().for_each(|conn| conn.codes |= code_bit(code));
    }

    /// Its socket closes at once, for what came in.
    pub(crate) fn cut_with(&mut self, conn: u32, code: u16) {
        self.may_close(conn, code);
        self.conns[conn as usize].is_cut = true;
    }

    fn must_close(&mut self, conn: u32, code: u16) {
        self.may_close(conn, code);
        self.now.closing.push(conn);
    }

    pub(crate) fn shard_of(&self, conn: u32) -> usize {
        self.conn(conn).map_or(0, |conn| conn.shard)
    }

    pub(crate) fn name_channel(&mut self, name: ChannelId, chan: u32) {
        let shard = self.chan(chan).map_or(0, |chan| self.shard_of(chan.conn));
        self.names.insert((self.start_of(shard), name), chan);
    }

    pub(crate) fn open(&mut self, shard: usize, client: u32, wire: Wire, id: Option<u8>) -> u32 {
        let topics = self.told.len();
        self.conns.push(Conn {
            shard,
            client,
            wire,
            id,
            is_open: true,
            closed_step: u32::MAX,
            streams: (0..topics).map(|_| Stream::default()).collect(),
            joins: vec![0; topics],
            ..Conn::default()
        });
        let conn = self.conns.len() as u32 - 1;
        self.shards[shard].sockets.push(conn);
        conn
    }

    pub(crate) fn next_assigned(&mut self) -> u32 {
        self.assigned += 1;
        self.assigned
    }

    pub(crate) fn new_chan(&mut self, conn: u32, topic: u8, intercepts: u8) -> u32 {
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

pub(crate) fn number_of(broadcast: &Broadcast) -> u32 {
    match broadcast.event() {
        // Its payload is empty.
        DISCONNECT => payload::number(broadcast.topic().as_bytes().get(4..).unwrap_or(&[])).0,
        _ => payload::parse(broadcast.payload()).0,
    }
}

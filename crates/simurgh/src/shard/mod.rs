//! A shard: one thread's connections, memberships and subscriber tables, and what it does with
//! them.
//!
//! The data's way: bytes come in [`Handler::readable`]; before the upgrade they belong to
//! `upgrade`, afterwards `frames` takes WebSocket messages from them (`inbound` keeps count of
//! those that are not whole) and `dispatch` decides by PROTOCOL §5–§7 what each is; what has to be
//! waited for is in `decision`; `callback` runs the application's code and carries out its
//! effects; broadcasts are posted to all shards (`publish`), appended to the logs of their topics
//! (`topics`, `log`) and leave in slices at the end of the turn (`fanout`), which publishers wait
//! for that are faster than their readers (`flow`); `lifecycle` holds what comes with time:
//! deadlines, closing, draining; `driven` is the transport of sockets that a driver in this process
//! has instead of a network; `observed` tells somebody who looks. Nothing here is shared with
//! another thread: the one door is [`Mail`].

mod batch;
mod callback;
mod conn;
mod decision;
mod dispatch;
mod driven;
mod fanout;
mod flow;
mod frames;
mod hibernation;
mod inbound;
mod lifecycle;
mod log;
mod members;
mod observed;
mod pages;
mod parts;
mod permits;
mod publish;
mod topics;
mod upgrade;

use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use simurgh_proto::message::Payload;
use simurgh_proto::ws::{self, CloseCode};
use simurgh_reactor::{Accepted, Closed, Handler, Key, LocalOutput, Next, Slow};

use crate::channel::{Reply, Stop};
use crate::context::{Effect, ReplyRef};
use crate::driver::Order;
use crate::hub::Hub;
use crate::metrics::ShardMetrics;
use crate::observe::Ask;
pub(crate) use conn::MOUNTS_MAX;
use conn::{Conn, Phase};
use decision::Decided;
use driven::Driven;
use fanout::Fanout;
pub(crate) use flow::Posted;
use hibernation::Hibernation;
use inbound::Inbound;
pub(crate) use lifecycle::DRAIN_GRACE;
use lifecycle::Lifecycle;
use members::Memberships;
use observed::Observed;
pub(crate) use permits::Permits;
use publish::Held;
use topics::{Member, Topics};

/// What a handler of the reactor is handed: the sockets of this shard.
pub(crate) type Io = simurgh_reactor::Io<Conn>;

/// Of a connection that idles: its record with the reactor's part.
pub(crate) const CONNECTION_BYTES: usize = size_of::<Conn>() + 24;
/// Of a membership with its entry in the topic's table.
pub(crate) const SUBSCRIPTION_BYTES: usize = size_of::<members::Membership>() + size_of::<Member>();
/// Of a topic with its places in the tables and a name of usual length.
pub(crate) const TOPIC_BYTES: usize = size_of::<topics::Topic>() + 100;

/// Names a channel across shards; a reused slot never answers to an old name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChannelId {
    pub(crate) shard: u16,
    pub(crate) membership: u32,
    pub(crate) generation: u32,
}

/// All that other threads may ask of a shard.
pub(crate) enum Mail {
    /// A broadcast made elsewhere; its weight was charged to this mailbox.
    Broadcast(Posted),
    /// For one channel.
    ToChannel(ChannelId, ToChannel),
    /// What a socket waits for has come; the number tells it from what it waited for before.
    Decided(Key, u32, Decided),
    /// What a driver asks of its sockets.
    Drive(Box<Order>),
    /// A permit to fan out, for which this shard stood in line.
    Permit,
    /// Somebody looks, or disconnects what he has looked at.
    Observe(Box<Ask>),
    /// Asks nothing: that it is taken shows that the shard lives.
    Pulse,
    /// Stop accepting, close everything with 1012 over this time, then end.
    Drain(Duration),
    /// End now.
    Stop,
}

/// What a [`ChannelHandle`](crate::ChannelHandle) sends.
pub(crate) enum ToChannel {
    Info(Box<dyn Any + Send>),
    Reply(ReplyRef, Reply),
    Push(Box<str>, Payload<'static>),
    Stop(Stop),
}

/// The state of one shard.
pub(crate) struct Shard {
    hub: Arc<Hub>,
    index: u16,
    metrics: Arc<ShardMetrics>,
    topics: Topics,
    members: Memberships,
    fanout: Fanout,
    lifecycle: Lifecycle,
    hibernation: Hibernation,
    /// None until there is a driver.
    driven: Option<Box<Driven>>,
    /// Lists of effects, kept so that callbacks need not allocate them.
    spare_effects: Vec<Vec<Effect>>,
    /// Sockets that are not read because they published more than is under way may be.
    held: VecDeque<Held>,
    inbound: Inbound,
    /// What the last thing that a socket waits for was named.
    tickets: u32,
    /// Only while somebody looks.
    observed: Option<Box<Observed>>,
}

const _: () = assert!(size_of::<Shard>() <= 1024, "a shard without clients is budgeted at 1 KiB");

impl Shard {
    pub(crate) fn new(hub: Arc<Hub>, index: u16) -> Self {
        let metrics = hub.metrics.get(usize::from(index)).cloned().unwrap_or_default();
        Self {
            fanout: Fanout::new(),
            lifecycle: Lifecycle::new(&hub),
            hibernation: Hibernation::new(&hub),
            driven: None,
            hub,
            index,
            metrics,
            topics: Topics::default(),
            members: Memberships::default(),
            spare_effects: Vec::new(),
            held: VecDeque::new(),
            inbound: Inbound::default(),
            tickets: 0,
            observed: None,
        }
    }
}

impl Shard {
    /// Bytes of a client, in whichever state its connection is.
    fn readable_bytes(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        let Some(conn) = io.conn(key) else { return };
        let before = conn.inbound_bytes();
        match conn.phase {
            Phase::Head | Phase::Full => self.head(io, key, data),
            Phase::Open | Phase::Closing => self.frames(io, key, data),
            Phase::Pending => self.stash(io, key, data),
            Phase::Ending => {}
        }
        self.account_inbound(io, key, before);
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.put_permit_back();
        if let Some(ended) = self.hub.ended.get(usize::from(self.index)) {
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        // Applications' panics are caught; this would be one of our own. A server of which a part
        // is silently dead helps nobody: all end, and whoever supervises the process starts
        // it again.
        if std::thread::panicking() {
            for shard in 0..self.hub.mailboxes.len() {
                self.hub.post(shard as u16, Mail::Stop);
            }
        }
    }
}

impl Handler for Shard {
    type Conn = Conn;
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io, from: Accepted) -> Option<Conn> {
        let phase = if from.over_capacity { Phase::Full } else { Phase::Head };
        Some(Conn::new(phase, io.now().tick))
    }

    fn adopted(&mut self, io: &mut Io, _key: Key, _peer: SocketAddr) -> Option<Conn> {
        Some(Conn::new(Phase::Head, io.now().tick))
    }

    fn readable(&mut self, io: &mut Io, key: Key, data: &mut [u8]) {
        match data.is_empty() {
            true => self.resume_driven(io, key),
            false => self.readable_bytes(io, key, data),
        }
    }

    fn local(&mut self, io: &mut Io, output: &mut LocalOutput) {
        self.hear_frames(io, output);
    }

    fn closed(&mut self, io: &mut Io, key: Key, conn: Conn, _why: Closed) {
        self.gone(io, key, conn);
    }

    fn mail(&mut self, io: &mut Io, mail: Mail) {
        match mail {
            Mail::Broadcast(posted) => self.enqueue(posted),
            Mail::ToChannel(channel, what) => self.channel_mail(io, channel, what),
            Mail::Decided(key, ticket, decided) => self.decided(io, key, ticket, decided),
            Mail::Drive(order) => self.driver_asks(*order),
            Mail::Permit => self.permit_came(),
            Mail::Observe(ask) => self.asked(io, *ask),
            Mail::Pulse => {}
            Mail::Drain(over) => self.begin_drain(io, over),
            Mail::Stop => io.stop(),
        }
    }

    fn drained(&mut self, io: &mut Io, key: Key) {
        self.caught_up(io, key);
    }

    fn slow(&mut self, _io: &mut Io, _key: Key) -> Slow {
        self.metrics.slow_peer_disconnects.add(1);
        let mut farewell = Vec::new();
        ws::encode_close(CloseCode::TRY_AGAIN, "too slow", None, &mut farewell);
        Slow::Cut { farewell }
    }

    fn turn_end(&mut self, io: &mut Io) -> Next {
        // Whose time is up has channels that may broadcast their end, so the fan-out comes second.
        let due = self.keep_time(io);
        let driving = self.drive(io);
        let fanning_out = self.fan_out(io);
        let looking = self.survey(io);
        let withheld = self.give_back_withheld(io);
        self.release_held(io);
        self.send_heard();
        let now = io.now();
        let next = fanning_out.sooner(due, now).sooner(self.held_due(), now);
        let next = next.sooner(withheld, now);
        next.sooner(driving, now).sooner(looking, now)
    }
}

//! A shard that tests drive: peers that take as much as a test lets them, a clock that a test sets,
//! a node that records its calls, and an application that is made of closures.

mod app;
mod history;
mod peers;

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_data::{Key, Next, Now, Run, Shared};
use simurgh_notices::{Settings, Sighting};
use simurgh_proto::message::Payload;
use simurgh_proto::serializer::{Frame, Serializer, ServerMessage};
use simurgh_proto::topic::Pattern;
use simurgh_proto::ws::{CloseCode, Decoder, Deflater, Event, FrameLimits, Inflater, Role};

pub(crate) use self::app::*;
pub(crate) use self::history::*;
pub(crate) use self::peers::TestSockets;
use crate::*;

pub(crate) struct TestNode {
    pub(crate) config: Config,
    pub(crate) user_sockets: Vec<UserSocket>,
    pub(crate) permits: FanoutPermits,
    history_bytes: Vec<AtomicU64>,
    cluster: Option<TestCluster>,
    /// The settings of notices, and all that was reported.
    pub(crate) notices: Option<(Arc<Settings>, Reported)>,
    state: Mutex<NodeLog>,
}

/// The begins and ends that a core has reported.
pub(crate) type Reported = Arc<Mutex<Vec<Sighting>>>;

pub(crate) struct TestCluster {
    notes: Notes,
    asked: Arc<Mutex<Vec<ToCluster>>>,
    bytes_max: usize,
}

impl Cluster for TestCluster {
    fn send(&self, what: ToCluster) {
        self.notes.add(match what {
            ToCluster::TopicBegins(topic, shard, None) => format!("begins {topic} on {shard}"),
            ToCluster::TopicBegins(topic, shard, Some(it)) => {
                format!("begins {topic} on {shard}: {} of it for {} ms", it.count, it.age_ms)
            }
            ToCluster::TopicEnds(topic, shard) => format!("ends {topic} on {shard}"),
            ToCluster::Broadcast(it) => {
                let json = it.payload().json().unwrap_or_default();
                format!("{} {} {json}", it.topic(), it.event())
            }
            ToCluster::Presence(topic, what) => format!("presences of {topic}: {what:?}"),
            what => {
                return self.asked.lock().unwrap().push(what);
            }
        });
    }

    fn broadcast_bytes_max(&self) -> usize {
        self.bytes_max
    }
}

#[derive(Default)]
pub(crate) struct NodeLog {
    pub(crate) mail: Vec<Vec<Mail>>,
    pub(crate) bytes: Vec<usize>,
    pub(crate) ended: Vec<usize>,
    pub(crate) decides: Vec<(Key, u32, JoinDecision)>,
    pub(crate) census: HashMap<String, u32>,
    pub(crate) seats_freed: usize,
    pub(crate) callbacks: Vec<Callback>,
    is_inside: bool,
    pub(crate) slowness: Duration,
}

impl TestNode {
    pub(crate) fn new(shards: usize, config: Config, user_sockets: Vec<UserSocket>) -> Self {
        let mail = (0..shards).map(|_| Vec::new()).collect();
        let history_bytes = (0..shards).map(|_| AtomicU64::new(0)).collect();
        let told = NodeLog { mail, bytes: vec![0; shards], ..NodeLog::default() };
        let (permits, state) = (FanoutPermits::new(1, 1), Mutex::new(told));
        Self { config, user_sockets, permits, history_bytes, cluster: None, notices: None, state }
    }

    /// The same node with other settings; what it has recorded moves there.
    pub(crate) fn after_reload(&self, config: Config, user_sockets: Vec<UserSocket>) -> Self {
        let node = Self::new(self.log().bytes.len(), config, user_sockets);
        std::mem::swap(&mut *node.log(), &mut *self.log());
        node
    }

    /// Makes it one of several nodes, which take broadcasts of so many bytes. Returns what they are
    /// sent.
    pub(crate) fn join_cluster(&mut self, bytes_max: usize) -> Notes {
        let notes = Notes::default();
        let asked = Arc::default();
        self.cluster = Some(TestCluster { notes: notes.clone(), asked, bytes_max });
        notes
    }

    pub(crate) fn asked(&self) -> Vec<ToCluster> {
        let cluster = self.cluster.as_ref().expect("it is in a cluster");
        std::mem::take(&mut *cluster.asked.lock().unwrap())
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, NodeLog> {
        self.state.lock().unwrap()
    }
}

impl NodeHandle for TestNode {
    fn send(&self, channel: ChannelId, what: ToChannel) {
        self.post(usize::from(channel.shard), Mail::ToChannel(channel, what));
    }

    fn broadcast_by(
        &self,
        channel: ChannelId,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) -> Result<(), BroadcastError> {
        self.broadcast_for(channel, event, payload, audience)
    }

    fn spawn_linked(&self, work: Work) -> Box<dyn LinkedWork> {
        Box::new(Kept(Some(work)))
    }

    fn spawn(&self, mut work: Work) {
        let poll = || work.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
        let ready = simurgh_channel::guarded(poll).is_none_or(|polled| polled.is_ready());
        assert!(ready, "tests spawn nothing that waits");
    }

    fn presence_config(&self) -> &PresenceConfig {
        &self.config.presence
    }

    fn list_presences(&self, topic: &str, answer: PresenceCallback) {
        self.request_presences(topic, answer);
    }

    fn member_count(&self, topic: &str) -> Option<u32> {
        self.log().census.get(topic).copied()
    }
}

/// Work that is never polled; it is dropped with its channel.
struct Kept(Option<Work>);

impl LinkedWork for Kept {
    fn is_finished(&self) -> bool {
        self.0.is_none()
    }
}

impl Node for TestNode {
    fn config(&self) -> &Config {
        &self.config
    }

    fn user_socket(&self, index: u8) -> Option<&UserSocket> {
        self.user_sockets.get(usize::from(index))
    }

    fn id(&self) -> u64 {
        7
    }

    fn has_history(&self) -> bool {
        self.user_sockets.iter().any(UserSocket::has_history)
    }

    fn history_bytes(&self) -> &[AtomicU64] {
        &self.history_bytes
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn cluster(&self) -> Option<&dyn Cluster> {
        self.cluster.as_ref().map(|it| it as &dyn Cluster)
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        assert_eq!(shard, 0);
        self.log().decides.push((key, ticket, work));
    }

    fn member_joined(&self, topic: &str) {
        *self.log().census.entry(topic.into()).or_default() += 1;
    }

    fn member_left(&self, topic: &str) {
        let mut log = self.log();
        let count = log.census.get_mut(topic).expect("it was counted in");
        *count = count.checked_sub(1).expect("it was counted in");
    }

    fn sighting_sink(&self) -> Option<SightingSink> {
        let (settings, sightings) = self.notices.clone()?;
        let take = move |seen: Vec<Sighting>| sightings.lock().unwrap().extend(seen);
        Some(SightingSink { settings, take: Arc::new(take) })
    }

    /// A text is the name of a user, unless it is empty.
    fn user_of<'a>(&self, of: &'a Assigns) -> Option<&'a str> {
        of.downcast_ref::<&str>().copied().filter(|user| !user.is_empty())
    }

    fn connection_id(&self, shard: u16, key: Key) -> String {
        format!("{shard}-{}", key.slot)
    }

    fn release_connection(&self) {
        self.log().seats_freed += 1;
    }
}

impl Mailboxes for TestNode {
    fn shards(&self) -> usize {
        self.log().mail.len()
    }

    fn post(&self, shard: usize, mail: Mail) -> bool {
        let mut log = self.log();
        let is_there = !log.ended.contains(&shard);
        if is_there {
            log.mail[shard].push(mail);
        }
        is_there
    }

    fn charge(&self, shard: usize, bytes: usize) {
        self.log().bytes[shard] += bytes;
    }

    fn discharge(&self, shard: usize, bytes: usize) {
        let mut log = self.log();
        log.bytes[shard] = log.bytes[shard].checked_sub(bytes).expect("no more than was charged");
    }

    fn charged(&self, shard: usize) -> usize {
        let log = self.log();
        if log.ended.contains(&shard) { 0 } else { log.bytes[shard] }
    }
}

impl CallbackWatch for TestNode {
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
        simurgh_channel::guarded(f)
    }

    fn enter_callback(&self, shard: usize, callback: Callback) {
        let mut log = self.log();
        assert!(shard == 0 && !log.is_inside, "callbacks do not nest");
        log.is_inside = true;
        log.callbacks.push(callback);
    }

    fn leave_callback(&self, shard: usize) -> Duration {
        let mut log = self.log();
        assert!(shard == 0 && log.is_inside);
        log.is_inside = false;
        log.slowness
    }
}

impl Signer for TestNode {
    fn sign(&self, text: &str) -> String {
        format!("signed {text}").replace('\0', " ")
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        self.sign(text) == proof
    }
}

impl WallClock for TestNode {
    fn unix_ms(&self, now_ns: u64) -> u64 {
        1_000_000 + now_ns / 1_000_000
    }
}

pub(crate) struct TestShard {
    pub(crate) core: Core<TestNode>,
    pub(crate) out: TestSockets,
    pub(crate) node: Arc<TestNode>,
    seen: Vec<u64>,
}

impl TestShard {
    /// One shard with the standard channel on every topic.
    pub(crate) fn new() -> Self {
        Self::running(scripted(standard))
    }

    pub(crate) fn running(channel: Scripted) -> Self {
        Self::of(channel.user_socket())
    }

    pub(crate) fn of(user_socket: UserSocket) -> Self {
        Self::with(Config::default(), vec![user_socket])
    }

    /// One shard with the standard channel on every topic, and other settings.
    pub(crate) fn configured(config: Config) -> Self {
        Self::with(config, vec![scripted(standard).user_socket()])
    }

    pub(crate) fn with(config: Config, user_sockets: Vec<UserSocket>) -> Self {
        Self::with_node(TestNode::new(1, config, user_sockets))
    }

    pub(crate) fn with_node(node: TestNode) -> Self {
        let node = Arc::new(node);
        let core = Core::new(Arc::clone(&node), 0, Arc::default(), 7);
        let seen = vec![0; ShardMetrics::ALL.len()];
        Self { core, out: TestSockets::default(), node, seen }
    }

    /// Continues with other settings and user sockets.
    pub(crate) fn reloads(&mut self, config: Config, user_sockets: Vec<UserSocket>) {
        let node = Arc::new(self.node.after_reload(config, user_sockets));
        self.core.reload(&mut self.out, &node);
        self.node = node;
    }

    /// The shard with sockets that have joined `t`. `counts` begins here.
    pub(crate) fn members<const COUNT: usize>(mut self) -> (Self, [Key; COUNT]) {
        let keys = std::array::from_fn(|_| self.joined(&["t"]));
        self.counts();
        (self, keys)
    }

    /// The shard with a socket that has joined nothing. `counts` begins here.
    pub(crate) fn opened(mut self) -> (Self, Key) {
        let key = self.opens(Wire::V2);
        self.counts();
        (self, key)
    }

    pub(crate) fn opens(&mut self, wire: Wire) -> Key {
        self.opens_with(wire, SocketState::default())
    }

    pub(crate) fn opens_with(&mut self, wire: Wire, state: SocketState) -> Key {
        let key = self.out.connect(Phase::Connecting, wire);
        self.core.opened(&mut self.out, key, state);
        key
    }

    /// A socket with an id.
    pub(crate) fn opens_as(&mut self, wire: Wire, id: &str) -> Key {
        self.opens_with(wire, SocketState { id: Some(id.into()), ..SocketState::default() })
    }

    pub(crate) fn joined(&mut self, topics: &[&str]) -> Key {
        let key = self.opens(Wire::V2);
        for topic in topics {
            let join = format!(r#"[1,1,"{topic}","phx_join",{{}}]"#);
            assert_eq!(self.asks(key, &join), [ok(1, 1, topic, "{}")]);
        }
        self.out.end_turn();
        key
    }

    /// A V2 socket that has sent this; the answer is dropped.
    pub(crate) fn joined_as(&mut self, join: &str) -> Key {
        let key = self.opens(Wire::V2);
        self.asks(key, join);
        self.out.end_turn();
        key
    }

    /// A client sends a text in its serializer (V2 if its wire has values).
    pub(crate) fn sends(&mut self, key: Key, text: &str) {
        let wire = self.out.peer(key).socket.wire();
        let serializer = wire.serializer().unwrap_or(Serializer::V2);
        let message = serializer.decode(Frame::Text(text)).unwrap();
        self.core.message(&mut self.out, key, message.into());
    }

    pub(crate) fn receives(&mut self, key: Key) -> Vec<String> {
        self.out.peer(key).received()
    }

    /// A client sends this. Returns what it receives at once.
    pub(crate) fn asks(&mut self, key: Key, text: &str) -> Vec<String> {
        self.sends(key, text);
        self.receives(key)
    }

    /// What a client has received when all broadcasts are sent.
    pub(crate) fn receives_all(&mut self, key: Key) -> Vec<String> {
        self.fans_out();
        self.receives(key)
    }

    pub(crate) fn disconnects(&mut self, key: Key) {
        let socket = self.out.disconnect(key);
        self.core.closed(&mut self.out, key, socket);
    }

    /// The channel that this client has joined last.
    pub(crate) fn channel(&self, key: Key) -> ChannelId {
        let list = self.out.socket(key).unwrap().list;
        self.core.registry().channels_of(list)[0]
    }

    pub(crate) fn handles_mail(&mut self) {
        loop {
            let mail = std::mem::take(&mut self.node.log().mail[0]);
            if mail.is_empty() {
                return;
            }
            mail.into_iter().for_each(|it| self.core.mail(&mut self.out, it));
        }
    }

    /// A broadcast from outside of channels, taken by the shard.
    pub(crate) fn broadcasts(&mut self, topic: &str, event: &str, json: &'static str) {
        let payload = Payload::from_json(json);
        self.node.broadcast(Broadcast::new(topic, event, payload)).expect("there is room");
        self.handles_mail();
    }

    /// The same, sent to all members.
    pub(crate) fn delivers(&mut self, topic: &str, event: &str, json: &'static str) -> &mut Self {
        self.broadcasts(topic, event, json);
        self.fans_out();
        self
    }

    pub(crate) fn fans_out(&mut self) -> Next {
        let mut next = Next::Now;
        for _ in 0..10_000 {
            if next != Next::Now {
                break;
            }
            next = self.core.fan_out(&mut self.out);
        }
        self.out.end_turn();
        next
    }

    pub(crate) fn advances(&mut self, time: Duration) {
        self.out.turn_ns += time.as_nanos() as u64;
        self.out.clock_ns.set(self.out.turn_ns);
    }

    pub(crate) fn decides(&mut self) -> &mut Self {
        let (key, ticket, mut work) = self.node.log().decides.remove(0);
        let mut cx = TaskContext::from_waker(Waker::noop());
        let answer =
            simurgh_channel::guarded(|| work.as_mut().poll(&mut cx)).map(|poll| match poll {
                Poll::Ready(join) => join,
                Poll::Pending => panic!("tests decide at once"),
            });
        self.core.mail(&mut self.out, Mail::Joined(key, ticket, answer));
        self
    }

    /// The changed counters, in one text.
    pub(crate) fn changes(&mut self) -> String {
        self.counts().join(", ")
    }

    /// The counters that have changed since the last call, and by how much.
    pub(crate) fn counts(&mut self) -> Vec<String> {
        let mut changes = Vec::new();
        for ((name, _, _, value), seen) in ShardMetrics::ALL.iter().zip(&mut self.seen) {
            let now = value(self.core.metrics());
            if now != *seen {
                changes.push(format!("{name} {:+}", now as i64 - *seen as i64));
                *seen = now;
            }
        }
        changes
    }
}

pub(crate) fn reply(
    join_ref: impl Display,
    msg_ref: impl Display,
    topic: &str,
    status: &str,
    json: &str,
) -> String {
    let payload = format!(r#"{{"status":"{status}","response":{json}}}"#);
    format!(r#"[{join_ref},{msg_ref},"{topic}","phx_reply",{payload}]"#)
}

pub(crate) fn ok(join_ref: impl Display, msg_ref: impl Display, topic: &str, json: &str) -> String {
    reply(join_ref, msg_ref, topic, "ok", json)
}

pub(crate) fn refused(
    join_ref: impl Display,
    msg_ref: impl Display,
    topic: &str,
    reason: &str,
) -> String {
    reply(join_ref, msg_ref, topic, "error", &format!(r#"{{"reason":"{reason}"}}"#))
}

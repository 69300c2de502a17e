//! The cluster's thread.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use simurgh_cluster::{
    Adapter, Answer, CallNumber, Cluster, DisconnectNumber, DisconnectOutcome, Except,
    HistoryNotice, Item, ItemPayload, LinkState, NodeId, Notice, PeerEvent, StoreItem, Time,
};
use simurgh_core::{Broadcast, ChannelId, Node as _, NotKept, StoreRequest, ToCluster};
use simurgh_proto::message::events;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use super::local::Shard;
use super::served::{Serve, Served};
use super::{AdapterSetup, FLUSH_TIMEOUT, Prepared};
use simurgh_shard::cluster_inbox::{
    CallReply, ClusterInbox, DisconnectReply, Disconnected, Mail, NodeName, Service,
};
use simurgh_shard::server::Server;

/// Rounds of mail, engine and time in one poll of the task, before other tasks of the runtime run.
const ROUNDS_MAX: usize = 16;
/// The longest time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Started {
    runtime: Option<Runtime>,
    ended: Option<oneshot::Receiver<()>>,
}

impl Started {
    /// Announces the end to the other nodes, and waits a while until the engine has that.
    pub(crate) fn end(&mut self, server: &Server) {
        let Some(runtime) = self.runtime.take() else { return };
        if let Some(inbox) = &server.cluster {
            inbox.post(Mail::Bye);
        }
        if let Some(ended) = self.ended.take() {
            let _ = runtime.block_on(async { tokio::time::timeout(FLUSH_TIMEOUT, ended).await });
        }
        runtime.shutdown_background();
    }
}

pub(super) fn start(prepared: Prepared, server: &Arc<Server>, serve: Serve) -> Started {
    let Prepared { cluster, history, runtime } = prepared;
    let is_local_when_away = cluster.is_local_when_away;
    let (ends, ended) = oneshot::channel();
    // This thread frees the messages of shards; above a bound it gives memory back all the time.
    simurgh_reactor::give_back_memory_soon();
    if let Some(inbox) = server.cluster.clone() {
        let setup = AdapterSetup { runtime: runtime.handle(), history };
        let adapter = (cluster.make_adapter)(&setup);
        let shard = Shard {
            server: Arc::clone(server),
            serve,
            dropped: 0,
            local_only: 0,
            outcomes: Vec::new(),
            served: Served::default(),
            answers: Vec::new(),
        };
        let seed = server.id.rotate_left(17);
        let time = now(server);
        inbox.view().know(&cluster.config);
        let node = Cluster::new(cluster.config, adapter, NodeId(server.id), seed, time);
        let mut thread = Thread {
            node,
            shard,
            inbox,
            waiting: HashMap::new(),
            calls: HashMap::new(),
            awaits: HashMap::new(),
            last_await: 0,
            mail: Vec::new(),
            frame: Vec::new(),
            bye_ns: None,
            look_ns: 0,
            keeping: None,
            is_local_when_away,
        };
        runtime.spawn(async move {
            let mut sleep = pin!(sleep_until(Instant::now().into()));
            let inbox = Arc::clone(&thread.inbox);
            let mut mail = pin!(inbox.has_mail());
            poll_fn(|context| {
                // Until one is pending, so that the waker is registered. A second may be ready at
                // once, and a completed future must not be polled. No third: by then the queue has
                // mail.
                let mut has_mail = false;
                while mail.as_mut().poll(context).is_ready() {
                    mail.set(inbox.has_mail());
                    has_mail = true;
                }
                if has_mail {
                    // The poster may post more, on the same core: yield, so that one write sends it
                    // all.
                    std::thread::yield_now();
                }
                thread.turn(context, sleep.as_mut())
            })
            .await;
            inbox.close();
            let _ = ends.send(());
        });
    }
    Started { runtime: Some(runtime), ended: Some(ended) }
}

fn now(server: &Server) -> Time {
    let ns = u64::try_from(server.started.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Time { ns, unix_ms: server.unix_ms(ns) }
}

struct Thread {
    node: Cluster<dyn Adapter>,
    shard: Shard,
    inbox: Arc<ClusterInbox>,
    waiting: HashMap<DisconnectNumber, DisconnectReply>,
    calls: HashMap<CallNumber, CallReply>,
    /// Joins that wait until their topics are subscribed to, by number.
    awaits: HashMap<u64, oneshot::Sender<()>>,
    last_await: u64,
    mail: Vec<Mail>,
    /// Buffer for frames of broadcasts that are not encoded yet.
    frame: Vec<u8>,
    bye_ns: Option<u64>,
    look_ns: u64,
    /// The last log line about stored histories.
    keeping: Option<String>,
    /// Without a link, broadcasts to be kept go to local members only.
    is_local_when_away: bool,
}

impl Thread {
    /// Does all pending work; ready when the node has sent its last message.
    fn turn(
        &mut self,
        context: &mut Context<'_>,
        mut sleep: std::pin::Pin<&mut Sleep>,
    ) -> Poll<()> {
        for round in 0.. {
            let time = now(&self.shard.server);
            // Received before the mail, and handled after it: a client that learned of its
            // membership before another node's message is a member when that is delivered.
            let has_more = self.node.receive(context);
            let has_mail = self.take_mail(time);
            self.node.handle_events(time, &mut self.shard);
            self.node.tick(time, &mut self.shard);
            let has_said = self.node.settle(time);
            if self.bye_ns.is_some_and(|until| self.node.is_flushed() || until <= time.ns) {
                return Poll::Ready(());
            }
            // The adapter writes messages when it is polled for events.
            if !has_mail && !has_more && !has_said {
                break;
            }
            if round == ROUNDS_MAX {
                context.waker().wake_by_ref();
                break;
            }
        }
        self.reply();
        let (time, started) = (now(&self.shard.server), self.shard.server.started.0);
        let soon = time.ns.saturating_add(POLL_INTERVAL.as_nanos() as u64);
        let next_ns = self.node.next_ns().map_or(soon, |next_ns| next_ns.min(soon));
        sleep.as_mut().reset((started + Duration::from_nanos(next_ns)).into());
        if sleep.poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn take_mail(&mut self, time: Time) -> bool {
        let mut mail = self.inbox.take(std::mem::take(&mut self.mail));
        let has_mail = !mail.is_empty();
        for mail in mail.drain(..) {
            match mail {
                Mail::Core(what) => self.take_from_core(what, time),
                Mail::Disconnect(socket_id, reply) => {
                    self.disconnect(&socket_id, Some(reply), time);
                }
                Mail::AwaitTopic(topic, reply) => {
                    self.last_await += 1;
                    self.awaits.insert(self.last_await, reply);
                    self.node.await_topic(&topic, self.last_await, time);
                }
                Mail::Direct(node, broadcast) => {
                    self.publish(&broadcast, Some(node), time);
                }
                Mail::Call(node, number, service, body, reply) => {
                    self.call(node, number, (service, &body), reply, time);
                }
                Mail::HangUp(number) => {
                    self.calls.remove(&number);
                    self.node.hang_up(number, time);
                }
                Mail::Answer(by, number, answer) => self.answer(by, number, &answer, time),
                Mail::Drain => self.node.drain(time),
                Mail::Bye => {
                    self.node.bye(time);
                    let until = time.ns.saturating_add(FLUSH_TIMEOUT.as_nanos() as u64);
                    self.bye_ns.get_or_insert(until);
                }
            }
        }
        self.mail = mail;
        has_mail
    }

    fn take_from_core(&mut self, what: ToCluster, time: Time) {
        match what {
            ToCluster::Broadcast(it) if it.event() == events::DISCONNECT => {
                self.disconnect(it.topic(), None, time);
            }
            ToCluster::Broadcast(broadcast) => self.publish(&broadcast, None, time),
            ToCluster::TopicBegins(topic, shard, wanted) => {
                self.node.topic_begins(&topic, shard, wanted, time);
            }
            ToCluster::TopicEnds(topic, shard) => self.node.topic_ends(&topic, shard, time),
            ToCluster::Presence(topic, what) => {
                self.node.presence(&topic, what, time, &mut self.shard);
            }
            ToCluster::Store(store) => self.store(*store, time),
            ToCluster::Follow(topic, wanted) => {
                self.node.follow(&topic, wanted, time, &mut self.shard);
            }
            ToCluster::CheckTopic(topic) => self.node.check_topic(&topic),
            ToCluster::Forget(topic, number) => {
                self.node.forget(&topic, number, time, &mut self.shard);
            }
        }
    }

    fn store(&mut self, asked: StoreRequest, time: Time) {
        let StoreRequest { number, broadcast, sender, id, age } = asked;
        if self.is_local_when_away && self.node.state().0 == LinkState::Away {
            self.shard.local_only += 1;
            self.shard.server.broadcast_here(Arc::new(broadcast));
            return self.shard.server.post_stored(number, Err(NotKept::LocalOnly));
        }
        let payload = ItemPayload::of(broadcast.payload(), &mut self.frame);
        let mut item = Item::new(broadcast.event(), payload);
        item.except = broadcast.except().map(|it| {
            let ChannelId { shard, membership, generation } = it;
            Except { shard, membership, generation }
        });
        item.exclusion = (sender != 0).then_some(sender);
        let store = StoreItem { number, item, id: id.as_deref(), age };
        self.node.store(broadcast.topic(), store, time, &mut self.shard);
    }

    fn publish(&mut self, broadcast: &Broadcast, node: Option<NodeId>, time: Time) {
        let payload = ItemPayload::of(broadcast.payload(), &mut self.frame);
        let item = Item::new(broadcast.event(), payload);
        let said = match node {
            Some(node) => self.node.direct(node, broadcast.topic(), &item, time),
            None => self.node.broadcast(broadcast.topic(), &item, time),
        };
        if let Err(error) = said {
            let topic = broadcast.topic();
            tracing::warn!(topic, %error, "other nodes do not get a broadcast");
        }
    }

    fn call(
        &mut self,
        node: NodeId,
        number: CallNumber,
        (service, body): (Service, &[u8]),
        reply: CallReply,
        time: Time,
    ) {
        match self.node.call(node, number, (service as u16, body), time) {
            Ok(()) => {
                self.node.bound_answer(number, service.answer_bytes_max());
                self.calls.insert(number, reply);
            }
            Err(_) => drop(reply.send(None)),
        }
    }

    fn answer(&mut self, by: NodeId, number: u64, answer: &Answer, time: Time) {
        if !self.shard.served.end(by, number) {
            return;
        }
        let Answer { status, body } = answer;
        if let Err(error) = self.node.answer(by, number, (*status, body), time) {
            tracing::warn!(node = %by, %error, "another node is not answered");
        }
    }

    fn disconnect(&mut self, socket_id: &str, reply: Option<DisconnectReply>, time: Time) {
        match (self.node.disconnect(socket_id, time), reply) {
            (Ok(number), Some(reply)) => drop(self.waiting.insert(number, reply)),
            (Ok(_), None) => {}
            // The caller may have stopped waiting.
            (Err(_), Some(reply)) => drop(reply.send(None)),
            (Err(error), None) => tracing::error!(socket_id, %error, "not disconnected elsewhere"),
        }
    }

    fn send_awaits(&mut self) {
        while let Some(number) = self.node.poll_awaited() {
            if let Some(reply) = self.awaits.remove(&number) {
                let _ = reply.send(());
            }
        }
    }

    fn send_answers(&mut self) {
        for (number, answer) in self.shard.answers.drain(..) {
            if let Some(reply) = self.calls.remove(&number) {
                let _ = reply.send(answer);
            }
        }
    }

    fn send_outcomes(&mut self) {
        for (number, outcome) in self.shard.outcomes.drain(..) {
            let Some(reply) = self.waiting.remove(&number) else { continue };
            let named = |nodes: Vec<NodeId>| {
                let name = |it: &NodeId| {
                    let name = self.node.peers().name(*it).unwrap_or_default().to_owned();
                    NodeName { id: it.to_string(), name }
                };
                nodes.iter().map(name).collect()
            };
            let DisconnectOutcome { confirmed, missing } = outcome;
            let told = Disconnected { confirmed: named(confirmed), missing: named(missing) };
            let _ = reply.send(Some(told));
        }
    }

    fn reply(&mut self) {
        self.send_outcomes();
        self.send_answers();
        self.send_awaits();
        let mut has_changed = false;
        while let Some(notice) = self.node.poll_notice() {
            has_changed = true;
            match notice {
                Notice::State(state) => tracing::info!(state = state.name(), "cluster"),
                Notice::Down(why) => {
                    tracing::warn!(%why, "cluster");
                    self.inbox.view().why = why.to_string();
                }
                Notice::Lost(interests) => {
                    tracing::warn!(interests, "cluster: broadcasts of other nodes may be lost");
                }
                Notice::Peer(event) => self.log_peer(event),
                Notice::History(notice) => {
                    let why = self.node.adapter().measures().keeping;
                    log_keeping(&notice, why.as_deref().unwrap_or("nothing is kept"));
                }
            }
        }
        let time = now(&self.shard.server);
        if has_changed || time.ns >= self.look_ns {
            self.look_ns = time.ns.saturating_add(POLL_INTERVAL.as_nanos() as u64);
            let sockets = self.shard.server.metrics.iter().map(|it| it.sockets.value()).sum();
            self.node.set_sockets(sockets);
            let mut view = self.inbox.view();
            view.look(&self.node, self.shard.server.started.0);
            let keeping = &view.measures.keeping;
            if *keeping != self.keeping
                && let Some(text) = keeping
            {
                tracing::info!("cluster: histories: {text}");
                self.keeping.clone_from(keeping);
            }
            view.is_draining = self.shard.server.drain_began.get().is_some();
            (view.dropped_at_inbox, view.dropped_at_shards) =
                (self.inbox.dropped(), self.shard.dropped);
            view.local_only = self.shard.local_only;
        }
    }

    fn log_peer(&self, event: PeerEvent) {
        let name = |id: NodeId| self.node.peers().name(id).unwrap_or_default();
        match event {
            PeerEvent::Joined(id) => tracing::info!(node = name(id), %id, "cluster: a node"),
            PeerEvent::Silent(id) => tracing::warn!(node = name(id), %id, "cluster: not heard"),
            PeerEvent::Back(id) => tracing::info!(node = name(id), %id, "cluster: heard again"),
            PeerEvent::Missed(id) => {
                tracing::debug!(node = name(id), %id, "cluster: heartbeats were lost");
            }
            PeerEvent::Gone(id, why) => {
                tracing::warn!(node = name(id), %id, ?why, "cluster: a node is gone");
            }
            PeerEvent::NameConflict { name, nodes } => {
                let [one, other] = nodes.map(|it| it.to_string());
                tracing::warn!(%name, one, other, "cluster: two nodes have one name: give each \
                    its own (name)");
            }
            PeerEvent::SettingsDiffer { node: id, pattern } => {
                tracing::warn!(%pattern, node = name(id), %id, "cluster: another node has other \
                    settings for this: make them alike");
            }
            PeerEvent::Incompatible(id) => {
                tracing::warn!(node = name(id), %id, "cluster: neither understands the other: \
                    their versions are too far apart");
            }
            PeerEvent::EnvelopeVersion(version) => {
                tracing::debug!(?version, "cluster: envelopes");
            }
        }
    }
}

fn log_keeping(notice: &HistoryNotice, why: &str) {
    match notice {
        HistoryNotice::Nothing => tracing::error!(
            why,
            "cluster: broadcasts to topics with a history are refused, as nothing is kept"
        ),
        HistoryNotice::Remade => tracing::warn!(
            "cluster: what the engine keeps was lost or made anew: clients that come back are \
             told of a gap"
        ),
        HistoryNotice::NotPurged(topic, why) => tracing::warn!(
            %topic, ?why,
            "cluster: the engine has not deleted what the nodes were to forget: it does so when \
             its time is over"
        ),
    }
}

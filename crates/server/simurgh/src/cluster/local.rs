//! The node of the cluster thread: its mail, and the shards to which it passes messages from other
//! nodes.

use std::collections::HashMap;
use std::sync::Arc;

use simurgh_cluster::{
    Adapter, Answer, BroadcastParts, CallNumber, DisconnectOutcome, Except, HistoryEvent,
    HistoryItem, Item, LocalNode, NodeId, NodeThread, Peers, Shards, StoredAt, ThreadNode, Time,
};
use simurgh_core::{
    Broadcast, ChannelId, Mailboxes, NotKept, Posted, PresenceMail, Publisher, StoreRequest,
    ToCluster, WallClock,
};
use simurgh_presence::{FromPeers, Owner};
use simurgh_proto::message::{Payload, events};
use simurgh_shard::cluster_inbox::{
    CallReply, ClusterInbox, DisconnectReply, Disconnected, Mail, NodeName,
};
use simurgh_shard::server::Server;
use tokio::sync::oneshot;

use super::served::{Serve, Served};
use crate::pubsub::carry_out;

pub(super) struct LocalShards {
    pub(super) server: Arc<Server>,
    pub(super) inbox: Arc<ClusterInbox>,
    pub(super) serve: Serve,
    /// Broadcasts that a congested shard has not taken.
    pub(super) dropped: u64,
    /// Broadcasts to be kept that only local members have received, because there was no link.
    pub(super) local_only: u64,
    pub(super) served: Served,
    /// Calls of other nodes' services that are not answered yet.
    pub(super) calls: HashMap<CallNumber, CallReply>,
}

type Thread<A> = NodeThread<A, LocalShards>;

pub(super) fn now(server: &Server) -> Time {
    let ns = u64::try_from(server.started.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Time { ns, unix_ms: server.unix_ms(ns) }
}

impl ThreadNode for LocalShards {
    type Mail = Mail;
    type Broadcast = Broadcast;
    type Awaiting = oneshot::Sender<()>;

    fn time(&self) -> Time {
        now(&self.server)
    }

    fn take_mail(&mut self, empty: Vec<Mail>) -> Vec<Mail> {
        self.inbox.take(empty)
    }

    fn handle<A: Adapter + ?Sized>(thread: &mut Thread<A>, mail: Mail, time: Time) {
        match mail {
            Mail::Core(what) => take_from_core(thread, what, time),
            Mail::Order(order, reply) => {
                // The receiver of the reply learns of an error.
                let _ = thread.order(&order, report_to(reply), time);
            }
            Mail::OrderDone(by, number, count) => {
                thread.cluster.order_done(by, number, count, time);
            }
            Mail::AwaitTopic(topic, reply) => thread.await_topic(&topic, reply, time),
            Mail::Direct(node, broadcast) => publish(thread, &broadcast, Some(node), time),
            Mail::Call(node, number, service, body, reply) => {
                // The caller is answered by dropping its reply.
                if thread.cluster.call(node, number, (service as u16, &body), time).is_ok() {
                    thread.cluster.bound_answer(number, service.answer_bytes_max());
                    thread.local.calls.insert(number, reply);
                }
            }
            Mail::HangUp(number) => {
                thread.local.calls.remove(&number);
                thread.cluster.hang_up(number, time);
            }
            Mail::Answer(by, number, answer) => send_answer(thread, by, number, &answer, time),
            Mail::Grants(grants) => thread.cluster.grants(&grants, time),
            Mail::Drain => thread.cluster.drain(time),
            Mail::Bye => thread.bye(time),
        }
    }

    fn parts(broadcast: &Broadcast) -> BroadcastParts<'_> {
        let (topic, event, payload) = (broadcast.topic(), broadcast.event(), broadcast.payload());
        let except = broadcast.except().map(|it| {
            let ChannelId { shard, membership, generation } = it;
            Except { shard, membership, generation }
        });
        BroadcastParts { topic, event, payload, except }
    }

    fn subscribed(&mut self, awaiting: oneshot::Sender<()>) {
        let _ = awaiting.send(());
    }

    fn broadcast_here(&mut self, broadcast: Broadcast) {
        self.local_only += 1;
        self.server.broadcast_here(Arc::new(broadcast));
    }
}

fn take_from_core<A: Adapter + ?Sized>(thread: &mut Thread<A>, what: ToCluster, time: Time) {
    let NodeThread { cluster, local, .. } = thread;
    match what {
        ToCluster::Broadcast(it) if it.event() == events::DISCONNECT => {
            if let Err(error) = thread.disconnect(it.topic(), None, time) {
                let id = it.topic();
                tracing::error!(id, %error, "cannot disconnect sockets on other nodes");
            }
        }
        ToCluster::Broadcast(broadcast) => publish(thread, &broadcast, None, time),
        ToCluster::TopicBegins(topic, shard, wanted) => {
            cluster.topic_begins(&topic, shard, wanted, time);
        }
        ToCluster::TopicEnds(topic, shard) => cluster.topic_ends(&topic, shard, time),
        ToCluster::Presence(topic, what) => cluster.presence(&topic, what, time, local),
        ToCluster::Store(store) => {
            let StoreRequest { number, broadcast, sender, id, age } = *store;
            thread.store(broadcast, number, sender, id.as_deref(), age, time);
        }
        ToCluster::Follow(topic, wanted) => cluster.follow(&topic, wanted, time, local),
        ToCluster::CheckTopic(topic) => cluster.check_topic(&topic),
        ToCluster::Forget(topic, number) => cluster.forget(&topic, number, time, local),
    }
}

fn publish<A: Adapter + ?Sized>(
    thread: &mut Thread<A>,
    broadcast: &Broadcast,
    node: Option<NodeId>,
    time: Time,
) {
    if let Err(error) = thread.publish(broadcast, node, time) {
        let topic = broadcast.topic();
        tracing::warn!(topic, %error, "a broadcast does not reach other nodes");
    }
}

/// A reply of the thread that sends on the names of nodes. The receiver may have stopped waiting.
fn report_to(reply: DisconnectReply) -> simurgh_cluster::DisconnectReply {
    Box::new(move |peers, outcome| {
        let told = outcome.map(|DisconnectOutcome { confirmed, missing, count }| Disconnected {
            confirmed: named(peers, &confirmed),
            missing: named(peers, &missing),
            closed: count,
        });
        let _ = reply.send(told);
    })
}

fn named(peers: &Peers, nodes: &[NodeId]) -> Vec<NodeName> {
    let name = |it: &NodeId| peers.name(*it).unwrap_or_default().to_owned();
    nodes.iter().map(|it| NodeName { id: it.to_string(), name: name(it) }).collect()
}

fn send_answer<A: Adapter + ?Sized>(
    thread: &mut Thread<A>,
    by: NodeId,
    number: u64,
    answer: &Answer,
    time: Time,
) {
    if !thread.local.served.end(by, number) {
        return;
    }
    let Answer { status, body } = answer;
    if let Err(error) = thread.cluster.answer(by, number, (*status, body), time) {
        tracing::warn!(node = %by, %error, "cannot answer another node");
    }
}

impl LocalNode for LocalShards {
    fn broadcast(&mut self, topic: &str, item: &Item<'_>, shards: Shards<'_>) {
        let payload = item.payload.to_payload().into_owned();
        let broadcast = Arc::new(Broadcast::new(topic, item.event, payload));
        let bytes_max = self.server.limits.mailbox_bytes_max.saturating_mul(4);
        for shard in shards.map(usize::from) {
            if self.server.charged(shard) > bytes_max {
                self.dropped += 1;
                continue;
            }
            self.server.post_charged(shard, Posted::new(Arc::clone(&broadcast), None));
        }
    }

    fn disconnect(&mut self, socket_id: &str) {
        let disconnect = Broadcast::new(socket_id, events::DISCONNECT, Payload::EMPTY_OBJECT);
        self.server.broadcast_here(Arc::new(disconnect));
    }

    fn order(&mut self, by: NodeId, number: u64, order: &[u8]) {
        let Ok(order) = serde_json::from_slice(order) else {
            return tracing::warn!(node = %by, "does not know an order of a newer node");
        };
        let (server, inbox) = (Arc::clone(&self.server), Arc::clone(&self.inbox));
        self.server.spawn(async move {
            match carry_out(&server, order).await {
                Ok(count) => inbox.post(Mail::OrderDone(by, number, count)),
                Err(error) => tracing::error!(node = %by, %error, "did not carry out an order"),
            }
        });
    }

    fn presence(&mut self, topic: &str, what: FromPeers) {
        self.server.post_home(topic, PresenceMail::Peers(what), None);
    }

    fn gone(&mut self, node: NodeId) {
        self.served.gone(node);
        for shard in 0..self.server.shards() {
            self.server.post(shard, simurgh_core::Mail::NodeGone(Owner(node.0)));
        }
    }

    fn called(&mut self, by: NodeId, number: u64, service: u16, body: Vec<u8>) {
        self.served.begin(&self.server, &self.serve, (by, number), service, body);
    }

    #[cfg(feature = "hooks")]
    fn grants(&mut self, grants: &[u8]) {
        crate::hooked::receive(&self.server, grants);
    }

    fn hung_up(&mut self, by: NodeId, number: u64) {
        self.served.end(by, number);
    }

    fn answered(&mut self, number: CallNumber, answer: Option<Answer>) {
        if let Some(reply) = self.calls.remove(&number) {
            let _ = reply.send(answer);
        }
    }

    fn history(&mut self, topic: &str, what: HistoryEvent<'_>) {
        self.server.post_kept(topic, what.map(|it| kept_item(topic, &it)));
    }

    fn stored(&mut self, _: &str, number: u64, outcome: Result<StoredAt, NotKept>) {
        self.server.post_stored(number, outcome);
    }
}

fn kept_item(topic: &str, kept: &HistoryItem<'_>) -> simurgh_core::KeptItem {
    let HistoryItem { seq, index, at_ms, mine, item } = *kept;
    let payload = item.payload.to_payload().into_owned();
    let mut broadcast = Broadcast::new(topic, item.event, payload);
    if let (Some(_), Some(Except { shard, membership, generation })) = (mine, item.except) {
        broadcast = broadcast.but_for(ChannelId { shard, membership, generation });
    }
    let sender = item.exclusion.unwrap_or(0);
    simurgh_core::KeptItem { seq, index, at_ms, mine, sender, broadcast }
}

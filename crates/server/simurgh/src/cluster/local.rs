//! The node of the cluster thread: its mail, and the shards to which it passes messages from other
//! nodes.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use simurgh_cluster::{
    Adapter, Answer, CallNumber, DisconnectOutcome, HistoryEvent, Item, LocalNode, NodeId,
    NodeThread, Peers, Shards, StoredAt, ThreadNode, Time,
};
use simurgh_core::{Broadcast, Mailboxes, NotKept, Posted, PresenceMail, Publisher, WallClock};
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
    type Awaiting = oneshot::Sender<()>;

    fn time(&self) -> Time {
        now(&self.server)
    }

    fn take_mail(&mut self, empty: Vec<Mail>) -> Vec<Mail> {
        self.inbox.take(empty)
    }

    fn handle<A: Adapter + ?Sized>(thread: &mut Thread<A>, mail: Mail, time: Time) {
        match mail {
            Mail::Core(what) => thread.handle_core(what, time),
            Mail::Order(order, reply) => {
                // The receiver of the reply learns of an error.
                let _ = thread.order(&order, report_to(reply), time);
            }
            Mail::OrderDone(by, number, count) => {
                thread.cluster.order_done(by, number, count, time);
            }
            Mail::AwaitTopic(topic, reply) => thread.await_topic(&topic, reply, time),
            Mail::Direct(node, broadcast) => thread.publish(&broadcast, Some(node), time),
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
            Mail::Log(command) => {
                let NodeThread { cluster, local, .. } = thread;
                cluster.log(command, local);
            }
            Mail::Settings(settings) => thread.cluster.set_settings(settings, time),
            Mail::Drain => thread.cluster.drain(time),
            Mail::Bye => thread.bye(time),
        }
    }

    fn subscribed(&mut self, awaiting: oneshot::Sender<()>) {
        let _ = awaiting.send(());
    }

    fn broadcast_here(&mut self, broadcast: Broadcast) {
        self.local_only += 1;
        self.server.broadcast_here(Arc::new(broadcast));
    }

    fn undelivered(&mut self, broadcast: &Broadcast, error: &dyn Display) {
        let (topic, event) = (broadcast.topic(), broadcast.event());
        tracing::warn!(topic, event, %error, "a broadcast does not reach other nodes");
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
        let broadcast = Arc::new(item.to_broadcast(topic));
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
        crate::hooked::receive(&self.server.now(), grants);
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
        self.server.post_kept(topic, what.map(|item| item.to_kept(topic)));
    }

    fn stored(&mut self, _: &str, number: u64, outcome: Result<StoredAt, NotKept>) {
        self.server.post_stored(number, outcome);
    }

    #[cfg(feature = "hooks")]
    fn log(&mut self, event: simurgh_cluster::LogEvent) {
        crate::notices::log(&self.server, event);
    }
}

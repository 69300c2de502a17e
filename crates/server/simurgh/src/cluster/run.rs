//! Runs the cluster thread of a server ([`NodeThread`]).

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use simurgh_cluster::{
    Adapter, Cluster, FLUSH_NS, HistoryNotice, NodeId, NodeThread, Notice, PeerEvent,
    TURN_INTERVAL_NS,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep_until};

use super::local::{LocalShards, now};
use super::served::{Serve, Served};
use super::{AdapterSetup, Prepared, blocks};
use simurgh_shard::cluster_inbox::Mail;
use simurgh_shard::server::Server;

pub(crate) struct Started {
    runtime: Option<Runtime>,
    ended: Option<oneshot::Receiver<()>>,
}

impl Started {
    /// Announces the end to the other nodes, and waits until the broker has received that.
    pub(crate) fn end(&mut self, server: &Server) {
        let Some(runtime) = self.runtime.take() else { return };
        if let Some(inbox) = &server.cluster {
            inbox.post(Mail::Bye);
        }
        if let Some(ended) = self.ended.take() {
            let timeout = Duration::from_nanos(FLUSH_NS);
            let _ = runtime.block_on(async { tokio::time::timeout(timeout, ended).await });
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
        let has_log = cluster.config.has_log && !cluster.has_notices_in_memory;
        let setup = AdapterSetup { runtime: runtime.handle(), history, has_log };
        let adapter = (cluster.make_adapter)(&setup);
        let seed = server.id.rotate_left(17);
        let time = now(server);
        inbox.view().know(&cluster.config);
        let node = Cluster::new(cluster.config, adapter, NodeId(server.id), seed, time);
        let local = LocalShards {
            server: Arc::clone(server),
            inbox: Arc::clone(&inbox),
            serve,
            dropped: 0,
            local_only: 0,
            served: Served::default(),
            calls: HashMap::new(),
        };
        let node = NodeThread::new(node, local, is_local_when_away);
        let mut thread = Thread { node, look_ns: 0, keeping: None };
        runtime.spawn(async move {
            let mut sleep = pin!(sleep_until(Instant::now().into()));
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

/// The cluster thread with what only a server has: a view for observers, and log lines.
struct Thread {
    node: NodeThread<dyn Adapter, LocalShards>,
    look_ns: u64,
    /// The last log line about stored histories.
    keeping: Option<String>,
}

impl Thread {
    /// Does all pending work; ready when the node has sent its last message.
    fn turn(&mut self, context: &mut Context<'_>, mut sleep: Pin<&mut Sleep>) -> Poll<()> {
        if self.node.turn(context).is_ready() {
            return Poll::Ready(());
        }
        self.report();
        let started = self.node.local.server.started.0;
        sleep.as_mut().reset((started + Duration::from_nanos(self.node.next_ns())).into());
        if sleep.poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn report(&mut self) {
        let mut has_changed = false;
        while let Some(notice) = self.node.cluster.poll_notice() {
            has_changed = true;
            match notice {
                Notice::State(state) => tracing::info!(state = state.name(), "cluster"),
                Notice::Down(why) => {
                    tracing::warn!(%why, "cluster");
                    self.node.local.inbox.view().why = why.to_string();
                }
                Notice::Lost(interests) => {
                    tracing::warn!(interests, "cluster: broadcasts of other nodes may be lost");
                }
                Notice::Peer(event) => {
                    if let PeerEvent::Joined(node) = event {
                        let server = &self.node.local.server;
                        server.spawn(blocks::take_over(Arc::clone(server), node));
                    }
                    self.log_peer(event);
                }
                Notice::History(notice) => {
                    let why = self.node.cluster.adapter().measures().keeping;
                    log_keeping(&notice, why.as_deref().unwrap_or("the reason is unknown"));
                }
            }
        }
        let time = now(&self.node.local.server);
        if has_changed || time.ns >= self.look_ns {
            self.look_ns = time.ns.saturating_add(TURN_INTERVAL_NS);
            self.look();
        }
    }

    fn look(&mut self) {
        let NodeThread { cluster, local, .. } = &mut self.node;
        let LocalShards { server, inbox, dropped, local_only, .. } = local;
        cluster.set_sockets(server.metrics.iter().map(|it| it.sockets.value()).sum());
        let mut view = inbox.view();
        view.look(cluster, server.started.0);
        let keeping = &view.measures.keeping;
        if *keeping != self.keeping
            && let Some(text) = keeping
        {
            tracing::info!("cluster: histories: {text}");
            self.keeping.clone_from(keeping);
        }
        view.is_draining = server.drain_began.get().is_some();
        (view.dropped_at_inbox, view.dropped_at_shards) = (inbox.dropped(), *dropped);
        view.local_only = *local_only;
    }

    fn log_peer(&self, event: PeerEvent) {
        let name = |id: NodeId| self.node.cluster.peers().name(id).unwrap_or_default();
        match event {
            PeerEvent::Joined(id) => tracing::info!(node = name(id), %id, "cluster: found a node"),
            PeerEvent::Silent(id) => {
                tracing::warn!(node = name(id), %id, "cluster: a node sends no heartbeats");
            }
            PeerEvent::Back(id) => {
                tracing::info!(node = name(id), %id, "cluster: a node sends heartbeats again");
            }
            PeerEvent::Missed(id) => {
                tracing::debug!(node = name(id), %id, "cluster: heartbeats of a node were lost");
            }
            PeerEvent::Gone(id, why) => {
                tracing::warn!(node = name(id), %id, ?why, "cluster: a node is gone");
            }
            PeerEvent::NameConflict { name, nodes } => {
                let [one, other] = nodes.map(|it| it.to_string());
                tracing::warn!(%name, one, other, "cluster: two nodes have the same name: give \
                    each its own");
            }
            PeerEvent::SettingsDiffer { node: id, pattern } => {
                tracing::warn!(%pattern, node = name(id), %id, "cluster: another node has \
                    different settings for this pattern: make them equal");
            }
            PeerEvent::Incompatible(id) => {
                tracing::warn!(node = name(id), %id, "cluster: this node and another cannot \
                    understand each other: update the older version");
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
            "cluster: broadcasts to topics with a history are refused because the broker cannot \
             store them"
        ),
        HistoryNotice::Remade => tracing::warn!(
            "cluster: the broker lost its histories or created them anew: clients that resume \
             get a gap"
        ),
        HistoryNotice::NotPurged(topic, why) => tracing::warn!(
            %topic, ?why,
            "cluster: the broker did not delete this topic's history: its messages expire by age"
        ),
    }
}

//! Calls of other nodes that are served here.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use simurgh_cluster::{Answer, NodeId};
use simurgh_shard::cluster_inbox::{Mail, Service};
use simurgh_shard::server::Server;
use tokio::sync::oneshot;

/// Further calls get no answer.
const SERVED_MAX: usize = 1 << 17;

/// A status and a body.
type Serving = Pin<Box<dyn Future<Output = (u16, Vec<u8>)> + Send>>;

/// Serves a call of another node until the future is dropped.
pub(crate) type Serve =
    Arc<dyn Fn(NodeId, Service, Vec<u8>, oneshot::Receiver<()>) -> Serving + Send + Sync>;

/// Dropping an entry tells the service that the caller has stopped waiting.
#[derive(Default)]
pub(super) struct Served(HashMap<(NodeId, u64), oneshot::Sender<()>>);

impl Served {
    pub(super) fn begin(
        &mut self,
        server: &Server,
        serve: &Serve,
        (by, number): (NodeId, u64),
        service: u16,
        body: Vec<u8>,
    ) {
        let (Some(service), Some(inbox)) = (Service::of(service), server.cluster.clone()) else {
            return;
        };
        if self.0.len() >= SERVED_MAX {
            return;
        }
        let (is_waited_for, left) = oneshot::channel();
        self.0.insert((by, number), is_waited_for);
        let served = serve(by, service, body, left);
        server.spawn(async move {
            let (status, body) = served.await;
            inbox.post(Mail::Answer(by, number, Answer { status, body }));
        });
    }

    /// Returns whether the call was still open.
    pub(super) fn end(&mut self, by: NodeId, number: u64) -> bool {
        self.0.remove(&(by, number)).is_some()
    }

    pub(super) fn gone(&mut self, node: NodeId) {
        self.0.retain(|(by, _), _| *by != node);
    }
}

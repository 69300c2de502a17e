//! Questions of back ends to all nodes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use simurgh_cluster::{Answer, LinkState};
use simurgh_shard::cluster_inbox::{Calling, ClusterInbox, NodeName, Service};
use simurgh_shard::mail::Mail;
use simurgh_shard::mail::question::{Found, Question};
use simurgh_shard::server::Server;
use tokio::time::timeout;

/// The timeout of this node's shards, and of each other node, which has a little longer.
const SHARD_TIMEOUT: Duration = Duration::from_secs(8);
const NODE_TIMEOUT: Duration = Duration::from_secs(9);

/// A shard has ended, or is too busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is stopping, or too busy to answer: try again later")]
pub(crate) struct NoAnswer;

/// Asks all nodes; also returns the other nodes that did not answer.
pub(crate) async fn ask_everywhere(
    server: &Server,
    question: Question,
) -> Result<(Found, Vec<NodeName>), NoAnswer> {
    let body = serde_json::to_vec(&question).unwrap_or_default();
    let others = server.cluster.as_ref().map(|inbox| ask_others(inbox, Service::Ask, &body));
    let question = Arc::new(question);
    let mut found = ask_here(server, &question).await?;
    let mut missing = Vec::new();
    if let Some(others) = others {
        for (name, answer) in others.await {
            match answer.and_then(|body| serde_json::from_slice(&body).ok()) {
                Some(other) => found.merge(&question, other),
                None => missing.push(name),
            }
        }
    }
    Ok((found, missing))
}

/// Asks the shards of this node.
pub(crate) async fn ask_here(server: &Server, question: &Arc<Question>) -> Result<Found, NoAnswer> {
    let shards = 0..server.mailboxes.len() as u16;
    let answers = shards.map(|shard| {
        let (answered, answer) = server.answer();
        server.post_to(shard, Mail::Question(Arc::clone(question), answered));
        answer
    });
    let answers = timeout(SHARD_TIMEOUT, join_all(answers)).await.map_err(|_| NoAnswer)?;
    let mut all = Found::default();
    for answer in answers {
        all.merge(question, answer.map_err(|_| NoAnswer)?);
    }
    Ok(all)
}

/// Answers another node: 200, 400 for an unknown question, or 503.
pub(crate) async fn serve(server: &Server, question: &[u8]) -> (u16, Vec<u8>) {
    let Ok(question) = serde_json::from_slice(question) else { return (400, Vec::new()) };
    match ask_here(server, &Arc::new(question)).await {
        Ok(found) => (200, serde_json::to_vec(&found).unwrap_or_default()),
        Err(NoAnswer) => (503, Vec::new()),
    }
}

/// Every client that may publish at the broker can forge answers. They are bounded in bytes, and
/// their rows in number.
pub(crate) fn ask_others(
    inbox: &Arc<ClusterInbox>,
    service: Service,
    body: &[u8],
) -> impl Future<Output = Vec<(NodeName, Option<Vec<u8>>)>> + use<> {
    let (nodes, is_linked): (Vec<_>, bool) = {
        let view = inbox.view();
        let nodes = view.nodes.iter().map(|it| {
            let name = NodeName { id: it.node.to_string(), name: it.name.clone() };
            (it.node, name, matches!(it.state, "alive" | "draining"))
        });
        (nodes.collect(), view.state != LinkState::Away)
    };
    let calls = nodes.into_iter().map(|(node, name, is_alive)| {
        let call = is_linked && is_alive;
        let call = call.then(|| inbox.call(node, service, body.to_vec()));
        async move {
            let Some(call) = call else { return (name, None) };
            (name, body_of(call).await)
        }
    });
    join_all(calls.collect::<Vec<_>>())
}

/// The body of another node's answer, if that comes in time and its status is 200.
pub(crate) async fn body_of(call: Calling) -> Option<Vec<u8>> {
    let answer = timeout(NODE_TIMEOUT, call).await.ok().flatten();
    answer.filter(|it| it.status == 200).map(|Answer { body, .. }| body)
}

//! A node takes over the list of blocks of every node that it meets, so that the list survives
//! restarts and broken links, and the cached answers of the first one.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use simurgh_cluster::NodeId;
use simurgh_shard::cluster_inbox::Service;
use simurgh_shard::mail::order::{Order, Rule};
use simurgh_shard::server::Server;

use crate::blocks::{Part, now_s, rules};
use crate::pubsub::carry_out;
use crate::questions::body_of;

/// How long a starting node waits for the list of another: by then the others have announced
/// themselves.
const PEERS_WAIT: Duration = Duration::from_millis(300);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A list that is too long for one answer comes in so many parts.
const PARTS: u64 = 64;
/// Rules that are carried out at once.
const TOGETHER: usize = 1_000;

/// Takes over the list of another node, and closes the sockets that its rules are about.
pub(crate) async fn take_over(server: Arc<Server>, node: NodeId) {
    let mut rules = list_of(&server, node).await;
    let list = &server.access_list;
    rules.retain(|rule| list.set(rule.clone(), now_s(&server)) == Ok(true));
    for some in rules.chunks(TOGETHER) {
        let orders = some.iter().map(|rule| carry_out(&server, Order::Access(rule.clone())));
        join_all(orders).await;
    }
    #[cfg(feature = "hooks")]
    crate::hooked::take_over(&server.now(), node).await;
    list.knows_other.store(true, Relaxed);
}

async fn list_of(server: &Server, node: NodeId) -> Vec<Rule> {
    if let Some(rules) = ask(server, node, Part { number: 0, of: 1 }).await {
        return rules;
    }
    let mut all = Vec::new();
    for number in 0..PARTS {
        let Some(mut rules) = ask(server, node, Part { number, of: PARTS }).await else { break };
        all.append(&mut rules);
    }
    all
}

async fn ask(server: &Server, node: NodeId, part: Part) -> Option<Vec<Rule>> {
    let call =
        server.cluster.as_ref()?.call(node, Service::Blocks, serde_json::to_vec(&part).ok()?);
    rules(&body_of(call).await?)
}

/// Waits until another node has told its list, if there is one: this node does not listen before.
pub(crate) fn await_others(server: &Server) {
    let config = &server.config;
    let has_api = config.api_token.is_some() || !config.api_tokens.is_empty();
    if server.cluster.is_none() || !has_api {
        return;
    }
    let began = Instant::now();
    while !server.access_list.knows_other.load(Relaxed) && began.elapsed() < PEERS_WAIT {
        std::thread::sleep(POLL_INTERVAL);
    }
}

//! The list of blocks and revocations as lines of JSON: in the file of `state_dir`, and for other
//! nodes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};
use simurgh_cluster::CALL_BYTES_MAX;
use simurgh_core::WallClock;
use simurgh_shard::mail::order::Rule;
use simurgh_shard::server::Server;
use simurgh_shard::state_dir;

const FILE: &str = "blocks";

/// Which part of the list a node asks for.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) number: u64,
    pub(crate) of: u64,
}

impl Part {
    fn has(self, rule: &Rule) -> bool {
        let mut hasher = DefaultHasher::new();
        rule.of.hash(&mut hasher);
        hasher.finish() % self.of.max(1) == self.number
    }
}

fn lines<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Vec<u8> {
    let lines = rules.into_iter().filter_map(|rule| serde_json::to_vec(rule).ok());
    lines.flat_map(|line| [line, b"\n".to_vec()]).flatten().collect()
}

/// `None` if one of them is no rule.
pub(crate) fn rules(lines: &[u8]) -> Option<Vec<Rule>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).ok()).collect()
}

pub(crate) fn now_s(server: &Server) -> u64 {
    server.unix_ms(0) / 1000
}

/// Begins with the rules of the file.
pub(crate) fn load(server: &Server) {
    let Some(directory) = &server.config.state_dir else { return };
    if !restore(server, &state_dir::read(directory, FILE)) {
        let path = state_dir::path(directory, FILE);
        tracing::error!(?path, "the list of blocks is damaged: starting without it");
    }
}

/// Continues the list of a file or of another process. `false` if it is damaged.
pub(crate) fn restore(server: &Server, lines: &[u8]) -> bool {
    let Some(rules) = rules(lines) else { return false };
    for rule in rules {
        // A file has no more than the list.
        let _ = server.access_list.set(rule, now_s(server));
    }
    true
}

/// All rules, for the process that takes over.
pub(crate) fn all(server: &Server) -> Vec<u8> {
    lines(&server.access_list.all(now_s(server)))
}

/// Writes the file, if something has changed since. Requests at the same time share a write.
pub(crate) async fn save(server: &Arc<Server>) {
    let is_of_another = server.takeover.is_handed_over.load(Relaxed);
    let Some(directory) = server.config.state_dir.clone().filter(|_| !is_of_another) else {
        return;
    };
    let list = &server.access_list;
    let wanted = list.changes();
    let mut saved = list.saved.lock().await;
    if *saved >= wanted {
        return;
    }
    let changes = list.changes();
    let of = Arc::clone(server);
    let write = move || state_dir::write(&directory, FILE, &all(&of));
    match tokio::task::spawn_blocking(write).await.unwrap_or_else(|it| Err(io::Error::other(it))) {
        Ok(()) => *saved = changes,
        Err(error) => tracing::error!(%error, "cannot save the list of blocks in state_dir"),
    }
}

/// Answers another node: 200 with lines, 413 if they are too long, 400.
pub(crate) fn serve(server: &Server, part: &[u8]) -> (u16, Vec<u8>) {
    let Ok(part) = serde_json::from_slice::<Part>(part) else { return (400, Vec::new()) };
    let all = server.access_list.all(now_s(server));
    let lines = lines(all.iter().filter(|rule| part.has(rule)));
    if lines.len() > CALL_BYTES_MAX { (413, Vec::new()) } else { (200, lines) }
}

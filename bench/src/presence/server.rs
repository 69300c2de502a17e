//! The server: its settings and counts.

use std::time::Duration;

use anyhow::Result;

use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::target::Server;

/// The topic of rows with a single topic.
pub(super) const TOPIC: &str = "rooms:crowd";

/// How a server treats presences.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Whether members are tracked, and receive the list.
    pub(super) presence: bool,
    /// Above this number of members only the number is sent.
    pub(super) list_max: usize,
}

/// The default of a server.
pub(super) const LIST_MAX: usize = 1_000;

/// A server; with presence, members are tracked under their `user`.
pub(super) fn serve(bench: &Bench<'_>, How { presence, list_max }: How) -> Result<Server> {
    let lines = if presence { "presence = true" } else { "" };
    bench.serve_rooms(&format!("presence_list_max = {list_max}"), lines, 1)
}

pub(super) const PRESENCES: &str = "simurgh_presences";
/// The metric of encoded lists and diffs.
pub(super) const PRESENCE_EVENTS: &str = "simurgh_presence_events_total";

/// Longer than an interval, so that the next change is sent at once, and no other is pending.
pub(super) const QUIET: Duration = Duration::from_millis(130);

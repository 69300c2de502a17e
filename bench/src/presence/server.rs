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

/// The settings: with presence, members are tracked under their `user`.
fn settings(how: How) -> String {
    let How { presence, list_max } = how;
    let presence = if presence { "presence = true\n" } else { "" };
    format!(
        r#"presence_list_max = {list_max}

[[channel]]
topic = "rooms:*"
join_reply = {{}}
{presence}
[[channel.event]]
name = "new:msg"
broadcast = "all"
reply = {{}}
"#
    )
}

pub(super) fn serve(bench: &Bench<'_>, how: How) -> Result<Server> {
    bench.serve(&settings(how), 1)
}

pub(super) const PRESENCES: &str = "simurgh_presences";
/// The metric of encoded lists and diffs.
pub(super) const PRESENCE_EVENTS: &str = "simurgh_presence_events_total";

/// Longer than an interval, so that the next change is sent at once, and no other is pending.
pub(super) const QUIET: Duration = Duration::from_millis(130);

//! The server: what it serves, and what it counts.

use std::time::Duration;

use anyhow::Result;

use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::target::Server;

/// The one topic of the rows that have one.
pub(super) const TOPIC: &str = "rooms:crowd";

/// How a server treats presences.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Members are tracked, and get the list.
    pub(super) presence: bool,
    /// Of more their number alone is sent.
    pub(super) list_max: usize,
}

/// The default of a server.
pub(super) const LIST_MAX: usize = 1_000;

/// The one place that says what is served: with presence members are tracked under their `user`.
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

/// A fresh server.
pub(super) fn serve(bench: &Bench<'_>, how: How) -> Result<Server> {
    bench.serve(&settings(how), 1)
}

/// The metric of members that are tracked.
pub(super) const PRESENCES: &str = "simurgh_presences";
/// The metric of lists and diffs that were encoded.
pub(super) const PRESENCE_EVENTS: &str = "simurgh_presence_events_total";

/// Longer than an interval, so that the next change is sent at once, and nothing else is under way.
pub(super) const QUIET: Duration = Duration::from_millis(130);

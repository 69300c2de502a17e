//! The server: what it serves, and what it says of its presences.

use std::time::Duration;

use anyhow::Result;

use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::rounds::served::Served;

/// The one topic of the rows that have one.
pub(super) const TOPIC: &str = "rooms:crowd";

/// How a server is told to treat presences.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Members are tracked, and get the list.
    pub(super) presence: bool,
    /// More are told by their number.
    pub(super) list_max: usize,
}

/// As a server has it that was told nothing.
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
pub(super) fn serve(bench: &Bench<'_>, how: How) -> Result<Served> {
    Served::start(bench, &settings(how), 1)
}

/// Members that are tracked.
pub(super) fn presences(served: &Served) -> Result<f64> {
    served.sum("simurgh_presences")
}

/// Lists and diffs that were encoded.
pub(super) fn presence_events(served: &Served) -> Result<f64> {
    served.sum("simurgh_presence_events_total")
}

/// Longer than an interval, so that the next change is told at once, and nothing else is under way.
pub(super) const QUIET: Duration = Duration::from_millis(130);

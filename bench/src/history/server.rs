//! The server: what it serves, what its back end publishes, and what it says of its history.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use simurgh_bench_kit::frames::BROADCAST_LEN;
use simurgh_bench_kit::members::Clients;
use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::rounds::served::Served;

/// The one topic of the rows that have one.
pub(super) const TOPIC: &str = "rooms:crowd";
/// As a channel has it that says no more than that there is one.
pub(super) const USUAL: &str = "history = true";
/// Until a server has done what it was told.
pub(super) const QUIET: Duration = Duration::from_millis(130);
/// Until an allocator has given back what it means to give back, and gauges are of this state.
pub(super) const CALM: Duration = Duration::from_secs(4);
/// Messages of a request.
const BATCH: usize = 1_000;

/// A fresh server whose rooms have a history as that line of their table says, or none.
pub(super) fn serve(bench: &Bench<'_>, history: &str, shards: u32) -> Result<Served> {
    let settings = format!(
        r#"[[channel]]
topic = "rooms:*"
join_reply = {{}}
{history}

[[channel.event]]
name = "new:msg"
broadcast = "all"
reply = {{}}
"#
    );
    Served::start(bench, &settings, shards)
}

/// The same where it is a matter of with or without.
pub(super) fn serve_with(bench: &Bench<'_>, with: bool, shards: u32) -> Result<Served> {
    serve(bench, if with { USUAL } else { "" }, shards)
}

/// A payload of 64 bytes, as JSON.
pub(super) fn payload() -> String {
    let empty = "{\"body\":\"\"}".len();
    format!("{{\"body\":\"{}\"}}", "x".repeat(BROADCAST_LEN - empty))
}

/// Has all join as clients that have heard nothing yet, if they opt in.
pub(super) fn opt_in(clients: &mut Clients) {
    resume(clients, |_| None);
}

/// Has all join as clients that come back and have heard everything up to a position.
pub(super) fn resume(clients: &mut Clients, since: impl Fn(usize) -> Option<String> + 'static) {
    clients.params = Box::new(move |index| {
        let since = since(index);
        json!({"simurgh": {"id": format!("client-{index:07}"), "since": since}}).to_string()
    });
}

/// Publishes a message of 64 bytes on each of these topics, as a back end does; where each is kept.
pub(super) fn publish<'a>(
    served: &Served,
    topics: impl Iterator<Item = &'a str>,
) -> Result<Vec<Option<String>>> {
    let payload: Value = serde_json::from_str(&payload())?;
    let mut positions = Vec::new();
    let mut topics = topics.peekable();
    while topics.peek().is_some() {
        let message = |topic: &str| json!({"topic": topic, "event": "new:msg", "payload": payload});
        let messages: Vec<Value> = topics.by_ref().take(BATCH).map(message).collect();
        let said = served.post("/api/broadcast", &json!({"messages": messages}).to_string())?;
        let of_each = said.get("positions").and_then(Value::as_array);
        let of_each = of_each.with_context(|| format!("no positions: {said}"))?;
        ensure!(of_each.len() == messages.len(), "{} positions", of_each.len());
        positions.extend(of_each.iter().map(|it| it.as_str().map(str::to_owned)));
    }
    Ok(positions)
}

/// Makes sure that nobody who came back was told of a gap, and that so many messages were given.
pub(super) fn check_resumed(served: &Served, joins: usize, messages: usize) -> Result<()> {
    let lines = served.running.metrics()?;
    let of_gaps = lines.iter().filter(|line| line.contains("result=\"gap\""));
    let told = of_gaps.filter(|line| !line.ends_with(" 0")).cloned().collect::<Vec<_>>();
    ensure!(told.is_empty(), "some were told of a gap: {told:?}");
    for (name, wanted) in
        [("simurgh_resume_total", joins), ("simurgh_resume_messages_total", messages)]
    {
        let found = served.sum(name)?;
        ensure!(
            (found - simurgh_bench_kit::stats::per(wanted, 1)).abs() < 0.5,
            "{name}: {found} of {wanted}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_as_long_as_it_is_said_to_be() {
        assert_eq!(payload().len(), BROADCAST_LEN);
        assert_eq!(serde_json::from_str::<Value>(&payload()).unwrap().to_string(), payload());
    }
}

//! The server: its settings, its back end's messages, and its history's counts.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use simurgh_bench_kit::clients::Clients;
use simurgh_bench_kit::frames::BROADCAST_LEN;
use simurgh_bench_kit::rounds::Bench;
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

/// The topic of rows with a single topic.
pub(super) const TOPIC: &str = "rooms:crowd";
/// The setting of a channel with a history of the default size.
pub(super) const USUAL: &str = "history = true";
/// Time for a server to finish its work.
pub(super) const QUIET: Duration = Duration::from_millis(130);
/// Time for an allocator to give back unused memory, and for gauges to be current.
pub(super) const CALM: Duration = Duration::from_secs(4);

/// A new server whose rooms have the history of this line, or none.
pub(super) fn serve(bench: &Bench<'_>, history: &str, shards: u32) -> Result<Server> {
    bench.serve_rooms("", history, shards)
}

/// A new server with the default history or without any.
pub(super) fn serve_with(bench: &Bench<'_>, with: bool, shards: u32) -> Result<Server> {
    serve(bench, if with { USUAL } else { "" }, shards)
}

pub(super) fn payload() -> String {
    let empty = "{\"body\":\"\"}".len();
    format!("{{\"body\":\"{}\"}}", "x".repeat(BROADCAST_LEN - empty))
}

/// All join as clients that opt in and have received nothing yet.
pub(super) fn opt_in(clients: &mut Clients) {
    resume(clients, |_| None);
}

/// All join as returning clients that have received everything up to a position.
pub(super) fn resume(clients: &mut Clients, since: impl Fn(usize) -> Option<String> + 'static) {
    clients.params = Box::new(move |index| {
        let since = since(index);
        json!({"simurgh": {"id": format!("client-{index:07}"), "since": since}}).to_string()
    });
}

/// Publishes 64 bytes on each of these topics, as a back end does; returns their positions.
pub(super) fn publish(server: &Server, topics: &[String]) -> Result<Vec<String>> {
    let kept: Vec<String> =
        server.publish(topics.iter().cloned(), &payload())?.into_iter().flatten().collect();
    ensure!(kept.len() == topics.len(), "{} of {} messages are kept", kept.len(), topics.len());
    Ok(kept)
}

/// Checks that no returning client had a gap, and that this many messages were sent again.
pub(super) fn check_resumed(server: &Server, joins: usize, messages: usize) -> Result<()> {
    let lines = server.metrics()?;
    let of_gaps = lines.iter().filter(|line| line.contains("result=\"gap\""));
    let gaps = of_gaps.filter(|line| !line.ends_with(" 0")).cloned().collect::<Vec<_>>();
    ensure!(gaps.is_empty(), "some got a gap: {gaps:?}");
    for (name, wanted) in
        [("simurgh_resume_total", joins), ("simurgh_resume_messages_total", messages)]
    {
        let found = server.sum(name)?;
        ensure!((found - stats::per(wanted, 1)).abs() < 0.5, "{name}: {found} of {wanted}");
    }
    Ok(())
}

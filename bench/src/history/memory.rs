//! Rows `kept` and `members`: memory of kept messages, empty topics, and members that opted in.

use anyhow::{Result, ensure};

use super::server::{self, CALM, USUAL};
use simurgh_bench_kit::frames::BROADCAST_LEN;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::Server;

/// Messages of a topic: as many as are kept by default.
const MESSAGES: usize = 100;
/// A history into which no message fits: its topics are numbered, but empty.
const NOTHING: &str = "history = { count = 1, bytes = 1, age = \"1h\" }";
/// Members of a topic of the row `members`: so many that the topic's own cost does not matter.
const TOPIC_MEMBERS: usize = 1_000;
/// Topics that each client joins: so many that the server's fixed cost does not matter.
const TOPICS: usize = 10;

/// The memory of a message beside its payload, and of an empty topic.
pub(super) fn kept(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let (topics, empty) = bench.options.size((2_000, 200_000), (200, 20_000));
    let server = server::serve(bench, USUAL, 1)?;
    let names = |from: usize, to: usize| -> Vec<String> {
        (from..to).map(|nth| format!("rooms:{nth}")).collect()
    };
    // Memory that requests of this size take once is allocated after the first ones.
    let (some, more) = (names(0, topics), names(topics, 2 * topics));
    fill(&server, &some, MESSAGES)?;
    let before = settled(&server)?;
    fill(&server, &more, MESSAGES)?;
    let after = settled(&server)?;
    let messages = stats::per(more.len() * MESSAGES, 1);
    let all = messages + stats::per(some.len() * MESSAGES, 1);
    sample.put("kept_missing", all - server.sum("simurgh_history_messages")?);
    let payload = stats::per(BROADCAST_LEN, 1);
    sample.put("kept_message_bytes", stats::difference(after, before) / messages - payload);
    let counted = server.sum("simurgh_history_bytes")? / all;
    sample.put("kept_message_said_bytes", counted - payload);
    drop(server);

    let server = server::serve(bench, NOTHING, 1)?;
    let (some, more) = (names(0, empty / 2), names(empty / 2, empty));
    fill(&server, &some, 1)?;
    let before = settled(&server)?;
    fill(&server, &more, 1)?;
    let after = settled(&server)?;
    sample.put("kept_topic_bytes", stats::difference(after, before) / stats::per(more.len(), 1));
    let (topics, messages) =
        (server.sum("simurgh_history_topics")?, server.sum("simurgh_history_messages")?);
    ensure!(messages <= 0.0, "{messages} messages are kept where none was to be");
    sample.put("kept_topics_missing", stats::per(empty, 1) - topics);
    Ok(())
}

fn fill(server: &Server, topics: &[String], messages: usize) -> Result<()> {
    for _ in 0..messages {
        server.publish(topics.iter().cloned(), &server::payload())?;
    }
    Ok(())
}

/// Resident bytes once the server is idle.
fn settled(server: &Server) -> Result<u64> {
    std::thread::sleep(CALM);
    server.resident()
}

/// Bytes of each membership without history, with it and no opt-in, and where all opt in.
pub(super) fn members(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let count = bench.options.size(15_000, 3_000);
    let without = membership(bench, count, "", false)?;
    let unused = membership(bench, count, USUAL, false)?;
    let opted = membership(bench, count, USUAL, true)?;
    sample.put("members_without_bytes", without);
    sample.put("members_unused_bytes", unused - without);
    sample.put("members_opted_bytes", opted - unused);
    Ok(())
}

/// Measured from the second topic of each client on, when everything made once exists.
fn membership(bench: &Bench<'_>, count: usize, history: &str, opts_in: bool) -> Result<f64> {
    let topic =
        |round: usize| move |index: usize| format!("rooms:{round}-{}", index / TOPIC_MEMBERS);
    let server = server::serve(bench, history, 1)?;
    let mut clients = server.clients()?;
    if opts_in {
        server::opt_in(&mut clients);
    }
    clients.open(count)?;
    clients.join_all(topic(0))?;
    clients.rest(CALM)?;
    let some = server.resident()?;
    for round in 1..TOPICS {
        clients.join_all(topic(round))?;
    }
    clients.rest(CALM)?;
    let all = server.resident()?;
    let resumed = if opts_in { u64::try_from(count * TOPICS)? } else { 0 };
    ensure!(clients.total().resumed == resumed, "{} opted in", clients.total().resumed);
    Ok(stats::difference(all, some) / stats::per(count * (TOPICS - 1), 1))
}

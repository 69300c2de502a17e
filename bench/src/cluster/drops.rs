//! Row `drops`: the test of dropped connections on three nodes, of which one is killed, as is the
//! engine; with `simurgh load`, which counts each client's messages. Then the confirmed messages
//! are compared with those that the remaining nodes keep.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::engine::Engine;
use super::nodes::{self, NodeSettings};
use simurgh_bench_kit::process::{self, Process};
use simurgh_bench_kit::report;
use simurgh_bench_kit::rounds::{Bench, Sample};
use simurgh_bench_kit::target::{CLIENT_CORE, Server};
use simurgh_bench_kit::{stats, wait};

const SCENARIO: &str = include_str!("../../scenarios/drops-cluster.toml");
/// Changes for a short run: 1,000 clients, half the cuts.
const SHORT: &[(&str, &str)] = &[
    ("duration = \"110s\"", "duration = \"65s\""),
    ("duration = \"20s\"\nrate = 500", "duration = \"5s\"\nrate = 200"),
    ("duration = \"60s\"", "duration = \"30s\""),
    ("loop = 600", "loop = 300"),
];
const ROOMS: usize = 10;
const KEPT_ROOMS: &str = r#"
[[channel]]
topic = "drops:*"
join_reply = {}
history = { count = 1000, age = "10m", bytes = "4MiB" }
[[channel.event]]
name = "new:msg"
broadcast = "all"
reply = {}
"#;
/// How long the engine is away, beside its starting time.
const AWAY: Duration = Duration::from_millis(500);
/// Beyond the duration of the run.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Messages of one answer to a request for the history.
const PAGE: usize = 1_000;

/// When each is killed, from the start of the run.
struct Times {
    node: Duration,
    engine: Duration,
    end: Duration,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let seconds = Duration::from_secs;
    let times = match bench.options.short {
        true => Times { node: seconds(15), engine: seconds(25), end: seconds(65) },
        false => Times { node: seconds(40), engine: seconds(60), end: seconds(110) },
    };
    let mut engine = Engine::keeping(bench)?;
    let start = |name| {
        NodeSettings { channels: KEPT_ROOMS, ..NodeSettings::new(Some(&engine), name) }.start(bench)
    };
    let nodes = [start("one")?, start("two")?, start("three")?];
    nodes::together(&nodes.each_ref())?;
    let out = bench.scratch.join(format!("drops-{}", sample.round));
    let load = start_load(bench, &nodes, &out)?;
    let began = Instant::now();
    wait::sleep_until(began + times.node);
    let [one, two, three] = nodes;
    two.process.signal(Signal::KILL)?;
    wait::sleep_until(began + times.engine);
    engine.kill();
    thread::sleep(AWAY);
    engine.start_again()?;
    let left = (began + times.end + WAIT_MAX).saturating_duration_since(Instant::now());
    let (status, _) = load.finish(left).context("simurgh load")?;
    let text = fs::read_to_string(out.join("text"))?;
    // 3: the scenario's own conditions do not hold, which the figures show as well.
    ensure!(matches!(status.code(), Some(0 | 3)), "simurgh load ended with {status}: {text}");
    let report: Value = serde_json::from_slice(&fs::read(out.join("out/report.json"))?)?;
    let kept = [kept(&one)?, kept(&three)?];
    put(sample, &report, &kept)?;
    keep(bench, &report, &text, sample)
}

/// Starts the load; its output goes to a file.
fn start_load(bench: &Bench<'_>, nodes: &[Server; 3], out: &Path) -> Result<Process> {
    let changes = if bench.options.short { SHORT } else { &[] };
    let mut text = SCENARIO.replace("rooms:{{room}}", "drops:{{room}}");
    for (before, after) in changes {
        ensure!(text.contains(before), "{before} is not in the scenario");
        text = text.replace(before, after);
    }
    fs::create_dir_all(out)?;
    fs::write(out.join("drops-cluster.toml"), text)?;
    let targets = nodes.iter().map(|node| format!("ws://{}", node.address));
    Process::start(
        process::command(&bench.program, Some(CLIENT_CORE), None)?
            .current_dir(out)
            .args(["load", "drops-cluster.toml", "--workers", "2", "--dashboard", "off", "--quiet"])
            .args(["--server-cpu", "--out", "out"])
            .args(targets.flat_map(|url| ["--target".to_owned(), url]))
            .stdout(File::create(out.join("text"))?),
    )
}

/// The messages a node keeps, of all rooms.
struct Kept {
    messages: usize,
    /// Without duplicates.
    different: usize,
}

fn kept(node: &Server) -> Result<Kept> {
    let (mut messages, mut different) = (0, BTreeSet::new());
    for room in 1..=ROOMS {
        let answer = node.get(&format!("/api/history?topic=drops:{room}&limit={PAGE}"))?;
        let of_room = answer.get("messages").and_then(Value::as_array);
        let of_room = of_room.with_context(|| format!("no messages: {answer}"))?;
        ensure!(of_room.len() < PAGE, "there may be more than {PAGE} in a room");
        messages += of_room.len();
        // A stamp has the publisher and the message's number.
        let body = |it: &Value| it.pointer("/payload/body")?.as_str().map(str::to_owned);
        different.extend(of_room.iter().map(|it| body(it).unwrap_or_default()));
    }
    Ok(Kept { messages, different: different.len() })
}

fn put(sample: &mut Sample, report: &Value, kept: &[Kept]) -> Result<()> {
    let counts = report.get("counts").and_then(Value::as_object).context("no counts")?;
    let count = |name: &str| counts.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let expected = count("deliveries_expected");
    ensure!(expected > 0.0, "nothing was to come");
    sample.put("drops_expected", expected);
    sample.put("drops_percent", 100.0 * count("deliveries_once") / expected);
    for name in ["missing", "duplicate", "out_of_order", "unexpected"] {
        sample.put(format!("drops_{name}"), count(&format!("deliveries_{name}")));
    }
    let gaps = counts.iter().filter(|(name, _)| name.starts_with("gaps_"));
    sample.put(
        "drops_gaps",
        gaps.filter_map(|(_, count)| count.as_f64()).fold(0.0, |sum, it| sum + it),
    );
    for name in ["drops_reset", "drops_silent", "reconnects", "resumed_messages"] {
        sample.put(format!("drops_count_{name}"), count(name));
    }
    let (published, unconfirmed) = (count("broadcasts"), count("broadcasts_unconfirmed"));
    let delivered = count("broadcasts_unconfirmed_heard");
    sample.put("drops_said", published);
    sample.put("drops_unconfirmed", unconfirmed);
    sample.put("drops_unconfirmed_heard", delivered);
    let owed = published - unconfirmed + delivered;
    let different = |it: &Kept| stats::per(it.different, 1);
    // Too few: a confirmed message is not kept. Too many: one is kept that no client received.
    let off = kept.iter().map(|it| (different(it) - owed).abs()).fold(0.0, f64::max);
    sample.put("drops_kept_off", off);
    let twice: usize = kept.iter().map(|it| it.messages - it.different).sum();
    sample.put_count("drops_kept_twice", twice);
    Ok(())
}

/// Keeps the load's own report beside the figures.
fn keep(bench: &Bench<'_>, report: &Value, text: &str, sample: &Sample) -> Result<()> {
    let mut whole = String::from("# Dropped connections on three nodes\n\n");
    for (name, value) in &sample.figures {
        // Writing to a text does not fail.
        let _ = writeln!(whole, "* {name} {value}");
    }
    // Lines of the terminal, some of which end in spaces.
    let lines = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    let _ = writeln!(whole, "\n```text\n{lines}\n```");
    let fields = [("load", report.clone()), ("figures", json!(sample.figures))];
    report::keep(bench.options.paths.out.as_deref(), "cluster-drops", fields, &whole)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_what_was_confirmed_or_heard() {
        let report = json!({"counts": {
            "deliveries_expected": 200, "deliveries_once": 199, "deliveries_missing": 1,
            "broadcasts": 100, "broadcasts_unconfirmed": 7, "broadcasts_unconfirmed_heard": 2,
            "gaps_epoch": 3, "gaps_lost": 1,
        }});
        let mut sample = Sample::default();
        let all = Kept { messages: 95, different: 95 };
        let fewer = Kept { messages: 95, different: 94 };
        put(&mut sample, &report, &[all]).unwrap();
        let figure = |sample: &Sample, name: &str| sample.figures.get(name).copied();
        assert_eq!(figure(&sample, "drops_kept_off"), Some(0.0));
        assert_eq!(figure(&sample, "drops_percent"), Some(99.5));
        assert_eq!(figure(&sample, "drops_gaps"), Some(4.0));
        put(&mut sample, &report, &[fewer]).unwrap();
        assert_eq!(figure(&sample, "drops_kept_off"), Some(1.0));
        assert_eq!(figure(&sample, "drops_kept_twice"), Some(1.0));
    }

    #[test]
    fn the_short_run_is_made_of_the_scenario() {
        for (before, _) in SHORT {
            assert_eq!(SCENARIO.matches(before).count(), 1, "{before}");
        }
        assert_eq!(SCENARIO.matches("rooms:{{room}}").count(), 2);
        assert!(SCENARIO.contains(&format!("to = {ROOMS} }}")));
    }
}

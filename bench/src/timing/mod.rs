//! Whether `simurgh load` sends when its scenario says so, and reports what a server did: an
//! independent [`recorder`] logs the times. bench/README.md says how each figure comes about.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use simurgh_bench_kit::process::Process;
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL, table};
use simurgh_bench_kit::stats;
use simurgh_bench_kit::target::CLIENT_CORE;

use self::recorder::Record;
use self::scenario::{Arrivals, Between, Follower, Scenario, longest};

mod delays;
pub(crate) mod recorder;
mod scenario;

pub(crate) const SUITE: Suite = Suite {
    name: "timing",
    about: "When `simurgh load` sends, and what it reports, by an independent recorder",
    jobs: || {
        vec![
            Job::new("scenarios", scenarios),
            Job::new("delays", delays::run),
            Job::new("tsung", delays::tsung),
        ]
    },
    runs: 1,
    clients: (1_000, 1_000),
    order: "one recorder for each row; scenarios one after the other",
    is_each_judged: true,
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};

/// The recorder, on the server's core.
struct Recorder {
    address: SocketAddrV4,
    _process: Process,
}

impl Recorder {
    fn start() -> Result<Self> {
        let own = std::env::current_exe().context("own path")?;
        let mut process = Process::with_output(first(&own, "5").arg("recorder"))?;
        let address = process.line("listening on", Duration::from_secs(5))?.parse()?;
        Ok(Self { address, _process: process })
    }
}

/// The recorder's other half, on the load generator's core.
struct Watch(Process);

impl Watch {
    fn start() -> Result<Self> {
        let own = std::env::current_exe().context("own path")?;
        Ok(Self(Process::with_output(first(&own, "6").arg("watch"))?))
    }

    /// Stalls of the core since the last call: begin and end of each.
    fn stalls(&mut self) -> Vec<(u64, u64)> {
        let mut stalls = Vec::new();
        while let Ok(line) = self.0.line("stall", Duration::from_millis(1)) {
            let mut times = line.split_ascii_whitespace().map_while(|word| word.parse().ok());
            stalls.extend(times.next().zip(times.next()));
        }
        stalls
    }
}

/// The program, before those of lower priority on its core (SCHED_FIFO, which needs root): what
/// others take is neither side's fault.
fn first(program: &Path, priority: &str) -> Command {
    let mut command = Command::new("chrt");
    command.args(["--fifo", priority]).arg(program);
    command
}

/// How a run of `simurgh load` ended.
struct Ran {
    status: i32,
    report: Option<Value>,
    printed: String,
}

/// Runs a scenario; `kind` is the extension of its file.
fn load(bench: &Bench<'_>, text: &str, kind: &str) -> Result<Ran> {
    let (file, out) = (bench.scratch.join("job").with_extension(kind), bench.scratch.join("out"));
    fs::write(&file, text)?;
    let mut command = first(&bench.program, "5");
    command.arg("load").arg(&file).arg("--out").arg(&out);
    command.args(["--overwrite", "--quiet", "--dashboard", "off", "--workers", "1"]);
    let output = command.arg(format!("--cores={CLIENT_CORE}")).output()?;
    let report = fs::read_to_string(out.join("report.json")).ok();
    let report = report.and_then(|text| serde_json::from_str(&text).ok());
    // Otherwise a run that breaks off would have the report of the one before.
    let _ = fs::remove_dir_all(&out);
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    Ok(Ran { status: output.status.code().unwrap_or(-1), report, printed })
}

const SEED: u64 = 2026;
const OFF_MAX_NS: u64 = 1_000_000;
const HALF_NS: u64 = 500_000;
/// A stall can delay requests up to this long after it: a think time and an answer.
const STALL_SPAN_NS: u64 = 60_000_000;

fn scenarios(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let (recorder, mut watch) = (Recorder::start()?, Watch::start()?);
    let all: Vec<Scenario> = (0..)
        .map(|number| Scenario::random(number, SEED))
        .filter(|scenario| takes_us(scenario) < 1_500_000)
        .take(bench.options.size(200, 20))
        .collect();
    let (mut failed, mut failed_again, mut wrong) = (0, 0, 0);
    let mut off_us: Vec<f64> = Vec::new();
    let mut seen_us: Vec<f64> = Vec::new();
    let mut stalled = 0;
    for scenario in &all {
        watch.stalls();
        let log = logged(bench, recorder.address, scenario)?;
        let stalls = watch.stalls();
        seen_us.extend(log.iter().map(|record| us(record.at_ns - record.from_ns)));
        let off_ns = match follow(scenario, &log) {
            Ok(off_ns) => off_ns,
            Err(error) => {
                wrong += 1;
                sample.note(format!("{error:#}: {scenario:?}"));
                continue;
            }
        };
        off_us.extend(off_ns.iter().map(|(off, _)| us(off.unsigned_abs())));
        let (worst_ns, path) = worst(&off_ns, &stalls);
        if worst_ns.unsigned_abs() <= OFF_MAX_NS {
            stalled += usize::from(worst(&off_ns, &[]).0.unsigned_abs() > OFF_MAX_NS);
        } else {
            failed += 1;
            // A fault of the load generator is there each time, a stall of the machine is not.
            let log = logged(bench, recorder.address, scenario)?;
            let (again_ns, path_again) = worst(&follow(scenario, &log)?, &watch.stalls());
            failed_again += usize::from(again_ns.unsigned_abs() > OFF_MAX_NS);
            let (first, again) = (worst_ns / 1_000, again_ns / 1_000);
            sample.note(format!(
                "{path} is off by {first} µs; once more {path_again} by {again} µs: {scenario:?}"
            ));
        }
    }
    sample.put_count("scenarios", all.len());
    sample.put_count("scenarios_failed", failed);
    sample.put_count("scenarios_failed_again", failed_again);
    sample.put_count("scenarios_stalled", stalled);
    sample.put_count("scenarios_wrong", wrong);
    sample.put_count("requests", off_us.len());
    sample.put_count("requests_failed", off_us.iter().filter(|off| **off > 1_000.0).count());
    for (name, all, of) in [
        ("off_p50_us", &off_us, 0.5),
        ("off_p99_us", &off_us, 0.99),
        ("off_max_us", &off_us, 1.0),
        ("recorder_p99_us", &seen_us, 0.99),
        ("recorder_max_us", &seen_us, 1.0),
    ] {
        sample.put_some(name, stats::quantile(all, of));
    }
    Ok(())
}

/// The log of a run of this scenario.
fn logged(bench: &Bench<'_>, server: SocketAddrV4, scenario: &Scenario) -> Result<Vec<Record>> {
    let ran = load(bench, &scenario.toml(server), "toml")?;
    ensure!(ran.status == 0, "status {} of {scenario:?}: {}", ran.status, ran.printed);
    recorder::log(server)
}

/// The one that is off most, less the longest stall of its core shortly before.
fn worst<'a>(off_ns: &[(i64, &'a Record)], stalls: &[(u64, u64)]) -> (i64, &'a str) {
    let unexplained = |&(off, record): &(i64, &'a Record)| {
        let since_ns = record.at_ns.saturating_sub(STALL_SPAN_NS);
        let near = stalls.iter().filter(|(from, to)| *to > since_ns && *from < record.at_ns);
        let stall_ns = near.map(|(from, to)| to - from).max().unwrap_or(0);
        let stall_ns = i64::try_from(stall_ns).unwrap_or(i64::MAX);
        (if off > 0 { (off - stall_ns).max(0) } else { off }, record.path.as_str())
    };
    off_ns.iter().map(unexplained).max_by_key(|(off, _)| off.unsigned_abs()).unwrap_or_default()
}

fn us(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1e6
}

/// How long a scenario takes at most, in µs.
fn takes_us(scenario: &Scenario) -> u64 {
    let one = longest(&scenario.steps);
    match scenario.arrivals {
        Arrivals::Open(rate) => one + scenario.users * 1_000_000 / rate,
        Arrivals::Closed(users) => one * scenario.users.div_ceil(users),
    }
}

/// How late each request of all users was, in ns, and which one it was.
fn follow<'a>(scenario: &Scenario, log: &'a [Record]) -> Result<Vec<(i64, &'a Record)>> {
    let mut of_user: BTreeMap<u32, VecDeque<&Record>> = BTreeMap::new();
    for record in log {
        of_user.entry(record.user()).or_default().push_back(record);
    }
    ensure!(
        of_user.keys().copied().eq(1..=u32::try_from(scenario.users)?),
        "users {:?} came",
        of_user.keys()
    );
    let start = start(scenario, &of_user)?;
    let mut all = Vec::new();
    let mut ends: Vec<Between> = Vec::new();
    for (user, records) in of_user {
        let index = u64::from(user - 1);
        let due = match scenario.arrivals {
            Arrivals::Open(rate) => {
                let after_us = index * 1_000_000 / rate;
                start.plus(after_us, after_us)
            }
            Arrivals::Closed(users) if index < users => start,
            Arrivals::Closed(_) => {
                // It takes the place of the user that ended first.
                ends.sort_by_key(|end| end.1);
                ensure!(!ends.is_empty(), "user {user} came though none had left");
                ends.remove(0)
            }
        };
        let mut follower = Follower::new(due, records);
        follower.session(scenario).with_context(|| format!("user {user}"))?;
        all.append(&mut follower.off_ns);
        ends.push(follower.due);
    }
    Ok(all)
}

/// When the run began: what the first requests of most users agree on, each to half a millisecond,
/// as timers have whole ones.
fn start(scenario: &Scenario, of_user: &BTreeMap<u32, VecDeque<&Record>>) -> Result<Between> {
    let mut starts = Vec::new();
    for (user, records) in of_user {
        let first = records.front().context("no request")?;
        let after_ns = match scenario.arrivals {
            Arrivals::Open(rate) => u64::from(user - 1) * 1_000_000_000 / rate,
            Arrivals::Closed(users) if u64::from(*user) <= users => 0,
            Arrivals::Closed(_) => continue,
        };
        // Its steps before the first request, at their least and most.
        let mut before = Follower::new(Between(0, 0), VecDeque::new());
        // It has no requests, so it stops where the first one should be.
        let _ = before.session(scenario);
        let Between(least, most) = before.due;
        let start = |at_ns: u64, steps_ns: u64| at_ns.saturating_sub(after_ns + steps_ns);
        let (low, high) = (start(first.from_ns, most), start(first.at_ns, least));
        starts.push(Between(low.saturating_sub(HALF_NS), high + HALF_NS));
    }
    let agree = |at_ns: u64| {
        let mut agreed = starts.iter().filter(move |it| (it.0..=it.1).contains(&at_ns));
        let first = agreed.next().copied().unwrap_or_default();
        agreed.fold((1, first), |(count, both), it| {
            (count + 1, Between(both.0.max(it.0), both.1.min(it.1)))
        })
    };
    let most = starts.iter().map(|it| agree(it.0)).max_by_key(|(count, _)| *count);
    let (_, Between(low, high)) = most.context("nobody came")?;
    let middle = u64::midpoint(low, high);
    Ok(Between((low + HALF_NS).min(middle), high.saturating_sub(HALF_NS).max(middle)))
}

#[cfg(test)]
mod tests {
    use super::scenario::Step;
    use super::*;

    /// The log of a load generator that is `off_us` late with its second request.
    #[test]
    fn late_request_is_detected() {
        let steps = vec![
            Step::Ask { name: 1, delay: 1_000, push: None },
            Step::Loop(3, vec![Step::Think(2_000)]),
            Step::Ask { name: 2, delay: 0, push: None },
        ];
        let scenario = Scenario {
            number: 7,
            arrivals: Arrivals::Open(10),
            users: 1,
            is_websocket: false,
            steps,
        };
        for off_us in [0, 3_000] {
            let record = |name: u64, at_us: u64, answered_us: u64| Record {
                path: format!("/7/1/{name}/0"),
                from_ns: at_us * 1_000 - 10,
                at_ns: at_us * 1_000,
                answered_ns: [answered_us * 1_000; 2],
                ..Record::default()
            };
            let log = [record(1, 5_000, 6_000), record(2, 12_000 + off_us, 20_000)];
            let off = follow(&scenario, &log).unwrap();
            assert_eq!(off.len(), 2);
            assert_eq!(off[1].0.unsigned_abs().div_ceil(1_000), off_us, "{off:?}");
            assert!(follow(&scenario, &log[..1]).is_err(), "a request is missing");
            for (stall, expected_us) in [
                ((0, 0), off_us),
                ((10_000_000, 12_000_000), off_us.saturating_sub(2_000)),
                // It came later.
                ((30_000_000, 33_000_000), off_us),
            ] {
                let (worst_ns, _) = worst(&off, &[stall]);
                assert_eq!(worst_ns.unsigned_abs().div_ceil(1_000), expected_us, "{stall:?}");
            }
        }
    }

    #[test]
    fn scenarios_are_short_and_determined_by_the_seed() {
        let (one, other) = (Scenario::random(3, 1), Scenario::random(3, 1));
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        let text = one.toml("127.0.0.1:1".parse().unwrap());
        assert!(text.contains("max_users") && text.ends_with("]\n"), "{text}");
    }
}

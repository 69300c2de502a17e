//! `cargo xtask mutants`: do the tests notice when a line of the core is wrong?
//!
//! cargo-mutants changes one thing at a time (a function returns at once, a `<` becomes `<=`) in a
//! copy of the sources and runs the judges: the unit tests of the changed crates and those of the
//! simulator. A change that no test notices is a survivor; docs/TESTING.md lists each with its
//! reason.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use simurgh_bench_kit::report;

use crate::files;
use crate::process::Task;
use crate::provide::{self, Tool};

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0", debug: false };
const RUN_MINUTES: u64 = 600;
/// The crates whose tests are run.
const JUDGES: [&str; 4] = ["simurgh-channel", "simurgh-core", "simurgh-history", "simurgh-sim"];
/// The crates that are changed.
const JUDGED: [&str; 3] = ["simurgh-channel", "simurgh-core", "simurgh-history"];
/// The rooms that are judged, and their files below the crates.
const ROOMS: &[(&str, &[&str])] = &[
    ("registry", &["simurgh-core/src/registry/**"]),
    (
        "fan-out",
        &[
            "simurgh-core/src/fanout/**",
            "simurgh-core/src/flow.rs",
            "simurgh-channel/src/permits.rs",
        ],
    ),
    ("session", &["simurgh-core/src/session/**", "simurgh-core/src/membership.rs"]),
    (
        "application",
        &[
            "simurgh-core/src/application.rs",
            "simurgh-core/src/effects.rs",
            "simurgh-core/src/effects/**",
        ],
    ),
    ("time", &["simurgh-core/src/time/**", "simurgh-core/src/deadlines.rs"]),
    ("history", &["simurgh-core/src/history/**", "simurgh-core/src/barrier.rs"]),
    ("ring", &["simurgh-history/src/**"]),
];
const SOURCES: &str = "crates/core/";

#[derive(Args)]
pub(crate) struct Options {
    /// Judge these rooms only (several with commas): registry, fan-out, session, application, time,
    /// history, ring
    #[arg(long, value_delimiter = ',', value_name = "ROOM")]
    room: Vec<String>,
    /// Only one mutant of N, the K-th of each: 0/3 is a third of all
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Mutants that are built and judged at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Show the last run's figures again, without a run
    #[arg(long)]
    table: bool,
}

/// The mutants of a room, by result.
#[derive(Default)]
struct Room {
    caught: usize,
    timed_out: usize,
    unviable: usize,
    missed: Vec<String>,
}

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<OneOutcome>,
}

#[derive(Deserialize)]
struct OneOutcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Mutant),
}

#[derive(Deserialize)]
struct Mutant {
    file: String,
    name: String,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let out = crate::root().join("target/mutants");
    if !options.table {
        judge(options, &out)?;
    }
    let path = out.join("mutants.out/outcomes.json");
    println!("\n{}", table(&files::text(&path)?).with_context(|| path.display().to_string())?);
    Ok(())
}

fn judge(options: &Options, out: &Path) -> Result<()> {
    let tool = provide::cargo_tool(&TOOL)?;
    let mut arguments = vec!["mutants".to_owned()];
    for package in JUDGED {
        arguments.extend(["--package".into(), package.into()]);
    }
    for file in sources(&options.room)? {
        arguments.extend(["--file".into(), format!("{SOURCES}{file}")]);
    }
    for judge in JUDGES {
        arguments.extend(["--test-package".into(), judge.into()]);
    }
    if let Some(shard) = &options.shard {
        arguments.extend(["--shard".into(), shard.clone()]);
    }
    arguments.extend(["--output".into(), out.display().to_string()]);
    arguments.extend(["--jobs".into(), options.jobs.to_string()]);
    // The timeout ends endless loops; a busy machine cannot create survivors by it.
    arguments.extend(["--timeout", "120", "--no-times", "--colors", "never"].map(str::to_owned));
    files::directory(out)?;
    let done = Task::new(&tool.display().to_string(), &arguments, RUN_MINUTES).run();
    match done.code {
        // 2: some were missed, 3: some took too long; both are in the report.
        Some(0 | 2 | 3) => Ok(()),
        _ => bail!("cargo-mutants: {}", done.reason()),
    }
}

fn sources(rooms: &[String]) -> Result<Vec<&'static str>> {
    let names: Vec<&str> = ROOMS.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = rooms.iter().find(|room| !names.contains(&room.as_str())) {
        bail!("there is no room {unknown:?}: {}", names.join(", "));
    }
    let is_wanted = |name: &str| rooms.is_empty() || rooms.iter().any(|room| room == name);
    let wanted = ROOMS.iter().filter(|(name, _)| is_wanted(name));
    Ok(wanted.flat_map(|(_, files)| files.iter().copied()).collect())
}

fn table(outcomes: &str) -> Result<String> {
    let all: Outcomes = serde_json::from_str(outcomes)?;
    let mut rooms: BTreeMap<&str, Room> = BTreeMap::new();
    for OneOutcome { scenario, summary } in all.outcomes {
        let Scenario::Mutant(Mutant { file, name }) = scenario else { continue };
        let room = rooms.entry(room_of(&file)).or_default();
        match summary.as_str() {
            "CaughtMutant" => room.caught += 1,
            "Timeout" => room.timed_out += 1,
            "Unviable" => room.unviable += 1,
            _ => room.missed.push(name),
        }
    }
    let row = |(name, room): (&&str, &Room)| {
        let (caught, missed) = (room.caught + room.timed_out, room.missed.len());
        let viable = caught + missed;
        let share = 100.0 * caught as f64 / viable.max(1) as f64;
        let counts = [viable, caught, room.timed_out, missed].map(|count| count.to_string());
        [vec![(*name).to_owned()], counts.to_vec(), vec![format!("{share:.1} %")]].concat()
    };
    let head = ["room", "viable", "caught", "of these by time-out", "missed", "caught"];
    let survivors = rooms.values().flat_map(|room| &room.missed);
    let survivors = survivors.map(|name| format!("\n- {}", name.trim_start_matches(SOURCES)));
    Ok(report::table(&head, rooms.iter().map(row)) + &survivors.collect::<String>())
}

fn room_of(file: &str) -> &'static str {
    let file = file.trim_start_matches(SOURCES);
    let is_of = |pattern: &&str| match pattern.strip_suffix("**") {
        Some(folder) => file.starts_with(folder),
        None => file == *pattern,
    };
    let found = ROOMS.iter().find(|(_, files)| files.iter().any(&is_of));
    found.map_or("others", |(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_are_counted_by_room_and_survivors_named() {
        let one = |file: &str, summary: &str| {
            format!(
                r#"{{"scenario": {{"Mutant": {{"file": "{SOURCES}{file}", "name": "{file}: x"}}}},
                    "summary": "{summary}"}}"#
            )
        };
        let outcomes = [
            r#"{"scenario": "Baseline", "summary": "Success"}"#.to_owned(),
            one("simurgh-core/src/registry/list.rs", "CaughtMutant"),
            one("simurgh-core/src/registry/mod.rs", "MissedMutant"),
            one("simurgh-core/src/registry/mod.rs", "Unviable"),
            one("simurgh-core/src/session/mod.rs", "Timeout"),
        ];
        let text = table(&format!(r#"{{"outcomes": [{}]}}"#, outcomes.join(","))).unwrap();
        assert!(text.contains("| registry | 2 | 1 | 0 | 1 | 50.0 % |"), "{text}");
        assert!(text.contains("| session | 1 | 1 | 1 | 0 | 100.0 % |"), "{text}");
        assert!(text.ends_with("- simurgh-core/src/registry/mod.rs: x"), "{text}");
    }

    #[test]
    fn rooms_are_known_by_name() {
        assert_eq!(sources(&["registry".into()]).unwrap(), ["simurgh-core/src/registry/**"]);
        assert!(sources(&["attic".into()]).is_err());
        assert_eq!(room_of("crates/core/simurgh-core/src/effects.rs"), "application");
        assert_eq!(room_of("crates/core/simurgh-core/src/view.rs"), "others");
        assert_eq!(room_of("crates/core/simurgh-history/src/ring.rs"), "ring");
    }
}

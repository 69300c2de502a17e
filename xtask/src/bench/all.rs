//! `cargo xtask bench --all`: measures, keeps and compares the whole table; updates the page.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use clap::builder::PossibleValuesParser;
use simurgh_bench_kit::machine::{self, Machine};

use super::compare::compare;
use super::parts::{PARTS, Part};
use super::record::{self, Record};
use super::session::Session;
use super::tables;
use crate::process::{self, Task};
use crate::provide;

const BUILD_MINUTES_MAX: u64 = 30;

/// Exit code if all was measured and a figure is worse, or misses its limit.
const WORSE: u8 = 3;
/// Exit code if the run was interrupted, as in shells.
const INTERRUPTED: u8 = 130;

/// Measures everything that a release is judged by, and compares it with the last run of this
/// machine.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench --all", after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// (What this is.)
    #[arg(long, hide = true)]
    all: bool,
    /// Connections of the road.
    #[arg(long, value_name = "N", default_value_t = 30_000,
          value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    size: u64,
    /// Runs of each measure. Four are the least that can show a change.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=25))]
    runs: Option<u16>,
    /// A tenth of the sizes, one run: to see whether all works, not for figures.
    #[arg(long)]
    short: bool,
    /// These parts only (several with commas): instructions, server, fairness, attacks, presence,
    /// history, cluster, timing, driver, page, load, road.
    #[arg(long, value_delimiter = ',', value_name = "PART", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(PARTS.iter().map(|part| part.name)))]
    only: Vec<String>,
    /// Leaves docs/BENCHMARKS.md as it is.
    #[arg(long)]
    no_page: bool,
}

const AFTER_HELP: &str = "\
Everything is kept in bench/runs/<date>-<machine>/all, all-2 and so on; nothing is written over.\n\
Exit status: 0 nothing is worse, 1 a part failed, 2 flags are wrong, 3 something is worse than in\n\
the last run or misses what it must reach, 130 interrupted (what was measured is kept).";

pub(crate) fn run(options: &Options, command: &str) -> Result<ExitCode> {
    process::end_on_ctrl_c()?;
    let chosen =
        |part: &&Part| options.only.is_empty() || options.only.iter().any(|it| it == part.name);
    let parts: Vec<&Part> = PARTS.iter().filter(chosen).collect();
    // The parts that need a missing package report it; the others run without it.
    if let Err(missing) = provide::debian_packages() {
        eprintln!("bench: {missing:#}");
    }
    build(&parts)?;
    let machine = Machine::here();
    let runs = crate::root().join(record::RUNS);
    let mut session = Session {
        directory: record::new_directory(&runs, &machine.runs_of_today())?,
        programs: super::release_dir(),
        runs: usize::from(options.runs.unwrap_or(if options.short { 1 } else { 5 })),
        size: if options.short { options.size.min(3_000) } else { options.size },
        short: options.short,
        engine: None,
        commands: Vec::new(),
        files: Vec::new(),
    };
    let mut record = Record {
        date: machine::date(),
        unix_seconds: machine::unix_seconds(),
        commit: machine::commit(),
        machine,
        command: command.to_owned(),
        short: options.short,
        parts: Vec::new(),
    };
    record.write(&session.directory)?;
    for part in parts {
        if process::is_interrupted() {
            break;
        }
        println!("\n==> {}: {}", part.name, part.about);
        record.parts.push(one(&mut session, part));
        // After each part, so that a later abort loses nothing.
        record.write(&session.directory)?;
    }
    show(options, &session, &record)
}

fn build(parts: &[&Part]) -> Result<()> {
    if parts.iter().all(|part| part.name == "instructions") {
        return Ok(());
    }
    let benches = ["simurgh-bench", "simurgh-bench-peer", "simurgh-bench-timing"];
    let programs = ["simurgh-cli", "hello_page"].into_iter().chain(benches);
    let mut arguments = vec!["build", "--release"];
    arguments.extend(programs.flat_map(|program| ["-p", program]));
    let built = Task::new("cargo", &arguments, BUILD_MINUTES_MAX).run();
    built.or_fail("the release does not build").map(drop)
}

/// Measures a part; its failure is kept with it and stops no other part.
fn one(session: &mut Session, part: &Part) -> record::Part {
    let start = Instant::now();
    let outcome = (part.run)(session);
    let mut kept = record::Part {
        name: part.name.to_owned(),
        seconds: start.elapsed().as_secs_f64().round(),
        commands: std::mem::take(&mut session.commands),
        files: std::mem::take(&mut session.files),
        ..record::Part::default()
    };
    match outcome {
        Ok(measures) => kept.measures = measures,
        Err(_) if process::is_interrupted() => kept.failure = Some("interrupted".to_owned()),
        Err(error) => {
            let why = format!("{error:#}");
            eprintln!("{}: {why}", part.name);
            kept.failure = Some(why);
        }
    }
    kept
}

/// Prints the comparison, keeps it beside the figures, and puts it into the page.
fn show(options: &Options, session: &Session, record: &Record) -> Result<ExitCode> {
    let root = crate::root();
    let path = session.directory.join(record::FILE);
    let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
    let before = record::earlier(&root.join(record::RUNS), record).into_iter().next();
    let before = before.as_ref().map(|(path, record)| (path.as_path(), record));
    let text = tables::run_text(&root, &name, record, before);
    println!("\n{text}");
    std::fs::write(session.directory.join("run.md"), &text)?;
    let has_failed = record.parts.iter().any(|part| part.failure.is_some());
    // A page with only some parts of the table would lose the rest.
    let is_whole = options.only.is_empty() && !options.short && !process::is_interrupted();
    if is_whole && !options.no_page {
        tables::update(&root, Some(&name))?;
        println!("docs/BENCHMARKS.md shows this run now");
    }
    println!("kept in {}", name.trim_end_matches(record::FILE));
    let is_bad = compare(record, before.map(|(_, record)| record)).iter().any(|line| line.is_bad());
    Ok(match (process::is_interrupted(), has_failed, is_bad) {
        (true, ..) => ExitCode::from(INTERRUPTED),
        (_, true, _) => ExitCode::FAILURE,
        // A short run is too small for its limits to mean anything.
        (_, _, true) if !options.short => ExitCode::from(WORSE),
        _ => ExitCode::SUCCESS,
    })
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::Scratch;
    use super::super::session::tests::session;
    use super::*;

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(["bench"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn options_are_checked_before_anything_is_built() {
        let options = parsed("--all --size 50000 --runs 7 --only road,page").unwrap();
        assert_eq!((options.size, options.runs), (50_000, Some(7)));
        assert_eq!(options.only, ["road", "page"]);
        for wrong in ["--runs 0", "--runs 26", "--size 5", "--only roads", "--sise 7"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_that_fails_keeps_its_commands_and_loses_no_other() {
        let scratch = Scratch::new("all");
        let mut session = session(&scratch);
        let fails = Part {
            name: "fails",
            about: "",
            run: |session| {
                session.keep("partial.txt", "as far as it came")?;
                session.note("simurgh nothing");
                anyhow::bail!("it does not work")
            },
        };
        let works = Part { name: "works", about: "", run: |_| Ok(vec![Default::default()]) };
        let (failed, worked) = (one(&mut session, &fails), one(&mut session, &works));
        assert_eq!(failed.failure.as_deref(), Some("it does not work"));
        assert_eq!((failed.commands.len(), failed.files.len()), (1, 1));
        assert_eq!((worked.failure, worked.measures.len()), (None, 1));
        assert!(worked.commands.is_empty() && worked.files.is_empty());
    }
}

//! The flags of the program, and seeds on several threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use simurgh_sim_kit::run::run_seeds;

use crate::history::{self, HistorySimulation};
use crate::profile::Era;
use crate::run::Plan;
use crate::simulation::NodeSimulation;

/// Runs whole servers in one thread, from seeds, and holds what clients hear against what they
/// were to hear.
#[derive(Parser)]
#[command(name = "simurgh-sim")]
struct Options {
    /// This seed alone
    #[arg(long, conflicts_with_all = ["seeds", "minutes"])]
    seed: Option<u64>,
    /// Seeds from the first up to, and without, the second
    #[arg(long, value_name = "FROM..TO", value_parser = range, default_value = "0..1000")]
    seeds: (u64, u64),
    /// The one seed without what came to the simulator later
    #[arg(long, requires = "seed", default_value = "now")]
    era: Era,
    /// The seeds of a file, one a line, with the steps of each behind it
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Runs one node whose topics are kept, with as many operations as there are steps
    #[arg(long)]
    history: bool,
    /// Runs several nodes, with as many operations as there are steps; with `history` too,
    /// of such whose topics are kept
    #[arg(long)]
    cluster: bool,
    /// Steps of each seed
    #[arg(long, default_value_t = 2000)]
    steps: usize,
    /// Fresh seeds, drawn from the time, for so long
    #[arg(long, value_name = "T")]
    minutes: Option<f64>,
    /// How many seeds run at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(from, to)| {
        let from: u64 = from.parse().ok()?;
        Some((from, to.parse().ok()?))
    });
    ends.ok_or_else(|| format!("{text} is not FROM..TO"))
}

type Listed = (u64, usize, Era);

type Seeds = Box<dyn Iterator<Item = Listed> + Send>;

/// Runs the program.
pub fn main() -> ExitCode {
    let options = Options::parse();
    // Panics of applications are intended; all others are reported as failures.
    std::panic::set_hook(Box::new(|_| {}));
    let done = seeds(&options).map(|seeds| match (options.cluster, options.history) {
        (false, false) => run_seeds::<NodeSimulation>(
            options.jobs,
            seeds.map(|(seed, steps, era)| (seed, steps, Plan::of(seed, steps, era))),
        ),
        (false, true) => run_seeds::<HistorySimulation>(
            options.jobs,
            seeds.map(|(seed, steps, era)| (seed, steps, history::Plan::of_era(seed, era))),
        ),
        (true, history) => {
            let seeds = seeds.map(|(seed, steps, _)| (seed, steps));
            simurgh_sim_cluster::run_seeds(options.jobs, seeds, history)
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simurgh-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn seeds(options: &Options) -> Result<Seeds, String> {
    let steps = options.steps;
    let from_on = move |from: u64| (from..).map(move |seed| (seed, steps, Era::Now));
    if let Some(minutes) = options.minutes {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = now.as_nanos() as u64 / 1000;
        println!("fresh seeds from {from} on");
        let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        return Ok(Box::new(from_on(from).take_while(move |_| Instant::now() < until)));
    }
    if let Some(file) = &options.list {
        return Ok(Box::new(list(file, steps)?.into_iter()));
    }
    if let Some(seed) = options.seed {
        return Ok(Box::new([(seed, steps, options.era)].into_iter()));
    }
    let (from, to) = options.seeds;
    Ok(Box::new(from_on(from).take_while(move |it| it.0 < to)))
}

/// Reads a file of seeds: a seed a line, optionally its steps and its era, and a comment.
fn list(file: &Path, steps: usize) -> Result<Vec<Listed>, String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let lines = text.lines().filter_map(|line| line.split('#').next());
    let mut seeds = Vec::new();
    for line in lines.filter(|it| !it.trim().is_empty()) {
        let wrong = || format!("{}: {line:?}", file.display());
        let words: Vec<&str> = line.split_whitespace().collect();
        let era = words.last().and_then(|it| Era::from_str(it, false).ok());
        let numbers = words.get(..words.len() - usize::from(era.is_some())).unwrap_or_default();
        let seed = numbers.first().and_then(|it| it.parse().ok()).ok_or_else(wrong)?;
        let steps = numbers.get(1).map_or(Ok(steps), |it| it.parse().map_err(|_| wrong()))?;
        seeds.push((seed, steps, era.unwrap_or_default()));
    }
    Ok(seeds)
}

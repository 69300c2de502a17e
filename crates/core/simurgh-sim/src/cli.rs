//! The flags of the program, and seeds on several threads.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::kit::run::run_seeds;
use clap::Parser;

use crate::cluster::{ClusterPlan, found};

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
    /// Topics have a history; a step is an operation
    #[arg(long)]
    history: bool,
    /// Several nodes, with or without a history; a step is an operation
    #[arg(long)]
    cluster: bool,
    /// Seeds of several nodes that once failed, each with its own steps
    #[arg(long, requires = "cluster", conflicts_with_all = ["seed", "seeds", "minutes"])]
    found: bool,
    /// Steps of each seed
    #[arg(long, default_value_t = 2000)]
    steps: usize,
    /// Run fresh seeds, drawn from the time, for this many minutes; without `history` and `cluster`
    /// of each kind
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

/// Several nodes or one, with histories or without.
const ALL_KINDS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

type Seeds = Box<dyn Iterator<Item = u64> + Send>;

/// Runs the program.
pub fn main() -> ExitCode {
    let options = Options::parse();
    // Panics of applications are intended; all others are reported as failures.
    std::panic::set_hook(Box::new(|_| {}));
    let kinds = match options.minutes {
        Some(_) if !options.cluster && !options.history => ALL_KINDS.to_vec(),
        _ => vec![(options.cluster, options.history)],
    };
    let minutes = options.minutes.map(|minutes| minutes / kinds.len() as f64);
    let has_passed = kinds.into_iter().all(|(is_cluster, has_history)| {
        run_kind(&options, seeds(&options, minutes), is_cluster, has_history)
    });
    if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds of one kind; returns whether all passed.
fn run_kind(options: &Options, seeds: Seeds, is_cluster: bool, has_history: bool) -> bool {
    let Options { jobs, steps, .. } = *options;
    let seeds = seeds.map(|seed| (seed, steps));
    let plan = match (is_cluster, has_history) {
        (false, false) => {
            let seeds = seeds.map(|(seed, steps)| (seed, steps, ClusterPlan::single(seed, steps)));
            return run_seeds(jobs, seeds);
        }
        (false, true) => ClusterPlan::alone,
        (true, false) => ClusterPlan::of,
        (true, true) => ClusterPlan::with_history,
    };
    let seeds: Box<dyn Iterator<Item = (u64, usize)> + Send> = match (options.found, has_history) {
        (false, _) => Box::new(seeds),
        (true, false) => Box::new(found::PLAIN.into_iter()),
        (true, true) => Box::new(found::WITH_HISTORY.into_iter()),
    };
    let seeds = seeds.map(|(seed, steps)| (seed, steps, plan(seed)));
    run_seeds(jobs, seeds)
}

fn seeds(options: &Options, minutes: Option<f64>) -> Seeds {
    if let Some(minutes) = minutes {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = now.as_nanos() as u64 / 1000;
        println!("fresh seeds from {from} on");
        let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        return Box::new((from..).take_while(move |_| Instant::now() < until));
    }
    if let Some(seed) = options.seed {
        return Box::new([seed].into_iter());
    }
    let (from, to) = options.seeds;
    Box::new(from..to)
}

//! The flags of the program, and seeds on several threads.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::kit::run::run_seeds;
use clap::Parser;

use crate::world::{Plan, World};

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

type Seeds = Box<dyn Iterator<Item = u64> + Send>;

/// Runs the program.
pub fn main() -> ExitCode {
    let options = Options::parse();
    // Panics of applications are intended; all others are reported as failures.
    std::panic::set_hook(Box::new(|_| {}));
    let worlds = match (options.cluster, options.history) {
        (false, false) if options.minutes.is_some() => {
            vec![World::Node, World::History, World::Cluster, World::ClusterHistory]
        }
        (false, false) => vec![World::Node],
        (false, true) => vec![World::History],
        (true, false) => vec![World::Cluster],
        (true, true) => vec![World::ClusterHistory],
    };
    let minutes = options.minutes.map(|minutes| minutes / worlds.len() as f64);
    let has_passed =
        worlds.into_iter().all(|world| run_world(&options, seeds(&options, minutes), world));
    if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds of one kind; returns whether all passed.
fn run_world(options: &Options, seeds: Seeds, world: World) -> bool {
    let steps = options.steps;
    let plan = |seed| (seed, steps, Plan::new(world, seed, steps));
    run_seeds(options.jobs, seeds.map(plan))
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

//! The program: its flags, runs of seeds on several threads, and reports of those that fail.

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;

use crate::findings::{Counts, Failure, Findings, guarded};
use crate::locked;
use crate::world::{Op, Plan, Simulation, World};

/// Runs whole servers in one thread, from seeds, and checks what their clients hear.
#[derive(Parser)]
#[command(name = "simurgh-sim")]
struct Options {
    /// One seed alone, or FROM..TO: seeds from the first up to, and without, the second
    #[arg(long, visible_alias = "seed", value_parser = range, default_value = "0..1000")]
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
    let seed = |text: &str| text.parse().map_err(|_| format!("{text} is not a seed"));
    match text.split_once("..") {
        Some((from, to)) => Ok((seed(from)?, seed(to)?)),
        None => seed(text).map(|seed| (seed, seed.saturating_add(1))),
    }
}

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
    let has_passed = worlds.into_iter().all(|world| run_seeds(&options, minutes, world));
    if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds(options: &Options, minutes: Option<f64>) -> Box<dyn Iterator<Item = u64> + Send> {
    if let Some(minutes) = minutes {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let from = now.as_nanos() as u64 / 1000;
        println!("fresh seeds from {from} on");
        let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
        return Box::new((from..).take_while(move |_| Instant::now() < until));
    }
    let (from, to) = options.seeds;
    Box::new(from..to)
}

/// A bound on how often a failing run is tried again, to shrink it.
const RUNS_MAX: usize = 6_000;

/// Runs operations to the end; with a log if `is_told`.
pub(crate) fn run(plan: &Plan, ops: &[Op], is_told: bool) -> Findings {
    let run = || {
        let mut it = Simulation::new(plan);
        it.shared.ledger().findings.log = is_told.then(RefCell::default);
        for op in ops {
            let now_ms = it.clock_ns / 1_000_000;
            let ledger = it.shared.ledger();
            ledger.note(|| format!("{now_ms} ms: {op:?}"));
            if ledger.failure.get().is_some() || ledger.step as usize >= plan.steps {
                break;
            }
            drop(ledger);
            it.run(*op);
        }
        it.end();
        std::mem::take(&mut it.shared.ledger().findings)
    };
    guarded(run).unwrap_or_else(|it| Findings { failure: it.into(), ..Findings::default() })
}

/// Shrinks a run that fails by this rule: the fewest operations, of the simplest plan.
pub(crate) fn shrink(mut plan: Plan, mut ops: Vec<Op>, rule: &str) -> (Plan, Vec<Op>) {
    let fails = |plan: &Plan, ops: &[Op]| {
        run(plan, ops, false).failure.get().is_some_and(|it| it.rule == rule)
    };
    let mut runs_left = RUNS_MAX;
    loop {
        ops = fewest(ops, &mut runs_left, |ops| fails(&plan, ops));
        let mut plans = plan.simpler().into_iter().take(runs_left);
        runs_left = runs_left.saturating_sub(plans.len());
        let Some(simpler) = plans.find(|plan| fails(plan, &ops)) else { return (plan, ops) };
        plan = simpler;
    }
}

/// Leaves out operations that a failure does not need: half of them at once, then half as many, as
/// long as the list gets shorter. `runs_left` bounds the attempts.
fn fewest<O: Copy>(mut ops: Vec<O>, runs_left: &mut usize, fails: impl Fn(&[O]) -> bool) -> Vec<O> {
    let mut size = (ops.len() / 2).max(1);
    loop {
        let (mut at, before) = (0, ops.len());
        while at < ops.len() && *runs_left > 0 {
            let end = (at + size).min(ops.len());
            let rest = [&ops[..at], &ops[end..]].concat();
            *runs_left -= 1;
            match fails(&rest) {
                true => ops = rest,
                false => at = end,
            }
        }
        if *runs_left == 0 || (size == 1 && ops.len() == before) {
            return ops;
        }
        size = (size / 2).max(1);
    }
}

/// Runs seeds of one kind, as many at once as there are `jobs`; prints the counts, and the story of
/// one that fails. Returns whether all passed.
fn run_seeds(options: &Options, minutes: Option<f64>, world: World) -> bool {
    let (steps, seeds) = (options.steps, Mutex::new(seeds(options, minutes)));
    let all = Mutex::new((0_u64, Counts::default(), None));
    let work = || {
        while locked(&all).2.is_none() {
            let Some(seed) = locked(&seeds).next() else { return };
            let plan = Plan::new(world, seed, steps);
            let ops = plan.operations(steps);
            let Findings { failure, counts, .. } = run(&plan, &ops, false);
            let mut all = locked(&all);
            all.0 += 1;
            for (what, more) in counts.into_inner() {
                *all.1.entry(what).or_default() += more;
            }
            if let Some(failure) = failure.into_inner() {
                all.2.get_or_insert((seed, plan, ops, failure));
            }
        }
    };
    thread::scope(|scope| (0..options.jobs.max(1)).for_each(|_| drop(scope.spawn(work))));
    let (count, counts, failed) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{count} seeds: {counts:?}");
    let Some((seed, plan, ops, Failure { rule, text, step })) = failed else { return true };
    println!("FAILED: seed {seed}, step {step} of {steps}: {rule}\n  {text}");
    println!("  cargo xtask sim{} --seed {seed} --steps {steps}", plan.flags());
    let (plan, ops) = shrink(plan, ops, rule);
    println!("shrunk to {} operations, of {plan:?}", ops.len());
    let Findings { failure, log, .. } = run(&plan, &ops, true);
    log.into_iter().flat_map(RefCell::into_inner).for_each(|line| println!("  {line}"));
    println!("{:?}", failure.into_inner());
    false
}

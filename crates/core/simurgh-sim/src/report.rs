//! Reports of failed runs, and replays.

use std::fs;
use std::path::Path;

use simurgh_sim_kit::findings::Failure;

use crate::op::{self, Op};
use crate::profile::Profile;
use crate::run::{self, Plan};
use crate::shrink;

/// Reports a failure: shrunk on request, as a story, and written to a file.
pub(crate) fn failed(
    plan: &Plan,
    ops: usize,
    failure: &Failure,
    steps: u64,
    shrinks: bool,
    save: Option<&Path>,
) -> Result<(), String> {
    let Failure { rule, text, step } = failure;
    let seed = plan.profile.seed;
    println!("\nFAILED: seed {seed}, step {step} of {steps}: {rule}\n  {text}");
    let era = plan.profile.era().map_or(String::new(), |era| format!(" --era {era}"));
    println!("  again with: --seed {seed} --steps {steps}{era}");
    let list = run::operations(plan, ops);
    let (plan, list) = match shrinks {
        true => {
            let (plan, list) = shrink::shrink(plan, list, rule);
            println!("shrunk from {ops} operations to {}:", list.len());
            (plan, list)
        }
        false => (plan.clone(), list),
    };
    if shrinks {
        story(&plan, &list);
    }
    match save {
        None => Ok(()),
        Some(file) => {
            let lines: Vec<String> = list.iter().map(op::line).collect();
            let text = format!("{}\n{}\n", plan.profile.line(), lines.join("\n"));
            fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
        }
    }
}

fn story(plan: &Plan, ops: &[Op]) -> bool {
    let (lines, result) = run::told(plan, ops);
    let profile = &plan.profile;
    println!(
        "{} shards, {} clients, {} topics; {:?}",
        profile.shards, profile.clients, profile.topics, profile.config
    );
    lines.iter().for_each(|line| println!("{}", shortened(line)));
    match result.failure {
        Some(Failure { rule, text, step }) => {
            println!("step {step}: {rule}: {text}");
            false
        }
        None => {
            println!("nothing is wrong; fingerprint {:016x}", result.hash);
            true
        }
    }
}

/// Cuts the middle out of long names.
fn shortened(line: &str) -> String {
    const RUN: &str = "xxxxxxxxxxxxxxxx";
    let mut parts = line.split(RUN).filter(|it| !it.is_empty());
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| format!("{line}…{part}"))
}

pub(crate) fn replay(file: &Path) -> Result<bool, String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut lines = text.lines().filter(|it| !it.trim().is_empty());
    let profile = lines.next().and_then(Profile::from_line);
    let profile = profile.ok_or_else(|| format!("{}: no seed", file.display()))?;
    let ops: Vec<Op> = lines.map(op::from_line).collect::<Result<_, String>>()?;
    Ok(story(&Plan { profile, fault: None }, &ops))
}

/// Processor time of this process so far, user and system.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind.split_whitespace().skip(11).take(2);
    // Linux counts 100 ticks per second.
    ticks.filter_map(|it| it.parse::<f64>().ok()).sum::<f64>() / 100.0
}

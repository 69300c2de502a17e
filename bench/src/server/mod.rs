//! The table that README.md begins with: the bare server and `simurgh serve` in turn, with clients
//! that verify every delivery.

use std::time::Instant;

use anyhow::Result;
use simurgh_bench_kit::rounds::{Bench, Job, Sample, Suite, USUAL, table};
use simurgh_bench_kit::sys;
use simurgh_bench_kit::target::{CLIENT_CORE, Target};

use phases::MEASURES;
pub(crate) use phases::measured;

mod phases;

pub(crate) const SUITE: Suite = Suite {
    name: "server",
    about: "The bare server and `simurgh serve` in turn",
    // A run yields all rows.
    jobs: || MEASURES.map(|row| Job::new(row, |_, _| Ok(()))).into(),
    runs: 5,
    measure,
    order: "baseline, simurgh, baseline, …, baseline; each simurgh run ÷ mean of its two baselines",
    recipes: |_| table::read(include_str!("table.txt"), &[]),
    ..USUAL
};

/// Baseline and Simurgh in turn. A wrong delivery is a fault.
fn measure(_: &Suite, bench: &Bench<'_>) -> Result<Vec<Sample>> {
    sys::pin(CLIENT_CORE)?;
    // Quick acknowledgements as in all earlier runs, so that figures can be compared with those.
    let bare = Target::bare(&["--quick-acks"])?;
    let simurgh = Target::simurgh(&bench.program, 1)?;
    let log = bench.scratch.join("server-log");
    let shown = |target: &Target| {
        let (begun, run) = (Instant::now(), measured(target, bench.options, &log));
        eprintln!(
            "{}: {:.0} s, {} faults",
            target.name,
            begun.elapsed().as_secs_f64(),
            run.faults.len()
        );
        run
    };
    let mut before = shown(&bare);
    let mut samples = Vec::new();
    for round in 1..=bench.options.runs.unwrap_or(SUITE.runs) {
        let run = shown(&simurgh);
        let after = shown(&bare);
        samples.push(sample(round, run, &before, &after));
        before = after;
    }
    Ok(samples)
}

/// A run with, as `bare …`, the means of the two baselines around it, because the machine drifts.
fn sample(round: usize, run: Sample, before: &Sample, after: &Sample) -> Sample {
    let mut sample = Sample { round, load_average: f64::NAN, ..run };
    for (name, first) in &before.figures {
        let second = after.figures.get(name).unwrap_or(first);
        sample.put(format!("bare {name}"), f64::midpoint(*first, *second));
    }
    for base in [before, after] {
        let about = |text: &String| format!("baseline: {text}");
        sample.notes.extend(base.notes.iter().map(about));
        sample.faults.extend(base.faults.iter().map(about));
    }
    sample
}

#[cfg(test)]
mod tests {
    use simurgh_bench_kit::rounds::Options;

    use super::*;

    fn figures(spaced: f64, burst: f64) -> Sample {
        let mut sample = Sample::default();
        sample.put("spaced_ns", spaced);
        sample.put("burst_ns", burst);
        sample
    }

    fn rows(samples: &[Sample]) -> Vec<table::Row> {
        let options = Options { only: vec!["spaced".into(), "burst".into()], ..Options::default() };
        table::rows(&SUITE, &options, samples).unwrap()
    }

    #[test]
    fn run_is_divided_by_the_surrounding_baseline_runs() {
        // The second run is slower by half than the first; the ratio is not.
        let bases = [figures(90.0, 0.0), figures(110.0, 0.0), figures(190.0, 0.0)];
        let samples = [
            sample(1, figures(110.0, 20.0), &bases[0], &bases[1]),
            sample(2, figures(165.0, 15.0), &bases[1], &bases[2]),
        ];
        let rows = rows(&samples);
        assert_eq!((&rows[0].ratio[..], rows[0].reached), (&[1.1, 1.1][..], Some(true)));
        assert_eq!(rows[1].ratio, [0.2, 0.1], "divided by the spaced baseline");
        let text = table::text(&SUITE, &rows);
        assert!(
            text.contains("| 138 ns (110–165) | 1.100 (1.100–1.100) | ÷ ≤ 1.12 | yes |"),
            "{text}"
        );
        assert!(!text.contains("join"), "what was not asked for has no row");
    }
}

//! The tables of all suites, without anything measured.

use simurgh_bench_kit::rounds::table::{rows, text};
use simurgh_bench_kit::rounds::{Options, Sample, Suite};

use crate::{attacks, cluster, deflate, fairness, history, hooks, http, latency, presence, tls};

const SUITES: [&Suite; 11] = [
    &attacks::SUITE,
    &fairness::SUITE,
    &presence::SUITE,
    &history::SUITE,
    &deflate::SUITE,
    &cluster::SUITE,
    &hooks::SUITE,
    &latency::SUITE,
    &http::page::SUITE,
    &http::load::SUITE,
    &tls::SUITE,
];

fn options(only: &[&str]) -> Options {
    let only = only.iter().map(|row| (*row).to_owned()).collect();
    Options { only, ..Options::default() }
}

fn sample(row: &'static str, figure: &str, value: f64) -> Sample {
    let figures = [(figure.to_owned(), value)].into();
    Sample { row, figures, ..Sample::default() }
}

#[test]
fn ratio_is_checked_by_its_median_and_count_in_each_run() {
    let suite = &presence::SUITE;
    let ratios = [0.9, 1.0, 1.3].map(|it| sample("leave", "leave_ratio", it));
    let all = rows(suite, &options(&["leave"]), &ratios).unwrap();
    assert_eq!(all.first().map(|row| (row.recipe.row, row.reached)), Some(("leave", Some(true))));
    assert!(
        text(suite, &all).contains("1.000 (0.900–1.300) | ≤ 1.1 | yes |"),
        "{}",
        text(suite, &all)
    );
    let counts = [0.0, 0.0, 1.0].map(|it| sample("crowd", "crowd_states_wrong", it));
    let all = rows(suite, &options(&["crowd"]), &counts).unwrap();
    assert_eq!(all.first().map(|row| (row.recipe.row, row.reached)), Some(("crowd", Some(false))));
}

#[test]
fn every_row_has_a_limit_and_every_measure_its_own_name() {
    for suite in SUITES {
        let jobs = suite.rows();
        let all = rows(suite, &options(&jobs), &[]).unwrap();
        let recipes = (suite.recipes)(&options(&jobs)).unwrap();
        assert_eq!(all.len(), recipes.len(), "each line is of a row");
        for row in jobs {
            assert!(
                all.iter().any(|line| line.recipe.row == row && line.recipe.limit.is_some()),
                "{row}"
            );
        }
        let mut names: Vec<&str> = all.iter().map(|row| row.recipe.measure.as_str()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "names tell measures apart from day to day");
    }
}

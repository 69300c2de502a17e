//! The lines of the table, with the sizes of a full run or of a short one.

use anyhow::Result;

use super::messages::Serializer;
use super::{cursors, flood, inbound, server, silent, suspended};
use simurgh_bench_kit::rounds::Options;
use simurgh_bench_kit::rounds::table::{Recipe, read};
use simurgh_bench_kit::stats;

/// The limit of a server's memory beyond the published bytes, MB.
const BESIDE_MB: f64 = 16.0;

fn mb(bytes: usize) -> f64 {
    stats::per(bytes, 1_000_000)
}

pub(super) fn recipes(options: &Options) -> Result<Vec<Recipe>> {
    let members = options.size(cursors::SILENT, cursors::SILENT_SHORT);
    let serializers = stats::per(Serializer::ALL.len(), 1);
    let at_cursors = mb(cursors::LARGE + members * cursors::SMALL) * serializers + BESIDE_MB;
    let values = [
        ("{many}", options.size("100,000", "10,000").to_owned()),
        ("{readers}", flood::READERS.to_string()),
        ("{members}", members.to_string()),
        ("{narrow}", format!("with {} MiB of address space", server::NARROW >> 20)),
        ("{cursors_mb}", at_cursors.to_string()),
        ("{one_mb}", (mb(silent::LARGE) + BESIDE_MB).to_string()),
        ("{all_mb}", (mb(silent::LARGE * silent::SILENT) + BESIDE_MB).to_string()),
        ("{watched_s}", silent::WATCHED_S.to_string()),
        ("{others}", inbound::OTHERS.to_string()),
        ("{clients}", options.size(suspended::CLIENTS, suspended::CLIENTS / 10).to_string()),
        ("{seconds}", options.size(90, 6).to_string()),
    ];
    read(include_str!("table.txt"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::SUITE;
    use simurgh_bench_kit::rounds::Sample;
    use simurgh_bench_kit::rounds::table::{Row, text};

    fn rows(options: &Options, samples: &[Sample]) -> Vec<Row> {
        simurgh_bench_kit::rounds::table::rows(&SUITE, options, samples).unwrap()
    }

    fn options(only: &[&str]) -> Options {
        let only = only.iter().map(|row| (*row).to_owned()).collect();
        Options { only, ..Options::default() }
    }

    fn sample(row: &'static str, figures: &[(&str, f64)]) -> Sample {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Sample { row, figures, ..Sample::default() }
    }

    #[test]
    fn a_limit_missed_in_one_round_is_missed() {
        let rounds = [0.0, 0.0, 3.0].map(|cut| sample("flood", &[("flood_cut", cut)]));
        let rows = rows(&options(&["flood"]), &rounds);
        let cut =
            rows.iter().find(|row| row.measure.ends_with("1 kB to 100: members cut")).unwrap();
        assert_eq!((cut.reached, cut.at_most), (Some(false), Some(0.0)));
        let text = text(&SUITE, &rows);
        assert!(text.contains("members cut | 0 (0–3) | ≤ 0 | **MISSED** |"), "{text}");
        assert!(text.contains("memory over idle | – | ≤ 64 MB | not measured |"), "{text}");
    }

    #[test]
    fn memory_is_what_was_published_once_for_each_serializer_and_little_beside() {
        let samples = [sample("cursors", &[("wide_memory_mb", 26.0)])];
        let rows = rows(&options(&["cursors"]), &samples);
        let memory = rows.iter().find(|row| row.measure.contains("memory")).unwrap();
        assert!((memory.at_most.unwrap() - 26.048).abs() < 1e-9, "{:?}", memory.at_most);
        assert_eq!(memory.reached, Some(true));
        assert!(rows.iter().all(|row| row.row == "cursors"), "what was not asked for has no line");
    }
}

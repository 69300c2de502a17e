//! Better, same or worse: compares a run with the last one of the same machine.
//!
//! Absolute times of one machine drift by a fifth within a day. So ratios to the floor of the same
//! run are compared; without a floor a time has to change by more than that drift.

use std::fmt;

use simurgh_bench_kit::report;
use simurgh_bench_kit::stats::{median, range};

use super::record::{Better, Measure, Record};
use super::statistics::{Change, change};

/// A smaller change of a ratio, or of a figure that is the same on each machine, counts as none.
const TOLERANCE: f64 = 0.03;
/// The same for a time without a floor beside it.
const TOLERANCE_ABSOLUTE: f64 = 0.20;
/// An interval that reaches this many tolerances away from no change means nothing.
const WIDE: f64 = 3.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Better(Change),
    Same(Change),
    Worse(Change),
    /// The interval includes both no change and one that would matter.
    Unclear(Change),
    /// Too few runs for any statement with the required confidence.
    TooFew,
    /// The last run has no such measure of this size.
    New,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comparison<'r> {
    pub(crate) part: &'r str,
    pub(crate) measure: &'r Measure,
    pub(crate) verdict: Verdict,
}

impl Comparison<'_> {
    /// Whether the median keeps the limit; `None` without one.
    pub(crate) fn is_within(&self) -> Option<bool> {
        let (limit, median) = (self.measure.limit?, median(self.measure.compared())?);
        Some(match self.measure.better {
            Better::Lower => median <= limit,
            Better::Higher => median >= limit,
        })
    }

    /// Whether it needs attention.
    pub(crate) fn is_bad(&self) -> bool {
        matches!(self.verdict, Verdict::Worse(_)) || self.is_within() == Some(false)
    }
}

/// Compares each measure of `now` with the same of `before`.
pub(crate) fn compare<'r>(now: &'r Record, before: Option<&Record>) -> Vec<Comparison<'r>> {
    let same = |part: &str, measure: &Measure| {
        let mut all = before?.measures();
        let is_it = |(name, other): &(&str, &Measure)| {
            *name == part && other.name == measure.name && other.size == measure.size
        };
        all.find(is_it).map(|(_, other)| other.clone())
    };
    let lines = now.measures().map(|(part, measure)| {
        let verdict = same(part, measure).map_or(Verdict::New, |before| verdict(&before, measure));
        Comparison { part, measure, verdict }
    });
    lines.collect()
}

fn verdict(before: &Measure, now: &Measure) -> Verdict {
    let tolerance = match now.steady || !now.ratios.is_empty() {
        true => TOLERANCE,
        false => TOLERANCE_ABSOLUTE,
    };
    // A measure that had a floor in only one of the runs cannot be compared.
    if before.ratios.is_empty() != now.ratios.is_empty() {
        return Verdict::New;
    }
    let (old, new) = (before.compared(), now.compared());
    // Counts that are the same each time need no statistics.
    let is_fixed =
        |values: &[f64]| now.steady && range(values).is_some_and(|(low, high)| low == high);
    let found = match (is_fixed(old) && is_fixed(new), old.first(), new.first()) {
        (true, Some(old), Some(new)) if *old > 0.0 => {
            let factor = new / old;
            Some(Change { factor, low: factor, high: factor })
        }
        _ => change(old, new),
    };
    let Some(found) = found else { return Verdict::TooFew };
    let is_up = found.low > 1.0 && found.factor > 1.0 + tolerance;
    let is_down = found.high < 1.0 && found.factor < 1.0 / (1.0 + tolerance);
    match (is_up, is_down, now.better) {
        (true, _, Better::Lower) | (_, true, Better::Higher) => Verdict::Worse(found),
        (true, _, Better::Higher) | (_, true, Better::Lower) => Verdict::Better(found),
        _ => {
            let wide = 1.0 + WIDE * tolerance;
            let is_narrow = found.high < wide && found.low > 1.0 / wide;
            if is_narrow { Verdict::Same(found) } else { Verdict::Unclear(found) }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, change) = match self {
            Self::Better(change) => ("better", change),
            Self::Same(change) => ("same", change),
            Self::Worse(change) => ("**worse**", change),
            Self::Unclear(change) => ("unclear", change),
            Self::TooFew => return f.write_str("too few runs"),
            Self::New => return f.write_str("new"),
        };
        let Change { factor, low, high } = change;
        write!(f, "{word}: × {factor:.3} ({low:.3}–{high:.3})")
    }
}

/// The table: a line for each measure, with floor, ratio, limit, and verdict.
pub(crate) fn table(lines: &[Comparison<'_>]) -> String {
    let head = [
        "part",
        "measure",
        "runs",
        "floor",
        "Simurgh",
        "÷ floor",
        "must reach",
        "since the last run",
    ];
    let rows = lines.iter().map(|line| {
        let Comparison { part, measure, verdict } = line;
        let name = match measure.size.as_str() {
            "" => measure.name.clone(),
            size => format!("{} ({size})", measure.name),
        };
        let limit = match (measure.limit, line.is_within()) {
            (Some(limit), Some(true)) => format!("{} {limit}: yes", sign(measure.better)),
            (Some(limit), _) => format!("{} {limit}: **NO**", sign(measure.better)),
            (None, _) => "–".to_owned(),
        };
        vec![
            (*part).to_owned(),
            name,
            measure.values.len().to_string(),
            cell(&measure.floor, &measure.unit),
            cell(&measure.values, &measure.unit),
            cell(&measure.ratios, ""),
            limit,
            verdict.to_string(),
        ]
    });
    report::table(&head, rows)
}

fn sign(better: Better) -> &'static str {
    match better {
        Better::Lower => "≤",
        Better::Higher => "≥",
    }
}

fn cell(values: &[f64], unit: &str) -> String {
    report::cell(values, median(values).map_or(0, digits), unit)
}

/// Three significant digits.
fn digits(value: f64) -> usize {
    match value.abs() {
        ..0.1 => 4,
        ..10.0 => 3,
        ..100.0 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{ratios, record};
    use super::*;

    fn verdict_of(before: &[f64], now: &[f64]) -> Verdict {
        verdict(&ratios("x", before), &ratios("x", now))
    }

    #[test]
    fn lower_ratios_are_better_and_noise_is_neither() {
        let base = [1.00, 1.01, 0.99, 1.02, 1.00];
        let scaled = |by: f64| base.map(|value| value * by);
        assert!(matches!(verdict_of(&base, &scaled(1.1)), Verdict::Worse(_)));
        assert!(matches!(verdict_of(&base, &scaled(0.9)), Verdict::Better(_)));
        assert!(matches!(verdict_of(&base, &scaled(1.02)), Verdict::Same(_)));
        let wild = [0.7, 1.5, 1.0, 0.8, 1.3];
        assert!(matches!(verdict_of(&wild, &base), Verdict::Unclear(_)));
        assert_eq!(verdict_of(&base[..3], &scaled(2.0)[..3]), Verdict::TooFew);
    }

    #[test]
    fn where_more_is_better_it_is_the_other_way_round() {
        let higher = |values| Measure { better: Better::Higher, ..ratios("x", values) };
        let (before, now) = (higher(&[1.0; 5]), higher(&[1.2; 5]));
        assert!(matches!(verdict(&before, &now), Verdict::Better(_)));
        assert!(matches!(verdict(&now, &before), Verdict::Worse(_)));
    }

    #[test]
    fn times_without_a_floor_drift_and_counts_do_not() {
        let plain = |steady, values: &[f64]| Measure {
            values: values.to_vec(),
            steady,
            ..Measure::default()
        };
        let (slow, slower) = ([1.0, 1.01, 1.0, 1.02], [1.15, 1.16, 1.15, 1.17]);
        assert!(matches!(verdict(&plain(false, &slow), &plain(false, &slower)), Verdict::Same(_)));
        assert!(matches!(verdict(&plain(true, &slow), &plain(true, &slower)), Verdict::Worse(_)));
        let (few, more) = (plain(true, &[152.0]), plain(true, &[160.0]));
        assert!(matches!(verdict(&few, &more), Verdict::Worse(_)), "one count is enough");
        assert_eq!(verdict(&few, &ratios("x", &[1.0; 5])), Verdict::New);
    }

    #[test]
    fn only_measures_of_the_same_name_and_size_are_compared() {
        let before = record(1, vec![ratios("a", &[1.0; 5]), ratios("b", &[1.0; 5])]);
        let larger = Measure { size: "20,000".into(), ..ratios("b", &[1.0; 5]) };
        let now = record(2, vec![ratios("a", &[1.2; 5]), larger, ratios("c", &[1.0])]);
        let verdicts: Vec<Verdict> =
            compare(&now, Some(&before)).iter().map(|line| line.verdict).collect();
        assert!(matches!(verdicts[..], [Verdict::Worse(_), Verdict::New, Verdict::New]));
        assert!(compare(&now, None).iter().all(|line| line.verdict == Verdict::New));
    }

    #[test]
    fn a_limit_holds_for_ratios_where_there_are_some() {
        let within = |measure: &Measure| {
            let line = Comparison { part: "", measure, verdict: Verdict::New };
            (line.is_within(), line.is_bad())
        };
        let limited = |limit| Measure { limit: Some(limit), ..ratios("x", &[1.1, 1.2, 1.0]) };
        assert_eq!(within(&limited(1.1)), (Some(true), false));
        assert_eq!(within(&limited(1.05)), (Some(false), true));
        let higher = Measure { better: Better::Higher, ..limited(1.05) };
        assert_eq!(within(&higher), (Some(true), false));
        assert_eq!(within(&ratios("x", &[1.0])), (None, false));
    }

    #[test]
    fn the_table_says_what_became_of_it() {
        let mut measure = ratios("CPU per join", &[1.2; 5]).over_floor(vec![1.0; 5]);
        measure.limit = Some(1.1);
        measure.unit = "µs".into();
        let now = record(2, vec![measure.clone()]);
        measure.ratios = vec![1.0; 5];
        let before = record(1, vec![measure]);
        let text = table(&compare(&now, Some(&before)));
        let line = "| server | CPU per join | 5 | 1.000 µs (1.000–1.000) | 1.200 µs (1.200–1.200) \
                    | 1.200 (1.200–1.200) | ≤ 1.1: **NO** | **worse**: × 1.200 (1.200–1.200) |";
        assert!(text.contains(line), "{text}");
    }
}

//! Better, same or worse: compares a run with the last one of the same machine.
//!
//! Absolute times of one machine drift by a fifth within a day. So ratios to the baseline of the
//! same run are compared; without a baseline a time has to change by more than that drift.

use std::fmt;

use simurgh_bench_kit::report;
use simurgh_bench_kit::stats::{median, range};

use super::record::{Better, Measure, Record};

/// A smaller change of a ratio, or of a figure that is the same on each machine, counts as none.
const TOLERANCE: f64 = 0.03;
/// The same for a time without a baseline beside it.
const TOLERANCE_ABSOLUTE: f64 = 0.20;
/// With fewer runs on a side the ranges of two equal samples are often apart by chance.
const RUNS_MIN: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// By which factor the median has changed, here and below.
    Better(f64),
    Same(f64),
    Worse(f64),
    /// The medians differ, and the ranges of the two runs overlap.
    Unclear(f64),
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
    // A measure that had a baseline in only one of the runs cannot be compared.
    if before.ratios.is_empty() != now.ratios.is_empty() {
        return Verdict::New;
    }
    let (old, new) = (before.compared(), now.compared());
    let Some((factor, is_apart)) = change(old, new) else { return Verdict::TooFew };
    let is_fixed = now.steady && is_constant(old) && is_constant(new);
    if !is_fixed && old.len().min(new.len()) < RUNS_MIN {
        return Verdict::TooFew;
    }
    let is_ratio = now.steady || !now.ratios.is_empty();
    let tolerance = 1.0 + if is_ratio { TOLERANCE } else { TOLERANCE_ABSOLUTE };
    if (1.0 / tolerance..=tolerance).contains(&factor) {
        return Verdict::Same(factor);
    }
    if !is_apart {
        return Verdict::Unclear(factor);
    }
    let is_worse = (factor > 1.0) == (now.better == Better::Lower);
    if is_worse { Verdict::Worse(factor) } else { Verdict::Better(factor) }
}

/// New ÷ old by the medians, and whether the ranges are apart; `None` without positive values.
fn change(old: &[f64], new: &[f64]) -> Option<(f64, bool)> {
    let ((old_low, old_high), (new_low, new_high)) = (range(old)?, range(new)?);
    let factor = median(new)? / median(old)?;
    let is_usable = old_low > 0.0 && new_low > 0.0 && factor.is_finite();
    is_usable.then_some((factor, new_low > old_high || new_high < old_low))
}

/// Counts that are the same each time need no further runs.
fn is_constant(values: &[f64]) -> bool {
    range(values).is_some_and(|(low, high)| low == high)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, factor) = match self {
            Self::Better(factor) => ("better", factor),
            Self::Same(factor) => ("same", factor),
            Self::Worse(factor) => ("**worse**", factor),
            Self::Unclear(factor) => ("unclear", factor),
            Self::TooFew => return f.write_str("too few runs"),
            Self::New => return f.write_str("new"),
        };
        write!(f, "{word}: × {factor:.3}")
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
    fn lower_ratio_is_better_and_noise_is_unclear() {
        let base = [1.00, 1.01, 0.99, 1.02, 1.00];
        let scaled = |by: f64| base.map(|value| value * by);
        assert!(matches!(verdict_of(&base, &scaled(1.1)), Verdict::Worse(_)));
        assert!(matches!(verdict_of(&base, &scaled(0.9)), Verdict::Better(_)));
        assert!(matches!(verdict_of(&base, &scaled(1.02)), Verdict::Same(_)));
        let wild = [0.7, 1.5, 1.2, 0.8, 1.3];
        assert!(matches!(verdict_of(&wild, &base), Verdict::Unclear(_)));
        assert_eq!(verdict_of(&base[..3], &scaled(2.0)[..3]), Verdict::TooFew);
    }

    #[test]
    fn higher_value_is_better_if_the_measure_says_so() {
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
                    | 1.200 (1.200–1.200) | ≤ 1.1: **NO** | **worse**: × 1.200 |";
        assert!(text.contains(line), "{text}");
    }
}

//! The result of a step of the suite, and the summary at its end.

use std::cmp::Reverse;
use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use anyhow::Result;

use crate::failures::{self, Failure};
use crate::process::Finished;

/// The result of one step, in tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Why something failed or was left out.
    pub(crate) note: String,
    /// The tests that failed, as far as they are known.
    pub(crate) failures: Vec<Failure>,
}

/// Why a step cannot run here.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) String);

impl Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

impl Outcome {
    /// The outcome of a step; an error is a failure, unless it is [`Skipped`].
    pub(crate) fn of(result: Result<Self>) -> Self {
        result.unwrap_or_else(|error| match error.is::<Skipped>() {
            true => Self::skipped(error),
            false => Self::failed(error),
        })
    }

    pub(crate) fn passed(count: u64) -> Self {
        Self { passed: count, ..Self::default() }
    }

    pub(crate) fn failed(note: impl Display) -> Self {
        Self { failed: 1, note: format!("{note:#}"), ..Self::default() }
    }

    pub(crate) fn skipped(note: impl Display) -> Self {
        Self { skipped: 1, note: format!("{note:#}"), ..Self::default() }
    }

    pub(crate) fn add(&mut self, part: Self) {
        self.passed += part.passed;
        self.failed += part.failed;
        self.skipped += part.skipped;
        self.failures.extend(part.failures);
        if !part.note.is_empty() {
            let between = if self.note.is_empty() { "" } else { "; " };
            self.note = format!("{}{between}{}", self.note, part.note);
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self { failed: 1.., .. } => "FAILED",
            Self { passed: 0, skipped: 1.., .. } => "SKIPPED",
            _ => "ok",
        }
    }
}

pub(crate) type Step = (&'static str, Outcome, Duration);
/// A part of a step, and how long it took.
pub(crate) type Timed = (String, Duration);

/// The counts, corrected by the exit code: a crash has no count but is a failure.
pub(crate) fn counted(mut counts: Outcome, done: &Finished) -> Outcome {
    if !done.ok() {
        if counts.failed == 0 || done.failure.is_some() {
            counts.note = done.reason();
        }
        counts.failed = counts.failed.max(1);
    } else if counts.passed == 0 && counts.skipped == 0 {
        return Outcome::failed("no test ran");
    }
    counts
}

/// The parts that took a second or more, slowest first.
pub(crate) fn slowest(parts: &[Timed]) -> String {
    let mut slow: Vec<&Timed> = parts.iter().filter(|(_, took)| took.as_secs() >= 1).collect();
    slow.sort_by_key(|(_, took)| Reverse(*took));
    let width = slow.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let line = |(name, took): &&Timed| format!("{name:width$}  {:6.1} s\n", took.as_secs_f64());
    slow.iter().map(line).collect()
}

/// The table of all steps, slowest first, and the failed tests; its last line is exactly
/// `N passed, N failed, N skipped`.
pub(crate) fn summary(steps: &[Step]) -> String {
    let mut steps: Vec<&Step> = steps.iter().collect();
    steps.sort_by_key(|(.., took)| Reverse(*took));
    let mut text = String::new();
    let width = steps.iter().map(|(name, ..)| name.len()).max().unwrap_or_default();
    let (mut total, mut failures) = (Outcome::default(), String::new());
    for (name, outcome, took) in steps {
        let Outcome { passed, failed, skipped, note, failures: all } = outcome;
        all.iter().for_each(|failure| failures += &format!("FAILED {name}: {failure}\n"));
        let seconds = took.as_secs_f64();
        let _ = write!(text, "{name:width$}  {:7}  ", outcome.word());
        let _ = write!(text, "{passed:5} {failed:4} {skipped:4}  {seconds:6.1} s");
        let _ = writeln!(text, "{}{note}", if note.is_empty() { "" } else { "  " });
        total.passed += passed;
        total.failed += failed;
        total.skipped += skipped;
    }
    let head = format!("{:width$}  {:7}  {:>5} {:>4} {:>4}", "step", "", "pass", "fail", "skip");
    format!(
        "{head}\n{text}{failures}{} passed, {} failed, {} skipped",
        total.passed, total.failed, total.skipped
    )
}

/// Sums the results of all test binaries in the output of `cargo test`.
pub(crate) fn of_cargo_test(output: &str) -> Outcome {
    let mut sum = Outcome::default();
    for line in output.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
        let count = |word: &str| {
            line.split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
                .unwrap_or_default()
        };
        sum.passed += count("passed");
        sum.failed += count("failed");
        sum.skipped += count("ignored");
    }
    let ended = |how: &str| {
        let names = output.lines().filter_map(|line| {
            let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
            end.starts_with(how).then(|| name.to_owned())
        });
        some_of(names.collect())
    };
    sum.note = match (ended("FAILED"), ended("ignored")) {
        (failed, _) if !failed.is_empty() => failed,
        (_, ignored) if !ignored.is_empty() => format!("ignored: {ignored}"),
        _ => String::new(),
    };
    sum.failures = failures::in_cargo_test(output);
    sum
}

/// Reads the counts at the end of a `node --test` run (its `spec` or `tap` reporter).
pub(crate) fn of_node_test(output: &str) -> Outcome {
    let count = |word: &str| {
        output
            .lines()
            .rev()
            .find_map(|line| {
                let rest = line.trim().trim_start_matches(['ℹ', '#']).trim();
                rest.strip_prefix(word)?.trim().parse::<u64>().ok()
            })
            .unwrap_or_default()
    };
    let failures = failures::in_node_test(output);
    Outcome {
        passed: count("pass "),
        failed: count("fail ") + count("cancelled "),
        skipped: count("skipped ") + count("todo "),
        note: names(&failures),
        failures,
    }
}

/// Reads the end of a run of Python's `unittest`: `Ran 6 tests in 0.5s`, and `OK` or
/// `FAILED (failures=1, errors=1, skipped=1)`.
pub(crate) fn of_unittest(output: &str) -> Outcome {
    let mut lines = output.lines().map(str::trim).skip_while(|line| !line.starts_with("Ran "));
    let ran = lines.next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    let verdict = lines.find(|line| line.starts_with("OK") || line.starts_with("FAILED"));
    let count = |word: &str| {
        let parts = verdict.unwrap_or_default().split(['(', ')', ',']);
        let found = parts.filter_map(|part| part.trim().strip_prefix(word));
        found.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>()
    };
    let failed = count("failures=") + count("errors=");
    let skipped = count("skipped=");
    let failures = failures::in_unittest(output);
    Outcome {
        passed: ran.unwrap_or_default().saturating_sub(failed + skipped),
        failed,
        skipped,
        note: names(&failures),
        failures,
    }
}

fn names(failures: &[Failure]) -> String {
    some_of(failures.iter().map(|failure| failure.name.clone()).collect())
}

/// The first few names and how many more there are; empty without names.
fn some_of(names: Vec<String>) -> String {
    const SHOWN: usize = 3;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names.into_iter().take(SHOWN).collect::<Vec<_>>().join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_unittest_results_are_parsed() {
        let fine = "test_a (m.T.test_a) ... ok\n\n-----\nRan 6 tests in 0.474s\n\nOK\n";
        assert_eq!(of_unittest(fine), Outcome::passed(6));
        let failed = "ERROR: test_b (m.T.test_b)\nTraceback\nFAIL: test_a (m.T.test_a)\n\
            Ran 6 tests in 0.4s\n\nFAILED (failures=1, errors=1, skipped=2)\n";
        let found = of_unittest(failed);
        assert_eq!((found.passed, found.failed, found.skipped), (2, 2, 2));
        assert_eq!(found.note, "test_b; test_a");
        let skipped = "Ran 2 tests in 0.4s\n\nOK (skipped=1)\n";
        assert_eq!((of_unittest(skipped).passed, of_unittest(skipped).skipped), (1, 1));
        assert_eq!(of_unittest("Traceback\nModuleNotFoundError"), Outcome::default());
    }

    #[test]
    fn cargo_counts_are_summed_over_binaries() {
        let output = "\
running 3 tests
test a::good ... ok
test a::bad ... FAILED
test a::slow ... ignored, by hand
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s
     Running tests/x.rs
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1s
";
        let sum = of_cargo_test(output);
        assert_eq!((sum.passed, sum.failed, sum.skipped), (6, 2, 1));
        assert_eq!(sum.note, "a::bad");
        assert_eq!(of_cargo_test(&output.replace("FAILED", "ok")).note, "ignored: a::slow");
    }

    #[test]
    fn node_test_counts_are_parsed_in_both_forms() {
        let spec = "✔ pass 9 of them\nℹ tests 12\nℹ pass 9\nℹ fail 1\nℹ cancelled 1\nℹ skipped 1\n";
        let tap = "# tests 12\n# pass 9\n# fail 1\n# cancelled 1\n# skipped 1\n# todo 0\n";
        for output in [spec, tap] {
            let sum = of_node_test(output);
            assert_eq!((sum.passed, sum.failed, sum.skipped), (9, 2, 1));
        }
    }

    #[test]
    fn first_failed_test_names_are_listed() {
        let list = "✖ here (1ms)\n✖ failing tests:\n\n✖ a (b) (1ms)\n  Error\n✖ c (2.5ms)\n";
        assert_eq!(of_node_test(list).note, "a (b); c");
        let names = |count: usize| (0..count).map(|n| n.to_string()).collect();
        assert_eq!(some_of(names(5)), "0; 1; 2; and 2 more");
        assert_eq!(some_of(names(0)), "");
    }

    #[test]
    fn outcomes_of_a_step_are_summed() {
        let mut sum = Outcome::passed(2);
        sum.add(Outcome::failed("one"));
        sum.add(Outcome::passed(1));
        sum.add(Outcome::skipped("two"));
        assert_eq!((sum.passed, sum.failed, sum.skipped), (3, 1, 1));
        assert_eq!(sum.note, "one; two");
    }

    #[test]
    fn slow_parts_are_listed_slowest_first() {
        let parts = [("a", 999), ("long", 1_000), ("b", 61_000)];
        let parts = parts.map(|(name, ms)| (name.to_owned(), Duration::from_millis(ms)));
        assert_eq!(slowest(&parts), "b       61.0 s\nlong     1.0 s\n");
    }

    #[test]
    fn last_line_of_the_summary_is_the_sum() {
        let second = Duration::from_secs(1);
        let node = of_node_test("ℹ fail 1\n✖ failing tests:\n\n✖ a page (1ms)\n  Error: late\n");
        let steps = [
            ("tests", Outcome { passed: 7, skipped: 2, ..Outcome::default() }, second),
            ("playwright", node, second),
            ("tidy", Outcome::failed("3 findings"), second),
            ("autobahn", Outcome::skipped("no python2.7"), 3 * second),
        ];
        let text = summary(&steps);
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        let failed = "FAILED playwright: a page: Error: late";
        assert_eq!(last, ["7 passed, 2 failed, 3 skipped", failed]);
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("autobahn")), "{text}");
        assert!(text.lines().any(|l| l.contains("SKIPPED") && l.ends_with("no python2.7")));
        assert!(text.lines().any(|l| l.contains("FAILED") && l.ends_with("3 findings")));
    }
}

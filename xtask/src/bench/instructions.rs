//! Instructions of fixed pieces of work, counted by callgrind: figures that do not depend on other
//! work of the machine, so that CI can compare them with a baseline.
//!
//! Why not gungraun (iai-callgrind): its runner is a second program, to be installed in the exact
//! version of the library on each machine, and it is made for benches of functions on the caller's
//! thread. A shard's work happens on a thread of a server, and is identified by the names of
//! functions there; all that remains to be done here is to start callgrind and read one number.

use std::collections::BTreeMap;
use std::env::consts;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use simurgh_bench_kit::{machine, report};

use crate::process::Task;
use crate::provide::VALGRIND;

/// The counted programs, all of one package; the page's has another allocator.
const PROGRAMS: [&str; 2] = ["simurgh-instructions", "simurgh-instructions-page"];
/// The last accepted counts, from the repository's root.
const BASELINE: &str = "bench/instructions/baseline.json";
/// The command that replaces the baseline.
const ACCEPT: &str = "cargo xtask bench --instructions --accept";
const RUSTC: &str = "rustc";
/// A rise above this is a regression.
const RISE_MAX: f64 = 0.03;
/// A fall by more than this is not an improvement: a counted function was renamed or inlined.
const FALL_MAX: f64 = 0.4;
/// Time limit of the build and all counting.
const MINUTES_MAX: u64 = 12;

/// Names and values. Counts are equal only if all of this is.
type Toolchain = BTreeMap<String, Value>;

/// A count and how often the work was done in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    times: u64,
    instructions: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    toolchain: Toolchain,
    counts: BTreeMap<String, Counted>,
}

#[derive(Debug, PartialEq, Eq)]
struct Item {
    program: PathBuf,
    name: String,
    times: u64,
    inside: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This many items are equal or better.
    Fine(u64),
    /// They cannot be compared here, and why.
    Incomparable(String),
    /// The worse, missing or new items, a line each.
    Worse(Vec<String>),
}

impl Counted {
    fn each(&self) -> f64 {
        self.instructions as f64 / self.times.max(1) as f64
    }
}

fn toolchain() -> Toolchain {
    let line = |program, arguments: &[&str]| {
        Value::from(machine::first_line(program, arguments).unwrap_or_else(|| "unknown".to_owned()))
    };
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let parts = [
        (RUSTC, line("rustc", &["--version"])),
        ("target", format!("{}-{}", consts::ARCH, consts::OS).into()),
        ("valgrind", line(VALGRIND, &["--version"])),
        // The system's libc: its `memcpy` is counted too.
        ("libc", line("getconf", &["GNU_LIBC_VERSION"])),
        // Callgrind emulates a processor of its own, with AVX2 only if the real one has it;
        // libraries choose their code by that, and by nothing else of the processor.
        ("avx2", flags.split(' ').any(|flag| flag == "avx2").into()),
    ];
    parts.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The first difference between the two; `None` if counts can be compared.
fn difference(here: &Toolchain, baseline: &Toolchain) -> Option<String> {
    let differs = |(name, value): &(&String, &Value)| baseline.get(*name) != Some(value);
    let (name, value) = here.iter().find(differs)?;
    let there = baseline.get(name).map_or_else(|| "nothing".to_owned(), Value::to_string);
    Some(format!("{name} is {value} here, {there} for the baseline"))
}

/// Builds and counts. `only`: items whose names contain one of these; empty: all.
pub(crate) fn count(only: &[String]) -> Result<Counts> {
    let build = ["build", "--profile", "instructions", "--package", "simurgh-instructions"];
    let built = Task::new("cargo", &build, MINUTES_MAX).run();
    built.or_fail("the paths to be counted do not build")?;
    let target = crate::bin_dir().parent().unwrap_or(Path::new("target")).to_path_buf();
    let mut items = Vec::new();
    for program in PROGRAMS.map(|name| target.join("instructions").join(name)) {
        items.extend(list(&program)?);
    }
    items.retain(|item| only.is_empty() || only.iter().any(|part| item.name.contains(part)));
    ensure!(!items.is_empty(), "nothing is called {}", only.join(", "));
    let out = target.join("callgrind");
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let counts = items.iter().map(|item| Ok((item.name.clone(), count_one(&out, item)?)));
    Ok(Counts { toolchain: toolchain(), counts: counts.collect::<Result<_>>()? })
}

fn list(program: &Path) -> Result<Vec<Item>> {
    let listed = Task::new(&program.to_string_lossy(), &["--list"], 1).quiet().run();
    let listed = listed.or_fail("no list of what is to be counted")?;
    listed.lines().map(|line| item(program, line)).collect()
}

/// Reads a line of the list: name, times, functions.
fn item(program: &Path, line: &str) -> Result<Item> {
    let mut fields = line.split('\t');
    let name = fields.next().unwrap_or_default().to_owned();
    let times = fields.next().and_then(|times| times.parse().ok());
    let inside: Vec<String> = fields.map(str::to_owned).collect();
    match times {
        Some(times) if !inside.is_empty() => {
            Ok(Item { program: program.to_owned(), name, times, inside })
        }
        _ => bail!("not an item: {line:?}"),
    }
}

/// Counts one item in a separate process, so that none depends on those before it.
fn count_one(out: &Path, item: &Item) -> Result<Counted> {
    let file: PathBuf = out.join(format!("{}.out", item.name));
    let mut arguments = vec!["--tool=callgrind".to_owned(), "--collect-atstart=no".to_owned()];
    arguments.push(format!("--callgrind-out-file={}", file.display()));
    arguments.extend(item.inside.iter().map(|inside| format!("--toggle-collect={inside}")));
    arguments.extend([item.program.display().to_string(), item.name.clone()]);
    let done = Task::new(VALGRIND, &arguments, 5).quiet().run();
    if !done.ok() {
        let last = done.output.lines().last().unwrap_or_default();
        bail!("{}: {} ({last})", item.name, done.reason());
    }
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let instructions = total(&text).with_context(|| format!("{}: no total", file.display()))?;
    Ok(Counted { times: item.times, instructions })
}

fn total(file: &str) -> Option<u64> {
    file.lines().rev().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

pub(crate) fn baseline() -> Result<Counts> {
    let path = crate::root().join(BASELINE);
    let text = fs::read_to_string(&path).context(BASELINE)?;
    serde_json::from_str(&text).context(BASELINE)
}

pub(crate) fn accept(counts: &Counts) -> Result<()> {
    let text = serde_json::to_string_pretty(counts)? + "\n";
    fs::write(crate::root().join(BASELINE), text).context(BASELINE)
}

/// Compares counts with the baseline. `is_all`: further items of the baseline count as missing.
pub(crate) fn judge(baseline: &Counts, counts: &Counts, is_all: bool) -> Verdict {
    if let Some(difference) = difference(&counts.toolchain, &baseline.toolchain) {
        let text = format!("{difference}; the baseline has to be taken anew: {ACCEPT}");
        return match counts.toolchain.get(RUSTC) == baseline.toolchain.get(RUSTC) {
            true => Verdict::Incomparable(text),
            // The sources name the compiler: a change of it must include a new baseline.
            false => Verdict::Worse(vec![text]),
        };
    }
    let mut worse: Vec<String> = Vec::new();
    for (name, now) in &counts.counts {
        worse.extend(match baseline.counts.get(name) {
            None => Some(format!("{name} has no baseline; take one: {ACCEPT}")),
            Some(before) => judge_one(name, *before, *now),
        });
    }
    let missing = baseline.counts.keys().filter(|name| !counts.counts.contains_key(*name));
    let missing = missing.filter(|_| is_all);
    worse.extend(missing.map(|name| format!("{name} is not counted any more")));
    match worse.is_empty() {
        true => Verdict::Fine(counts.counts.len() as u64),
        false => Verdict::Worse(worse),
    }
}

fn judge_one(name: &str, before: Counted, now: Counted) -> Option<String> {
    let Some(change) = change(before, now) else {
        return Some(format!("{name}: nothing was counted, or another number of times"));
    };
    let (before, now) = (before.instructions, now.instructions);
    if change > RISE_MAX {
        let percent = change * 100.0;
        return Some(format!("{name}: {now} instructions, {before} before: {percent:+.1} %"));
    }
    (change < -FALL_MAX).then(|| {
        format!(
            "{name}: {now} instructions, {before} before: is all of it still counted (see `inside` \
             in bench/instructions)? If so: {ACCEPT}"
        )
    })
}

/// The relative rise of the count.
fn change(before: Counted, now: Counted) -> Option<f64> {
    let is_comparable =
        before.times == now.times && before.instructions > 0 && now.instructions > 0;
    is_comparable.then(|| now.instructions as f64 / before.instructions as f64 - 1.0)
}

/// All items beside the baseline, as a Markdown table.
pub(crate) fn table(baseline: Option<&Counts>, counts: &Counts) -> String {
    let head = ["item", "times", "instructions each", "baseline", "change"];
    let rows = counts.counts.iter().map(|(name, now)| {
        let before = baseline.and_then(|baseline| baseline.counts.get(name)).copied();
        let each = |it: Counted| format!("{:.1}", it.each());
        let shown = before.map_or_else(|| "–".to_owned(), each);
        let changed = before.and_then(|before| change(before, *now));
        let changed = changed.map_or_else(|| "–".to_owned(), |by| format!("{:+.2} %", by * 100.0));
        vec![name.clone(), now.times.to_string(), each(*now), shown, changed]
    });
    report::table(&head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(items: &[(&str, u64)]) -> Counts {
        let counted = |instructions| Counted { times: 10, instructions };
        let counts = items.iter().map(|(name, n)| ((*name).to_owned(), counted(*n))).collect();
        Counts { toolchain: Toolchain::default(), counts }
    }

    fn worse(baseline: &Counts, now: &Counts) -> Vec<String> {
        match judge(baseline, now, true) {
            Verdict::Worse(lines) => lines,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn increase_up_to_three_percent_counts_as_unchanged() {
        let baseline = counts(&[("a", 1000), ("b", 500)]);
        assert_eq!(judge(&baseline, &counts(&[("a", 1029), ("b", 301)]), true), Verdict::Fine(2));
        let lines = worse(&baseline, &counts(&[("a", 1031), ("b", 500)]));
        assert_eq!(lines, ["a: 1031 instructions, 1000 before: +3.1 %"]);
    }

    #[test]
    fn missing_or_partial_measurement_is_no_improvement() {
        let baseline = counts(&[("a", 1000)]);
        assert!(worse(&baseline, &counts(&[("a", 0)]))[0].contains("nothing was counted"));
        assert!(worse(&baseline, &counts(&[("a", 599)]))[0].contains("still counted"));
        assert_eq!(worse(&baseline, &counts(&[]))[0], "a is not counted any more");
        assert_eq!(judge(&baseline, &counts(&[]), false), Verdict::Fine(0));
        let mut fewer = counts(&[("a", 1000)]);
        fewer.counts.get_mut("a").unwrap().times = 9;
        assert!(worse(&baseline, &fewer)[0].contains("another number of times"));
    }

    #[test]
    fn new_measurement_needs_a_baseline() {
        assert!(worse(&counts(&[]), &counts(&[("a", 1)]))[0].ends_with(ACCEPT));
    }

    #[test]
    fn counts_of_other_tools_are_not_compared() {
        let (baseline, mut now) = (counts(&[("a", 1000)]), counts(&[("a", 5000)]));
        now.toolchain.insert("libc".into(), "glibc 9".into());
        let Verdict::Incomparable(why) = judge(&baseline, &now, true) else { panic!() };
        assert!(why.contains("libc is \"glibc 9\" here") && why.contains(ACCEPT), "{why}");
        now.toolchain.insert(RUSTC.into(), "rustc 9".into());
        assert!(worse(&baseline, &now)[0].ends_with(ACCEPT), "the sources name the compiler");
    }

    #[test]
    fn measurement_lists_and_files_are_parsed() {
        let program = Path::new("program");
        let read = item(program, "a-b\t100\tf*\t*g").unwrap();
        assert_eq!((read.name.as_str(), read.times, read.inside.len()), ("a-b", 100, 2));
        for wrong in ["", "a", "a\tb\tc", "a\t1"] {
            assert!(item(program, wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(total("events: Ir\nsummary: 5\n\ntotals: 482313\n"), Some(482_313));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn table_shows_change() {
        let now = counts(&[("a", 1100)]);
        let text = table(Some(&counts(&[("a", 1000)])), &now);
        assert!(text.contains("| a | 10 | 110.0 | 100.0 | +10.00 % |"), "{text}");
        assert!(table(None, &now).contains("| a | 10 | 110.0 | – | – |\n"));
    }

    /// The committed baseline must be usable with the compiler that the sources name.
    #[test]
    fn instruction_baseline_matches_the_pinned_compiler() {
        let named = include_str!("../../../rust-toolchain.toml");
        let toolchain = baseline().unwrap().toolchain;
        let version = toolchain[RUSTC].as_str().unwrap().split(' ').nth(1).unwrap();
        assert!(named.contains(version), "{version}: {ACCEPT}");
    }
}

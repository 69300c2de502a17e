//! What is kept of a measurement: cells of tables, and the raw file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::json;

use crate::stats;

/// Median, with the lowest and the highest behind it.
pub fn cell(values: &[f64], digits: usize, unit: &str) -> String {
    let Some(median) = stats::median(values) else { return "–".to_owned() };
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{median:.digits$} {unit} ({low:.digits$}–{high:.digits$})").replace("  ", " ")
}

/// The last cell of a row: whether its limit holds, if it has one.
pub fn verdict(reached: Option<bool>, has_limit: bool, no: &'static str) -> &'static str {
    match reached {
        Some(true) => "yes",
        Some(false) => no,
        None if has_limit => "not measured",
        None => "",
    }
}

/// Where raw figures go unless it is said: below the package, by day and machine.
pub fn default_out() -> PathBuf {
    // Cargo tells where the package is; an installed binary writes below where it is called.
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| "bench".into(), PathBuf::from);
    let cpu: String = cpu_model()
        .to_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !["r", "tm", "cpu"].contains(word))
        .take(4)
        .collect::<Vec<_>>()
        .join("-");
    package.join("runs").join(format!("{}-{cpu}", date()))
}

/// Writes a raw file of these fields, and a text beside it, under a free name that begins with
/// `stem`; where the raw one is. Never over an older one: raw runs are kept.
pub fn keep<const N: usize>(
    out: &Path,
    stem: &str,
    fields: [(&str, serde_json::Value); N],
    text: &str,
) -> Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let name = free_name(out, stem)?;
    let mut raw = about();
    for (key, value) in fields {
        raw[key] = value;
    }
    let path = out.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string_pretty(&raw)? + "\n")?;
    fs::write(out.join(format!("{name}.md")), text)?;
    Ok(path)
}

/// `stem`, or `stem-2` and so on: the first under which nothing has been kept.
fn free_name(out: &Path, stem: &str) -> Result<String> {
    let name = |number: u32| match number {
        1 => stem.to_owned(),
        _ => format!("{stem}-{number}"),
    };
    (1..1000)
        .map(name)
        .find(|name| !out.join(format!("{name}.json")).exists())
        .context("a thousand runs in one day")
}

/// When, where and of what a measurement was made.
fn about() -> serde_json::Value {
    json!({
        "tool": concat!("simurgh-bench ", env!("CARGO_PKG_VERSION")),
        "date": date(),
        "unix_seconds": unix_seconds(),
        "commit": commit(),
        "machine": machine(),
    })
}

fn machine() -> serde_json::Value {
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let version = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": cpu_model(),
        "cores": cpuinfo().lines().filter(|line| line.starts_with("processor")).count(),
        "memory": memory.lines().next().unwrap_or_default().trim_start_matches("MemTotal:").trim(),
        "kernel": version.trim(),
    })
}

/// Read whole: this process is pinned, so what it may use says nothing about the machine.
fn cpuinfo() -> String {
    fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

fn cpu_model() -> String {
    let text = cpuinfo();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name.trim()).to_owned()
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head} with uncommitted changes"),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Today in UTC, `yyyy-mm-dd`.
fn date() -> String {
    civil(unix_seconds() / 86_400)
}

/// Days since 1970-01-01 as a date of the Gregorian calendar (Hinnant's `civil_from_days`).
fn civil(days: u64) -> String {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), "1970-01-01");
        assert_eq!(civil(19_782), "2024-02-29");
        assert_eq!(civil(20_779), "2026-11-22");
    }
}

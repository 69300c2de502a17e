//! The results of a measurement: cells of tables, and the raw file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::machine::{self, Machine};
use crate::stats;

/// Median, with the lowest and the highest behind it.
pub fn cell(values: &[f64], digits: usize, unit: &str) -> String {
    let (Some(median), Some((low, high))) = (stats::median(values), stats::range(values)) else {
        return "–".to_owned();
    };
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

/// The default place of raw figures: below the package or what it is part of, by day and machine.
fn default_out() -> PathBuf {
    // Cargo gives the package's directory; an installed binary writes below the working directory.
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| "bench".into(), PathBuf::from);
    let known = package.ancestors().map(|dir| dir.join("runs")).find(|runs| runs.is_dir());
    let runs = known.unwrap_or_else(|| package.join("runs"));
    runs.join(Machine::here().runs_of_today())
}

/// A Markdown table.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// Prints the text, and keeps it and a raw file of these fields in `out` or the default place.
/// Their name begins with `stem` and is unused.
pub fn publish<const N: usize>(
    out: Option<&Path>,
    stem: &str,
    fields: [(&str, serde_json::Value); N],
    text: &str,
) -> Result<()> {
    println!("{text}");
    let out = out.map_or_else(default_out, Path::to_path_buf);
    fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
    let name = free_name(&out, stem)?;
    let mut raw = about();
    for (key, value) in fields {
        raw[key] = value;
    }
    let path = out.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string_pretty(&raw)? + "\n")?;
    fs::write(out.join(format!("{name}.md")), text)?;
    println!("raw runs: {}", path.display());
    Ok(())
}

/// The first of `stem`, `stem-2` and so on that is not in use.
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

fn about() -> serde_json::Value {
    let Machine { processor, cores, memory, kernel, .. } = Machine::here();
    json!({
        "tool": concat!("simurgh-bench ", env!("CARGO_PKG_VERSION")),
        "date": machine::date(),
        "unix_seconds": machine::unix_seconds(),
        "commit": machine::commit(),
        "machine": {
            "cpu": processor,
            "cores": cores,
            "memory": format!("{} kB", memory / 1024),
            "kernel": kernel,
        },
    })
}

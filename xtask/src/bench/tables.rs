//! The tables of docs/BENCHMARKS.md that are made from raw files.
//!
//! Each is between two comments that name its source; the text around them is written by hand and
//! stays. A test makes all of them again and compares.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::compare::{compare, table};
use super::instructions;
use super::record::{Record, earlier};
use crate::pages::with_fresh_tables;

const PAGE: &str = "docs/BENCHMARKS.md";
/// The table of instruction counts is made from the baseline.
const INSTRUCTIONS: &str = "instructions";
/// A table without a run yet.
const NONE: &str = "all of no run";
/// The prefix of a run's file.
const ALL: &str = "all of ";

/// Makes all tables of the page again; with `run`, the table of the last run is made of this file
/// from now on (its path from the root).
pub(crate) fn update(root: &Path, run: Option<&str>) -> Result<()> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).context(PAGE)?;
    fs::write(&path, fresh(root, &text, run)?).context(PAGE)
}

fn fresh(root: &Path, text: &str, run: Option<&str>) -> Result<String> {
    with_fresh_tables(text, |source| {
        if let Some(run) = run.filter(|_| source.starts_with(ALL)) {
            *source = format!("{ALL}{run}");
        }
        content(root, source)
    })
}

/// The content of a table, by its source.
fn content(root: &Path, source: &str) -> Result<String> {
    match source {
        INSTRUCTIONS => Ok(instructions::plain_table(&instructions::baseline()?)),
        NONE => Ok("No run has been kept yet.\n".to_owned()),
        _ => match source.strip_prefix(ALL) {
            Some(path) => run_table(root, path),
            None => bail!("{PAGE} wants a table of {source:?}, which there is not"),
        },
    }
}

/// The table of a run, compared with the one before it.
fn run_table(root: &Path, path: &str) -> Result<String> {
    let record = Record::read(&root.join(path))?;
    let before = earlier(&root.join(super::record::RUNS), &record).into_iter().next();
    Ok(run_text(root, path, &record, before.as_ref().map(|(path, it)| (path.as_path(), it))))
}

/// The text of a run in the output and the page: the machine, the table, missing parts.
pub(crate) fn run_text(
    root: &Path,
    path: &str,
    record: &Record,
    before: Option<(&Path, &Record)>,
) -> String {
    let machine = &record.machine;
    let gib = machine.memory as f64 / f64::from(1 << 30);
    let mut text = format!(
        "{}, {} cores, {gib:.0} GiB, Linux {}, {}; commit {}, {}{}: [{path}](../{path}).\n",
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.rustc,
        record.commit,
        record.date,
        if record.short { ", a short run" } else { "" },
    );
    text += &match before {
        None => "There is no run before it to compare with.\n\n".to_owned(),
        Some((path, before)) => {
            let path = path.strip_prefix(root).unwrap_or(path).display().to_string();
            format!(
                "The last run before it: commit {}, {}, Linux {}: [{path}](../{path}).\n\n",
                before.commit, before.date, before.machine.kernel
            )
        }
    };
    text += &table(&compare(record, before.map(|(_, before)| before)));
    for part in &record.parts {
        if let Some(failure) = &part.failure {
            text += &format!("\n`{}` is not whole: {failure}\n", part.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{Scratch, record};
    use super::*;

    #[test]
    fn the_tables_of_the_page_are_those_of_their_raw_files() {
        let root = crate::root();
        let text = fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(text.contains("<!-- table: "), "{PAGE} has lost its table");
        let fresh = fresh(&root, &text, None).unwrap();
        assert!(fresh == text, "{PAGE} is not as its raw files: cargo xtask bench --tables");
    }

    #[test]
    fn the_table_of_a_run_is_made_of_another_run_from_now_on() {
        let page = |run: &str| format!("<!-- table: all of {run} -->\n<!-- end of table -->\n");
        let scratch = Scratch::new("tables");
        record(1, Vec::new()).write(&scratch.0).unwrap();
        let text = fresh(&scratch.0, &page("a.json"), Some("run.json")).unwrap();
        assert!(text.starts_with("<!-- table: all of run.json -->\n"), "{text}");
        assert!(fresh(&scratch.0, &page("a.json"), None).is_err(), "there is no a.json");
        assert!(content(Path::new("."), "anything else").is_err());
    }
}

//! The tables of docs/BENCHMARKS.md that are made from raw files.
//!
//! Each stands between two comments that name what it is made of; what is around them is written
//! by hand and stays. A test makes all of them again and compares.

use std::fs;
use std::path::Path;

use super::compare::{compare, table};
use super::instructions;
use super::record::{Record, earlier};

/// Where they are.
const PAGE: &str = "docs/BENCHMARKS.md";
/// How a table begins; the rest of the line is what it is made of, and ` -->`.
const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end of table -->";
const CLOSE: &str = " -->";
/// The table of instruction counts is made from the baseline.
const INSTRUCTIONS: &str = "instructions";
/// A table whose run there has not been yet.
const NONE: &str = "all of no run";
/// What the file of a run stands behind.
const ALL: &str = "all of ";

/// Makes all tables of the page again; `run`: the table of the last run is made of this file from
/// now on (its path from the root).
pub(crate) fn update(root: &Path, run: Option<&str>) -> Result<(), String> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).map_err(|error| format!("{PAGE}: {error}"))?;
    let fresh = made_again(&text, run, &|source| content(root, source))?;
    fs::write(&path, fresh).map_err(|error| format!("{PAGE}: {error}"))
}

/// What a table holds, by what it is made of.
fn content(root: &Path, source: &str) -> Result<String, String> {
    match source {
        INSTRUCTIONS => Ok(instructions::plain_table(&instructions::baseline()?)),
        NONE => Ok("No run has been kept yet.\n".to_owned()),
        _ => match source.strip_prefix(ALL) {
            Some(path) => run_table(root, path),
            None => Err(format!("{PAGE} wants a table of {source:?}, which there is not")),
        },
    }
}

/// The table of a run, beside the one before it.
fn run_table(root: &Path, path: &str) -> Result<String, String> {
    let record = Record::read(&root.join(path))?;
    let before = earlier(&root.join(super::record::RUNS), &record).into_iter().next();
    Ok(run_text(root, path, &record, before.as_ref().map(|(path, it)| (path.as_path(), it))))
}

/// A run as it is printed and kept in the page: what it was made on, the table, what is missing.
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

/// The text with each table made again.
pub(crate) fn made_again(
    text: &str,
    run: Option<&str>,
    content: &dyn Fn(&str) -> Result<String, String>,
) -> Result<String, String> {
    let mut fresh = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once(BEGIN) {
        let line = from.lines().next().unwrap_or_default();
        let source = line.strip_suffix(CLOSE).ok_or_else(|| format!("no end of {BEGIN}{line}"))?;
        let (_, behind) = from.split_once(END).ok_or_else(|| format!("no {END} of {source}"))?;
        let source = match (run, source.starts_with(ALL)) {
            (Some(run), true) => format!("{ALL}{run}"),
            _ => source.to_owned(),
        };
        fresh += before;
        fresh += &format!("{BEGIN}{source}{CLOSE}\n{}{END}", content(&source)?);
        rest = behind;
    }
    Ok(fresh + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_page_are_those_of_their_raw_files() {
        let root = crate::root();
        let text = fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(text.matches(BEGIN).count() >= 2, "{PAGE} has lost its tables");
        let fresh = made_again(&text, None, &|source| content(&root, source)).unwrap();
        assert!(fresh == text, "{PAGE} is not as its raw files: cargo xtask bench --tables");
    }

    #[test]
    fn what_is_written_by_hand_stays() {
        let text = "before\n<!-- table: instructions -->\nold\n<!-- end of table -->\nbetween\n\
                    <!-- table: all of a.json -->\nold\n<!-- end of table -->\nbehind\n";
        let content = |source: &str| Ok(format!("new from {source}\n"));
        let fresh = made_again(text, Some("b.json"), &content).unwrap();
        assert_eq!(
            fresh,
            "before\n<!-- table: instructions -->\nnew from instructions\n<!-- end of table -->\n\
             between\n<!-- table: all of b.json -->\nnew from all of b.json\n\
             <!-- end of table -->\nbehind\n"
        );
        let kept = made_again(text, None, &content).unwrap();
        assert!(kept.contains("all of a.json -->"));
    }

    #[test]
    fn a_damaged_page_is_not_written_over() {
        let content = |_: &str| Ok(String::new());
        assert!(made_again("<!-- table: x -->\nno end", None, &content).is_err());
        assert!(made_again("<!-- table: x\n<!-- end of table -->", None, &content).is_err());
        assert!(super::content(Path::new("."), "anything else").is_err());
    }
}

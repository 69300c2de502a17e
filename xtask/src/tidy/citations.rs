//! Checks citations of `docs/PROTOCOL.md` in comments, tests and documents: its paragraphs
//! (`PROTOCOL §5.4`) and its numbered behaviours (`PROTOCOL row 42`) must exist, and each behaviour
//! must name an existing test.
//!
//! Of a list (`PROTOCOL §2, rows 12–15`) the first place is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::{File, Finding};

const DOCUMENT: &str = "docs/PROTOCOL.md";
/// The section whose table has the numbered behaviours and their tests.
const ROWS: &str = "14";
const ROW_TESTS: &str = "e2e/wire/tests/";

/// A citation, which may be broken between two lines of a comment.
static CITATION: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"\bPROTOCOL\s+(?:[/!*]+\s+)?(?:§(?<paragraph>\d+(?:\.\d+)*)|[Rr]ows?\s+(?<row>\d+))")
});

#[expect(clippy::expect_used, reason = "a literal")]
pub(super) fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a literal")
}

pub(super) fn check(files: &[File]) -> Result<Vec<Finding>, String> {
    let document = files.iter().find(|file| file.path == DOCUMENT);
    let document = document.ok_or(format!("{DOCUMENT} is missing"))?;
    let places = places(document);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.text.contains("PROTOCOL")) {
        for (line, place) in citations(&file.text) {
            if !places.contains_key(&place) {
                let text = format!("{DOCUMENT} has no {place}, which is cited");
                findings.push(file.finding("citations", line, text));
            }
        }
    }
    findings.extend(tests(document, &places, files));
    Ok(findings)
}

/// `§5.4` and `row 42` with their lines.
fn citations(text: &str) -> impl Iterator<Item = (usize, String)> {
    CITATION.captures_iter(text).filter_map(|found| {
        let number = found.name("paragraph").or(found.name("row"))?;
        let line = text.get(..number.start())?.matches('\n').count() + 1;
        let kind = if found.name("row").is_some() { "row " } else { "§" };
        Some((line, format!("{kind}{}", number.as_str())))
    })
}

/// The existing paragraphs and rows, with their lines.
fn places(document: &File) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    let mut section = "";
    for (line, number) in document.text.lines().zip(1..) {
        let heading = line.strip_prefix("## ").or_else(|| line.strip_prefix("### "));
        let row =
            line.strip_prefix("| ").and_then(|row| row.split_once(" |")?.0.parse::<u32>().ok());
        if let Some(paragraph) = heading.and_then(number_of) {
            section = paragraph.split('.').next().unwrap_or_default();
            places.insert(format!("§{paragraph}"), number);
        } else if let Some(row) = row.filter(|_| section == ROWS) {
            places.insert(format!("row {row}"), number);
        }
    }
    places
}

/// `5.4` of a heading `5.4 What comes meanwhile` or `5. Joining`.
fn number_of(heading: &str) -> Option<&str> {
    let number = heading.split(' ').next()?.trim_end_matches('.');
    let is_number = number.split('.').all(|part| part.parse::<u32>().is_ok());
    is_number.then_some(number)
}

/// Rows without an existing test, and tests of rows that are not in the table.
fn tests(document: &File, places: &BTreeMap<String, usize>, files: &[File]) -> Vec<Finding> {
    let rust = || files.iter().filter(|file| file.has_extension(&["rs"]));
    let all: BTreeSet<&str> = rust().flat_map(functions).map(|(_, name)| name).collect();
    let lines: Vec<&str> = document.text.lines().collect();
    let mut listed = BTreeSet::new();
    let mut findings = Vec::new();
    for (row, line) in places.iter().filter(|(place, _)| place.starts_with("row ")) {
        let cells =
            lines.get(line - 1).and_then(|line| line.trim_end_matches('|').rsplit_once('|'));
        let test = cells.and_then(|(_, last)| last.split('`').nth(1)).unwrap_or_default();
        if !all.contains(test) {
            let text = format!("{row} names the test `{test}`, which there is not");
            findings.push(document.finding("citations", *line, text));
        }
        listed.insert(test);
    }
    for file in rust().filter(|file| file.path.starts_with(ROW_TESTS)) {
        for (line, name) in functions(file) {
            if name.starts_with("row_") && !listed.contains(name) {
                let text = format!("{name} is in no row of {DOCUMENT} §{ROWS}");
                findings.push(file.finding("citations", line, text));
            }
        }
    }
    findings
}

fn functions(file: &File) -> impl Iterator<Item = (usize, &str)> {
    file.text.lines().zip(1..).filter_map(|(line, number)| {
        let name = line.trim_start().strip_prefix("fn ")?;
        Some((number, name.split(['(', '<']).next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    /// In halves, so that this file cites nothing.
    const NAME: &[&str] = &["PROTO", "COL"];

    const DOCUMENT_TEXT: &str = "\
# The protocol
## 2. Connecting
### 2.1 Address
| 1 | not a behaviour |
## 14. Behaviours
| 1 | it is so | `row_01_it_is_so` |
| 30 | and so, too | `elsewhere` (a core's test) |
## 15. More
| 31 | not a behaviour |
";

    /// The findings in `text`, whose `%` stands for the document.
    fn found(text: &str, tests: &str) -> Vec<String> {
        let files = [
            file(DOCUMENT, DOCUMENT_TEXT),
            file("e2e/wire/tests/a.rs", tests),
            file("crates/core/tests.rs", "    fn elsewhere() {"),
            file("a.rs", &text.replace('%', &NAME.concat())),
        ];
        check(&files).unwrap().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn cited_section_or_row_must_exist() {
        let test = "fn row_01_it_is_so() {";
        for text in ["// % §2 and 5", "see %\n/// §2.1", "% rows 1–2", "Code::% => 5", "MY_% §9"]
        {
            assert_eq!(found(text, test), [""; 0], "{text}");
        }
        for (text, line, place) in [
            ("// fine\n// % §5.9.", 2, "§5.9"),
            ("//! by %\n//! row 3", 2, "row 3"),
            ("% row 31", 1, "row 31"),
        ] {
            let expected =
                format!("a.rs:{line}: {DOCUMENT} has no {place}, which is cited [citations]");
            assert_eq!(found(text, test), [expected]);
        }
    }

    #[test]
    fn behaviours_and_tests_must_cite_each_other() {
        let found = found("", "fn row_03_new() {");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("row 1 names the test `row_01_it_is_so`"), "{found:?}");
        assert!(found[1].contains("row_03_new is in no row"), "{found:?}");
    }
}

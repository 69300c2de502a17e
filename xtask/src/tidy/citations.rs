//! Checks citations of `docs/PROTOCOL.md` in comments, tests and documents: its paragraphs
//! (`PROTOCOL §5.4`) and its numbered behaviours (`PROTOCOL row 42`) must exist, and each behaviour
//! must name an existing test.
//!
//! A citation may be a list (`PROTOCOL §2, rows 12–15`). A bare `§` refers to the document that its
//! file has named last, ours or an RFC; a comment that begins with `Row` cites ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

use super::{File, Finding};

const DOCUMENT: &str = "docs/PROTOCOL.md";
/// The section whose table has the numbered behaviours and their tests.
const ROWS: &str = "14";
const ROW_TESTS: &str = "e2e/wire/tests/";

/// The document a bare `§` refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Nothing,
    Protocol,
    Another,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Paragraph(String),
    Row(u32),
}

#[derive(Debug, PartialEq, Eq)]
enum Citation {
    Of(Place),
    /// A paragraph of an unnamed document.
    Nameless(String),
}

pub(super) fn check(files: &[File]) -> Result<Vec<Finding>, String> {
    let document = files.iter().find(|file| file.path == DOCUMENT);
    let document = document.ok_or(format!("{DOCUMENT} is missing"))?;
    let places = places(document);
    let mut findings = Vec::new();
    for file in files {
        for (line, citation) in citations(file) {
            let text = match citation {
                Citation::Of(place) if places.contains_key(&place) => continue,
                Citation::Of(place) => {
                    format!("PROTOCOL {place} is cited, but {DOCUMENT} has no {}", place.kind())
                }
                Citation::Nameless(number) => {
                    format!("§{number} of what? Write PROTOCOL §{number}, or the RFC's number")
                }
            };
            findings.push(file.finding("citations", line, text));
        }
    }
    findings.extend(tests(document, &places, files));
    Ok(findings)
}

/// The existing paragraphs and rows, with their lines.
fn places(document: &File) -> BTreeMap<Place, usize> {
    let mut places = BTreeMap::new();
    let mut section = "";
    for (line, number) in document.text.lines().zip(1..) {
        let heading = line.strip_prefix("## ").or_else(|| line.strip_prefix("### "));
        let row = line.strip_prefix("| ").and_then(|row| row.split_once(" |")?.0.parse().ok());
        if let Some(paragraph) = heading.and_then(number_of) {
            section = paragraph.split('.').next().unwrap_or_default();
            places.insert(Place::Paragraph(paragraph.into()), number);
        } else if let Some(row) = row.filter(|_| section == ROWS) {
            places.insert(Place::Row(row), number);
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
fn tests(document: &File, places: &BTreeMap<Place, usize>, files: &[File]) -> Vec<Finding> {
    let rust = || files.iter().filter(|file| file.has_extension(&["rs"]));
    let all: BTreeSet<&str> = rust().flat_map(functions).map(|(_, name)| name).collect();
    let lines: Vec<&str> = document.text.lines().collect();
    let mut listed = BTreeSet::new();
    let mut findings = Vec::new();
    for (place, line) in places {
        let Place::Row(row) = place else { continue };
        let cells =
            lines.get(line - 1).and_then(|line| line.trim_end_matches('|').rsplit_once('|'));
        let test = cells.and_then(|(_, last)| last.split('`').nth(1)).unwrap_or_default();
        if !all.contains(test) {
            let text = format!("row {row} names the test `{test}`, which there is not");
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

/// Names of documents, paragraphs and lists of rows. A range of paragraphs has a second number.
static MARKS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?x)
    (?<ours>\bPROTOCOL\b) | (?<other>(?:RFC|XPath)\ \d)
    | §(?<first>\d+(?:\.\d+)*)(?:–§?(?<last>\d+(?:\.\d+)*))?
    | \b[Rr]ows?\ (?<rows>\d+(?:–\d+)?(?:(?:,|,?\ and)\ \d+(?:–\d+)?)*)",
    )
});
/// Text between the parts of a list.
static BETWEEN: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:\.md\)?)?,?\s*(?:and\s)?$"));
/// What follows the document's name.
static FOLLOWS: LazyLock<Regex> = LazyLock::new(|| regex(r"^(?:\.md|\s*(?:§|rows?\s)\d|,\s)"));

#[expect(clippy::expect_used, reason = "a literal")]
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a literal")
}

/// All citations of our document in a file, and paragraphs whose document it does not name.
fn citations(file: &File) -> Vec<(usize, Citation)> {
    if !["PROTOCOL", "§", "/ Row", "! Row"].iter().any(|mark| file.text.contains(mark)) {
        return Vec::new();
    }
    let text = Text::of(file);
    let mut named = if file.path == DOCUMENT { Named::Protocol } else { Named::Nothing };
    let mut found = Vec::new();
    // The end of the list so far.
    let mut end = None;
    for mark in MARKS.captures_iter(&text.flat) {
        let Some(whole) = mark.get(0) else { continue };
        let after = text.flat.get(whole.end()..).unwrap_or_default();
        let line = text.line(whole.start());
        let continues =
            |end: usize| text.flat.get(end..whole.start()).is_some_and(|gap| BETWEEN.is_match(gap));
        if mark.name("ours").is_some() {
            let is_path = text.flat[..whole.start()].ends_with(':');
            if is_path || !FOLLOWS.is_match(after) {
                continue;
            }
            named = Named::Protocol;
        } else if mark.name("other").is_some() {
            (named, end) = (Named::Another, None);
            continue;
        } else if let Some(rows) = mark.name("rows") {
            let begins = whole.as_str().starts_with('R') && text.begins_comment(whole.start());
            if !begins && !end.is_some_and(continues) {
                continue;
            }
            named = Named::Protocol;
            let rows = numbers(rows.as_str()).into_iter().map(Place::Row);
            found.extend(rows.map(|row| (line, Citation::Of(row))));
        } else if let Some(first) = mark.name("first") {
            let paragraph = |number: &str| Place::Paragraph(number.to_owned());
            let places = match mark.name("last").map(|last| last.as_str()) {
                None => vec![paragraph(first.as_str())],
                Some(last) if first.as_str().contains('.') || last.contains('.') => {
                    vec![paragraph(first.as_str()), paragraph(last)]
                }
                Some(last) => {
                    let range = numbers(&format!("{}–{last}", first.as_str())).into_iter();
                    range.map(|number| Place::Paragraph(number.to_string())).collect()
                }
            };
            match named {
                Named::Protocol => {
                    found.extend(places.into_iter().map(|place| (line, Citation::Of(place))));
                }
                Named::Nothing => found.push((line, Citation::Nameless(first.as_str().into()))),
                Named::Another => {}
            }
        }
        end = Some(whole.end());
    }
    found
}

/// The numbers of a list like `75–77, 84`.
fn numbers(list: &str) -> Vec<u32> {
    let parts = list.split([',', ' ']).filter_map(|part| {
        let (first, last) = part.split_once('–').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    parts.flatten().collect()
}

impl Place {
    fn kind(&self) -> &'static str {
        match self {
            Self::Paragraph(_) => "such paragraph",
            Self::Row(_) => "such row",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paragraph(number) => write!(f, "§{number}"),
            Self::Row(number) => write!(f, "row {number}"),
        }
    }
}

/// A file with its lines joined, since a citation may be broken between two lines of a comment.
struct Text {
    flat: String,
    /// The offset of each line in `flat`, and whether it is a comment.
    lines: Vec<(usize, bool)>,
}

impl Text {
    fn of(file: &File) -> Self {
        let (mut flat, mut lines) = (String::with_capacity(file.text.len()), Vec::new());
        for line in file.text.lines() {
            let line = line.trim_start();
            let words = line.trim_start_matches(['/', '!', '*']).trim_start();
            lines.push((flat.len(), line.starts_with("//")));
            flat.push_str(words);
            flat.push(' ');
        }
        Self { flat, lines }
    }

    fn begins_comment(&self, at: usize) -> bool {
        self.lines.binary_search(&(at, true)).is_ok()
    }

    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|(start, _)| *start <= at)
    }
}

#[cfg(test)]
mod tests;

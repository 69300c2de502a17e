//! Checks citations of `docs/PROTOCOL.md` in comments, tests and documents: its paragraphs
//! (`PROTOCOL §5.4`) and its numbered behaviours (`PROTOCOL row 42`) must exist, and each behaviour
//! must name an existing test.
//!
//! A citation may be a list (`PROTOCOL §2, rows 12–15`). A bare `§` refers to the document that its
//! file has named last, ours or an RFC; a comment that begins with `Row` cites ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

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
        if let Some((paragraph, _)) = heading.and_then(paragraph_number) {
            section = paragraph.split('.').next().unwrap_or_default();
            places.insert(Place::Paragraph(paragraph.into()), number);
        } else if let Some(row) = row.filter(|_| section == ROWS) {
            places.insert(Place::Row(row), number);
        }
    }
    places
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

/// All citations of our document in a file, and paragraphs whose document it does not name.
fn citations(file: &File) -> Vec<(usize, Citation)> {
    let text = Text::of(file);
    let mut named = if file.path == DOCUMENT { Named::Protocol } else { Named::Nothing };
    let mut found = Vec::new();
    let mut done = 0;
    for at in text.marks() {
        if at < done {
            continue;
        }
        let rest = &text.flat[at..];
        let list = if let Some(after) = rest.strip_prefix("PROTOCOL") {
            if text.is_within_word(at) || !(after.starts_with(".md") || list(after).1 > 0) {
                continue;
            }
            named = Named::Protocol;
            done = at + rest.len() - after.len();
            list(after)
        } else if let Some(after) = rest.strip_prefix("RFC ").or(rest.strip_prefix("XPath ")) {
            if after.starts_with(|c: char| c.is_ascii_digit()) {
                named = Named::Another;
            }
            continue;
        } else if rest.starts_with("Row") {
            if !text.begins_comment(at) || list(rest).1 == 0 {
                continue;
            }
            named = Named::Protocol;
            done = at;
            list(rest)
        } else {
            done = at;
            match (named, paragraph_number(&rest['§'.len_utf8()..])) {
                (Named::Protocol, Some(_)) => list(rest),
                (Named::Nothing, Some((number, _))) => {
                    found.push((text.line(at), Citation::Nameless(number.into())));
                    continue;
                }
                _ => continue,
            }
        };
        let (places, bytes) = list;
        let start = done;
        found.extend(
            places
                .into_iter()
                .map(|(offset, place)| (text.line(start + offset), Citation::Of(place))),
        );
        done = start + bytes;
    }
    found
}

/// The list of places at the front of `text` with their offsets; and its end, 0 without a list.
fn list(text: &str) -> (Vec<(usize, Place)>, usize) {
    let (mut places, mut end) = (Vec::new(), 0);
    // After a row, numbers alone are rows as well.
    let mut is_row = false;
    while let Some(rest) = text.get(end..) {
        let start = if end == 0 { Some(rest.trim_start()) } else { behind_separator(rest) };
        let Some(mut item) = start else { break };
        let word = ["rows ", "Rows ", "row ", "Row "].iter().find(|word| item.starts_with(**word));
        if let Some(word) = word {
            is_row = true;
            item = &item[word.len()..];
        } else if item.starts_with('§') {
            is_row = false;
        } else if !is_row {
            break;
        }
        let at = text.len() - item.len();
        let read = if is_row { rows(item) } else { paragraphs(item) };
        let Some((range, after)) = read else { break };
        places.extend(range.into_iter().map(|place| (at, place)));
        end = text.len() - after.len();
    }
    (places, end)
}

/// The rest after a comma or an `and`.
fn behind_separator(text: &str) -> Option<&str> {
    let comma = text.strip_prefix(',').map(str::trim_start);
    let text = comma.unwrap_or(text);
    match text.trim_start().strip_prefix("and ") {
        Some(after) => Some(after),
        None => comma,
    }
}

/// A row, or a range of them, and the rest.
fn rows(text: &str) -> Option<(Vec<Place>, &str)> {
    let (first, after) = whole_number(text)?;
    let last = after.strip_prefix('–').and_then(whole_number);
    let (last, after) = last.unwrap_or((first, after));
    Some(((first..=last.max(first)).map(Place::Row).collect(), after))
}

/// A paragraph or a range of them, and the rest. A range over two levels stands for its ends.
fn paragraphs(text: &str) -> Option<(Vec<Place>, &str)> {
    let (first, after) = paragraph_number(text.strip_prefix('§')?)?;
    let last = after.strip_prefix('–').map(|last| last.strip_prefix('§').unwrap_or(last));
    let Some((last, after)) = last.and_then(paragraph_number) else {
        return Some((vec![Place::Paragraph(first.into())], after));
    };
    let numbers: Vec<String> = match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) if first < last => (first..=last).map(|it| it.to_string()).collect(),
        _ => vec![first.into(), last.into()],
    };
    Some((numbers.into_iter().map(Place::Paragraph).collect(), after))
}

/// `5` or `5.4`, and the rest.
fn paragraph_number(text: &str) -> Option<(&str, &str)> {
    let mut end = 0;
    while let Some(rest) = text.get(end..) {
        let part = if end == 0 { Some(rest) } else { rest.strip_prefix('.') };
        let Some((_, after)) = part.and_then(whole_number) else { break };
        end = text.len() - after.len();
    }
    (end > 0).then(|| text.split_at(end))
}

fn whole_number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = text.split_at(digits);
    Some((number.parse().ok()?, after))
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

    /// The offsets of possible citations and document names, in order.
    fn marks(&self) -> Vec<usize> {
        let words = ["PROTOCOL", "RFC ", "XPath ", "Row", "§"];
        let marks = words.iter().flat_map(|word| self.flat.match_indices(word).map(|(at, _)| at));
        let mut marks: Vec<usize> = marks.collect();
        marks.sort_unstable();
        marks
    }

    /// Whether the offset is inside a word or after a path: `CloseCode::…` is not the document.
    fn is_within_word(&self, at: usize) -> bool {
        self.flat[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'))
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

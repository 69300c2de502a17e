//! Plain English in every text that a user may read: documents, doc comments, help, errors and
//! logs. A sentence is a finding if it has a phrase of the private dialect that this project once
//! had.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{File, Finding, citations::regex, source};

/// Documents that repeat the phrases on purpose, or that are by others.
const LEFT_OUT: &[&str] = &["bench/runs/", "fuzz/corpus/", "xtask/", "LICENSE"];

/// Crates whose help, errors, logs and documentation users read.
const FOR_USERS: &[&str] = &["crates/tools/", "crates/load/", "crates/server/"];

/// Subjects that are clauses, and phrases that a reader has to translate.
const DIALECT: &str = concat!(
    r"(?:^|[.!:;] )(?:Who|Whoever|What|Whatever) [a-z]+ [^?]*[.;]$",
    r"|\b(?:for|after|in) so long\b|\b(?:is|are|was|were) (?:told|said|heard|asked)\b",
    r"|\bbut for\b|\bof (?:theirs|its own accord)\b|\bnone is\b|\bof late\b|\bthe like\b",
    r"|(?:[^e]|[^r]e) is no (?:number|time|topic|name|part|message|connection)\b",
    r"|\bhearers?\b",
);

static PHRASES: LazyLock<Regex> = LazyLock::new(|| regex(DIALECT));

/// A sentence, and the line on which its paragraph begins.
pub(super) struct Sentence {
    pub(super) line: usize,
    pub(super) text: String,
}

pub(super) fn check(files: &[File], tests: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for Sentence { line, text } in sentences(file, tests) {
            if is_dialect(&text) {
                findings.push(file.finding("english", line, text));
            }
        }
    }
    findings
}

fn is_dialect(sentence: &str) -> bool {
    PHRASES.is_match(sentence)
}

/// The sentences of a file that a user may read.
pub(super) fn sentences(file: &File, tests: &BTreeSet<String>) -> Vec<Sentence> {
    if LEFT_OUT.iter().any(|part| file.path.contains(part)) {
        return Vec::new();
    }
    let is_for_users = FOR_USERS.iter().any(|part| file.path.starts_with(part));
    let paragraphs = if file.has_extension(&["md"]) {
        of_lines(&file.text, without_html)
    } else if file.has_extension(&["rs"]) && is_for_users && !source::is_test(&file.path, tests) {
        // Inline tests come last.
        of_lines(file.text.split("#[cfg(test)]").next().unwrap_or_default(), doc_comment)
    } else {
        return Vec::new();
    };
    paragraphs.into_iter().flat_map(split).collect()
}

/// A line of a document, unless it is an image or HTML.
fn without_html(line: &str) -> Result<&str, Vec<&str>> {
    Ok(if line.starts_with(['<', '!']) { "" } else { line })
}

/// The text of a doc comment; of another line its string literals of at least three words.
fn doc_comment(line: &str) -> Result<&str, Vec<&str>> {
    let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim);
    let literals = line.split('"').skip(1).step_by(2);
    doc.ok_or_else(|| literals.filter(|it| it.split(' ').count() >= 3).collect())
}

/// Prose without headings, code and tables. `prose` is the prose of a line, or else the texts on a
/// line of another kind, which ends code and paragraphs.
fn of_lines(text: &str, prose: impl Fn(&str) -> Result<&str, Vec<&str>>) -> Vec<Sentence> {
    let mut paragraphs: Vec<Sentence> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let line = match prose(line.trim()) {
            Ok(line) => line,
            Err(texts) => {
                (is_code, is_open) = (false, false);
                let texts = texts.into_iter();
                paragraphs.extend(texts.map(|it| Sentence { line: number, text: it.into() }));
                continue;
            }
        };
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_definition = line.starts_with('[') && line.contains("]: ");
        let is_prose = !line.is_empty() && !line.starts_with(['#', '|']) && !is_definition;
        if is_code || is_fence || !is_prose {
            is_open = false;
            continue;
        }
        let item = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
        join(&mut paragraphs, is_open && item.is_none(), number, item.unwrap_or(line));
        is_open = true;
    }
    paragraphs
}

/// Adds a line to the last paragraph, or begins one.
fn join(paragraphs: &mut Vec<Sentence>, is_open: bool, line: usize, text: &str) {
    match paragraphs.last_mut().filter(|_| is_open) {
        Some(last) => {
            last.text.push(' ');
            last.text.push_str(text);
        }
        None => paragraphs.push(Sentence { line, text: text.into() }),
    }
}

/// The sentences of a paragraph: a full stop, then a capital letter.
fn split(paragraph: Sentence) -> Vec<Sentence> {
    let Sentence { line, text } = paragraph;
    let mut sentences = Vec::new();
    let mut rest = text.as_str();
    let ends = text.match_indices(". ").map(|(at, _)| at + 1);
    for end in ends {
        let next = text[end..].trim_start();
        if next.starts_with(|first: char| first.is_uppercase() || first == '`') {
            let begin = text.len() - rest.len();
            sentences.push(text[begin..end].trim().to_owned());
            rest = &text[end..];
        }
    }
    sentences.push(rest.trim().to_owned());
    sentences.into_iter().map(|text| Sentence { line, text }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&[file(path, text)], &BTreeSet::new()).len()
    }

    #[test]
    fn sentences_of_the_dialect_are_counted() {
        let text = "Who was away gets what it missed. A client waits for\nso long. It is told.\n";
        assert_eq!(found("docs/a.md", text), 3);
        assert_eq!(
            found("crates/load/a.rs", "/// Who has left is shown.\nbail!(\"x is no number\");"),
            2
        );
    }

    #[test]
    fn questions_code_headings_and_tests_are_not_counted() {
        let text = "# What is told\n```\nWho is it.\n```\nWho may join? Tokens decide.\n";
        assert_eq!(found("docs/a.md", text), 0);
        assert_eq!(found("crates/load/a/tests/b.rs", "/// It is told.\n"), 0);
        assert_eq!(found("crates/load/a.rs", "#[cfg(test)]\nmod tests { /// It is told.\n}"), 0);
    }
}

//! The house rules that rustc, rustfmt and clippy do not know, as a test: budgets for crates and
//! files, a comment at the top of each module, which crates may use which, no circles of imports
//! between the modules of a crate, where `unsafe` and panics may be allowed,
//! existing citations of the protocol.

mod arrows;
mod circles;
mod citations;
mod code;
mod english;
mod links;
mod source;
mod text;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Error;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    rule: &'static str,
    path: String,
    line: usize,
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.path, self.line, self.text, self.rule)
    }
}

/// A file of the repository, by its path from the root with `/` between the parts.
pub(crate) struct File {
    path: String,
    text: String,
}

impl File {
    fn finding(&self, rule: &'static str, line: usize, text: impl Into<String>) -> Finding {
        Finding { rule, path: self.path.clone(), line, text: text.into() }
    }

    fn has_extension(&self, extensions: &[&str]) -> bool {
        let extension = self.path.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| extensions.contains(&extension))
    }
}

pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let findings = check(root).map_err(Error::msg)?;
    findings.iter().for_each(|finding| println!("{finding}"));
    Ok(match findings.len() {
        0 => {
            println!("tidy");
            ExitCode::SUCCESS
        }
        count => {
            println!("{count} findings");
            ExitCode::FAILURE
        }
    })
}

/// Prints the lines of each crate without its tests, and their sum.
pub(crate) fn count_lines(root: &Path) -> anyhow::Result<()> {
    let files = read(root).map_err(Error::msg)?;
    let crates = source::crates(&files, &source::test_modules(&files));
    let sum = crates.values().sum();
    for (home, lines) in crates.into_iter().chain([(String::from("together"), sum)]) {
        println!("{lines:>7}  {home}");
    }
    Ok(())
}

pub(crate) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let paths = paths(root)?;
    let files = texts(root, &paths);
    let mut findings = all_findings(&files)?;
    findings.extend(links::check(&files, &paths));
    Ok(findings)
}

fn all_findings(files: &[File]) -> Result<Vec<Finding>, String> {
    let mut findings = arrows::check(files)?;
    for file in files {
        findings.extend(text::check(file));
    }
    let tests = source::test_modules(files);
    findings.extend(source::check(files, &tests));
    findings.extend(circles::check(files, &tests)?);
    findings.extend(citations::check(files)?);
    findings.extend(english::check(files, &tests));
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(findings)
}

/// Draws sentences that a user may read, to hold them against the rules of English by hand.
pub(crate) fn draw(root: &Path, count: usize, seed: u64) -> anyhow::Result<()> {
    let files = read(root).map_err(Error::msg)?;
    let tests = source::test_modules(&files);
    let mut all: Vec<String> = Vec::new();
    for file in &files {
        let sentences = english::sentences(file, &tests).into_iter();
        let long = sentences.filter(|it| it.text.split(' ').count() >= 5);
        all.extend(long.map(|it| format!("{}:{}: {}", file.path, it.line, it.text)));
    }
    all.sort_by_cached_key(|sentence| {
        let mut hasher = DefaultHasher::new();
        (seed, sentence).hash(&mut hasher);
        hasher.finish()
    });
    all.iter().take(count).for_each(|sentence| println!("{sentence}"));
    Ok(())
}

/// Every text file of the repository, without built, installed and fuzzed ones.
fn read(root: &Path) -> Result<Vec<File>, String> {
    Ok(texts(root, &paths(root)?))
}

fn texts(root: &Path, paths: &BTreeSet<String>) -> Vec<File> {
    paths.iter().filter_map(|path| text_file(root, path.clone())).collect()
}

/// The paths of all files, without built, installed and fuzzed ones.
fn paths(root: &Path) -> Result<BTreeSet<String>, String> {
    let mut files = BTreeSet::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder)).map_err(|e| format!("{folder}: {e}"))?;
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_made(&name) => folders.push(path),
                // A second checkout has a file of that name.
                Ok(kind) if kind.is_file() && name != ".git" => drop(files.insert(path)),
                _ => {}
            }
        }
    }
    Ok(files)
}

/// Not by git, which may be missing on a machine that only builds.
fn is_made(folder: &str) -> bool {
    folder.starts_with("target")
        || matches!(folder, ".git" | "node_modules" | "artifacts" | "corpus" | "shots" | ".venv")
}

/// `None` for a picture, or a file that was removed since the listing.
fn text_file(root: &Path, path: String) -> Option<File> {
    let text = String::from_utf8(fs::read(root.join(&path)).ok()?).ok()?;
    Some(File { path, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn the_repository_is_tidy() {
        let findings = check(&crate::root()).unwrap();
        let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn finding_names_its_place_and_rule() {
        let found = file("a/b.rs", "").finding("width", 7, "too wide");
        assert_eq!(found.to_string(), "a/b.rs:7: too wide [width]");
    }
}

//! Links within the repository: the file must exist, and the heading of an anchor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::{File, Finding, citations::regex};

static LINK: LazyLock<Regex> = LazyLock::new(|| regex(r"\]\(([^)\s]*)\)"));

/// `paths`: all files of the repository, pictures included.
pub(super) fn check(files: &[File], paths: &BTreeSet<String>) -> Vec<Finding> {
    let documents: BTreeMap<&str, BTreeSet<String>> = files
        .iter()
        .filter(|file| file.has_extension(&["md"]) && !file.path.starts_with("bench/runs/"))
        .map(|file| (&*file.path, anchors(&file.text)))
        .collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| documents.contains_key(&*file.path)) {
        for (line, number) in file.text.lines().zip(1..) {
            for link in LINK.captures_iter(line).filter_map(|found| found.get(1)) {
                if let Some(text) = fault(&file.path, link.as_str(), &documents, paths) {
                    findings.push(file.finding("links", number, text));
                }
            }
        }
    }
    findings
}

fn fault(
    from: &str,
    link: &str,
    documents: &BTreeMap<&str, BTreeSet<String>>,
    paths: &BTreeSet<String>,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { from.to_owned() } else { resolved(from, path) };
    let folder = format!("{}/", target.trim_end_matches('/'));
    if !paths.contains(&target) && !paths.iter().any(|it| it.starts_with(&folder)) {
        return Some(format!("a link to {target}, which does not exist"));
    }
    let has_anchor = documents.get(&*target).is_none_or(|all| all.contains(anchor));
    (!anchor.is_empty() && !has_anchor).then(|| format!("{target} has no heading #{anchor}"))
}

/// A relative path, from the folder of the document.
fn resolved(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors that GitHub gives to headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ');
        let Some(heading) = heading.filter(|_| !is_code && line.starts_with('#')) else { continue };
        let plain: String = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let same = (1..).map(|n| format!("{plain}-{n}"));
        let free = std::iter::once(plain.clone()).chain(same).find(|it| !anchors.contains(it));
        anchors.extend(free);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn link_must_lead_to_an_existing_file_and_heading() {
        let a =
            file("docs/a.md", "[b](../b.md#two-words) [c](c.md) [b](../b.md#none) [x](http://x)");
        let b = file("b.md", "# `Two` words\n[a](docs/a.md) [here](#two-words) [docs](docs)\n");
        let paths = BTreeSet::from(["docs/a.md".to_owned(), "b.md".to_owned()]);
        let texts: Vec<String> =
            check(&[a, b], &paths).into_iter().map(|found| found.text).collect();
        assert_eq!(
            texts,
            ["a link to docs/c.md, which does not exist", "b.md has no heading #none"]
        );
    }
}

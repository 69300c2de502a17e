//! Rules on Rust sources that the compiler and clippy do not have: budgets of files and crates, the
//! comment at the top of a module, where `unsafe` and panics may be allowed.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding};

/// Lines of a crate, without its tests.
const CRATE_LINES_MAX: usize = 13_300;

/// Lines of a file, without its inline test module.
const FILE_LINES_MAX: usize = 600;

/// Crates with a lower budget: each of their files is to be read in one sitting.
pub(super) const CHANNEL: &str = "crates/core/simurgh-channel/src/";
pub(super) const CORE: &str = "crates/core/simurgh-core/src/";
const CORE_FILE_LINES_MAX: usize = 400;

/// The only crate with `unsafe`.
const UNSAFE_HOME: &str = "crates/ground/simurgh-reactor/";
const PANIC_LINTS: &[&str] = &["unwrap_used", "expect_used", "clippy::panic"];

pub(super) fn check(files: &[File], tests: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = sources(files).flat_map(|file| of_file(file, tests)).collect();
    findings.extend(crates(files, tests).into_iter().filter_map(|(home, lines)| {
        let text = format!("{lines} lines without tests, at most {CRATE_LINES_MAX}");
        let manifest = File { path: format!("{home}/Cargo.toml"), text: String::new() };
        (lines > CRATE_LINES_MAX).then(|| manifest.finding("crate-lines", 1, text))
    }));
    findings
}

fn sources(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.has_extension(&["rs"]))
}

pub(super) fn crates(files: &[File], tests: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let mut crates = BTreeMap::new();
    for file in sources(files).filter(|file| !is_test(&file.path, tests)) {
        if let Some((home, _)) = file.path.split_once("/src/") {
            *crates.entry(home.to_owned()).or_default() += product_lines(&file.text);
        }
    }
    crates
}

fn of_file(file: &File, tests: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_core = [CHANNEL, CORE].iter().any(|home| file.path.starts_with(home));
    let is_small = is_core && !is_test(&file.path, tests);
    let max = if is_small { CORE_FILE_LINES_MAX } else { FILE_LINES_MAX };
    let lines = product_lines(&file.text);
    if lines > max {
        let text = format!("{lines} lines without tests, at most {max}");
        findings.push(file.finding("file-lines", 1, text));
    }
    let mut code = file.text.lines().map(str::trim);
    let first = code.find(|line| !line.is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        let text = "opens without a `//!` comment that says what it is";
        findings.push(file.finding("module-top", 1, text));
    }
    for (at, attribute) in allowances(&file.text) {
        let line = file.text.get(..at).unwrap_or_default().lines().count().max(1);
        if attribute.contains("unsafe_code") && !file.path.starts_with(UNSAFE_HOME) {
            findings.push(file.finding(
                "unsafe-home",
                line,
                format!("`unsafe` outside {UNSAFE_HOME}"),
            ));
        }
        let is_of_panics = PANIC_LINTS.iter().any(|lint| attribute.contains(lint));
        let is_product = file.path.starts_with("crates/") && !is_test(&file.path, tests);
        if is_of_panics && is_product && !attribute.contains("reason") {
            findings.push(file.finding("panic", line, "a panic is allowed without a reason"));
        }
    }
    findings
}

/// The attributes that allow a lint, with their offsets.
fn allowances(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let starts = ["[allow(", "[expect("].into_iter().flat_map(|start| text.match_indices(start));
    starts.filter_map(|(at, _)| {
        let rest = text.get(at..)?;
        // Not in a text.
        let is_attribute = text.get(..at)?.ends_with(['#', '!']);
        Some((at, rest.split(")]").next()?)).filter(|_| is_attribute)
    })
}

/// Lines without the inline test modules.
fn product_lines(text: &str) -> usize {
    let (mut count, mut is_test) = (0, false);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let opens = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        is_test |= is_for_tests(line) && lines.peek().is_some_and(opens);
        count += usize::from(!is_test);
        is_test &= line != "}";
    }
    count
}

fn is_for_tests(line: &str) -> bool {
    line.starts_with("#[cfg(") && line.contains("test") && !line.contains("not(")
}

/// Stems of the files that `#[cfg(test)] mod name;` declares (`src/a` for `src/a.rs` and `src/a/`).
pub(super) fn test_modules(files: &[File]) -> BTreeSet<String> {
    let mut stems = BTreeSet::new();
    for file in sources(files) {
        let stem = file.path.trim_end_matches(".rs");
        let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
        let home = if matches!(name, "mod" | "lib" | "main") { folder } else { stem };
        let lines = file.text.lines();
        for (before, line) in lines.clone().zip(lines.skip(1)) {
            let module = line.trim_start_matches("pub(crate) ").strip_prefix("mod ");
            if let Some(name) = module.and_then(|module| module.strip_suffix(';'))
                && is_for_tests(before)
            {
                stems.insert(format!("{home}/{name}"));
            }
        }
    }
    stems
}

/// Whether a file has only tests, or only runs beside the product.
pub(super) fn is_test(path: &str, modules: &BTreeSet<String>) -> bool {
    let folders = ["/tests/", "/benches/", "/examples/"];
    let declared = modules.iter().any(|stem| {
        path.strip_prefix(stem.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    });
    declared || path.ends_with("/tests.rs") || folders.iter().any(|folder| path.contains(folder))
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    const PRODUCT: &str = "crates/server/simurgh/src/a.rs";
    const ROOM: &str = "crates/core/simurgh-core/src/a.rs";

    fn check_files(files: &[File]) -> Vec<Finding> {
        check(files, &test_modules(files))
    }

    /// (rule, line) of the findings in `text` at `path`, which opens with a `//!` line.
    fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let findings = check_files(&[file(path, &format!("//! Top.\n{text}"))]);
        findings.into_iter().map(|found| (found.rule, found.line)).collect()
    }

    #[test]
    fn module_must_start_with_a_doc_comment() {
        for (text, count) in [
            ("use std::fmt;\n", 1),
            ("// Not a doc comment.\n", 1),
            ("", 1),
            ("//! A doc comment.\n", 0),
            ("#![no_std]\n\n//! A doc comment.\n", 0),
        ] {
            assert_eq!(check_files(&[file("xtask/src/a.rs", text)]).len(), count, "{text}");
        }
    }

    #[test]
    fn line_budget_of_a_file_excludes_its_tests() {
        let code = |lines: usize| "const A: u8 = 0;\n".repeat(lines);
        for (path, max) in [(PRODUCT, 599), (ROOM, 399)] {
            assert_eq!(found(path, &code(max)), []);
            assert_eq!(found(path, &code(max + 1)), [("file-lines", 1)]);
            let tests = |attribute: &str| {
                format!("{}{attribute}\nmod tests {{\n{}}}\n", code(max), code(9))
            };
            assert_eq!(found(path, &tests("#[cfg(test)]")), []);
            assert_eq!(found(path, &tests("#[cfg(not(test))]")), [("file-lines", 1)]);
        }
        let files = [
            file(ROOM, "//! A.\n#[cfg(test)]\nmod cases;\n"),
            file("crates/core/simurgh-core/src/a/cases.rs", &format!("//! A.\n{}", code(500))),
        ];
        assert_eq!(check_files(&files), []);
    }

    #[test]
    fn unsafe_code_and_panics_need_an_allowed_place_and_reason() {
        // In halves, so that this file has none.
        let of_unsafe = &["\n#![allow", "(unsafe_code)]\n"].concat();
        assert_eq!(found(PRODUCT, of_unsafe), [("unsafe-home", 3)]);
        assert_eq!(found("crates/ground/simurgh-reactor/src/a.rs", of_unsafe), []);
        assert_eq!(found(PRODUCT, "#[allow(clippy::unwrap_used)]"), [("panic", 2)]);
        let reasoned = "#[expect(\n    clippy::panic,\n    reason = \"a literal\"\n)]";
        assert_eq!(found(PRODUCT, reasoned), []);
        assert_eq!(found(PRODUCT, &reasoned.replace("reason", "cause")), [("panic", 2)]);
        assert_eq!(found(PRODUCT, "#[allow(dead_code)]"), []);
    }

    #[test]
    fn line_budget_of_a_crate_excludes_its_tests() {
        let code = format!("//! Top.\n{}", "const A: u8 = 0;\n".repeat(599));
        let path = |n: usize| format!("crates/server/simurgh/src/a{n}.rs");
        let full = CRATE_LINES_MAX / 600;
        let mut files: Vec<File> = (0..full).map(|n| file(&path(n), &code)).collect();
        let rest = "const A: u8 = 0;\n".repeat(CRATE_LINES_MAX % 600);
        files.push(file(
            &path(full),
            &format!("//! Top.\n{rest}").replacen("const A: u8 = 0;\n", "", 1),
        ));
        files.push(file("crates/server/simurgh/tests/b.rs", &code));
        assert_eq!(check_files(&files), []);
        files.push(file("crates/server/simurgh/src/c.rs", "//! Top."));
        let findings = check_files(&files);
        let [found] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((found.rule, &*found.path), ("crate-lines", "crates/server/simurgh/Cargo.toml"));
        assert!(found.text.starts_with(&format!("{} lines", CRATE_LINES_MAX + 1)));
    }
}

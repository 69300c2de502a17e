//! The sign and the words are made here, so that this file cites nothing: `$` is the sign of a
//! paragraph, `%` the name of the document, `~` the word row.

use super::super::tests::file;
use super::*;

const PROTOCOL: &str = "\
# The protocol
## 1. Words
## 2. Connecting
### 2.1 Address
| 1 | not a behaviour |
## 5. Joining
### 5.4 What comes meanwhile
## 6. After
## 14. Behaviours
### 14.1 Some
| row | behaviour | test |
|---|---|---|
| 1 | it is so | `row_01_it_is_so` |
| 2 | and so | `row_02_and_so` |
| 30 | and so, too | `elsewhere` (a core's test) |
## 15. More
| 31 | not a behaviour |
";

fn written(text: &str) -> String {
    text.replace('$', "§").replace('%', "PROTOCOL").replace('~', "Row")
}

fn repository(path: &str, text: &str) -> Vec<File> {
    let tests = "fn row_01_it_is_so() {\nfn row_02_and_so() {";
    vec![
        file(DOCUMENT, PROTOCOL),
        file("e2e/wire/tests/a.rs", tests),
        file("crates/core/tests.rs", "    fn elsewhere() {"),
        file(path, &written(text)),
    ]
}

fn found(path: &str, text: &str) -> Vec<String> {
    check(&repository(path, text)).unwrap().iter().map(Finding::to_string).collect()
}

fn cited(text: &str) -> Vec<String> {
    let cited = citations(&file("a.rs", &written(text))).into_iter();
    cited
        .map(|(line, citation)| match citation {
            Citation::Of(Place::Paragraph(number)) => format!("{line}: {number}"),
            Citation::Of(Place::Row(number)) => format!("{line}: row {number}"),
            Citation::Nameless(number) => format!("{line}: {number} of what"),
        })
        .collect()
}

#[test]
fn what_is_cited_has_to_be_there() {
    let text = "//! By % $5 and $6.\n\n/// % $2.1, rows 1 and 2 (% row 30)\n// ~s 1–2\nlet x = 5;";
    assert_eq!(found("crates/a/src/b.rs", text), [""; 0]);
    let none = "is cited, but docs/PROTOCOL.md has no such";
    assert_eq!(
        found("crates/a/src/b.rs", "// fine\n/// Waits (% $5.9).\n/// ~ 3: no.\n"),
        [
            format!("crates/a/src/b.rs:2: {} {none} paragraph [citations]", written("% $5.9")),
            format!("crates/a/src/b.rs:3: {} {none} row [citations]", written("% row 3")),
        ]
    );
    let found = found("docs/OTHER.md", "the order of % $7, and\nrows 1–3 there");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].starts_with("docs/OTHER.md:2: "), "{found:?}");
}

#[test]
fn rows_of_other_tables_are_no_behaviours() {
    assert_eq!(found("a.rs", "// % row 31").len(), 1);
}

#[test]
fn citations_are_lists_and_ranges_over_lines() {
    for (text, expected) in [
        ("// % $2's", "1: 2"),
        ("// (% $5.4).", "1: 5.4"),
        ("// see % $5, $6.", "1: 5 1: 6"),
        ("// % $5 and $6: both", "1: 5 1: 6"),
        ("// % $5–$7 say", "1: 5 1: 6 1: 7"),
        ("// % $5–7 say", "1: 5 1: 6 1: 7"),
        ("// % $5.1–$5.4 say", "1: 5.1 1: 5.4"),
        ("// % $7, rows 75–77, 84).", "1: 7 1: row 75 1: row 76 1: row 77 1: row 84"),
        ("// % rows 7 and 18, and $2", "1: row 7 1: row 18 1: 2"),
        ("// came (%\n    /// $5.4). So", "2: 5.4"),
        ("/// ~ 60 and $6: reply", "1: row 60 1: 6"),
        ("//! ~s 1–2 of % $14: 3 there", "1: row 1 1: row 2 1: 14"),
        ("    // ~ 84. Kinds (5; 3 and 4 belong to $11)", "1: row 84 1: 11"),
        ("assert!(x, \"% row 63\");", "1: row 63"),
        ("See [%](%.md), $5.", "1: 5"),
    ] {
        assert_eq!(cited(text).join(" "), expected, "{text}");
    }
}

#[test]
fn what_only_looks_like_a_citation_is_none() {
    for text in [
        "CloseCode::% => 5,",
        "const %: u32 = 1;",
        "(protocol {%})",
        "MY_% $",
        "// ~s and columns; the last but one row is 48",
        "// so wide that the\n// row 5 of it",
        "let rows = ~ 7;",
        "// $n stands for a number",
    ] {
        assert_eq!(cited(text), [""; 0], "{text}");
    }
}

#[test]
fn a_bare_paragraph_is_of_the_document_that_was_named_last() {
    assert_eq!(cited("// RFC 9112 $6.3, and $7.1\n// % $5\n// $6"), ["2: 5", "3: 6"]);
    assert_eq!(cited("// XPath 1.0 $4.2\n// $4.4"), [""; 0]);
    assert_eq!(cited("// % $5\n// RFC 6455 $5.5.1, $7.4\n// $7.4"), ["1: 5"]);
    assert_eq!(cited("\n// in order ($4)"), ["2: 4 of what"]);
    let found = found("a.rs", "// in order ($4)");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(&written("a.rs:1: $4 of what? Write % $4")), "{found:?}");
    let within = citations(&file(DOCUMENT, &written("as $5.4 says (RFC 6455 $4)")));
    assert_eq!(within, [(1, Citation::Of(Place::Paragraph("5.4".into())))]);
}

#[test]
fn each_behaviour_has_a_test_and_each_test_a_behaviour() {
    let mut files = repository("a.rs", "");
    files[1].text = "fn row_01_it_is_so() {\n}\nfn row_03_new() {".into();
    let found: Vec<String> = check(&files).unwrap().iter().map(Finding::to_string).collect();
    let new = format!("row_03_new is in no row of {DOCUMENT} §{ROWS}");
    assert_eq!(
        found,
        [
            "docs/PROTOCOL.md:14: row 2 names the test `row_02_and_so`, which there is not \
             [citations]"
                .to_owned(),
            format!("e2e/wire/tests/a.rs:3: {new} [citations]"),
        ]
    );
}

#[test]
fn the_document_is_asked_for() {
    assert_eq!(check(&[]), Err("docs/PROTOCOL.md is missing".to_owned()));
}

//! Each rule on a source that breaks it, and on the nearest one that does not.

use super::super::tests::file;
use super::*;

fn check_files(files: &[File]) -> Vec<Finding> {
    let (parsed, tests) = parse_all(files).unwrap();
    check(&parsed, &tests)
}

/// (rule, line) of the findings in `text` at `path`, which opens with a `//!` line.
fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    let findings = check_files(&[file(path, &format!("//! Top.\n{text}"))]);
    findings.into_iter().map(|found| (found.rule, found.line)).collect()
}

const PRODUCT: &str = "crates/server/simurgh/src/a.rs";
const REACTOR: &str = "crates/ground/simurgh-reactor/src/a.rs";

#[test]
fn a_module_opens_with_what_it_is() {
    let rules = |text: &str| {
        let findings = check_files(&[file("xtask/src/a.rs", text)]);
        findings.into_iter().map(|found| found.rule).collect::<Vec<_>>()
    };
    assert_eq!(rules("use std::fmt;\n"), ["module-top"]);
    assert_eq!(rules("// Not a doc comment.\n"), ["module-top"]);
    assert_eq!(rules(""), ["module-top"]);
    assert_eq!(rules("//! A doc comment.\n"), [""; 0]);
    assert_eq!(rules("#![no_std]\n\n//! A doc comment.\n"), [""; 0]);
}

#[test]
fn a_file_is_held_to_its_budget_without_its_tests() {
    let code = "const A: u8 = 0;\n".repeat(599);
    assert_eq!(found(PRODUCT, &code), []);
    assert_eq!(found(PRODUCT, &format!("{code}const B: u8 = 0;\n")), [("file-lines", 1)]);
    let tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
    assert_eq!(found(PRODUCT, &tests), []);
    let other = format!("{code}#[cfg(not(test))]\nmod real {{\n{code}}}\n");
    assert_eq!(found(PRODUCT, &other), [("file-lines", 1)]);
}

#[test]
fn a_file_of_the_core_has_a_smaller_budget_and_its_tests_have_not() {
    let code = "const A: u8 = 0;\n".repeat(399);
    let room = "crates/core/simurgh-core/src/a.rs";
    assert_eq!(found(room, &code), []);
    assert_eq!(found(room, &format!("{code}const B: u8 = 0;\n")), [("file-lines", 1)]);
    assert_eq!(found(room, &format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n")), []);
    let files = [
        file(room, "//! A.\n#[cfg(test)]\nmod tests;\n"),
        file(
            "crates/core/simurgh-core/src/a/tests.rs",
            &format!("//! Tests.\n{code}{}", "\n".repeat(9)),
        ),
    ];
    assert_eq!(check_files(&files), []);
}

#[test]
fn a_function_is_held_to_its_budget() {
    let long = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
    assert_eq!(found(PRODUCT, &long(70)), []);
    assert_eq!(found(PRODUCT, &long(71)), [("fn-lines", 2)]);
    assert_eq!(found(PRODUCT, &format!("impl A {{\n{}}}\n", long(71))), [("fn-lines", 3)]);
    assert_eq!(found(PRODUCT, &format!("/// Long.\n#[inline]\n{}", long(70))), []);
}

#[test]
fn panics_are_for_tests() {
    assert_eq!(found(PRODUCT, "fn f() { x.unwrap(); }"), [("panic", 2)]);
    assert_eq!(found(PRODUCT, "fn f() {\n x.expect(\"why\");\n}"), [("panic", 3)]);
    assert_eq!(found(PRODUCT, "fn f() { panic!(\"no\") }"), [("panic", 2)]);
    assert_eq!(found(PRODUCT, "fn f() { todo!() }"), [("panic", 2)]);
    assert_eq!(found(PRODUCT, "fn f() { format!(\"{}\", x.unwrap()); }"), [("panic", 2)]);
    assert_eq!(found(PRODUCT, "fn f() { x.unwrap_or(0); parser.expect(b'x')?; }"), []);
    assert_eq!(found(PRODUCT, "// x.unwrap()\nconst A: &str = \"x.unwrap()\";"), []);
}

#[test]
fn a_test_may_panic_wherever_it_is() {
    let call = "fn f() { x.unwrap(); }";
    assert_eq!(found(PRODUCT, &format!("#[cfg(test)] mod tests {{ {call} }}")), []);
    assert_eq!(found(PRODUCT, &format!("#[test] {call}")), []);
    assert_eq!(found("crates/server/simurgh/tests/a.rs", call), []);
    assert_eq!(found("bench/src/a.rs", call), [], "not a crate of the product");
    let files = [
        file("crates/server/simurgh/src/a.rs", "//! A.\n#[cfg(test)]\nmod cases;\n"),
        file("crates/server/simurgh/src/a/cases.rs", &format!("//! Cases.\n{call}\n")),
    ];
    assert_eq!(check_files(&files), []);
}

#[test]
fn a_panic_may_be_excused_where_it_is_with_a_reason() {
    let call = |attribute: &str| format!("{attribute}\nfn f() {{ x.unwrap(); }}");
    let reasoned = "#[expect(clippy::unwrap_used, reason = \"a literal\")]";
    assert_eq!(found(PRODUCT, &call(reasoned)), []);
    let arm =
        format!("fn f() {{ match a {{ {reasoned} Err(_) => panic!(), Ok(_) => panic!() }} }}");
    assert_eq!(found(PRODUCT, &arm), [("panic", 2)], "the second arm is not excused");
    assert_eq!(found(PRODUCT, &call("#[allow(clippy::unwrap_used)]")), [("panic", 3)]);
    assert_eq!(found(PRODUCT, &call("#[allow(dead_code, reason = \"x\")]")), [("panic", 3)]);
}

#[test]
fn unsafe_lives_in_the_reactor_and_is_explained() {
    let block = "fn f() {\n    let a = unsafe { g() };\n}";
    assert_eq!(found(PRODUCT, block), [("unsafe-home", 3)]);
    assert_eq!(found(REACTOR, block), [("safety-comment", 3)]);
    let explained = "fn f() {\n    // SAFETY: g needs nothing.\n    let a = unsafe { g() };\n}";
    assert_eq!(found(REACTOR, explained), []);
    let stale = "fn f() {\n    // SAFETY: of h.\n    h();\n    let a = unsafe { g() };\n}";
    assert_eq!(found(REACTOR, stale), [("safety-comment", 5)]);
    let wordy = "fn f() {\n    // SAFETY: one;\n    // two;\n    let a = unsafe { g() };\n}";
    assert_eq!(found(REACTOR, wordy), []);
    let split = "fn f() {\n    // SAFETY: fits.\n    let a =\n        unsafe { g() };\n}";
    assert_eq!(found(REACTOR, split), []);
}

#[test]
fn unsafe_items_are_explained_too() {
    assert_eq!(found(REACTOR, "unsafe impl Send for A {}"), [("safety-comment", 2)]);
    assert_eq!(found(REACTOR, "// SAFETY: plain data.\nunsafe impl Send for A {}"), []);
    assert_eq!(found(REACTOR, "unsafe fn f() {}"), [("safety-comment", 2)]);
    assert_eq!(found(REACTOR, "/// Does.\n///\n/// # Safety\n/// Once.\nunsafe fn f() {}"), []);
}

#[test]
fn a_crate_is_held_to_its_budget_without_its_tests() {
    let code = format!("//! Top.\n{}", "const A: u8 = 0;\n".repeat(599));
    let path = |n: usize| format!("crates/server/simurgh/src/a{n}.rs");
    let mut files: Vec<File> = (0..20).map(|n| file(&path(n), &code)).collect();
    files.push(file("crates/server/simurgh/tests/b.rs", &code));
    assert_eq!(check_files(&files), []);
    files.push(file("crates/server/simurgh/src/c.rs", "//! Top."));
    let findings = check_files(&files);
    let [found] = &findings[..] else { panic!("{findings:?}") };
    let is = (found.rule, &found.path[..], found.amount);
    assert_eq!(is, ("crate-lines", "crates/server/simurgh/Cargo.toml", 12_001));
}

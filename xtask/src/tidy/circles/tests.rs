//! Circles of imports, and imports that only resemble them.

use super::super::tests::file;
use super::*;

/// The circles of imports of a crate.
fn circles(files: &[(&str, &str)]) -> Vec<(String, usize)> {
    let path = |name: &str| format!("crates/x/src/{name}.rs");
    let files: Vec<File> = files.iter().map(|(name, text)| file(&path(name), text)).collect();
    let found = check(&files, &BTreeSet::new()).unwrap();
    found.into_iter().map(|found| (found.path, found.line)).collect()
}

fn place(name: &str, line: usize) -> (String, usize) {
    (format!("crates/x/src/{name}.rs"), line)
}

#[test]
fn two_modules_that_use_each_other_form_a_cycle() {
    let a = ("a", "\nuse crate::b::B;");
    assert_eq!(circles(&[a, ("b", "fn f(x: crate::a::A) {}")]), [place("a", 2), place("b", 1)]);
    assert_eq!(circles(&[a, ("b", "use super::{a::A, c::C};")]), [place("a", 2), place("b", 1)]);
    assert_eq!(circles(&[a, ("b", "fn f() { println!(\"{}\", crate::a::f()) }")]).len(), 2);
    assert_eq!(circles(&[a, ("b", "use std::fmt; // crate::a::A")]), []);
    assert_eq!(circles(&[a, ("c", "use crate::a::A;")]), []);
}

#[test]
fn cycle_through_several_modules_is_found() {
    let files = [("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "use crate::a::A;")];
    assert_eq!(circles(&files), [place("a", 1), place("b", 1), place("c", 1)]);
    assert_eq!(circles(&files[..2]), []);
}

#[test]
fn files_of_one_module_may_use_each_other() {
    let room = [("a/mod", "pub(crate) use self::x::X;"), ("a/x", "use super::{A, y::Y};")];
    assert_eq!(circles(&[room[0], room[1], ("a/y", "use super::x::X;")]), []);
}

#[test]
fn reexported_item_counts_at_its_definition() {
    let lib = ("lib", "mod a; mod b; mod c; pub use a::A; pub use crate::b::B as Other;");
    let c = ("c", "use crate::Other;");
    assert_eq!(circles(&[lib, ("a", "use crate::c::C;"), ("b", ""), c]), []);
    assert_eq!(
        circles(&[lib, ("a", ""), ("b", "use crate::c::C;"), c]),
        [place("b", 1), place("c", 1)]
    );
    // b uses a file of room a that does not need b.
    let a = [("a/mod", "pub(crate) use self::y::Y; mod x; mod y;"), ("a/x", "use crate::b::B;")];
    assert_eq!(circles(&[a[0], a[1], ("a/y", ""), ("b", "use crate::a::Y;")]), []);
}

#[test]
fn tests_of_a_module_may_use_any_other_module() {
    let inline = "#[cfg(test)]\nmod tests { use crate::b::B; }";
    assert_eq!(circles(&[("a", inline), ("b", "use crate::a::A;")]), []);
    assert_eq!(circles(&[("a/tests", "use crate::b::B;"), ("b", "use crate::a::A;")]), []);
}

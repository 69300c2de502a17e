//! Each rule on rooms that break it, and on the nearest ones that do not.

use super::super::tests::file;
use super::*;

const ROOMS: [&str; 6] = ["id", "wire", "registry/members", "registry/list", "registry", "core"];
const HOME: &str = "crates/core/simurgh-core";

/// Adds the other rooms, which are empty.
fn whole(mut files: Vec<File>) -> Vec<File> {
    for room in ROOMS.iter().chain(&["lib"]) {
        let [path, folder] = [at(room), at(&format!("{room}/mod"))];
        if files.iter().all(|file| file.path != path && file.path != folder) {
            files.push(file(&path, ""));
        }
    }
    files
}

fn check_test(files: &[File]) -> Vec<Finding> {
    let rooms = ROOMS.map(str::to_owned).into();
    let pure = Pure { home: HOME.to_owned(), rooms, one_with: BTreeMap::new() };
    check_by(&Table { pure: vec![pure] }, files, &source::test_modules(files)).unwrap()
}

fn at(name: &str) -> String {
    format!("{HOME}/src/{name}.rs")
}

/// (rule, path within the core, line) of the findings in these files.
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String, usize)> {
    let files = whole(files.iter().map(|(name, text)| file(&at(name), text)).collect());
    let findings = check_test(&files);
    let short = |path: String| {
        path.trim_start_matches(HOME).trim_start_matches("/src/").trim_end_matches(".rs").to_owned()
    };
    findings.into_iter().map(|found| (found.rule, short(found.path), found.line)).collect()
}

/// (rule, line) of the findings in one room.
fn alone(name: &str, text: &str) -> Vec<(&'static str, usize)> {
    found(&[(name, text)]).into_iter().map(|(rule, _, line)| (rule, line)).collect()
}

fn texts(name: &str, text: &str) -> Vec<String> {
    let files = whole(vec![file(&at(name), text)]);
    check_test(&files).into_iter().map(|found| found.text).collect()
}

#[test]
fn core_module_must_not_use_io_clock_or_threads() {
    let wrong = [
        "use std::net::SocketAddr;",
        "use std::{fmt, thread};",
        "fn f() { std::fs::read(a) }",
        "fn f() -> std::io::Result<()> { a }",
        "use std::process;",
        "fn f(now: Instant) {}",
        "fn f() { std::time::Instant::now() }",
        "use std::time::{Duration, SystemTime as Time};",
        "type Map = HashMap<u8, u8, RandomState>;",
    ];
    for text in wrong {
        assert_eq!(alone("id", text), [("pure", 1)], "{text}");
    }
    let text = texts("id", "use std::{fmt,\n io::Read};");
    assert_eq!(text, ["`std::io`: a core gets this as an argument or by its traits"]);
}

#[test]
fn names_that_only_resemble_io_are_allowed() {
    let right = [
        "use core::net::IpAddr;",
        "use std::time::Duration;",
        "// std::net\n/// Instant\nconst A: &str = \"std::io\";",
        "struct Instantly { at: InstantKind }",
        "fn f<'net>(a: &'net u8) { 'fs: loop {} }",
        "#[expect(clippy::Instant)] fn f() {}",
        "mod thread {}",
    ];
    for text in right {
        assert_eq!(alone("id", text), [], "{text}");
    }
}

#[test]
fn tests_may_use_io_and_any_module() {
    let wrong = "use std::thread; use crate::core::Core; fn f() { Instant::now() }";
    assert_eq!(alone("id", &format!("#[cfg(test)]\nmod tests {{ {wrong} }}")), []);
    assert_eq!(alone("id", "#[cfg(test)]\n#[allow(dead_code)]\nuse std::{io, fs};"), []);
    assert_eq!(alone("id", "struct A { #[cfg(test)] at: Instant, b: u8 }"), []);
    assert_eq!(alone("id", "#[cfg(test)] fn f() {}\nuse std::io;"), [("pure", 2)]);
    assert_eq!(alone("id", "struct A { #[cfg(test)] a: u8, at: Instant }"), [("pure", 1)]);
    assert_eq!(alone("id", &format!("#[cfg(not(test))] mod a {{ {wrong} }}")).len(), 3);
    assert_eq!(alone("id/tests", wrong), []);
    assert_eq!(alone("tests/support", wrong), []);
    assert_eq!(found(&[("id", "#[cfg(test)]\nmod cases;"), ("id/cases", wrong)]), []);
}

#[test]
fn core_may_use_only_plain_data_of_the_reactor() {
    assert_eq!(alone("id", "use simurgh_reactor::{Key, Next, Now, PAGE_SLOTS, Page};"), []);
    assert_eq!(alone("id", "fn f(key: simurgh_reactor::Key) { simurgh_reactor::Run::new() }"), []);
    let list = "use simurgh_reactor::{\n    Key,\n    Io,\n    Shared as Text,\n    Mailbox,\n};";
    assert_eq!(alone("id", list), [("pure", 3), ("pure", 5)]);
    assert_eq!(alone("id", "fn f(io: &mut simurgh_reactor::Io<u8>) {}"), [("pure", 1)]);
    assert_eq!(alone("id", "use simurgh_reactor::*;"), [("pure", 1)]);
    assert_eq!(alone("id", "use simurgh_reactor as r;"), [("pure", 1)]);
    assert_eq!(alone("id", "use simurgh_reactor::{self, Key};"), [("pure", 1)]);
}

#[test]
fn module_uses_only_modules_below_it() {
    assert_eq!(alone("wire", "use crate::id::Id;"), []);
    assert_eq!(alone("wire", "use super::id::{self, Id};"), []);
    assert_eq!(alone("wire", "use crate::registry::Registry;"), [("rooms", 1)]);
    assert_eq!(alone("wire", "use super::registry::Registry;"), [("rooms", 1)]);
    assert_eq!(alone("wire", "\nfn f(a: crate::core::Core) {}"), [("rooms", 2)]);
    assert_eq!(alone("wire", "fn f() { assert!(crate::core::is(1)) }"), [("rooms", 1)]);
    assert_eq!(alone("wire", "use crate::wire::Wire; use self::inner::A;"), [], "itself");
    let text = texts("wire", "use crate::core::Core;");
    let wrong = "wire may not use core (`Core`), which stands above it in xtask/rooms.toml";
    assert_eq!(text, [wrong]);
}

#[test]
fn nested_use_lists_are_parsed_completely() {
    let list = "use crate::{\n id::{Id, Kind},\n registry::{\n members::{self, X},\n Registry,\n },\
                \n wire::Wire,\n core::*,\n};\nuse super::core::Core;";
    assert_eq!(alone("registry", list), [("rooms", 8)]);
    let lower = [("rooms", 5), ("rooms", 8)];
    assert_eq!(alone("registry/list", &list.replace("use super::", "use super::super::")), lower);
}

#[test]
fn super_and_self_are_resolved_by_the_file_path() {
    assert_eq!(alone("registry/list", "use super::members::X;"), []);
    assert_eq!(alone("registry/list", "use super::super::wire::Wire;"), []);
    assert_eq!(alone("registry/list", "use super::Registry;"), [("rooms", 1)], "its parent");
    assert_eq!(alone("registry/list", "use super::super::core::Core;"), [("rooms", 1)]);
    assert_eq!(alone("registry/members", "use super::list::X;"), [("rooms", 1)], "a later part");
    assert_eq!(alone("registry/mod", "use self::list::X; use super::wire::Wire;"), []);
    assert_eq!(alone("registry/mod", "use super::core::Core;"), [("rooms", 1)]);
    assert_eq!(alone("registry", "use self::super::core::Core;"), [("rooms", 1)]);
    let inline = "mod inner { use super::A; use super::super::members::X; }";
    assert_eq!(alone("registry/list", inline), [], "modules within a file are counted");
    assert_eq!(alone("registry", "mod inner { use super::super::core::X; }"), [("rooms", 1)]);
}

#[test]
fn unlisted_files_rank_above_all_modules() {
    assert_eq!(alone("core", "use crate::Reexported;"), [("rooms", 1)]);
    assert_eq!(alone("core", "use super::*;"), [("rooms", 1)]);
    let lib = "mod core; pub use core::Core; use crate::registry::X; fn f() { self::core::g() }";
    let all = [("lib", lib), ("id", ""), ("wire", ""), ("core", ""), ("registry", "")];
    let parts = [("registry/list", ""), ("registry/members", "")];
    assert_eq!(found(&[&all[..], &parts[..]].concat()), []);
}

#[test]
fn visibility_path_is_not_counted_as_a_use() {
    let text = "pub(crate) struct A(pub(super) u8, pub (crate::id::Id));\n\
                pub(in crate::registry) fn f(&self) { self.go() }";
    assert_eq!(alone("registry/list", text), []);
    assert_eq!(alone("id", "struct A(pub (crate::wire::B, u8));"), [("rooms", 1)]);
}

#[test]
fn every_module_must_be_listed_and_every_entry_must_exist() {
    assert_eq!(alone("attic", "use crate::core::Core;"), [("rooms", 1)]);
    assert_eq!(texts("id/deep", ""), ["id/deep has no place in xtask/rooms.toml"]);
    let found = check(&[file(&at("lib"), "")], &BTreeSet::new()).unwrap();
    let empty = "seeded_state has no file in crates/core/simurgh-core/src";
    assert!(found.iter().any(|found| found.text == empty), "{found:?}");
}

/// The number of findings in `wire` calling like this, when `core` above it defines a function
/// `close` and one called `push`, and the tests of a file lower down define `close` too.
fn calling(text: &str) -> usize {
    let core = "impl Core { pub fn close(&mut self) {} fn push(&self) {} fn default() {} }";
    let tests = "#[cfg(test)] mod tests { fn close() {} }";
    found(&[("id", tests), ("wire", text), ("core", core)]).len()
}

#[test]
fn call_to_a_higher_module_is_a_finding() {
    let core = "impl Core { fn close(&mut self) {} }";
    let wire = "impl Core {\n fn turn(&mut self) {\n self.close();\n self.close();\n }\n}";
    let upwards = found(&[("wire", wire), ("core", core)]);
    assert_eq!(upwards, [("calls", "wire".into(), 3)], "once a function");
    assert_eq!(found(&[("wire", core), ("core", wire)]), [], "downwards");
    let files = whole(vec![file(&at("wire"), wire), file(&at("core"), core)]);
    let found = check_test(&files);
    let text = "wire calls `close` of crates/core/simurgh-core/src/core.rs, which stands \
                above it in xtask/rooms.toml";
    assert_eq!(found[0].text, text);
}

#[test]
fn upward_call_is_found_in_every_syntax() {
    let ways = [
        "fn f() { close(1) }",
        "fn f() { x.close(1) }",
        "fn f() { x.y().close::<u8>() }",
        "fn f() { close::<u8>() }",
        "fn f() { Self::close(x) }",
        "fn f() { x.for_each(Self::close) }",
        "fn f() { <Self as A>::close(x) }",
        "struct Core; fn f() { Core::close(x) }",
        "struct Core; fn f() { Core::<u8>::close(x) }",
        "fn f() { debug!(\"{}\", x.close()) }",
        "fn f() { for a in 0..close(1) {} }",
    ];
    for text in ways {
        assert_eq!(calling(text), 1, "{text}");
    }
}

#[test]
fn text_that_only_resembles_an_upward_call_is_allowed() {
    let ways = [
        "fn f() { close!(1) }",
        "fn f() { x.close = 1 }",
        "fn f() { Socket::close(x) }",
        "use simurgh_proto::Core; fn f() { Core::close(x) }",
        "use simurgh_proto::close; fn f() { close(x) }",
        "use simurgh_proto::ws as codec; fn f() { codec::close(x) }",
        "fn f() { ::core::close(x) }",
        "fn f() { let close = |x| x; close(1) }",
        "fn f(close: impl Fn(u8)) { close(1) }",
        "#[close(1)] fn f() {}",
        "// close(1)\nfn f() { \"close(1)\" }",
        "#[cfg(test)] mod tests { fn f() { x.close() } }",
        "fn close() { close() }",
        "trait A { fn close(&self); } fn f(a: &dyn A) { a.close() }",
    ];
    for text in ways {
        assert_eq!(calling(text), 0, "{text}");
    }
}

#[test]
fn common_method_name_counts_only_on_self() {
    assert_eq!(calling("fn f(&self) { self.push(1) }"), 1);
    assert_eq!(calling("fn f(&self) { Self::push(self) }"), 1);
    assert_eq!(calling("fn f(&self) { self.list.push(1) }"), 0);
    assert_eq!(calling("fn f() { Vec::push(a, 1) }"), 0);
    assert_eq!(calling("fn f() -> Self { Self::default() }"), 0, "as derived");
}

#[test]
fn method_of_a_lower_crate_is_no_upward_call() {
    let found = |visibility: &str, call: &str| {
        let files = [
            file("crates/ground/simurgh-proto/src/ws.rs", &format!("{visibility} fn close() {{}}")),
            file(&at("core"), "impl Core { fn close(&self) {} }"),
            file(&at("wire"), &format!("fn f(&self) {{ {call} }}")),
        ];
        check_test(&whole(files.into())).len()
    };
    assert_eq!(found("pub const unsafe", "ws.close()"), 0);
    assert_eq!(found("pub const unsafe", "self.close()"), 1);
    assert_eq!(found("pub(crate)", "ws.close()"), 1, "nobody else can call that");
}

#[test]
fn name_defined_in_two_modules_is_attributed_to_neither() {
    let rooms = |id: &'static str| {
        let core = "impl Core { fn close(&self) {} }";
        found(&[("id", id), ("wire", "fn f() { x.close() }"), ("core", core)]).len()
    };
    assert_eq!(rooms("trait Closes { fn close(&self); }"), 0);
    assert_eq!(rooms("type Close = fn(u8); const close: u8 = 0;"), 1);
}

/// The circles of imports of a crate without a table.
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

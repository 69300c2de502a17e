//! Each rule on rooms that break it, and on the nearest ones that do not.

use super::super::tests::file;
use super::*;

const TABLE: &[&str] = &["id", "wire", "registry/members", "registry/list", "registry", "core"];
const TEST: Pure = Pure { source: CORE, rooms: TABLE, one_with: &[] };

fn tests(files: &[File]) -> BTreeSet<String> {
    source::parse_all(files).unwrap().1
}

fn check_test(files: &[File]) -> Vec<Finding> {
    check_by(&TEST, files, &tests(files), &calls::foreign(files).unwrap()).unwrap()
}

fn at(name: &str) -> String {
    format!("{CORE}{name}.rs")
}

/// (rule, path within the core, line) of the findings in these files.
fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String, usize)> {
    let files: Vec<File> = files.iter().map(|(name, text)| file(&at(name), text)).collect();
    let findings = check_test(&files);
    let short = |path: String| path.trim_start_matches(CORE).trim_end_matches(".rs").to_owned();
    findings.into_iter().map(|found| (found.rule, short(found.path), found.line)).collect()
}

/// (rule, line) of the findings in one room.
fn alone(name: &str, text: &str) -> Vec<(&'static str, usize)> {
    found(&[(name, text)]).into_iter().map(|(rule, _, line)| (rule, line)).collect()
}

fn texts(name: &str, text: &str) -> Vec<String> {
    let files = [file(&at(name), text)];
    check_test(&files).into_iter().map(|found| found.text).collect()
}

#[test]
fn without_the_core_there_is_nothing_to_find() {
    let elsewhere = "use std::net::TcpStream; use crate::core::Core; fn f() { rand::random() }";
    assert_eq!(
        check(&[file("crates/server/simurgh/src/id.rs", elsewhere)], &BTreeSet::new()).unwrap(),
        []
    );
    assert_eq!(
        check(&[file("crates/core/simurgh-core/tests/id.rs", elsewhere)], &BTreeSet::new())
            .unwrap(),
        []
    );
    assert_eq!(check(&[], &BTreeSet::new()).unwrap(), []);
}

#[test]
fn no_room_stands_in_the_table_twice() {
    for Pure { rooms, .. } in PURE {
        let once: BTreeSet<&str> = rooms.iter().copied().collect();
        assert_eq!(once.len(), rooms.len());
    }
}

#[test]
fn a_core_reaches_for_nothing_outside() {
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
        "fn f() -> u8 { rand::random() }",
        "use rand;",
        "use fastrand as dice;",
        "fn f() { ::getrandom::fill(a) }",
        "use tokio::sync;",
        "use mio;",
        "fn f() { format!(\"{}\", libc::getpid()) }",
        "use {rustix::fs, std::fmt};",
    ];
    for text in wrong {
        assert_eq!(alone("id", text), [("pure", 1)], "{text}");
    }
    let text = texts("id", "use std::{fmt,\n io::Read};");
    assert_eq!(text, ["`std::io`: a core gets this as an argument or by its traits"]);
}

#[test]
fn what_only_looks_like_the_outside_is_left_alone() {
    let right = [
        "use core::net::IpAddr;",
        "use std::time::Duration;",
        "// std::net\n/// Instant\nconst A: &str = \"std::io\";",
        "fn f(rand: u32) -> u32 { rand }",
        "fn f() { self.dice.rand(1) }",
        "struct Instantly { at: InstantKind }",
        "fn f<'mio>(a: &'mio u8) { 'rand: loop {} }",
        "#[expect(clippy::Instant)] fn f() {}",
        "mod thread {}",
    ];
    for text in right {
        assert_eq!(alone("id", text), [], "{text}");
    }
}

#[test]
fn tests_may_reach_for_anything_and_use_any_room() {
    let wrong = "use std::thread; use crate::core::Core; fn f() { Instant::now() }";
    assert_eq!(alone("id", &format!("#[cfg(test)]\nmod tests {{ {wrong} }}")), []);
    assert_eq!(alone("id", "#[cfg(test)]\n#[allow(dead_code)]\nuse std::{io, fs};"), []);
    assert_eq!(alone("id", "struct A { #[cfg(test)] at: Instant, b: u8 }"), []);
    assert_eq!(alone("id", "#[cfg(test)] fn f() {}\nuse std::io;"), [("pure", 2)]);
    assert_eq!(alone("id", "struct A { #[cfg(test)] a: u8, at: Instant }"), [("pure", 1)]);
    assert_eq!(alone("id", &format!("#[cfg(not(test))] mod a {{ {wrong} }}")).len(), 3);
    assert_eq!(alone("id/tests", wrong), []);
    assert_eq!(alone("tests/support", wrong), []);
    assert_eq!(found(&[("id", "#[cfg(test)] mod cases;"), ("id/cases", wrong)]), []);
}

#[test]
fn of_the_reactor_only_plain_data_is_used() {
    assert_eq!(alone("id", "use simurgh_reactor::{Key, Next, Now, PAGE_SLOTS, Page};"), []);
    assert_eq!(alone("id", "fn f(key: simurgh_reactor::Key) { simurgh_reactor::Run::new() }"), []);
    let list = "use simurgh_reactor::{\n    Key,\n    Io,\n    Shared as Text,\n    Mailbox,\n};";
    assert_eq!(alone("id", list), [("pure", 3), ("pure", 5)]);
    assert_eq!(alone("id", "fn f(io: &mut simurgh_reactor::Io<u8>) {}"), [("pure", 1)]);
    assert_eq!(alone("id", "use simurgh_reactor::*;"), [("pure", 1)]);
    assert_eq!(alone("id", "use simurgh_reactor as r;"), [("pure", 1)]);
    assert_eq!(alone("id", "use simurgh_reactor::{self, Key};"), [("pure", 1)]);
    let text = texts("id", "use simurgh_reactor::Io;");
    assert!(text[0].starts_with("`simurgh_reactor::Io`: of the reactor a core uses plain data"));
}

#[test]
fn a_room_uses_only_what_stands_below_it() {
    assert_eq!(alone("wire", "use crate::id::Id;"), []);
    assert_eq!(alone("wire", "use super::id::{self, Id};"), []);
    assert_eq!(alone("wire", "use crate::registry::Registry;"), [("rooms", 1)]);
    assert_eq!(alone("wire", "use super::registry::Registry;"), [("rooms", 1)]);
    assert_eq!(alone("wire", "\nfn f(a: crate::core::Core) {}"), [("rooms", 2)]);
    assert_eq!(alone("wire", "fn f() { assert!(crate::core::is(1)) }"), [("rooms", 1)]);
    assert_eq!(alone("wire", "use crate::wire::Wire; use self::inner::A;"), [], "itself");
    let text = texts("wire", "use crate::core::Core;");
    let wrong = "wire may not use core (`crate::core::Core`), which stands above it (see rooms.rs)";
    assert_eq!(text, [wrong]);
}

#[test]
fn lists_within_lists_are_read_to_their_ends() {
    let list = "use crate::{\n id::{Id, Kind},\n registry::{\n members::{self, X},\n Registry,\n },\
                \n wire::Wire,\n core::*,\n};\nuse super::core::Core;";
    assert_eq!(alone("registry", list), [("rooms", 8), ("rooms", 10)]);
    let lower = [("rooms", 5), ("rooms", 8), ("rooms", 10)];
    assert_eq!(alone("registry/list", &list.replace("use super::", "use super::super::")), lower);
}

#[test]
fn super_and_self_are_told_by_the_place_of_the_file() {
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
fn what_is_in_no_room_is_above_all_rooms() {
    assert_eq!(alone("core", "use crate::Reexported;"), [("rooms", 1)]);
    assert_eq!(alone("core", "use super::*;"), [("rooms", 1)]);
    let lib = "mod core; pub use core::Core; use crate::registry::X; fn f() { self::core::g() }";
    let all = [("lib", lib), ("id", ""), ("wire", ""), ("core", ""), ("registry", "")];
    let parts = [("registry/list", ""), ("registry/members", "")];
    assert_eq!(found(&[&all[..], &parts[..]].concat()), []);
}

#[test]
fn a_visibility_is_no_use() {
    let text = "pub(crate) struct A(pub(super) u8, pub (crate::id::Id));\n\
                pub(in crate::registry) fn f(&self) { self.go() }";
    assert_eq!(alone("registry/list", text), []);
    assert_eq!(alone("id", "struct A(pub (crate::wire::B, u8));"), [("rooms", 1)]);
}

#[test]
fn every_room_has_a_place_and_every_place_a_room() {
    assert_eq!(alone("attic", "use crate::core::Core;"), [("rooms", 1)]);
    assert_eq!(texts("id/deep", ""), ["id/deep has no place among the rooms (see rooms.rs)"]);
    let uses = [("wire", "use crate::attic::A;"), ("attic", "")];
    assert_eq!(found(&uses), [("rooms", "attic".into(), 1)], "once, where it is");
    let empty = texts("lib", "");
    assert_eq!(empty.len(), TABLE.len());
    assert_eq!(
        empty[0],
        "id stands among the rooms and has no file in crates/core/simurgh-core/src/"
    );
}

/// The number of findings in `wire` calling like this, when `core` above it defines a function
/// `close` and one called `push`, and the tests of a file lower down define `close` too.
fn calling(text: &str) -> usize {
    let core = "impl Core { pub fn close(&mut self) {} fn push(&self) {} fn default() {} }";
    let tests = "#[cfg(test)] mod tests { fn close() {} }";
    found(&[("id", tests), ("wire", text), ("core", core)]).len()
}

#[test]
fn nobody_calls_upwards() {
    let core = "impl Core { fn close(&mut self) {} }";
    let wire = "impl Core {\n fn turn(&mut self) {\n self.close();\n self.close();\n }\n}";
    let upwards = found(&[("wire", wire), ("core", core)]);
    assert_eq!(upwards, [("calls", "wire".into(), 3)], "once a function");
    assert_eq!(found(&[("wire", core), ("core", wire)]), [], "downwards");
    let files = [file(&at("wire"), wire), file(&at("core"), core)];
    let found = check_test(&files);
    let text = "wire calls `close` of crates/core/simurgh-core/src/core.rs, which stands \
                above it (see rooms.rs)";
    assert_eq!((&found[0].text[..], &found[0].subject[..]), (text, "close"));
}

#[test]
fn a_call_is_found_however_it_is_written() {
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
fn what_only_looks_like_a_call_upwards_is_left_alone() {
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
fn a_common_name_counts_on_self_alone() {
    assert_eq!(calling("fn f(&self) { self.push(1) }"), 1);
    assert_eq!(calling("fn f(&self) { Self::push(self) }"), 1);
    assert_eq!(calling("fn f(&self) { self.list.push(1) }"), 0);
    assert_eq!(calling("fn f() { Vec::push(a, 1) }"), 0);
    assert_eq!(calling("fn f() -> Self { Self::default() }"), 0, "as derived");
}

#[test]
fn what_a_value_of_a_lower_crate_does_is_no_call_upwards() {
    let found = |visibility: &str, call: &str| {
        let files = [
            file("crates/ground/simurgh-proto/src/ws.rs", &format!("{visibility} fn close() {{}}")),
            file(&at("core"), "impl Core { fn close(&self) {} }"),
            file(&at("wire"), &format!("fn f(&self) {{ {call} }}")),
        ];
        check_test(&files).len()
    };
    assert_eq!(found("pub const unsafe", "ws.close()"), 0);
    assert_eq!(found("pub const unsafe", "self.close()"), 1);
    assert_eq!(found("pub(crate)", "ws.close()"), 1, "nobody else can call that");
}

#[test]
fn a_name_defined_in_two_rooms_is_nobodys() {
    let rooms = |id: &'static str| {
        let core = "impl Core { fn close(&self) {} }";
        found(&[("id", id), ("wire", "fn f() { x.close() }"), ("core", core)]).len()
    };
    assert_eq!(rooms("trait Closes { fn close(&self); }"), 0);
    assert_eq!(rooms("type Close = fn(u8); const close: u8 = 0;"), 1);
}

//! Rules on `simurgh-channel` and `simurgh-core`, which are pure: they use nothing outside, and
//! their modules are rooms with one-way arrows. A room uses only rooms below it, and since the
//! blocks of `impl Core` are spread over files, it may not call upwards either.

mod calls;

use std::collections::BTreeSet;

use super::code::{self, Code, Path};
use super::source::{self, CHANNEL, CORE};
use super::{File, Finding};

/// A crate that is a pure machine, and its rooms.
struct Pure {
    source: &'static str,
    /// The rooms from the bottom up: each may use those before it, and `lib.rs` may use all. A part
    /// of a room is a separate entry, before the room when the room uses it; `registry` is
    /// `registry/mod.rs` or `registry.rs`.
    rooms: &'static [&'static str],
    /// Files that are one room with another: a circle of calls that is too long for one file.
    one_with: &'static [(&'static str, &'static str)],
}

const PURE: &[Pure] = &[
    Pure { source: CHANNEL, rooms: CHANNEL_ROOMS, one_with: &[] },
    Pure { source: CORE, rooms: CORE_ROOMS, one_with: CORE_ONE_WITH },
];

const CHANNEL_ROOMS: &[&str] = &[
    "id",
    "outcome",
    "broadcast",
    "flow",
    "metrics",
    "clock",
    "limit/rate",
    "limit",
    "history/engine",
    "cluster",
    "history/mail",
    "history",
    "presence",
    "config",
    "node_handle",
    "context",
    "channel",
    "presences",
    "handle",
    "user_socket",
    "listener",
    "mail",
    "permits",
    "node",
];

const CORE_ROOMS: &[&str] = &[
    "seeded_state",
    "name_table",
    "flow",
    "client_keys",
    "meters",
    "barrier",
    "listeners",
    "wire",
    "registry/pages",
    "registry/topics",
    "registry/members",
    "registry/list",
    "registry",
    "socket",
    "sockets",
    "frames/kept",
    "frames",
    "fanout/log",
    "fanout/delivery",
    "fanout/batch",
    "fanout/state",
    "fanout/publish",
    "fanout/backlog",
    "fanout/deliver",
    "fanout/slice",
    "fanout",
    "time/sweep",
    "time/drain",
    "time/expiry",
    "time/hibernation",
    "time",
    "application",
    "presence/output",
    "presence/held_leaves",
    "presence/peers",
    "presence/topic",
    "presence/home",
    "history/departures",
    "history/replays",
    "history/answer",
    "history/last_positions",
    "history/holdings",
    "history/content",
    "history/kept_topics",
    "history/eviction",
    "history/engine_numbers",
    "history/save",
    "history/stores",
    "history/followed",
    "core",
    "metering",
    "cluster",
    "presence",
    "waiting",
    "history/bounds",
    "history/to_engine",
    "history/pending",
    "history/from_engine",
    "history/wait",
    "history/keep",
    "membership",
    "effects/refused",
    "effects",
    "history/join_proof",
    "history/missed",
    "history/replay",
    "history/read",
    "history/view",
    "history",
    "session/limited",
    "session/joining",
    "session/join",
    "session/decided",
    "session",
    "deadlines",
    "view",
    "input",
];

const CORE_ONE_WITH: &[(&str, &str)] = &[
    ("effects/closing", "effects"),
    ("presence/topic_peers", "presence/topic"),
    ("presence/home_leaves", "presence/home"),
];

const TABLE: &str = "xtask/src/tidy/rooms.rs";

/// Modules of the standard library that reach outside, or differ from run to run.
const OUTSIDE: &[&str] = &["fs", "io", "net", "process", "thread"];
const OUTSIDE_TYPES: &[&str] = &["Instant", "RandomState", "SystemTime"];
const OUTSIDE_CRATES: &[&str] =
    &["fastrand", "getrandom", "libc", "mio", "rand", "rustix", "tokio"];

/// Items of the reactor that are plain data without behaviour.
const REACTOR_DATA: &[&str] =
    &["Key", "Next", "Now", "PAGE_SLOTS", "Page", "SlotAllocator", "Run", "Shared"];

/// A file of a pure crate that is not a test.
struct Room<'a> {
    file: &'a File,
    /// `registry/members`; empty for `lib.rs`.
    name: &'a str,
    /// Its height in the table; `None` without an entry.
    place: Option<usize>,
    code: Code,
}

/// All rooms of a crate, and its table.
struct House<'a> {
    pure: &'a Pure,
    rooms: Vec<Room<'a>>,
}

pub(super) fn check(files: &[File], tests: &BTreeSet<String>) -> Result<Vec<Finding>, String> {
    let foreign = calls::foreign(files)?;
    let mut findings = Vec::new();
    for pure in PURE {
        findings.extend(check_by(pure, files, tests, &foreign)?);
    }
    Ok(findings)
}

fn check_by(
    pure: &Pure,
    files: &[File],
    tests: &BTreeSet<String>,
    foreign: &BTreeSet<String>,
) -> Result<Vec<Finding>, String> {
    let house = House { pure, rooms: rooms(pure, files, tests)? };
    let mut findings = house.places();
    for room in &house.rooms {
        findings.extend(outside_uses(room));
        findings.extend(house.arrows(room));
    }
    findings.extend(calls::check(&house, foreign));
    Ok(findings)
}

fn rooms<'a>(
    pure: &Pure,
    files: &'a [File],
    tests: &BTreeSet<String>,
) -> Result<Vec<Room<'a>>, String> {
    let sources = files.iter().filter(|file| !source::is_test(&file.path, tests));
    sources
        .filter_map(|file| Some((file, pure.room_name(&file.path)?)))
        .map(|(file, name)| {
            let place = match name {
                "" => Some(pure.rooms.len()),
                name => pure.position(name),
            };
            Ok(Room { file, name, place, code: code::read(file)? })
        })
        .collect()
}

impl Pure {
    /// `registry/members` for its file in this crate; None for a file elsewhere.
    fn room_name<'p>(&self, path: &'p str) -> Option<&'p str> {
        let stem = path.strip_prefix(self.source)?.strip_suffix(".rs")?;
        Some(if stem == "lib" { "" } else { stem.strip_suffix("/mod").unwrap_or(stem) })
    }

    fn position(&self, name: &str) -> Option<usize> {
        let one_with = self.one_with.iter().find(|(part, _)| *part == name);
        let name = one_with.map_or(name, |(_, whole)| whole);
        self.rooms.iter().position(|room| *room == name)
    }
}

/// Uses of things outside the crate that are forbidden in a pure room, anywhere in its code.
fn outside_uses(room: &Room<'_>) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    for path in &room.code.paths {
        if let Some(found) = outside(path) {
            let text = format!("`{found}`: a core gets this as an argument or by its traits");
            seen.insert((path.line, found, text));
        } else if let Some(found) = of_reactor(path) {
            let data = REACTOR_DATA.join(", ");
            let text = format!(
                "`{found}`: of the reactor a core uses plain data only ({data}); the rest it gets \
                 as arguments or by its traits"
            );
            seen.insert((path.line, found, text));
        }
    }
    let finding =
        |(line, subject, text)| Finding { subject, ..room.file.finding("pure", line, text) };
    seen.into_iter().map(finding).collect()
}

fn outside(path: &Path) -> Option<String> {
    let words: Vec<&str> = path.segments.iter().map(String::as_str).collect();
    if let Some(word) = words.iter().find(|word| OUTSIDE_TYPES.contains(word)) {
        return Some((*word).to_owned());
    }
    if let ["std", module, ..] = words[..]
        && OUTSIDE.contains(&module)
    {
        return Some(format!("std::{module}"));
    }
    // A name alone, or last in a path, may be a variable's or a function's.
    let crates = if path.import.is_some() { &words[..] } else { words.split_last()?.1 };
    crates.iter().find(|word| OUTSIDE_CRATES.contains(word)).map(|word| (*word).to_owned())
}

fn of_reactor(path: &Path) -> Option<String> {
    match &path.segments[..] {
        [root, item, ..] if root == "simurgh_reactor" => {
            let plain = REACTOR_DATA.contains(&item.as_str());
            (!plain).then(|| format!("simurgh_reactor::{item}"))
        }
        [root] if root == "simurgh_reactor" => Some(root.clone()),
        _ => None,
    }
}

impl House<'_> {
    /// Rooms that are not in the table, and entries without a room.
    fn places(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for room in self.rooms.iter().filter(|room| room.place.is_none()) {
            let text = format!("{} has no place among the rooms (see rooms.rs)", room.name);
            findings.push(room.file.finding("rooms", 1, text));
        }
        if self.has_room("") {
            for empty in self.pure.rooms.iter().filter(|name| !self.has_room(name)) {
                findings.push(Finding {
                    rule: "rooms",
                    path: TABLE.into(),
                    line: 1,
                    subject: (*empty).to_owned(),
                    amount: 1,
                    text: format!(
                        "{empty} stands among the rooms and has no file in {}",
                        self.pure.source
                    ),
                });
            }
        }
        findings
    }

    fn has_room(&self, name: &str) -> bool {
        self.rooms.iter().any(|room| room.name == name)
    }

    /// Uses of rooms above this one.
    fn arrows(&self, room: &Room<'_>) -> Vec<Finding> {
        let Some(own) = room.place else { return Vec::new() };
        let mut seen = BTreeSet::new();
        for path in &room.code.paths {
            // `self` alone is a value.
            if path.segments.len() < 2 && path.import.is_none() {
                continue;
            }
            let Some(used) = self.absolute(room, path).and_then(|used| self.place(&used)) else {
                continue;
            };
            if used > own {
                let target = self.pure.rooms.get(used).copied().unwrap_or("lib.rs");
                let text = format!(
                    "{} may not use {target} (`{}`), which stands above it (see rooms.rs)",
                    room.name,
                    path.segments.join("::"),
                );
                seen.insert((path.line, target.to_owned(), text));
            }
        }
        let finding =
            |(line, subject, text)| Finding { subject, ..room.file.finding("rooms", line, text) };
        seen.into_iter().map(finding).collect()
    }

    fn absolute<'p>(&self, room: &'p Room<'_>, path: &'p Path) -> Option<Vec<&'p str>> {
        path.resolved(room.name, |name| self.has_room(name))
    }

    /// The place of the innermost room on the way; `None` for a room outside of the table, which is
    /// already a finding. Items outside of rooms are in `lib.rs`.
    fn place(&self, path: &[&str]) -> Option<usize> {
        for parts in (1..=path.len()).rev() {
            let name = path.get(..parts)?.join("/");
            let place = self.pure.position(&name);
            if place.is_some() || self.has_room(&name) {
                return place;
            }
        }
        Some(self.pure.rooms.len())
    }
}

#[cfg(test)]
mod tests;

//! No calls upwards: blocks of `impl Core` in several files see each other's functions without any
//! `use`, so circles of calls between them are searched by name.

use std::collections::{BTreeMap, BTreeSet};

use super::super::code::{self, By, Call};
use super::{Crate, File, Finding, Module, TABLE};

/// Crates whose functions a core calls on their values.
const FOREIGN: &[&str] = &[
    "crates/core/simurgh-channel/src/",
    "crates/ground/simurgh-proto/src/",
    "crates/ground/simurgh-reactor/src/",
];

/// Methods that a type may have without a definition in its file.
const DERIVED: &str = "\
    as_mut as_ref borrow borrow_mut clone cmp default deref drop eq fmt from hash into \
    into_iter ne partial_cmp to_owned to_string try_from try_into";

/// Methods of values of the standard library: a call of these counts only on `self`.
const COMMON: &str = "\
    all and_then any append as_bytes as_slice as_str back chain chars clear contains \
    contains_key copied count dedup downgrade drain end entry extend fetch_add fill filter \
    find finish first fold for_each front get get_mut insert is_empty is_none is_some iter \
    iter_mut join keys last len lines load map max min new next or_insert parse peek pop \
    pop_back pop_front position push push_back push_front push_str remove repeat replace \
    reserve resize retain rev reverse rotate_left set shrink_to skip sort split split_at \
    split_off start store sum swap swap_remove take trim truncate update upgrade values \
    with_capacity write write_str zip";

fn holds(names: &str, name: &str) -> bool {
    names.split(' ').any(|one| one == name)
}

/// Public functions of the crates below the core, which do not count as the core's.
pub(super) fn foreign(files: &[File]) -> Result<BTreeSet<String>, String> {
    let below = |file: &&File| {
        file.has_extension(&["rs"]) && FOREIGN.iter().any(|home| file.path.starts_with(home))
    };
    let mut names = BTreeSet::new();
    for file in files.iter().filter(below) {
        names.extend(code::read(file)?.public);
    }
    Ok(names)
}

pub(super) fn check(all: &Crate<'_>, foreign: &BTreeSet<String>) -> Vec<Finding> {
    let homes = homes(all);
    let types: BTreeSet<&str> =
        all.0.iter().flat_map(|room| &room.code.types).map(String::as_str).collect();
    let mut findings = Vec::new();
    for room in &all.0 {
        let caller = Caller::new(all, room, foreign, &types);
        let mut seen = BTreeSet::new();
        for call in &room.code.calls {
            let Some(home) = homes.get(&call.name[..]) else { continue };
            // `None` is a room outside of the table, which is already a finding.
            let upwards = room.place.is_some() && home.place > room.place;
            if upwards && caller.means_ours(call) && seen.insert(&call.name) {
                let text = format!(
                    "{} calls `{}` of {}, which stands above it in {TABLE}",
                    room.name, call.name, home.file.path,
                );
                findings.push(room.file.finding("calls", call.line, text));
            }
        }
    }
    findings
}

/// The file of each function that is defined in one file only.
fn homes<'a>(all: &'a Crate<'_>) -> BTreeMap<&'a str, &'a Module<'a>> {
    let mut homes: BTreeMap<&str, Option<&Module<'_>>> = BTreeMap::new();
    for room in &all.0 {
        for name in &room.code.functions {
            homes.entry(name).and_modify(|home| *home = None).or_insert(Some(room));
        }
    }
    homes.into_iter().filter_map(|(name, home)| Some((name, home?))).collect()
}

/// Distinguishes, in one file, the core's functions from another crate's with the same name.
struct Caller<'a> {
    room: &'a Module<'a>,
    foreign: &'a BTreeSet<String>,
    types: &'a BTreeSet<&'a str>,
    /// Names that a `use` imports from within the crate, and from elsewhere.
    ours: BTreeSet<&'a str>,
    theirs: BTreeSet<&'a str>,
}

impl<'a> Caller<'a> {
    fn new(
        all: &Crate<'_>,
        room: &'a Module<'a>,
        foreign: &'a BTreeSet<String>,
        types: &'a BTreeSet<&'a str>,
    ) -> Self {
        let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
        for path in &room.code.paths {
            if let Some(name) = path.import.as_deref() {
                let within = all.absolute(room, path).is_some();
                if within {
                    ours.insert(name)
                } else {
                    theirs.insert(name)
                };
            }
        }
        Self { room, foreign, types, ours, theirs }
    }

    fn means_ours(&self, call: &Call) -> bool {
        let name = &call.name[..];
        let common = holds(COMMON, name) || self.foreign.contains(name);
        !holds(DERIVED, name)
            && match &call.by {
                By::OwnSelf => true,
                By::Value => !common,
                By::Name => !self.theirs.contains(name) && !self.room.code.bound.contains(name),
                By::Path(first) => !common && self.is_ours(first),
            }
    }

    fn is_ours(&self, first: &str) -> bool {
        matches!(first, "crate" | "self" | "super")
            || self.ours.contains(first)
            || (self.types.contains(first) && !self.theirs.contains(first))
    }
}

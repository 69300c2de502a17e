//! Imports between the files of a crate. No circle of imports leads from one room to another: a
//! room is a module beside `lib.rs`, with all files below it. The crates of `rooms.toml` are pure,
//! too: they use nothing outside, and a file uses only those before it in that list. Since the
//! blocks of `impl Core` are spread over files, a file may not call upwards either (`calls`).

mod calls;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::code::{self, Code, Path};
use super::{File, Finding, source};

const TABLE: &str = "xtask/rooms.toml";

/// How many imports in a row are followed: `use` can be a circle, too.
const IMPORTS_MAX: usize = 8;

/// Modules of the standard library that reach outside, or differ from run to run.
const OUTSIDE: &[&str] = &["fs", "io", "net", "process", "thread"];
const OUTSIDE_TYPES: &[&str] = &["Instant", "RandomState", "SystemTime"];

/// Items of the reactor that are plain data without behaviour.
const REACTOR_DATA: &[&str] =
    &["Key", "Next", "Now", "PAGE_SLOTS", "Page", "SlotAllocator", "Run", "Shared"];

#[derive(Deserialize)]
struct Table {
    pure: Vec<Pure>,
}

/// A crate that is a pure machine, and the order of its files.
#[derive(Deserialize)]
struct Pure {
    /// The directory above `src`.
    home: String,
    /// From the bottom up: each may use those before it, and `lib.rs` may use all. `registry` is
    /// `registry/mod.rs` or `registry.rs`.
    rooms: Vec<String>,
    /// Files that have the place of another one: a circle of calls that is too long for one file.
    #[serde(default)]
    one_with: BTreeMap<String, String>,
}

/// A file that is not a test, with the code of a module.
struct Module<'a> {
    file: &'a File,
    /// `registry/members`; empty for the root of the crate.
    name: &'a str,
    /// Its height in the table; `None` without an entry.
    place: Option<usize>,
    code: Code,
}

impl Module<'_> {
    fn room(&self) -> &str {
        self.name.split('/').next().unwrap_or(self.name)
    }
}

/// For each file of a crate: the files it uses, with the line and the name of the first use.
type Arrows<'a> = Vec<BTreeMap<usize, (usize, &'a str)>>;

struct Crate<'a>(Vec<Module<'a>>);

pub(super) fn check(files: &[File], tests: &BTreeSet<String>) -> Result<Vec<Finding>, String> {
    let table: Table = toml::from_str(include_str!("../../rooms.toml"))
        .map_err(|error| format!("{TABLE}: {error}"))?;
    check_by(&table, files, tests)
}

fn check_by(
    table: &Table,
    files: &[File],
    tests: &BTreeSet<String>,
) -> Result<Vec<Finding>, String> {
    let foreign = calls::foreign(files)?;
    let mut findings = Vec::new();
    for (home, modules) in crates(table, files, tests)? {
        let modules = Crate(modules);
        match table.pure.iter().find(|pure| pure.home == home) {
            None => findings.extend(modules.circles()),
            Some(pure) => {
                findings.extend(modules.places(pure));
                findings.extend(modules.0.iter().flat_map(outside_uses));
                findings.extend(modules.upwards(pure));
                findings.extend(calls::check(&modules, &foreign));
            }
        }
    }
    Ok(findings)
}

/// The files of each crate without its tests.
fn crates<'a>(
    table: &Table,
    files: &'a [File],
    tests: &BTreeSet<String>,
) -> Result<BTreeMap<&'a str, Vec<Module<'a>>>, String> {
    let mut crates: BTreeMap<&str, Vec<Module<'_>>> = BTreeMap::new();
    for file in files.iter().filter(|file| !source::is_test(&file.path, tests)) {
        if let Some((home, path)) = file.path.split_once("/src/")
            && let Some(stem) = path.strip_suffix(".rs")
        {
            let name = if matches!(stem, "lib" | "main") { "" } else { stem };
            let name = name.strip_suffix("/mod").unwrap_or(name);
            let pure = table.pure.iter().find(|pure| pure.home == home);
            let place = pure.and_then(|pure| pure.position(name));
            let code = code::read(file)?;
            crates.entry(home).or_default().push(Module { file, name, place, code });
        }
    }
    Ok(crates)
}

impl Pure {
    fn position(&self, name: &str) -> Option<usize> {
        if name.is_empty() {
            return Some(self.rooms.len());
        }
        let name = self.one_with.get(name).map_or(name, String::as_str);
        self.rooms.iter().position(|room| room == name)
    }
}

/// Uses of things outside the crate that are forbidden in a pure crate, anywhere in its code.
fn outside_uses(module: &Module<'_>) -> Vec<Finding> {
    let found = module.code.paths.iter().filter_map(|path| {
        let found = outside(path).or_else(|| of_reactor(path))?;
        let text = format!("`{found}`: a core gets this as an argument or by its traits");
        Some((path.line, text))
    });
    let found: BTreeSet<(usize, String)> = found.collect();
    found.into_iter().map(|(line, text)| module.file.finding("pure", line, text)).collect()
}

fn outside(path: &Path) -> Option<String> {
    let words: Vec<&str> = path.segments.iter().map(String::as_str).collect();
    if let Some(word) = words.iter().find(|word| OUTSIDE_TYPES.contains(word)) {
        return Some((*word).to_owned());
    }
    match words[..] {
        ["std", module, ..] if OUTSIDE.contains(&module) => Some(format!("std::{module}")),
        _ => None,
    }
}

/// Of the reactor a core uses plain data only.
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

impl Crate<'_> {
    /// Files that are not in the table, and entries without a file.
    fn places(&self, pure: &Pure) -> Vec<Finding> {
        let without = self.0.iter().filter(|module| module.place.is_none()).map(|module| {
            module.file.finding("rooms", 1, format!("{} has no place in {TABLE}", module.name))
        });
        let table = File { path: TABLE.into(), text: String::new() };
        let empty = pure.rooms.iter().filter(|name| self.find(name).is_none());
        let empty = empty.map(|name| {
            table.finding("rooms", 1, format!("{name} has no file in {}/src", pure.home))
        });
        without.chain(empty).collect()
    }

    /// Uses of files above.
    fn upwards(&self, pure: &Pure) -> Vec<Finding> {
        let mut findings = Vec::new();
        for module in &self.0 {
            for (at, (line, name)) in self.arrows(module) {
                let place = self.0.get(at).and_then(|used| used.place);
                if module.place.is_some() && place > module.place {
                    let used = place.and_then(|place| pure.rooms.get(place));
                    let text = format!(
                        "{} may not use {} (`{name}`), which stands above it in {TABLE}",
                        module.name,
                        used.map_or("lib.rs", String::as_str),
                    );
                    findings.push(module.file.finding("rooms", line, text));
                }
            }
        }
        findings
    }

    /// Each arrow from one room to another from which a way leads back.
    fn circles(&self) -> Vec<Finding> {
        let arrows: Arrows<'_> = self.0.iter().map(|module| self.arrows(module)).collect();
        let mut findings = Vec::new();
        for (at, (from, uses)) in self.0.iter().zip(&arrows).enumerate() {
            for (&to, &(line, name)) in uses {
                let Some(used) = self.0.get(to) else { continue };
                if used.room() != from.room() && leads(&arrows, to, at) {
                    let text = format!(
                        "a circle of imports between rooms: {} uses {} (`{name}`), from which \
                         imports lead back",
                        from.name, used.name
                    );
                    findings.push(from.file.finding("circles", line, text));
                }
            }
        }
        findings
    }

    /// The files that `module` uses. The root may use all: uses through it are found in their own
    /// files.
    fn arrows<'s>(&self, module: &'s Module<'_>) -> BTreeMap<usize, (usize, &'s str)> {
        let mut arrows = BTreeMap::new();
        let paths = module.code.paths.iter().filter(|_| !module.name.is_empty());
        // `self` alone is a value.
        for path in paths.filter(|path| path.segments.len() > 1 || path.import.is_some()) {
            if let Some((at, used)) = self.used(module, path, IMPORTS_MAX)
                && used.name != module.name
                && let Some(name) = path.segments.last()
            {
                arrows.entry(at).or_insert((path.line, name.as_str()));
            }
        }
        arrows
    }

    /// The file with the item that `path` names in `module`; `None` outside of the crate.
    fn used(
        &self,
        module: &Module<'_>,
        path: &Path,
        imports: usize,
    ) -> Option<(usize, &Module<'_>)> {
        let way = self.absolute(module, path)?;
        let mut depths = (0..=way.len()).rev();
        let (depth, (at, home)) =
            depths.find_map(|n| Some((n, self.find(&way.get(..n)?.join("/"))?)))?;
        // An import of the module may lead to another.
        let next = way.get(depth).filter(|_| imports > 0).and_then(|name| {
            home.code.paths.iter().find(|path| path.import.as_deref() == Some(name))
        });
        let further = next.filter(|next| !std::ptr::eq(*next, path));
        further.and_then(|next| self.used(home, next, imports - 1)).or(Some((at, home)))
    }

    fn absolute<'p>(&self, module: &'p Module<'_>, path: &'p Path) -> Option<Vec<&'p str>> {
        path.resolved(module.name, |name| self.find(name).is_some())
    }

    fn find(&self, name: &str) -> Option<(usize, &Module<'_>)> {
        self.0.iter().enumerate().find(|(_, module)| module.name == name)
    }
}

/// Whether arrows lead from file `start` to file `end`.
fn leads(arrows: &Arrows<'_>, start: usize, end: usize) -> bool {
    let (mut seen, mut next) = (BTreeSet::from([start]), vec![start]);
    while let Some(at) = next.pop() {
        for &used in arrows.get(at).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(used) {
                next.push(used);
            }
        }
    }
    start != end && seen.contains(&end)
}

#[cfg(test)]
mod tests;

//! No circle of imports between the rooms of a crate. A room is a module beside `lib.rs`, with all
//! files below it; within a room files may need each other.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{self, Code, Path};
use super::{File, Finding, source};

/// How many imports in a row are followed: `use` can be a circle, too.
const IMPORTS_MAX: usize = 8;

/// A file with the code of a module, and its place.
struct Module<'a> {
    file: &'a File,
    /// `registry/members`; empty for the root of the crate.
    name: &'a str,
    code: Code,
}

impl Module<'_> {
    fn room(&self) -> &str {
        self.name.split('/').next().unwrap_or(self.name)
    }
}

/// The files of a crate without its tests.
struct Crate<'a>(Vec<Module<'a>>);

/// For each file of a crate: the files it uses, with the line and the name of the first use.
type Arrows<'a> = Vec<BTreeMap<usize, (usize, &'a str)>>;

pub(super) fn check(files: &[File], tests: &BTreeSet<String>) -> Result<Vec<Finding>, String> {
    let mut crates: BTreeMap<&str, Vec<Module<'_>>> = BTreeMap::new();
    for file in files.iter().filter(|file| !source::is_test(&file.path, tests)) {
        if let Some((home, path)) = file.path.split_once("/src/")
            && let Some(stem) = path.strip_suffix(".rs")
        {
            let name = if matches!(stem, "lib" | "main") { "" } else { stem };
            let name = name.strip_suffix("/mod").unwrap_or(name);
            crates.entry(home).or_default().push(Module { file, name, code: code::read(file)? });
        }
    }
    Ok(crates.into_values().flat_map(|modules| Crate(modules).circles()).collect())
}

impl Crate<'_> {
    /// Each arrow from one room to another from which a way leads back.
    fn circles(&self) -> Vec<Finding> {
        let arrows: Arrows<'_> = self.0.iter().map(|module| self.arrows(module)).collect();
        let mut findings = Vec::new();
        for (from, uses) in self.0.iter().zip(&arrows) {
            for (&to, &(line, name)) in uses {
                let Some(used) = self.0.get(to) else { continue };
                if used.room() == from.room() {
                    continue;
                }
                if let Some(back) = self.way(&arrows, to, from) {
                    let text = format!(
                        "a circle of imports between rooms: {} uses {} (`{name}`), which uses {}",
                        from.name,
                        used.name,
                        back.join(", which uses "),
                    );
                    findings.push(from.file.finding("circles", line, text));
                }
            }
        }
        findings
    }

    /// The files that `module` uses, without the root: uses through it are found in their own
    /// files.
    fn arrows<'s>(&self, module: &'s Module<'_>) -> BTreeMap<usize, (usize, &'s str)> {
        let mut arrows = BTreeMap::new();
        if module.name.is_empty() {
            return arrows;
        }
        for path in &module.code.paths {
            // `self` alone is a value.
            let is_use = path.segments.len() > 1 || path.import.is_some();
            let used = is_use.then(|| self.used(module, path, IMPORTS_MAX)).flatten();
            if let Some((at, used)) = used
                && !used.name.is_empty()
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
        let way = path.resolved(module.name, |name| self.find(name).is_some())?;
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

    fn find(&self, name: &str) -> Option<(usize, &Module<'_>)> {
        self.0.iter().enumerate().find(|(_, module)| module.name == name)
    }

    /// Names of the files on the shortest way from the file `start` to `end`, if there is one.
    fn way(&self, arrows: &Arrows<'_>, start: usize, end: &Module<'_>) -> Option<Vec<&str>> {
        let mut ways = vec![vec![start]];
        let mut seen = BTreeSet::from([start]);
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in &ways {
                for &next in way.last().and_then(|last| arrows.get(*last))?.keys() {
                    let way: Vec<usize> = way.iter().copied().chain([next]).collect();
                    if self.0.get(next)?.name == end.name {
                        let names = way.iter().skip(1).filter_map(|at| self.0.get(*at));
                        return Some(names.map(|module| module.name).collect());
                    }
                    if seen.insert(next) {
                        longer.push(way);
                    }
                }
            }
            ways = longer;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let path = |name: &str| format!("crates/x/src/{name}.rs");
        let files: Vec<File> = files.iter().map(|(name, text)| file(&path(name), text)).collect();
        let tests = BTreeSet::from([String::from("crates/x/src/a/tests")]);
        let found = check(&files, &tests).unwrap();
        found.into_iter().map(|found| (found.path, found.line)).collect()
    }

    fn at(name: &str, line: usize) -> (String, usize) {
        (format!("crates/x/src/{name}.rs"), line)
    }

    #[test]
    fn two_rooms_that_use_each_other_are_a_circle() {
        let a = ("a", "\nuse crate::b::B;");
        assert_eq!(found(&[a, ("b", "fn f(x: crate::a::A) {}")]), [at("a", 2), at("b", 1)]);
        assert_eq!(found(&[a, ("b", "use super::{a::A, c::C};")]), [at("a", 2), at("b", 1)]);
        assert_eq!(found(&[a, ("b", "fn f() { println!(\"{}\", crate::a::f()) }")]).len(), 2);
        assert_eq!(found(&[a, ("b", "use std::fmt; // crate::a::A")]), []);
        assert_eq!(found(&[a, ("c", "use crate::a::A;")]), []);
    }

    #[test]
    fn a_circle_may_lead_through_more_rooms() {
        let files =
            [("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "use crate::a::A;")];
        assert_eq!(found(&files), [at("a", 1), at("b", 1), at("c", 1)]);
        assert_eq!(found(&files[..2]), []);
    }

    #[test]
    fn files_of_one_room_may_need_each_other() {
        let room = [("a/mod", "pub(crate) use self::x::X;"), ("a/x", "use super::{A, y::Y};")];
        assert_eq!(found(&[room[0], room[1], ("a/y", "use super::x::X;")]), []);
    }

    #[test]
    fn what_a_module_passes_on_counts_where_it_is() {
        let lib = ("lib", "mod a; mod b; mod c; pub use a::A; pub use crate::b::B as Other;");
        let c = ("c", "use crate::Other;");
        assert_eq!(found(&[lib, ("a", "use crate::c::C;"), ("b", ""), c]), []);
        assert_eq!(
            found(&[lib, ("a", ""), ("b", "use crate::c::C;"), c]),
            [at("b", 1), at("c", 1)]
        );
        // b uses a file of room a that does not need b.
        let a =
            [("a/mod", "pub(crate) use self::y::Y; mod x; mod y;"), ("a/x", "use crate::b::B;")];
        assert_eq!(found(&[a[0], a[1], ("a/y", ""), ("b", "use crate::a::Y;")]), []);
    }

    #[test]
    fn tests_of_a_room_may_use_any_other() {
        let inline = "#[cfg(test)]\nmod tests { use crate::b::B; }";
        assert_eq!(found(&[("a", inline), ("b", "use crate::a::A;")]), []);
        assert_eq!(found(&[("a/tests", "use crate::b::B;"), ("b", "use crate::a::A;")]), []);
    }
}

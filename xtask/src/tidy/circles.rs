//! No circle of imports leads from one module of a crate to another: a module is one beside
//! `lib.rs`, with all files below it.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{self, Code, Path};
use super::{File, Finding, source};

/// How many imports in a row are followed: `use` can be a circle, too.
const IMPORTS_MAX: usize = 8;

/// A file that is not a test, with the code of a module.
struct Module<'a> {
    file: &'a File,
    /// `registry/members`; empty for the root of the crate.
    name: &'a str,
    code: Code,
}

impl Module<'_> {
    /// The module beside `lib.rs` to which it belongs.
    fn top(&self) -> &str {
        self.name.split('/').next().unwrap_or(self.name)
    }
}

/// For each file of a crate: the files it uses, with the line and the name of the first use.
type Arrows<'a> = Vec<BTreeMap<usize, (usize, &'a str)>>;

struct Crate<'a>(Vec<Module<'a>>);

pub(super) fn check(files: &[File], tests: &BTreeSet<String>) -> Result<Vec<Finding>, String> {
    let crates = crates(files, tests)?;
    Ok(crates.into_values().flat_map(|modules| Crate(modules).circles()).collect())
}

/// The files of each crate without its tests.
fn crates<'a>(
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
            let code = code::read(file)?;
            crates.entry(home).or_default().push(Module { file, name, code });
        }
    }
    Ok(crates)
}

impl Crate<'_> {
    /// Each arrow from one module to another from which a way leads back.
    fn circles(&self) -> Vec<Finding> {
        let arrows: Arrows<'_> = self.0.iter().map(|module| self.arrows(module)).collect();
        let mut findings = Vec::new();
        for (at, (from, uses)) in self.0.iter().zip(&arrows).enumerate() {
            for (&to, &(line, name)) in uses {
                let Some(used) = self.0.get(to) else { continue };
                if used.top() != from.top() && leads(&arrows, to, at) {
                    let text = format!(
                        "a circle of imports between modules: {} uses {} (`{name}`), from which \
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

//! The name and version of the program, and its build: commit, features, platform.

use std::ffi::OsStr;
use std::path::Path;

/// The compiled-in features that `simurgh --version` names. So far there is one set: an allocator
/// that returns memory, and TLS in `load` and `observe`.
const FEATURES: &[&str] = &["mimalloc", "tls"];

/// The commit, with `-dirty` if sources were changed since; empty if unknown.
pub(crate) const COMMIT: &str = env!("SIMURGH_BUILD_COMMIT");

/// The day of the commit; empty if unknown.
pub(crate) const DATE: &str = env!("SIMURGH_BUILD_DATE");

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The running program: `simurgh` itself, or an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: String,
    /// Its own version, in addition to that of `simurgh`; empty if it gave none.
    version: String,
    is_simurgh: bool,
}

impl Program {
    pub(crate) fn simurgh() -> Self {
        Self { name: "simurgh".to_owned(), version: String::new(), is_simurgh: true }
    }

    pub(crate) fn named(name: &str, version: &str) -> Self {
        Self { name: name.to_owned(), version: version.to_owned(), is_simurgh: false }
    }

    /// An application without a name is named after its file.
    pub(crate) fn unnamed() -> Self {
        let path = std::env::args_os().next().unwrap_or_default();
        let name = Path::new(&path).file_name().and_then(OsStr::to_str);
        Self::named(name.unwrap_or("server"), "")
    }

    /// The output of `-V` after the name.
    pub(crate) fn short(&self) -> String {
        match (self.is_simurgh, self.version.as_str()) {
            (true, _) => VERSION.to_owned(),
            (false, "") => format!("on simurgh {VERSION}"),
            (false, own) => own.to_owned(),
        }
    }

    /// The output of `--version` after the name: one line for scripts and reports of bugs.
    pub(crate) fn long(&self) -> String {
        let built = built();
        match (self.is_simurgh, self.version.as_str()) {
            (true, _) => built,
            (false, "") => format!("on simurgh {built}"),
            (false, own) => format!("{own}, on simurgh {built}"),
        }
    }
}

fn built() -> String {
    let commit = match (COMMIT, DATE) {
        ("", _) => "commit unknown".to_owned(),
        (commit, "") => commit.to_owned(),
        (commit, date) => format!("{commit}, {date}"),
    };
    let (os, processor) = (std::env::consts::OS, std::env::consts::ARCH);
    let linked = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
    // Unoptimised builds are ten times slower, so measurements must show this.
    let checked = if cfg!(debug_assertions) { ", unoptimised" } else { "" };
    let features = FEATURES.join(", ");
    format!("{VERSION} ({commit}) features: {features}; {os} {processor} {linked}{checked}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_prints_its_own_version_and_that_of_simurgh() {
        let own = Program::named("shop", "3.1.4");
        assert_eq!(own.short(), "3.1.4");
        assert!(own.long().starts_with(&format!("3.1.4, on simurgh {VERSION} (")));
        assert_eq!(Program::named("shop", "").short(), format!("on simurgh {VERSION}"));
        assert_eq!(Program::simurgh().short(), VERSION);
        assert!(Program::simurgh().long().starts_with(&format!("{VERSION} (")));
    }
}

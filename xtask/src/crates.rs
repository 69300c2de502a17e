//! Tests the published crates as users get them: packed, checked, and built from the packages by a
//! project without any other crate of this repository (`e2e/outside`).
//!
//! ```text
//! cargo package ─► *.crate ─► outside/packages/NAME-VERSION ─┐ its .cargo/config.toml
//! e2e/outside, Cargo.lock ──► outside/project ───────────────┴─► its tests, the program simurgh
//! ```
//!
//! Cargo's own verification would build each crate separately again; the project builds the same
//! files, first the library without the command line's features, then with them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::files::{self, text};
use crate::outcome::{self, Outcome};
use crate::process::{Finished, Task, program};

/// The project that is copied and built.
pub(crate) const PROJECT: &str = "e2e/outside";

/// The parts it builds and tests: the library by itself, and the commands.
const PARTS: [&str; 2] = ["rooms", "server"];

/// The package whose program is installed by name.
const PROGRAM: &str = "simurgh-cli";

/// Cargo's warnings for every crate here: the sources have no address yet, and left-out files.
const KNOWN_WARNINGS: &[&str] = &[
    "manifest has no documentation, homepage or repository",
    "is not included in the published package",
];

/// Bytes of a packed crate. A larger one includes tests, corpora or pictures.
const PACKED_BYTES_MAX: u64 = 1 << 20;

/// A build from nothing, on two slow cores.
const MINUTES_MAX: u64 = 12;

/// The published packages of the workspace, by the manifests.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) packages: Vec<Package>,
    target: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    version: String,
    /// The registries that it may go to: empty for an unpublished package, `None` for all.
    publish: Option<Vec<String>>,
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    fn stem(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

pub(crate) fn published() -> Result<Published> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
        target_directory: PathBuf,
    }
    let output = program("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    // The output may include warnings.
    let json = output.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let metadata: Metadata = serde_json::from_str(json).context("cargo metadata")?;
    let packages = metadata.packages.into_iter().filter(Package::is_published).collect();
    Ok(Published { packages, target: metadata.target_directory })
}

pub(crate) fn try_out() -> Result<Outcome> {
    let published = published()?;
    let outside = published.target.join("outside");
    // Build results stay; the rest is made anew.
    for part in ["packages", "project"] {
        let _ = fs::remove_dir_all(outside.join(part));
    }
    pack(&published)?;
    for package in &published.packages {
        unpack(package, &published.target, &outside.join("packages"))?;
    }
    let project = outside.join("project");
    let sources = crate::root().join(PROJECT);
    // A build in the project's own directory leaves files there.
    for path in files::below(&sources)?.iter().filter(|path| !path.starts_with("target/")) {
        files::write(&project.join(path), files::bytes(&sources.join(path))?, 0o644)?;
    }
    patch(&published, &outside)?;
    // The versions that the rest was built with, as far as they are needed.
    let lock = project.join("Cargo.lock");
    fs::copy(crate::root().join("Cargo.lock"), &lock)?;
    let mut outcome = Outcome::passed(published.packages.len() as u64);
    for part in PARTS {
        let done = cargo(&published, &outside, &["test", "--package", part]);
        let counts = outcome::of_cargo_test(&done.output);
        let is_counted = counts.failed > 0 || (done.ok() && counts.passed > 0);
        ensure!(is_counted, "{part}, built with the packed crates: {}", done.reason());
        outcome.add(counts);
    }
    let built = cargo(&published, &outside, &["build", "--package", PROGRAM]);
    built.or_fail(format_args!("{PROGRAM}, of the packed crates"))?;
    are_of_ours(&published, &text(&lock)?)?;
    Ok(outcome)
}

fn pack(published: &Published) -> Result<()> {
    let mut arguments = vec!["package", "--no-verify", "--allow-dirty"];
    arguments.extend(published.packages.iter().flat_map(|it| ["--package", &it.name]));
    // Quiet, because it names each excluded test.
    let done = Task::new("cargo", &arguments, MINUTES_MAX).quiet().run();
    if !done.ok() {
        println!("{}", done.output);
        bail!("cargo package: {}", done.reason());
    }
    let news = done.output.lines().find(|line| is_news(line));
    news.map_or(Ok(()), |line| bail!("cargo package: {line}"))
}

fn is_news(line: &str) -> bool {
    line.starts_with("warning: ") && !KNOWN_WARNINGS.iter().any(|known| line.contains(known))
}

fn unpack(package: &Package, target: &Path, to: &Path) -> Result<()> {
    let packed = target.join("package").join(format!("{}.crate", package.stem()));
    let bytes = fs::metadata(&packed).with_context(|| packed.display().to_string())?.len();
    println!("{bytes:>9} bytes  {}", packed.display());
    ensure!(
        bytes <= PACKED_BYTES_MAX,
        "{}: {bytes} bytes, at most {PACKED_BYTES_MAX}",
        package.name
    );
    files::directory(to)?;
    let (packed, into) = (packed.to_string_lossy(), to.to_string_lossy());
    // Cargo packs all files with one fixed time; they must be newer than the files built of them.
    program("tar", &["--touch", "-xzf", &packed, "-C", &into])?;
    let directory = to.join(package.stem());
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
        ensure!(directory.join(file).is_file(), "{} is published without {file}", package.name);
    }
    Ok(())
}

/// Patches the project so that the packed crates replace those of crates.io, like a user who tries
/// them before they are published.
fn patch(published: &Published, outside: &Path) -> Result<()> {
    let mut patches = "[patch.crates-io]\n".to_owned();
    for package in &published.packages {
        let path = outside.join("packages").join(package.stem());
        let _ = writeln!(patches, "{} = {{ path = {path:?} }}", package.name);
    }
    files::write(&outside.join("project/.cargo/config.toml"), patches, 0o644)
}

/// Cargo in the project, with the tests' directory and profile: dependencies are built once.
fn cargo(published: &Published, outside: &Path, arguments: &[&str]) -> Finished {
    Task::new("cargo", arguments, MINUTES_MAX)
        .directory(&outside.join("project"))
        .env("CARGO_TARGET_DIR", outside.join("target"))
        .env("CARGO_BUILD_BUILD_DIR", &published.target)
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .run()
}

/// Checks that each of our crates was built from its package: one that does not fit the project's
/// requirements would silently come from crates.io.
fn are_of_ours(published: &Published, lock: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
        source: Option<String>,
    }
    let lock: Lock = toml::from_str(lock).context("Cargo.lock")?;
    for Package { name, version, .. } in &published.packages {
        let is_it = |it: &&Locked| it.name == *name;
        match lock.package.iter().find(is_it) {
            Some(found) if found.source.is_none() && found.version == *version => {}
            Some(found) => {
                let from = found.source.as_deref().unwrap_or("elsewhere");
                bail!("{PROJECT} was built with {name} {} of {from}", found.version);
            }
            None => bail!("{PROJECT} was built without {name}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_and_all_its_dependencies_are_published() {
        let published = published().unwrap();
        let names: Vec<&str> = published.packages.iter().map(|it| it.name.as_str()).collect();
        for part in [
            "core", "page", "proto", "reactor", "text", "socket", "shard", "testing", "load",
            "tune", "road", "cli", "chat",
        ] {
            assert!(names.contains(&format!("simurgh-{part}").as_str()), "{part}: {names:?}");
        }
        assert!(names.contains(&"simurgh"));
        for inner in ["simurgh-sim", "simurgh-bench", "xtask", "wire-tests", "hello_page"] {
            assert!(!names.contains(&inner), "{inner} is nobody else's");
        }
    }

    #[test]
    fn warnings_are_reported_unless_they_are_known() {
        assert!(is_news("warning: readme `READ` does not appear to exist"));
        assert!(!is_news(
            "warning: ignoring test `a` as `a` is not included in the published package"
        ));
        assert!(!is_news("   Packaged 12 files"));
    }

    #[test]
    fn crate_from_another_source_is_detected() {
        let package = Package { name: "simurgh".into(), version: "0.1.0".into(), publish: None };
        let published = Published { packages: vec![package], target: PathBuf::new() };
        let lock = |rest: &str| format!("[[package]]\nname = \"simurgh\"\n{rest}");
        are_of_ours(&published, &lock("version = \"0.1.0\"")).unwrap();
        for other in ["version = \"0.2.0\"", "version = \"0.1.0\"\nsource = \"registry\""] {
            assert!(are_of_ours(&published, &lock(other)).is_err(), "{other}");
        }
        assert!(are_of_ours(&published, "package = []").is_err());
    }
}

//! Finds the commit that the commands are built from, by asking git; without any dependency.
//!
//! `SIMURGH_COMMIT` in the environment wins, for builds of a source tree that has no history. In a
//! published crate `cargo package` has noted the commit. What is looked at again is what can change
//! the answer: where HEAD is, and every file that the binary is made of, since an edit makes it
//! `-dirty`. An edit of those builds this crate anew anyway.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the binary is made of, from the root of the sources.
const SOURCES: &[&str] = &["crates", "examples/chat", "Cargo.toml", "Cargo.lock"];

/// Characters of a commit that are shown.
const COMMIT_CHARS: usize = 10;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SIMURGH_COMMIT");
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = manifest.join("../../..");
    let (commit, date) = match env::var("SIMURGH_COMMIT") {
        Ok(commit) if !commit.is_empty() => (commit, String::new()),
        _ => from_git(&root).or_else(|| from_package(&manifest)).unwrap_or_default(),
    };
    // It goes into labels and log lines.
    let commit = commit.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c));
    println!("cargo:rustc-env=SIMURGH_BUILD_COMMIT={}", commit.collect::<String>());
    println!("cargo:rustc-env=SIMURGH_BUILD_DATE={date}");
}

/// The commit and its date; none unless these sources are a checkout of their own. A copy inside of
/// another repository would otherwise get the commit of that one.
fn from_git(root: &Path) -> Option<(String, String)> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    watch(root);
    let full = git(root, &["rev-parse", "--verify", "HEAD"])?;
    let mut commit: String = full.chars().take(COMMIT_CHARS).collect();
    let date = git(root, &["show", "--no-patch", "--format=%cs", "HEAD"])?;
    // Without the lock it does not write the index, which somebody may be using.
    let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"];
    if !git(root, &[&status, SOURCES].concat())?.is_empty() {
        commit.push_str("-dirty");
    }
    Some((commit, date))
}

/// The commit that a published crate was packed from. Its day is not noted.
fn from_package(manifest: &Path) -> Option<(String, String)> {
    let note = std::fs::read_to_string(manifest.join(".cargo_vcs_info.json")).ok()?;
    let (_, hash) = note.split_once("\"sha1\": \"")?;
    let hash = hash.chars().take_while(char::is_ascii_hexdigit);
    let mut commit: String = hash.take(COMMIT_CHARS).collect();
    if note.contains("\"dirty\": true") {
        commit.push_str("-dirty");
    }
    Some((commit, String::new()))
}

/// Names the files that can change the answer, but no missing ones: cargo would always run this
/// then.
fn watch(root: &Path) {
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", "logs/HEAD", "packed-refs", branch.as_str()] {
        if let Some(path) = git(root, &["rev-parse", "--git-path", name]) {
            changed(&root.join(path));
        }
    }
    for source in SOURCES {
        match *source {
            "crates" => {
                for package in folders(&root.join(source)).iter().flat_map(|floor| folders(floor)) {
                    // Not its tests, which no binary is made of.
                    for part in ["src", "assets", "build.rs", "Cargo.toml"] {
                        changed(&package.join(part));
                    }
                }
            }
            other => changed(&root.join(other)),
        }
    }
}

/// The entries of a folder; none if it does not exist.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

fn changed(path: &Path) {
    if path.exists() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

/// The output of git, without the end of the line; none if it fails or is missing.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

//! Finds the commit that the commands are built from, with git only.
//!
//! `SIMURGH_COMMIT` in the environment wins, for builds of a source tree without history. In a
//! published crate `cargo package` has noted the commit. It runs again when HEAD changes, or any
//! file of the binary, since an edit makes the commit `-dirty`; such an edit rebuilds this crate
//! anyway.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the binary, relative to the root.
const SOURCES: &[&str] = &["crates", "examples/chat", "Cargo.toml", "Cargo.lock"];

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
    // It is printed in labels and log lines.
    let commit = commit.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c));
    println!("cargo:rustc-env=SIMURGH_BUILD_COMMIT={}", commit.collect::<String>());
    println!("cargo:rustc-env=SIMURGH_BUILD_DATE={date}");
}

/// The commit and its date; `None` unless these sources are their own checkout. A copy inside
/// another repository would otherwise get that one's commit.
fn from_git(root: &Path) -> Option<(String, String)> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    watch(root);
    let full = git(root, &["rev-parse", "--verify", "HEAD"])?;
    let mut commit: String = full.chars().take(COMMIT_CHARS).collect();
    let date = git(root, &["show", "--no-patch", "--format=%cs", "HEAD"])?;
    // Without the lock it does not write the index, which another process may be using.
    let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"];
    if !git(root, &[&status, SOURCES].concat())?.is_empty() {
        commit.push_str("-dirty");
    }
    Some((commit, date))
}

/// The commit that a published crate was packed from, without its day.
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

/// Names the existing files that can change the result; for a missing one, cargo would always run
/// this.
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
                    // Not its tests, which are not part of the binary.
                    for part in ["src", "assets", "build.rs", "Cargo.toml"] {
                        changed(&package.join(part));
                    }
                }
            }
            other => changed(&root.join(other)),
        }
    }
}

/// Empty if the folder does not exist.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).into_iter().flatten();
    entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

fn changed(path: &Path) {
    if path.exists() {
        println!("cargo:rerun-if-changed={}", path.display());
    }
}

/// The output of git, without the end of the line; `None` if it fails or is missing.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}

//! THIRD-PARTY.txt: the crates in the binary and their licences, which copies have to include.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::dependencies::Dependency;
use super::{Link, Release};
use crate::files;

const HEAD: &str = "\
Simurgh is licensed as MIT or Apache-2.0. Its binary holds the code of others, each of these under
the terms named behind it; the texts follow. The Rust standard library is MIT or Apache-2.0.
";

const GLIBC: &str = "
The binary also holds the GNU C Library (https://www.gnu.org/software/libc/), which is LGPL-2.1 or
later. Its sources are those of the Linux distribution it was built on; all sources of Simurgh are
public, so that it can be linked with a changed library: `cargo xtask dist`.
";

/// Folders below a crate that are searched for licences: C sources in it have their own.
const DEPTH_MAX: usize = 4;

pub(super) fn text(release: &Release, crates: &[Dependency]) -> Result<String> {
    let sources = sources()?;
    let mut out = HEAD.to_owned();
    if release.link == Link::Static {
        out.push_str(GLIBC);
    }
    out.push('\n');
    // By text, so that equal ones are included once.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let phoenix = files::text(&crate::root().join("examples/chat/static/phoenix.LICENSE.md"))?;
    texts.insert(phoenix, vec!["phoenix.js, the chat page's client".to_owned()]);
    let theirs = crates.iter().filter(|one| !one.is_ours);
    let named: BTreeMap<String, &str> =
        theirs.map(|one| (format!("{}-{}", one.name, one.version), one.licence.as_str())).collect();
    for (name, licence) in named {
        out.push_str(&format!("{name}: {licence}\n"));
        let directory = sources.iter().map(|from| from.join(&name)).find(|path| path.is_dir());
        let directory =
            directory.with_context(|| format!("the sources of {name} are not there"))?;
        let mut found = Vec::new();
        licences_in(&directory, DEPTH_MAX, &mut found);
        for text in found {
            let users = texts.entry(text).or_default();
            if !users.contains(&name) {
                users.push(name.clone());
            }
        }
    }
    for (text, users) in texts {
        let line = "-".repeat(80);
        out.push_str(&format!("\n{line}\n{}\n{line}\n{}\n", users.join(", "), text.trim_end()));
    }
    Ok(out)
}

/// Where cargo has unpacked crates, a directory for each registry.
fn sources() -> Result<Vec<PathBuf>> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or(home).context("no CARGO_HOME")?;
    let registries = cargo.join("registry/src");
    let entries = fs::read_dir(&registries).with_context(|| registries.display().to_string())?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

fn licences_in(directory: &Path, depth: usize, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_dir() && depth > 1 {
            licences_in(&path, depth - 1, found);
        } else if ["license", "licence", "copying", "copyright", "notice", "unlicense"]
            .iter()
            .any(|start| name.starts_with(start))
            && let Ok(text) = fs::read_to_string(&path)
            // Different line ends would make equal texts differ.
            && let text = text.replace("\r\n", "\n")
            && !found.contains(&text)
        {
            found.push(text);
        }
    }
}

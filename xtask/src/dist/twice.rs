//! Checks that the same commit makes the same bytes: everything again from a clone, in another
//! directory, with nothing built yet.

use anyhow::{Result, ensure};

use super::{Options, Release, git, program, target_dir};
use crate::files;
use crate::process::Task;

/// A build from nothing, and the steps around it.
const MINUTES_MAX: u64 = 90;

pub(super) fn compare(release: &Release, options: &Options) -> Result<()> {
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]);
    let is_clean = changes.is_some_and(|it| it.is_empty());
    ensure!(is_clean, "a clone has the commit only: commit what was changed first");
    let again = target_dir().join("again");
    let _ = std::fs::remove_dir_all(&again);
    let sources = again.join("a-clone-of-the-sources");
    let (from, to) = (crate::root(), sources.to_string_lossy().into_owned());
    program("git", &["clone", "--quiet", &from.to_string_lossy(), &to])?;
    let out = again.join("packages");
    let out_text = out.to_string_lossy().into_owned();
    let link = if options.link == super::Link::Static { "static" } else { "dynamic" };
    let arguments =
        ["xtask", "dist", "--out", &out_text, "--link", link, "--profile", &options.profile];
    let task = Task::new("cargo", &arguments, MINUTES_MAX).directory(&sources);
    task.env("CARGO_TARGET_DIR", again.join("target")).run().or_fail("the second time")?;
    let first = files::text(&release.out.join("SHA256SUMS"))?;
    let second = files::text(&out.join("SHA256SUMS"))?;
    ensure!(first == second, "the second time is another:\n{first}\n{second}");
    let _ = std::fs::remove_dir_all(&again);
    println!("made twice, in two places: the same bytes");
    Ok(())
}

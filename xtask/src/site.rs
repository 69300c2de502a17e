//! `cargo xtask site`: the documentation as a web site, by mdBook. `site/build.mjs` describes it.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::Task;
use crate::provide;

/// The suite of `e2e/` that tests the site. Its requirements have mdBook as a wheel.
pub(crate) const SUITE: &str = "site";
/// `site/build.mjs` and the tests read the program's path from it.
pub(crate) const VARIABLE: &str = "MDBOOK";
const MINUTES_MAX: u64 = 5;

/// The program's path; installs it if it is missing.
pub(crate) fn mdbook() -> Result<PathBuf> {
    Ok(provide::python_packages(SUITE)?.with_file_name("mdbook"))
}

pub(crate) fn build(arguments: &[String]) -> Result<()> {
    let mut words = vec!["site/build.mjs"];
    words.extend(arguments.iter().map(String::as_str));
    let task = Task::new("node", &words, MINUTES_MAX).env(VARIABLE, mdbook()?);
    task.run().or_fail("not built").map(drop)
}

//! The engine of a cluster for tests and benchmarks: nats-server, built by Go or Debian's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::{Task, program};
use crate::provide;

/// A fixed version, so that measurements and tests do not change by themselves.
const VERSION: &str = "2.15.2";
const MODULE: &str = "github.com/nats-io/nats-server/v2";
/// Two slow cores take two minutes, downloads included.
const MINUTES_MAX: u64 = 10;
/// Debian's, which is older, and enough for topics without history.
const DEBIAN: &str = "/usr/sbin/nats-server";

/// Tests read the engine's path from it; a path that it already has is used.
pub(crate) const VARIABLE: &str = "SIMURGH_NATS_SERVER";

/// The engine's path; installs it if it is missing.
pub(crate) fn installed() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        ensure!(path.exists(), "{VARIABLE} is {}, which is not there", path.display());
        return Ok(path);
    }
    let directory = crate::root().join("target/engine");
    let path = directory.join("nats-server");
    if is_this_version(&path) {
        return Ok(path);
    }
    let Err(why) = build(&directory) else { return Ok(path) };
    println!("nats-server {VERSION} cannot be built ({why:#}): Debian's is taken, which is older");
    if !Path::new(DEBIAN).exists() {
        provide::debian_package("nats-server").with_context(|| format!("{why:#}"))?;
    }
    println!("{}", program(DEBIAN, &["--version"])?.trim());
    Ok(DEBIAN.into())
}

/// Whether it is not Debian's.
pub(crate) fn is_built(path: &Path) -> bool {
    path != Path::new(DEBIAN)
}

fn is_this_version(path: &Path) -> bool {
    let version = program(&path.display().to_string(), &["--version"]);
    version.is_ok_and(|it| it.trim().ends_with(&format!("v{VERSION}")))
}

fn build(directory: &Path) -> Result<()> {
    let package = format!("{MODULE}@v{VERSION}");
    let task = Task::new("go", &["install", &package], MINUTES_MAX).env("GOBIN", directory);
    task.run().or_fail(format_args!("go install {package}"))?;
    let is_made = is_this_version(&directory.join("nats-server"));
    ensure!(is_made, "go install {package} made something else");
    Ok(())
}

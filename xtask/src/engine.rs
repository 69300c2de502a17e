//! The engine of a cluster, for tests and benchmarks: nats-server of this version, built by Go;
//! where that cannot be, the one that Debian has.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::process::{Task, program};
use crate::provide;

/// Always the same, so that what is measured and tested does not change by itself.
const VERSION: &str = "2.15.2";
const MODULE: &str = "github.com/nats-io/nats-server/v2";
/// Two slow cores take two minutes, with all that is downloaded.
const MINUTES_MAX: u64 = 10;
/// Debian's: older, and enough for topics without history.
const DEBIAN: &str = "/usr/sbin/nats-server";

/// What tests find the engine by; what it names is taken as it is.
pub(crate) const VARIABLE: &str = "SIMURGH_NATS_SERVER";

/// `cargo xtask engine`: the last line is the path.
pub(crate) fn run() -> ExitCode {
    match installed() {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("no engine: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Where the engine is; installed if it is not there.
pub(crate) fn installed() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) {
        return match path.exists() {
            true => Ok(path),
            false => Err(format!("{VARIABLE} is {}, which is not there", path.display())),
        };
    }
    let directory = crate::root().join("target/engine");
    let path = directory.join("nats-server");
    if is_this_version(&path) {
        return Ok(path);
    }
    let Err(why) = build(&directory) else { return Ok(path) };
    println!("nats-server {VERSION} cannot be built ({why}): Debian's is taken, which is older");
    if !Path::new(DEBIAN).exists() {
        provide::debian_package("nats-server").map_err(|debian| format!("{why}; {debian}"))?;
    }
    println!("{}", program(DEBIAN, &["--version"])?.trim());
    Ok(DEBIAN.into())
}

fn is_this_version(path: &Path) -> bool {
    let said = path.exists().then(|| program(&path.display().to_string(), &["--version"]));
    said.is_some_and(|it| it.is_ok_and(|it| it.trim().ends_with(&format!("v{VERSION}"))))
}

fn build(directory: &Path) -> Result<(), String> {
    let package = format!("{MODULE}@v{VERSION}");
    let done = Task::new("go", &["install", &package], MINUTES_MAX).env("GOBIN", directory).run();
    if !done.ok() {
        return Err(format!("go install {package}: {}", done.reason()));
    }
    match is_this_version(&directory.join("nats-server")) {
        true => Ok(()),
        false => Err(format!("go install {package} made something else")),
    }
}

//! The broker between the nodes: a nats-server started for the test, on a free port.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::processes::{ChildProcess, wait_until};

/// How long it may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The environment variable that names the program, if no flag does.
const VARIABLE: &str = "SIMURGH_NATS_SERVER";
const NAME: &str = "nats-server";

#[derive(Clone, Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// `2.15.2`
    pub(super) version: String,
}

impl Program {
    /// Looks at the flag, the variable and PATH, in this order.
    ///
    /// # Errors
    /// It is not found, or is another program; the text says how to get one.
    pub(super) fn find(flag: Option<&Path>) -> Result<Self, String> {
        let (path, whose) = match (flag, std::env::var_os(VARIABLE)) {
            (Some(path), _) => (path.to_owned(), "--nats"),
            (None, Some(path)) if !path.is_empty() => (PathBuf::from(path), VARIABLE),
            (None, _) => (PathBuf::from(NAME), "PATH"),
        };
        let help = format!(
            "--nodes needs {NAME}: name it with --nats or {VARIABLE}, put it into PATH, or install \
             it with `cargo xtask engine`"
        );
        // It is started in another directory, so a relative path would not resolve.
        let path = match path.components().count() {
            1 => path,
            _ => path
                .canonicalize()
                .map_err(|error| format!("{whose}: {}: {error}; {help}", path.display()))?,
        };
        let ran = Command::new(&path).arg("--version").stderr(Stdio::null()).output();
        let output =
            ran.map_err(|error| format!("{whose}: {}: {error}; {help}", path.display()))?;
        match version(&String::from_utf8_lossy(&output.stdout)) {
            Some(version) => Ok(Self { path, version }),
            None => Err(format!("{whose}: {} is not {NAME}; {help}", path.display())),
        }
    }
}

/// `nats-server: v2.15.2`
fn version(output: &str) -> Option<String> {
    let version = output.trim().strip_prefix("nats-server: v")?;
    version.starts_with(|char: char| char.is_ascii_digit()).then(|| version.to_owned())
}

/// A running nats-server, killed when this is dropped.
pub(super) struct Engine {
    pub(super) process: ChildProcess,
    port: u16,
}

/// The ports file that nats-server writes.
#[derive(Deserialize)]
struct Ports {
    nats: Vec<String>,
}

impl Engine {
    /// Creates `dir`, which gets all files it writes.
    pub(super) fn start(program: &Program, dir: &Path) -> Result<Self, String> {
        std::fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut command = Command::new(&program.path);
        command
            .args(["--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir"])
            .arg(dir)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut process = ChildProcess::start("broker", &mut command, dir.with_extension("log"))?;
        let mut found = None;
        let is_listening = || {
            found = port(dir);
            process.must_run().map(|()| found.is_some())
        };
        let late = format!("nats-server did not listen within {START_TIMEOUT:?}");
        wait_until(is_listening, START_TIMEOUT, Duration::from_millis(10), &late)?;
        Ok(Self { process, port: found.ok_or(late)? })
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

/// The port in the ports file, once it is written.
fn port(dir: &Path) -> Option<u16> {
    let mut files = std::fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.extension().is_some_and(|ext| ext == "ports"))?;
    let ports: Ports = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
    ports.nats.first()?.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nats_server_is_accepted_as_broker_program() {
        assert_eq!(version("nats-server: v2.15.2\n").as_deref(), Some("2.15.2"));
        for other in ["", "nats-server: vx", "true 9.1", "v2.15.2"] {
            assert_eq!(version(other), None, "{other}");
        }
        for (path, why) in
            [("/no/such/file", "--nats: /no/such/file"), ("/bin/true", "is not nats")]
        {
            let error = Program::find(Some(Path::new(path))).unwrap_err();
            assert!(error.contains(why) && error.contains("cargo xtask engine"), "{error}");
        }
    }
}

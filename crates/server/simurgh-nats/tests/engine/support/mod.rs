//! Engines that tests start and end, and nodes on them.

pub(crate) mod authority;
pub(crate) mod jwt;
mod node;
pub(crate) mod operator;
pub(crate) mod proxy;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) use node::{Node, numbered, prefix, runtime};

/// Enables streams in an engine's own directory.
pub(crate) const JETSTREAM: &str = "jetstream { store_dir: \"kept\" }";

/// Timeout of an engine's start, much longer than usual.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// A nats-server with its own directory, on a free port; killed when it is dropped.
pub(crate) struct Engine {
    directory: TempDir,
    server: PathBuf,
    child: Option<Child>,
    pub(crate) port: u16,
    pub(crate) route_port: Option<u16>,
}

impl Engine {
    /// With this configuration on a free port.
    pub(crate) fn start(configuration: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), configuration)
    }

    /// As [`start`](Self::start), in a directory that may have streams already.
    pub(crate) fn start_in(directory: TempDir, configuration: &str) -> Self {
        let server = server();
        fs::write(directory.path().join("server.conf"), configuration).unwrap();
        let mut engine = Self { directory, server, child: None, port: 0, route_port: None };
        assert!(engine.run(-1), "the engine does not start: {}", engine.log());
        engine
    }

    /// Returns false if its port is taken.
    fn run(&mut self, port: i32) -> bool {
        let directory = self.directory.path();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "ports") {
                fs::remove_file(path).unwrap();
            }
        }
        let log = fs::File::options().create(true).append(true).open(directory.join("log"));
        let child = Command::new(&self.server)
            .current_dir(directory)
            .args(["-c", "server.conf", "-a", "127.0.0.1", "-p", &port.to_string()])
            .args(["--ports_file_dir", "."])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        let ports = directory.join(format!("nats-server_{}.ports", child.id()));
        self.child = Some(child);
        let Some((nats, route)) = self.ports(&ports) else { return false };
        (self.port, self.route_port) = (nats, route);
        true
    }

    /// Its ports, once it has written them; `None` if it ends.
    fn ports(&mut self, file: &Path) -> Option<(u16, Option<u16>)> {
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(file).unwrap_or_default();
            if let Ok(ports) = serde_json::from_str::<serde_json::Value>(&text) {
                let port = |kind: &str| {
                    let address = ports[kind][0].as_str()?;
                    Some(address.rsplit_once(':')?.1.parse().unwrap())
                };
                return Some((port("nats").unwrap(), port("cluster")));
            }
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return None;
            }
            assert!(start.elapsed() < STARTS_WITHIN, "the engine does not start: {}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kept(&self) -> PathBuf {
        self.directory.path().join("kept")
    }

    /// Removes its streams; it must not be running.
    pub(crate) fn forget(&self) {
        assert!(self.child.is_none());
        fs::remove_dir_all(self.kept()).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Runs it again after [`kill`](Self::kill), on its port, which a connection of another test
    /// may have for a moment.
    pub(crate) fn restart(&mut self) {
        let start = Instant::now();
        while !self.run(self.port.into()) {
            assert!(start.elapsed() < STARTS_WITHIN, "no port: {}", self.log());
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Stops it. On return, all its threads are stopped.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().unwrap().id());
        let is_running = |entry: fs::DirEntry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('T'))
        };
        let start = Instant::now();
        while fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().any(is_running)) {
            assert!(start.elapsed() < STARTS_WITHIN, "the engine does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the engine said:\n{}", self.log());
        }
        self.kill();
    }
}

/// The one that is named, or that `cargo xtask engine` has built.
fn server() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/engine/nats-server");
    let path = env::var_os("SIMURGH_NATS_SERVER").map_or(built, PathBuf::from);
    assert!(path.exists(), "no {}: `cargo xtask engine` builds it", path.display());
    path
}

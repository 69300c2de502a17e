//! A nats-server for one test.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The longest wait for an immediate event, on a busy machine.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// Nobody connects from this address, so its ports stay free for an engine that is started again.
pub(crate) const HOST: &str = "127.0.0.77";

/// The engine stores streams in its own directory.
pub(crate) const STORE: &str = "jetstream { store_dir: \"store\" }\n";

/// A nats-server with its own directory, on a free port; killed when dropped.
pub(crate) struct Engine {
    directory: TempDir,
    /// The command: nats-server, possibly run by another program.
    program: Vec<PathBuf>,
    child: Option<Child>,
    host: String,
    port: u16,
}

/// The nats-server that is named, or that `cargo xtask engine` has built.
pub(crate) fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/engine/nats-server");
    let path = std::env::var_os("SIMURGH_NATS_SERVER").map_or(built, PathBuf::from);
    assert!(path.exists(), "no {}: `cargo xtask engine` builds it", path.display());
    path
}

impl Engine {
    /// Adds its port to this configuration.
    pub(crate) fn start(configuration: &str) -> Self {
        Self::start_at(HOST, configuration)
    }

    pub(crate) fn start_at(host: &str, configuration: &str) -> Self {
        Self::start_by(&[], host, configuration)
    }

    pub(crate) fn start_by(by: &[String], host: &str, configuration: &str) -> Self {
        let program = by.iter().map(PathBuf::from).chain([program()]).collect();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("server.conf"), configuration).unwrap();
        let host = host.to_owned();
        let mut engine = Self { directory, program, child: None, host, port: 0 };
        engine.run(-1);
        engine
    }

    /// Three servers of one cluster, which replicate streams.
    pub(crate) fn three() -> Vec<Self> {
        // Each needs the others' ports before it starts, so those are found first.
        let free = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = free.map(|it| it.local_addr().unwrap().port());
        let routes = ports.map(|it| format!("\"nats://127.0.0.1:{it}\"")).join(", ");
        let server = |(n, port): (usize, &u16)| {
            Self::start(&format!(
                "server_name: s{n}\n{STORE}\
                 cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes = [{routes}] }}"
            ))
        };
        ports.iter().enumerate().map(server).collect()
    }

    /// Starts it; again if it ends at once, because another program has taken its port meanwhile.
    fn run(&mut self, port: i32) {
        for _ in 0..20 {
            let mut child = self.spawn(port);
            let ports = format!("nats-server_{}.ports", child.id());
            let ports = self.directory.path().join(ports);
            let told = until("the engine tells its port, or ends", || {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    return Some(None);
                }
                let ports: Value = serde_json::from_str(&fs::read_to_string(&ports).ok()?).ok()?;
                ports["nats"][0].as_str()?.rsplit_once(':')?.1.parse().ok().map(Some)
            });
            if let Some(port) = told {
                (self.child, self.port) = (Some(child), port);
                return;
            }
            sleep(Duration::from_millis(500));
        }
        panic!("nats-server does not start:\n{}", self.log());
    }

    fn spawn(&self, port: i32) -> Child {
        let directory = self.directory.path();
        let log = fs::File::options().create(true).append(true).open(directory.join("log"));
        Command::new(&self.program[0])
            .args(&self.program[1..])
            .current_dir(directory)
            .args(["-c", "server.conf", "-a", &self.host, "-p", &port.to_string()])
            .args(["--ports_file_dir", "."])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap()
    }

    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Kills it, like a crash.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts it on the same port after it was killed.
    pub(crate) fn restart(&mut self) {
        self.run(self.port.into());
    }

    /// Deletes its store, while it is not running.
    pub(crate) fn lose_store(&self) {
        fs::remove_dir_all(self.store()).unwrap();
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Copies its store to a new directory, while it is not running.
    pub(crate) fn copies_store(&self, to: &Path) {
        copy(&self.store(), to);
    }

    /// Restores its store from a copy, while it is not running.
    pub(crate) fn sets_store_back(&self, from: &Path) {
        self.lose_store();
        copy(from, &self.store());
    }

    /// Stops the process: it neither reads nor writes, and no connection ends.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let pid = self.child.as_ref().unwrap().id();
        until("all of the engine's threads stand still", || {
            let mut threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
            let is_still = |thread: fs::DirEntry| {
                let status = fs::read_to_string(thread.path().join("status"));
                status.is_ok_and(|it| it.contains("\nState:\tT"))
            };
            threads.all(|thread| thread.is_ok_and(is_still)).then_some(())
        });
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the engine said:\n{}", self.log());
        }
        self.kill();
    }
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[track_caller]
pub(crate) fn until<T>(what: &str, there: impl FnMut() -> Option<T>) -> T {
    within(WAIT, what, there)
}

/// Like `until`, with a time that the test is about.
#[track_caller]
pub(crate) fn within<T>(time: Duration, what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(it) = there() {
            return it;
        }
        assert!(began.elapsed() < time, "{what}");
        sleep(Duration::from_millis(20));
    }
}

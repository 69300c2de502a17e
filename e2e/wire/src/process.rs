//! A server binary as a child process: found or built, started, watched, and ended by its pid.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Head, Raw, Response};

/// How long a binary may take from its start to its `listening on` line.
const START: Duration = Duration::from_secs(20);

/// A server prints this, once per address, when it is ready.
const READY: &str = "listening on http://";

/// Lines of standard error kept for the message of a failure.
const STDERR_LINES: usize = 60;

/// A running server; dropping it kills the process and waits for it.
#[derive(Debug)]
pub struct Server {
    child: Mutex<Child>,
    pid: Pid,
    addrs: Vec<SocketAddr>,
    stderr: Arc<Mutex<VecDeque<String>>>,
}

/// How a server is to be started.
#[derive(Debug)]
pub struct ServerBuilder {
    package: &'static str,
    binary: &'static str,
    args: Vec<String>,
    addresses: usize,
    nofile: Option<u64>,
}

impl ServerBuilder {
    /// Adds arguments, split at blanks.
    pub fn args(mut self, args: &str) -> Self {
        self.args.extend(args.split_whitespace().map(str::to_owned));
        self
    }

    /// Listens on these addresses instead of one free port of 127.0.0.1.
    pub fn listen(mut self, addresses: &[&str]) -> Self {
        let at = self.args.iter().position(|a| a == "--listen").expect("a default address");
        self.args.drain(at..at + 2);
        for address in addresses {
            self.args.extend(["--listen".to_owned(), (*address).to_owned()]);
        }
        self.addresses = addresses.len();
        self
    }

    /// Starts it under `prlimit --nofile=N`.
    pub fn nofile(mut self, limit: u64) -> Self {
        self.nofile = Some(limit);
        self
    }

    /// The command that would be run, for tests that expect the start to fail.
    pub fn command(&self) -> Command {
        let binary = built(self.package, self.binary);
        let mut command = match self.nofile {
            None => Command::new(binary),
            Some(limit) => {
                let mut command = Command::new("prlimit");
                command.arg(format!("--nofile={limit}")).arg("--").arg(binary);
                command
            }
        };
        command.args(&self.args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the binary and waits until it listens.
    ///
    /// # Panics
    /// When it does not start, ends early, or says nothing in time.
    #[track_caller]
    pub fn start(self) -> Server {
        let name = format!("{} {}", self.binary, self.args.join(" "));
        let mut child = self.command().spawn().unwrap_or_else(|e| panic!("start {name}: {e}"));
        let pid = Pid::from_child(&child);
        let stderr = keep_tail(child.stderr.take().expect("stderr is piped"));
        let lines = lines_of(child.stdout.take().expect("stdout is piped"));
        // From here on the guard ends the process, also when it never becomes ready.
        let mut server = Server { child: Mutex::new(child), pid, addrs: Vec::new(), stderr };
        let deadline = Instant::now() + START;
        while server.addrs.len() < self.addresses {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = lines.recv_timeout(left).unwrap_or_else(|error| {
                let why = match error {
                    RecvTimeoutError::Timeout => format!("said nothing for {START:?}"),
                    RecvTimeoutError::Disconnected => "ended".to_owned(),
                };
                panic!("`{name}` {why} before it printed `{READY}…`\n{}", server.stderr())
            });
            if let Some(addr) = line.strip_prefix(READY) {
                let addr = addr.trim_end_matches('/');
                server.addrs.push(addr.parse().unwrap_or_else(|e| panic!("{e} in line: {line}")));
            }
        }
        server
    }
}

impl Server {
    /// The conformance application on a free port of 127.0.0.1.
    pub fn conformance() -> ServerBuilder {
        Self::builder("conformance", "conformance").args("--listen 127.0.0.1:0")
    }

    /// `simurgh serve` on a free port of 127.0.0.1.
    pub fn serve() -> ServerBuilder {
        Self::builder("simurgh-cli", "simurgh").args("serve --listen 127.0.0.1:0")
    }

    /// The plain chat on a free port of 127.0.0.1.
    pub fn plain_chat() -> ServerBuilder {
        Self::builder("plain_chat", "plain_chat").args("--listen 127.0.0.1:0")
    }

    /// One conformance server for all tests of this process that run at the same time. The last one
    /// to let go of it ends it; a static would never be dropped and leave the child behind.
    pub fn shared_conformance() -> Arc<Server> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::conformance().start());
        *shared = Arc::downgrade(&server);
        server
    }

    /// Where to connect to: the first address, with 0.0.0.0 replaced by 127.0.0.1.
    pub fn addr(&self) -> SocketAddr {
        let mut addr = self.addrs[0];
        if addr.ip().is_unspecified() {
            addr.set_ip([127, 0, 0, 1].into());
        }
        addr
    }

    /// All addresses as printed, in the order printed.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        kill_process(self.pid, Signal::TERM).expect("SIGTERM to the server");
    }

    /// Stops the process as a suspended machine does, for so long.
    pub fn suspend(&self, time: Duration) {
        kill_process(self.pid, Signal::STOP).expect("SIGSTOP to the server");
        thread::sleep(time);
        kill_process(self.pid, Signal::CONT).expect("SIGCONT to the server");
    }

    /// Whether the process is still there.
    pub fn is_running(&self) -> bool {
        self.lock().try_wait().expect("wait for the server").is_none()
    }

    /// Waits for the process to end by itself.
    ///
    /// # Panics
    /// When it has not ended `within` this time.
    #[track_caller]
    pub fn wait_exit(&self, within: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.lock().try_wait().expect("wait for the server") {
                return status;
            }
            assert!(start.elapsed() < within, "the server did not exit within {within:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn http(&self, head: &Head, body: &str) -> Response {
        let mut raw = Raw::connect(self.addr());
        raw.send(head.clone().set("content-length", &body.len().to_string()).text().as_bytes());
        raw.send(body.as_bytes());
        raw.answer()
    }

    /// `GET path` on a connection of its own.
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        let mut raw = Raw::connect(self.addr());
        raw.send(Head::new("GET", path).set("connection", "close").text().as_bytes());
        raw.answer()
    }

    /// The sum over all labels of those metrics of `/metrics` whose name fits.
    ///
    /// # Panics
    /// When no metric fits, or `/metrics` is not Prometheus text.
    #[track_caller]
    pub fn metrics(&self, fits: impl Fn(&str) -> bool) -> f64 {
        let response = self.get("/metrics");
        assert_eq!(response.status, 200, "GET /metrics: {response:?}");
        let mut sum = None;
        for line in response.text().lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect("a metric line is `name value`");
            let name = series.split('{').next().unwrap_or_default();
            let value: f64 = value.parse().unwrap_or_else(|e| panic!("{e} in metric: {line}"));
            if fits(name) {
                *sum.get_or_insert(0.0) += value;
            }
        }
        sum.unwrap_or_else(|| panic!("no such metric in\n{}", response.text()))
    }

    /// The sum of a `…_total` counter whose name holds `word`.
    #[track_caller]
    pub fn counter(&self, word: &str) -> f64 {
        self.metrics(|n| n.starts_with("simurgh_") && n.ends_with("_total") && n.contains(word))
    }

    /// The highest resident memory the process ever had, in bytes.
    pub fn peak_rss_bytes(&self) -> u64 {
        let pid = self.pid.as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("process status");
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("VmHWM");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// The last lines of standard error.
    pub fn stderr(&self) -> String {
        let lines = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn builder(package: &'static str, binary: &'static str) -> ServerBuilder {
        ServerBuilder { package, binary, args: Vec::new(), addresses: 1, nofile: None }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the server's standard error\n{}", self.stderr());
        }
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Both fail only when it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The path of a binary in the target directory this test runs from, brought up to date once a
/// process: a test against yesterday's server would prove nothing. `WIRE_TESTS_PREBUILT=1` takes it
/// as it is.
pub(crate) fn built(package: &'static str, binary: &'static str) -> PathBuf {
    static BUILT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let exe = std::env::current_exe().expect("path of the test");
    let profile_dir = exe.ancestors().nth(2).expect("target/<profile>/deps/<test>").to_owned();
    let path = profile_dir.join(binary);
    let mut done = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !done.contains(&binary) {
        let prebuilt = std::env::var_os("WIRE_TESTS_PREBUILT").is_some_and(|v| v == "1");
        if !(prebuilt && path.exists()) {
            cargo_build(package, &profile_dir);
        }
        done.push(binary);
    }
    path
}

fn cargo_build(package: &str, profile_dir: &Path) {
    let profile = match profile_dir.file_name().and_then(|n| n.to_str()) {
        None | Some("debug") => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--bins", "--profile", profile, "-p", package])
        .arg("--manifest-path")
        .arg(manifest)
        .env("CARGO_TARGET_DIR", profile_dir.parent().expect("the target directory"))
        .output()
        .expect("run cargo");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo build -p {package} failed:\n{text}");
}

/// Reads lines on a thread of its own until the end, so that the child never blocks on a full pipe.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // The receiver goes when the server is ready; reading has to go on.
            let _ = sender.send(line);
        }
    });
    receiver
}

fn keep_tail(stream: impl Read + Send + 'static) -> Arc<Mutex<VecDeque<String>>> {
    let tail = Arc::new(Mutex::new(VecDeque::new()));
    let kept = Arc::clone(&tail);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == STDERR_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    });
    tail
}

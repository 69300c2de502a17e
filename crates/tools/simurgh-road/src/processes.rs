//! The processes of a test, which are this program again: the server, the clients and the probes.
//! Each is killed when its value is dropped.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_process};

use super::journal;
use super::metrics::Metrics;
use super::scenarios::Workload;

/// For a server with hundreds of shards, or as many workers.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const ADDRESS: &str = "127.77.0.1:0";
/// For a response while all cores are busy.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest answer: `/metrics` of some thousand shards.
const BODY_BYTES_MAX: u64 = 1 << 28;

/// Nice values: before other programs, and behind them.
const FIRST_PRIORITY: i32 = -15;
const LEAST_PRIORITY: i32 = 19;

pub(super) struct ChildProcess {
    child: Child,
    what: &'static str,
    log: PathBuf,
}

impl ChildProcess {
    pub(super) fn start(
        what: &'static str,
        command: &mut Command,
        log: PathBuf,
    ) -> Result<Self, String> {
        let errors = File::create(&log).map_err(|error| {
            format!("cannot write {}: {error}; name another --out", log.display())
        })?;
        let child = command.stderr(errors).spawn();
        let child = child.map_err(|error| format!("cannot start the {what}: {error}"))?;
        Ok(Self { child, what, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if it has ended.
    pub(super) fn must_run(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status)),
            Err(error) => Err(format!("cannot wait for the {}: {error}", self.what)),
        }
    }

    fn ended(&self, status: ExitStatus) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
        format!("the {} has ended ({status}): {last}; see {}", self.what, self.log.display())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Result<Command, String> {
    let own = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    Ok(Command::new(own))
}

/// `simurgh serve`, or the program `instead`.
fn server_command(instead: Option<&str>) -> Result<Command, String> {
    let mut words = instead.into_iter().flat_map(str::split_whitespace);
    let Some(name) = words.next() else {
        let mut command = program()?;
        command.arg("serve");
        return Ok(command);
    };
    // It is started in another directory, so a relative path would not resolve.
    let path = Path::new(name).canonicalize().map_err(|error| format!("--server {name}: {error}"));
    let mut command = Command::new(path?);
    command.args(words);
    Ok(command)
}

/// The files of a certificate for TLS, by absolute paths.
pub(super) struct Identity {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

pub(super) struct Server {
    pub(super) process: ChildProcess,
    /// For metrics and the API, without TLS.
    address: SocketAddr,
    /// Where clients connect, without a path.
    pub(super) url: String,
    token: String,
    agent: ureq::Agent,
}

impl Server {
    /// Starts it for a number of connections, and waits until it listens. `instead` replaces
    /// `simurgh serve` and gets the same options. With `tls` clients connect with TLS. `dir` may
    /// hold its settings; `what` names it in errors.
    pub(super) fn start(
        instead: Option<&str>,
        tls: Option<&Identity>,
        connections: u64,
        dir: &Path,
        what: &'static str,
    ) -> Result<Self, String> {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut command = server_command(instead)?;
        command
            .args(["--listen", ADDRESS, "--idle-timeout", "off"])
            .args(["--check-origin", "off", "--max-connections", &connections.to_string()])
            .env("SIMURGH_API_TOKEN", &token)
            // Reads the settings in `dir`, not those of the caller's directory.
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(Identity { certificate, key }) = tls {
            command
                .env("SIMURGH_TLS__LISTEN", ADDRESS)
                .env("SIMURGH_TLS__CERTIFICATE", certificate)
                .env("SIMURGH_TLS__KEY", key)
                .env("SIMURGH_TLS__RECORD_LAYER", "simurgh");
        }
        let mut process = ChildProcess::start(what, &mut command, dir.join("server.log"))?;
        let out = process.child.stdout.take().ok_or("the server has no output")?;
        let (found, urls) = mpsc::channel();
        // Reads on after the addresses, so that the server never waits for a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(url) = line.strip_prefix("listening on ") {
                    // Fails for an address that is not needed.
                    let _ = found.send(url.trim().to_owned());
                }
            }
        });
        let address = next_address(&mut process, &urls, "http://")?;
        let url = match tls {
            Some(_) => format!("wss://{}", next_address(&mut process, &urls, "https://")?),
            None => format!("ws://{address}"),
        };
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(HTTP_TIMEOUT))
            .timeout_recv_response(Some(HTTP_TIMEOUT))
            .timeout_recv_body(Some(HTTP_TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .into();
        Ok(Self { process, address, url, token, agent })
    }

    pub(super) fn metrics(&self) -> Result<Metrics, String> {
        self.request("GET", "/metrics", "").map(|body| Metrics::read(&body))
    }

    pub(super) fn broadcast(&self, topic: &str, event: &str, payload: &str) -> Result<(), String> {
        let body = format!("{{\"topic\":\"{topic}\",\"event\":\"{event}\",\"payload\":{payload}}}");
        self.request("POST", "/api/broadcast", &body).map(drop)
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Result<String, String> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .header("connection", "close")
            .body(body);
        let failed = |error: ureq::Error| format!("{method} {path} at the server: {error}");
        let mut response =
            self.agent.run(request.map_err(|it| failed(it.into()))?).map_err(failed)?;
        let body = response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string();
        let (status, body) = (response.status(), body.map_err(failed)?);
        if !status.is_success() {
            return Err(format!("{method} {path} at the server: {} {body}", status.as_str()));
        }
        Ok(body)
    }
}

/// The next address that a server prints, which must be of this scheme.
fn next_address(
    process: &mut ChildProcess,
    urls: &mpsc::Receiver<String>,
    scheme: &str,
) -> Result<SocketAddr, String> {
    let Ok(url) = urls.recv_timeout(START_TIMEOUT) else {
        process.must_run()?;
        return Err(format!("the {} did not listen within {START_TIMEOUT:?}", process.what));
    };
    let address = url.strip_prefix(scheme).and_then(|address| address.parse().ok());
    address.ok_or_else(|| format!("the {} listens on {url:?}, not on {scheme}", process.what))
}

/// Polls a condition at the interval `every`; fails with `late` after `most`.
pub(super) fn wait_until(
    mut is_met: impl FnMut() -> Result<bool, String>,
    most: Duration,
    every: Duration,
    late: &str,
) -> Result<(), String> {
    let begun = Instant::now();
    while !is_met()? {
        if begun.elapsed() > most {
            return Err(late.to_owned());
        }
        std::thread::sleep(every);
    }
    Ok(())
}

/// A run of `simurgh load` that takes commands.
pub(super) struct Load {
    pub(super) process: ChildProcess,
    pub(super) dir: PathBuf,
}

impl Load {
    /// The clients that the server is to hold. Without sockets they run before the server, if that
    /// is allowed: what the kernel does for a client's socket, it does before all programs, too.
    /// Else the server's output would wait in memory.
    pub(super) fn crowd(
        workload: &Workload,
        scenario: &str,
        dir: PathBuf,
        dashboard: &str,
    ) -> Result<Self, String> {
        let crowd = Self::start("crowd", scenario, dir, dashboard)?;
        if workload.tun {
            crowd.set_priority(FIRST_PRIORITY);
        }
        Ok(crowd)
    }

    /// Starts it with a scenario, which is kept beside its results.
    pub(super) fn start(
        what: &'static str,
        scenario: &str,
        dir: PathBuf,
        dashboard: &str,
    ) -> Result<Self, String> {
        let file = dir.with_extension("toml");
        std::fs::write(&file, scenario)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let mut command = program()?;
        command
            .arg("load")
            .arg(&file)
            .args(["--commands", "--quiet", "--dashboard", dashboard, "--out"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let process = ChildProcess::start(what, &mut command, dir.with_extension("log"))?;
        Ok(Self { process, dir })
    }

    /// Waits until its workers have started, which is when it creates its journal.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), String> {
        let (journal, late) =
            (journal::path(&self.dir), format!("the {} did not start", self.process.what));
        let is_ready = || {
            let is_there = journal.exists();
            self.process.must_run().map(|()| is_there)
        };
        wait_until(is_ready, START_TIMEOUT, Duration::from_millis(20), &late)
    }

    /// Writes a command to its standard input (`--commands`).
    pub(super) fn command(&mut self, command: &str) -> Result<(), String> {
        self.process.must_run()?;
        let what = self.process.what;
        let input =
            self.process.child.stdin.as_mut().ok_or("the load generator has no standard input")?;
        writeln!(input, "{command}")
            .map_err(|error| format!("cannot send a command to the {what}: {error}"))
    }

    /// Lets it run only when nothing else does.
    pub(super) fn run_last(&self) {
        self.set_priority(LEAST_PRIORITY);
    }

    fn set_priority(&self, nice: i32) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.pid()));
        for task in tasks.into_iter().flatten().flatten() {
            let id = task.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(id) = id.and_then(Pid::from_raw) {
                // Fails for a thread that has just ended.
                let _ = setpriority_process(Some(id), nice);
            }
        }
    }

    /// Ends it and all its connections.
    pub(super) fn stop(&mut self, most: Duration) -> Result<(), String> {
        self.command("stop")?;
        let has_ended = || Ok(self.process.must_run().is_err());
        wait_until(has_ended, most, Duration::from_millis(100), "the clients did not stop")
    }

    /// Kills it without waiting for its end, as if its machine had failed. The kernel closes its
    /// millions of sockets with the lowest priority, so that this does not take cores from the
    /// server.
    pub(super) fn kill(&mut self) {
        self.run_last();
        // Fails only if it has ended already.
        let _ = self.process.child.kill();
    }
}

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

/// How long a server with hundreds of shards may take to listen, and workers as many to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an answer of the HTTP side may take while all cores are busy.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest answer: `/metrics` of some thousand shards.
const BODY_BYTES_MAX: u64 = 1 << 28;

/// The nice value of the lowest priority.
const LEAST_PRIORITY: i32 = 19;

/// A process that ends with this value.
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

    /// An error if it has ended.
    pub(super) fn must_run(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status)),
            Err(error) => Err(format!("the {} cannot be looked after: {error}", self.what)),
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
    let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
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
    // It is started in another directory, where a relative path would lead elsewhere.
    let path = Path::new(name).canonicalize().map_err(|error| format!("--server {name}: {error}"));
    let mut command = Command::new(path?);
    command.args(words);
    Ok(command)
}

/// The server.
pub(super) struct Server {
    pub(super) process: ChildProcess,
    /// Where it listens.
    pub(super) address: SocketAddr,
    token: String,
    agent: ureq::Agent,
}

impl Server {
    /// Starts it, for so many connections, and waits until it listens. `instead` is a command to
    /// start in place of `simurgh serve`, with the same options. `dir` may hold settings of it, and
    /// `what` is what it is called where it fails.
    pub(super) fn start(
        instead: Option<&str>,
        connections: u64,
        dir: &Path,
        what: &'static str,
    ) -> Result<Self, String> {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut command = server_command(instead)?;
        command
            .args(["--listen", "127.77.0.1:0", "--idle-timeout", "off"])
            .args(["--check-origin", "off", "--max-connections", &connections.to_string()])
            .env("SIMURGH_API_TOKEN", &token)
            // With the settings in `dir`, not those of the caller's directory.
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = ChildProcess::start(what, &mut command, dir.join("server.log"))?;
        let out = process.child.stdout.take().ok_or("the server has no output")?;
        let (found, address) = mpsc::channel();
        // Reads on after the address, so that the server never waits for a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(rest) = line.strip_prefix("listening on http://") {
                    // Nobody waits for a second one.
                    let _ = found.send(rest.trim().to_owned());
                }
            }
        });
        let text = match address.recv_timeout(START_TIMEOUT) {
            Ok(text) => text,
            Err(_) => {
                process.must_run()?;
                return Err(format!("the {what} did not listen within {START_TIMEOUT:?}"));
            }
        };
        let address = text.parse().map_err(|error| format!("the server's {text:?}: {error}"))?;
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(HTTP_TIMEOUT))
            .timeout_recv_response(Some(HTTP_TIMEOUT))
            .timeout_recv_body(Some(HTTP_TIMEOUT))
            .http_status_as_error(false)
            .proxy(None)
            .build()
            .into();
        Ok(Self { process, address, token, agent })
    }

    pub(super) fn metrics(&self) -> Result<Metrics, String> {
        self.request("GET", "/metrics", "").map(|body| Metrics::read(&body))
    }

    /// Broadcasts an event to a topic.
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

/// Polls a condition `every` so often; fails with `late` after `most`.
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
    /// Where it writes.
    pub(super) dir: PathBuf,
}

impl Load {
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

    /// Waits until its workers are there, which is when it begins its journal.
    pub(super) fn wait_until_ready(&mut self) -> Result<(), String> {
        let (journal, late) =
            (journal::path(&self.dir), format!("the {} did not start", self.process.what));
        let is_ready = || {
            let is_there = journal.exists();
            self.process.must_run().map(|()| is_there)
        };
        wait_until(is_ready, START_TIMEOUT, Duration::from_millis(20), &late)
    }

    /// Sends it a command (`--commands`).
    pub(super) fn command(&mut self, command: &str) -> Result<(), String> {
        self.process.must_run()?;
        let what = self.process.what;
        let input = self.process.child.stdin.as_mut().ok_or("it cannot be told anything")?;
        writeln!(input, "{command}").map_err(|error| format!("cannot steer the {what}: {error}"))
    }

    /// Kills it at once, as if its machine had gone, and does not wait for its end. The kernel
    /// would close its millions of sockets on that machine; here that gets the lowest priority, so
    /// that it does not take cores from the server.
    pub(super) fn kill(&mut self) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.pid()));
        for task in tasks.into_iter().flatten().flatten() {
            let id = task.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(id) = id.and_then(Pid::from_raw) {
                // Fails for a thread that has just ended.
                let _ = setpriority_process(Some(id), LEAST_PRIORITY);
            }
        }
        // Fails only if it has ended already.
        let _ = self.process.child.kill();
    }
}

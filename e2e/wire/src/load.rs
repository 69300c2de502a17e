//! `simurgh load` as a child process: what it printed, how it ended, what it wrote.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::built;

/// The longest a whole run may take: the longest of these tests runs for some ten seconds.
const RUN: Duration = Duration::from_secs(60);

/// A run to be started. It writes into a directory of its own that goes with it.
#[derive(Debug)]
pub struct LoadBuilder {
    shell: Option<String>,
    args: Vec<String>,
    home: TempDir,
    out: PathBuf,
}

/// A running `simurgh load`; dropping it kills the process and waits for it.
#[derive(Debug)]
pub struct Load {
    child: Child,
    stdout: Text,
    stderr: Text,
    home: Option<TempDir>,
    out: PathBuf,
}

/// A run that has ended.
#[derive(Debug)]
pub struct Loaded {
    /// How the process ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Where it wrote; inside the directory that goes with this.
    pub out: PathBuf,
    _home: TempDir,
}

/// The output so far, read on a thread so that the child never blocks on it.
#[derive(Debug)]
struct Text {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl LoadBuilder {
    /// Further arguments, split at blanks.
    pub fn args(mut self, args: &str) -> Self {
        self.args.extend(args.split_whitespace().map(str::to_owned));
        self
    }

    /// One further argument, as it is.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Puts the server in the place of `host`, which the scenario names.
    pub fn map(self, host: &str, server: SocketAddr) -> Self {
        self.arg("--map").arg(format!("{host}={server}"))
    }

    /// Has its dashboard there instead of nowhere.
    ///
    /// # Panics
    /// When this is not a run.
    pub fn dashboard(self, at: &str) -> Self {
        self.with("--dashboard", at)
    }

    /// Reads the scenario from standard input, which the script provides.
    pub fn piped(mut self) -> Self {
        self.args[1] = "/dev/stdin".to_owned();
        self
    }

    /// Writes there instead.
    ///
    /// # Panics
    /// When this is not a run.
    pub fn into_dir(mut self, out: &Path) -> Self {
        self.out = out.to_owned();
        self.with("--out", &out.display().to_string())
    }

    /// Started by this shell script, in which `"$@"` is the command and `$OUT` its directory.
    pub fn under(mut self, script: &str) -> Self {
        self.shell = Some(script.to_owned());
        self
    }

    /// Where it will write.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// A directory for what a test wants to keep; it goes with the run.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    fn with(mut self, flag: &str, value: &str) -> Self {
        let at = self.args.iter().position(|arg| arg == flag).expect("a run has this flag");
        value.clone_into(&mut self.args[at + 1]);
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(self) -> Load {
        let binary = built("simurgh-cli", "simurgh");
        let mut command = match &self.shell {
            None => Command::new(binary),
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", script, "sh"]).arg(binary);
                command
            }
        };
        command.args(&self.args).env("OUT", &self.out).current_dir(self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // So that what a script has started ends with it.
        command.process_group(0);
        let mut child = command.spawn().expect("start simurgh load");
        let stdout = Text::of(child.stdout.take().expect("stdout is piped"));
        let stderr = Text::of(child.stderr.take().expect("stderr is piped"));
        Load { child, stdout, stderr, home: Some(self.home), out: self.out }
    }

    /// Starts it and waits for its end.
    #[track_caller]
    pub fn run(self) -> Loaded {
        self.start().end(RUN)
    }
}

impl Load {
    /// A run of this scenario, without a dashboard.
    pub fn of(scenario: &Path) -> LoadBuilder {
        let builder = Self::command("load");
        let (file, out) = (scenario.display().to_string(), builder.out.display().to_string());
        builder.arg(file).arg("--out").arg(out).args("--dashboard off")
    }

    /// A run of this scenario, which is written to a file first, without a dashboard.
    pub fn of_text(scenario: &str) -> LoadBuilder {
        let builder = Self::of(Path::new("scenario.toml"));
        fs::write(builder.home.path().join("scenario.toml"), scenario).expect("write the scenario");
        builder
    }

    /// Any other command of `simurgh`.
    pub fn command(args: &str) -> LoadBuilder {
        let home = tempfile::tempdir().expect("a temporary directory");
        let out = home.path().join("out");
        LoadBuilder { shell: None, args: Vec::new(), home, out }.args(args)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // It fails only when the process has ended, which the test then sees.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Where it writes.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When it goes on for longer than this.
    #[track_caller]
    pub fn end(mut self, within: Duration) -> Loaded {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait for the run") {
                break status;
            }
            if start.elapsed() > within {
                panic!("it still runs after {within:?}; it said\n{}", self.stderr());
            }
            thread::sleep(Duration::from_millis(5));
        };
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        let home = self.home.take().expect("it is taken here only");
        Loaded { status, stdout, stderr, out: self.out.clone(), _home: home }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // They fail only when it has ended already; then its number may be another's.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Loaded {
    /// The exit code.
    ///
    /// # Panics
    /// When a signal has ended it.
    #[track_caller]
    pub fn code(&self) -> i32 {
        match self.status.code() {
            Some(code) => code,
            None => panic!("ended by signal {:?}: {}", self.status.signal(), self.all()),
        }
    }

    /// Holds the exit code against what it should be.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{}", self.all());
        self
    }

    /// A file of the run.
    #[track_caller]
    pub fn file(&self, name: &str) -> String {
        let path = self.out.join(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}\n{}", self.all()))
    }

    /// The names of all its files, in order.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.out).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// `report.json`.
    #[track_caller]
    pub fn report(&self) -> Value {
        serde_json::from_str(&self.file("report.json")).expect("report.json is JSON")
    }

    /// Its whole output, for the message of a failure.
    pub fn all(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}

/// A counter of a report; those that are 0 are not in it.
pub fn count(report: &Value, name: &str) -> u64 {
    report["counts"][name].as_u64().unwrap_or(0)
}

impl Text {
    fn of(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut some) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&some[..n]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.text()
    }
}

//! Child processes with a time limit: each runs in a separate process group and is ended by its id.
//! Its output is passed on as it comes, and kept for counting.

use std::cell::Cell;
use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How often a running child is polled: rarely enough to cost nothing, often enough not to wait.
const POLL: Duration = Duration::from_millis(50);

/// Bytes of output kept of one stream; counts and summaries are at its end.
const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How long a child has after Ctrl-C to end by itself and to undo its changes.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

thread_local! {
    static SHOWN_AT_END: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread's tasks show their output when they have ended, so that it does not
/// mix with that of another thread.
pub(crate) fn show_at_end() {
    SHOWN_AT_END.set(true);
}

/// Set by Ctrl-C and SIGTERM after `end_on_ctrl_c`.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on Ctrl-C and SIGTERM end the running child, and not this process, to keep the
/// measurements so far. A second one ends this process at once.
pub(crate) fn end_on_ctrl_c() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the first only sets the flag, which the second finds set.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(flag)))
            .context("no signal handler")?;
    }
    Ok(())
}

pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

pub(crate) struct Task {
    command: Command,
    shown: String,
    limit: Duration,
    shows: Shows,
}

/// What of a child's output is shown as it comes; all is kept.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    All,
    Errors,
    Nothing,
}

pub(crate) struct Finished {
    /// The exit code; `None` if a signal or the time limit ended it, or it could not start.
    pub(crate) code: Option<i32>,
    /// Its stdout and stderr, in no certain order between the two.
    pub(crate) output: String,
    pub(crate) failure: Option<String>,
}

impl Finished {
    pub(crate) fn ok(&self) -> bool {
        self.code == Some(0)
    }

    /// One line on what went wrong.
    pub(crate) fn reason(&self) -> String {
        match (&self.failure, self.code) {
            (Some(failure), _) => failure.clone(),
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "ended by a signal".into(),
        }
    }

    /// Its output; if it failed an error with this name.
    pub(crate) fn or_fail(self, name: impl fmt::Display) -> Result<String> {
        ensure!(self.ok(), "{name}: {}", self.reason());
        Ok(self.output)
    }
}

impl Task {
    /// `program` with `arguments`, run at most `minutes`, in the repository's root.
    pub(crate) fn new<S: AsRef<OsStr>>(program: &str, arguments: &[S], minutes: u64) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(crate::root()).stdin(Stdio::null());
        let words = arguments.iter().map(|word| word.as_ref().to_string_lossy());
        let shown = [program.into()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
        Self { command, shown, limit: Duration::from_secs(minutes * 60), shows: Shows::All }
    }

    /// The binary of a package of the workspace, built for release.
    pub(crate) fn release(package: &str, arguments: &[String], minutes: u64) -> Self {
        Self::binary("release", package, arguments, minutes)
    }

    /// The same, built by another profile.
    pub(crate) fn binary(profile: &str, package: &str, arguments: &[String], minutes: u64) -> Self {
        let cargo =
            ["run", "--profile", profile, "--quiet", "--package", package, "--bin", package, "--"];
        let all: Vec<&str> =
            cargo.into_iter().chain(arguments.iter().map(String::as_str)).collect();
        Self::new("cargo", &all, minutes)
    }

    /// Runs it in a directory relative to the root.
    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes the variables whose names begin with `prefix`.
    pub(crate) fn without_env(mut self, prefix: &str) -> Self {
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with(prefix) {
                self.command.env_remove(name);
            }
        }
        self
    }

    /// Sets another time limit than whole minutes.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Output is kept but not shown.
    pub(crate) fn quiet(mut self) -> Self {
        self.shows = Shows::Nothing;
        self
    }

    /// For output to stdout that only a program reads.
    pub(crate) fn only_errors(mut self) -> Self {
        self.shows = Shows::Errors;
        self
    }

    pub(crate) fn run(self) -> Finished {
        let is_at_end = SHOWN_AT_END.get() && self.shows == Shows::All;
        if !is_at_end {
            return self.run_now();
        }
        let shown = self.shown.clone();
        let done = self.quiet().run_now();
        println!("$ {shown}\n{}", done.output);
        done
    }

    fn run_now(mut self) -> Finished {
        if self.shows != Shows::Nothing {
            println!("$ {}", self.shown);
        }
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let failure = Some(format!("`{}` does not start: {error}", self.shown));
                return Finished { code: None, output: String::new(), failure };
            }
        };
        let out = (self.shows == Shows::All).then(io::stdout);
        let err = (self.shows != Shows::Nothing).then(io::stderr);
        let stdout = child.stdout.take().map(|pipe| tee(pipe, out));
        let stderr = child.stderr.take().map(|pipe| tee(pipe, err));
        let (status, failure) = wait(&mut child, self.limit);
        let mut output = String::new();
        for stream in [stdout, stderr].into_iter().flatten() {
            output.push_str(&stream.join().unwrap_or_default());
        }
        let code = status.and_then(|status| status.code());
        Finished { code, output, failure }
    }
}

/// Runs `work` on so many threads at once, until each has returned.
pub(crate) fn at_once(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(&work);
        }
    });
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program without showing its output, and returns that.
pub(crate) fn program(program: &str, arguments: &[&str]) -> Result<String> {
    let done = Task::new(program, arguments, 10).quiet().run();
    let words = arguments.join(" ");
    ensure!(done.ok(), "{program} {words}: {}\n{}", done.reason(), done.output);
    Ok(done.output)
}

/// Copies `from` to `to` as it comes, and returns its last megabytes.
fn tee<R, W>(mut from: R, mut to: Option<W>) -> thread::JoinHandle<String>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let chunk = buffer.get(..count).unwrap_or_default();
            if let Some(to) = &mut to {
                // The reader of our output may have closed it (`| head`); the work continues.
                let _ = to.write_all(chunk).and_then(|()| to.flush());
            }
            kept.extend_from_slice(chunk);
            if kept.len() > 2 * OUTPUT_BYTES_MAX {
                kept.drain(..kept.len() - OUTPUT_BYTES_MAX);
            }
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// Waits for `child`; after `limit` its group is killed, so that nothing holds our pipes open.
fn wait(child: &mut Child, limit: Duration) -> (Option<ExitStatus>, Option<String>) {
    let start = Instant::now();
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none() && is_interrupted() {
            asked = Some(Instant::now());
            signal_group(child, "-INT");
        }
        let has_time = match asked {
            None => start.elapsed() < limit,
            Some(asked) => asked.elapsed() < ENDS_WITHIN,
        };
        match child.try_wait() {
            Ok(Some(_)) if asked.is_some() => {
                // Its descendants may still be running.
                kill_group(child);
                return (None, Some("interrupted".into()));
            }
            Ok(Some(status)) => return (Some(status), None),
            Ok(None) if has_time => thread::sleep(POLL),
            Ok(None) if asked.is_some() => {
                kill_group(child);
                return (None, Some("interrupted".into()));
            }
            Ok(None) => {
                kill_group(child);
                return (None, Some(format!("not done within {} s", limit.as_secs())));
            }
            Err(error) => {
                kill_group(child);
                return (None, Some(format!("cannot be waited for: {error}")));
            }
        }
    }
}

fn kill_group(child: &mut Child) {
    signal_group(child, "-KILL");
    let _ = child.kill();
    let _ = child.wait();
}

/// `child` leads its group. std has no call for a group; it may have ended already.
fn signal_group(child: &Child, signal: &str) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_output_and_exit_code_are_captured() {
        let done = Task::new("sh", &["-c", "echo out; echo err >&2; exit 3"], 1).quiet().run();
        assert_eq!(done.code, Some(3));
        assert!(done.output.contains("out\n") && done.output.contains("err\n"));
        assert!(!done.ok());
        assert_eq!(done.reason(), "exit code 3");
    }

    #[test]
    fn child_process_is_ended_with_its_descendants() {
        let task = Task::new("sh", &["-c", "sleep 60 & sleep 60"], 1).quiet();
        let task = task.within(Duration::from_millis(200));
        let start = Instant::now();
        let done = task.run();
        assert!(start.elapsed() < Duration::from_secs(20), "the inner sleep held the pipe");
        assert_eq!(done.code, None);
        assert!(done.reason().contains("not done within"));
    }

    #[test]
    fn error_names_the_program_that_does_not_start() {
        let done = Task::new("no-such-program-here", &[] as &[&str], 1).quiet().run();
        assert!(done.reason().starts_with("`no-such-program-here` does not start"));
    }
}

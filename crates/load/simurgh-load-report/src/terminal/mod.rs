//! The view of a run in a terminal: a block of lines that is redrawn each second, and keys to
//! control it; where standard error is not a terminal, a plain line every few seconds.
//!
//! ```text
//! Record --each change--> Shown --block (ratatui's buffer)--> screen (ANSI) --> stderr
//!                           `--plain--> one line                                --> stderr
//! stdin, if it is a terminal and ours --keys--> Control
//! ```
//!
//! Ratatui draws, but its terminal is not used: crossterm, which queries the terminal's cursor and
//! size, installs a signal handler that writes to a descriptor by its number, on any thread. In a
//! worker with its own descriptor table, that number is a user's socket.

mod block;
mod plain;
mod screen;
mod tty;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use simurgh_load_record::{Live, PhasePlan, Point, Record};

use crate::control::{Control, ControlState};
use screen::Screen;
use tty::Keyboard;

pub use tty::restore;

/// How often the record is polled; keys are handled at once.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

const PLAIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

const LINE_EVERY_MS: u64 = 5000;

/// How long the question after `q` waits for an answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(10);

/// The inputs of a terminal view.
pub struct Options {
    /// The run.
    pub record: Arc<Mutex<Record>>,
    /// The control for the keys.
    pub control: Control,
    /// The address of the dashboard, to be shown.
    pub dashboard: Option<SocketAddr>,
}

/// A running view. When it is dropped, it ends and restores the terminal.
#[derive(Debug)]
pub struct Terminal {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
struct Shown {
    scenario: String,
    targets: String,
    phases: Vec<PhasePlan>,
    /// When the run will be over, seconds, if known.
    ends_s: Option<f64>,
    live: Live,
    history: Vec<u64>,
    control: ControlState,
    dashboard: Option<SocketAddr>,
    asking: bool,
}

/// Starts the view: a block of lines if standard error is a capable terminal, else plain lines.
/// Keys are only read if standard input is a terminal with this process in the foreground. Fails if
/// no thread can be started.
pub fn start(options: Options) -> io::Result<Terminal> {
    let (stop, stopped) = channel();
    let thread = std::thread::Builder::new().name("simurgh-terminal".into()).spawn(move || {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if io::stderr().is_terminal() && !dumb {
            draw(&options, &stopped);
        } else {
            print_lines(&options, &stopped, &mut io::stderr());
        }
    })?;
    Ok(Terminal { stop: Some(stop), thread: Some(thread) })
}

impl Terminal {
    /// Ends the view.
    pub fn finish(self) {}
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        restore();
    }
}

impl Shown {
    fn of(options: &Options, asking: bool) -> Self {
        let record = options.record.lock().unwrap_or_else(PoisonError::into_inner);
        let meta = record.meta();
        let arrivals_end = meta.phases.iter().map(|phase| phase.starts_s + phase.duration_s);
        let arrivals_end = arrivals_end.reduce(f64::max).filter(|end| *end > 0.0);
        Self {
            scenario: meta.scenario.clone(),
            targets: meta.targets.join(", "),
            phases: meta.phases.clone(),
            ends_s: meta.duration_s.or(arrivals_end),
            live: record.live(),
            history: record.series().points().iter().map(Point::users).collect(),
            control: options.control.state(),
            dashboard: options.dashboard,
            asking,
        }
    }

    fn phase(&self) -> Option<&PhasePlan> {
        self.phases.iter().rfind(|phase| phase.duration_s > 0.0 && self.live.at_s >= phase.starts_s)
    }

    /// A column of the last point, per second.
    fn rate(&self, column: &str) -> f64 {
        let value = |name| self.live.point.get(name).copied().unwrap_or(0.0);
        let span_s = value("span_s");
        if span_s > 0.0 { value(column) / span_s } else { 0.0 }
    }
}

/// Changes when there is something new to show.
fn moment(options: &Options) -> (u64, bool, ControlState) {
    let record = options.record.lock().unwrap_or_else(PoisonError::into_inner);
    (record.at_ms(), record.ending().is_some(), options.control.state())
}

fn draw(options: &Options, stopped: &Receiver<()>) {
    let mut keyboard = Keyboard::open();
    let mut screen = Screen::new(io::stderr());
    let mut asked: Option<Instant> = None;
    let mut drawn = None;
    loop {
        let waited = match keyboard.as_ref().map(|keyboard| keyboard.wait(POLL_INTERVAL)) {
            // The terminal is gone.
            Some(Err(_)) => {
                keyboard = None;
                Vec::new()
            }
            Some(Ok(keys)) => keys,
            None => Vec::new(),
        };
        asked = asked.filter(|at| at.elapsed() < ASK_TIME_MAX);
        for key in waited {
            asked = press(key, &options.control, asked);
        }
        let pause = if keyboard.is_some() { Duration::ZERO } else { POLL_INTERVAL };
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let now = (moment(options), asked.is_some(), tty::size());
        if drawn == Some(now) {
            continue;
        }
        drawn = Some(now);
        let shown = Shown::of(options, asked.is_some());
        let (columns, rows) = now.2;
        let block = block::render(&shown, columns, rows.saturating_sub(1), keyboard.is_some());
        if let Err(error) = screen.draw(&block) {
            tracing::debug!(%error, "the terminal takes no more");
            break;
        }
    }
    let _ = screen.clear();
}

/// Handles a key; returns since when the question after `q` waits.
fn press(key: u8, control: &Control, asked: Option<Instant>) -> Option<Instant> {
    match key.to_ascii_lowercase() {
        b'p' => control.pause(),
        b'r' => control.resume(),
        b'+' | b'=' => control.faster(),
        b'-' | b'_' => control.slower(),
        b'q' if asked.is_some() || control.state().stopping => control.stop(),
        b'q' => return Some(Instant::now()),
        b'y' if asked.is_some() => control.stop(),
        _ => {}
    }
    None
}

fn print_lines(options: &Options, stopped: &Receiver<()>, out: &mut impl io::Write) {
    let mut log = plain::PlainLog::new(LINE_EVERY_MS);
    if let Some(address) = options.dashboard {
        let _ = writeln!(out, "dashboard on http://{address}");
    }
    loop {
        let over = stopped.recv_timeout(PLAIN_POLL_INTERVAL) != Err(RecvTimeoutError::Timeout);
        if log.is_due(moment(options)) || over {
            let lines = log.lines(&Shown::of(options, false));
            if out.write_all(lines.as_bytes()).is_err() || over {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! The progress of a run on standard error: a line every few seconds, and one for each warning and
//! command. On a terminal, the line is written over the previous one each second.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::stdio;
use rustix::termios::tcgetwinsize;
use simurgh_load_record::{Live, Metric, PhasePlan, Record, TimePoint};
use simurgh_text::format::{grouped, micros, rate};
use simurgh_text::{cut, visible};

use crate::control::{Control, ControlState};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
const TERMINAL_EVERY_MS: u64 = 1000;
/// How often a log or a pipe gets a line.
const LOG_EVERY_MS: u64 = 5000;

const COLUMNS_UNKNOWN: usize = 80;

/// Returns to the beginning of the line, and clears it.
const OVER: &str = "\r\x1b[K";

const HEADLINES: [Metric; 9] = [
    Metric::Delivery,
    Metric::Join,
    Metric::PresenceDiff,
    Metric::PresenceState,
    Metric::Push,
    Metric::Message,
    Metric::Http,
    Metric::Upgrade,
    Metric::Connect,
];

/// A view of a run; it ends when it is dropped.
#[derive(Debug)]
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts to write lines about a run. Fails if no thread can be started.
pub fn start(record: Arc<Mutex<Record>>, control: Control) -> io::Result<Progress> {
    let (stop, stopped) = channel();
    let thread = std::thread::Builder::new().name("simurgh-progress".into()).spawn(move || {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        let is_terminal = io::stderr().is_terminal() && !dumb;
        write_lines(&mut Log::new(record, control, is_terminal), &stopped, &mut io::stderr());
    })?;
    Ok(Progress { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_lines(log: &mut Log, stopped: &Receiver<()>, out: &mut impl io::Write) {
    loop {
        let over = stopped.recv_timeout(POLL_INTERVAL) != Err(RecvTimeoutError::Timeout);
        let mut text = if log.is_due() || over { log.lines(columns()) } else { String::new() };
        if over && log.is_terminal {
            text.push('\n');
        }
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() || over {
            return;
        }
    }
}

/// The width of the terminal on standard error.
fn columns() -> usize {
    match tcgetwinsize(stdio::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => COLUMNS_UNKNOWN,
    }
}

/// A run, and what was written about it.
struct Log {
    record: Arc<Mutex<Record>>,
    control: Control,
    is_terminal: bool,
    next_ms: u64,
    warned: Vec<&'static str>,
    state: ControlState,
    /// The last line on the terminal, which is written again after each event.
    line: String,
    over: bool,
}

impl Log {
    fn new(record: Arc<Mutex<Record>>, control: Control, is_terminal: bool) -> Self {
        let (warned, line, state) = (Vec::new(), String::new(), control.state());
        Self { record, control, is_terminal, next_ms: 0, warned, state, line, over: false }
    }

    fn is_due(&self) -> bool {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let at_ms = record.at_ms();
        let is_new = record.ending().is_some() || self.control.state() != self.state;
        !self.over && (is_new || (at_ms > 0 && at_ms >= self.next_ms))
    }

    /// The text to write, which may be empty.
    fn lines(&mut self, columns: usize) -> String {
        let mut events = String::new();
        if self.over {
            return events;
        }
        let (live, phase) = {
            let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            let live = record.live();
            let phase = phase(&record.meta().phases, live.at_s).map(|phase| visible(&phase.name));
            (live, phase.unwrap_or_default())
        };
        self.over = live.ending.is_some();
        for warning in &live.warnings {
            // Some have newer figures each second; they are only printed once.
            if !self.warned.contains(&warning.code) {
                self.warned.push(warning.code);
                let _ = writeln!(events, "warning: {}", visible(&warning.text));
            }
        }
        let state = self.control.state();
        if state != self.state {
            self.state = state;
            let _ = writeln!(events, "{}", told(state));
        }
        let at_ms = (live.at_s * 1000.0) as u64;
        let is_line_due = at_ms >= self.next_ms || self.over;
        if is_line_due {
            let every_ms = if self.is_terminal { TERMINAL_EVERY_MS } else { LOG_EVERY_MS };
            self.next_ms = at_ms - at_ms % every_ms + every_ms;
            self.line = line(&live, &phase);
        }
        if self.is_terminal {
            // A line that wraps could not be written over.
            return format!("{OVER}{events}{}", cut(&self.line, columns.saturating_sub(1)));
        }
        if is_line_due {
            let _ = writeln!(events, "{}", self.line);
        }
        events
    }
}

fn phase(phases: &[PhasePlan], at_s: f64) -> Option<&PhasePlan> {
    phases.iter().rfind(|phase| phase.duration_s > 0.0 && at_s >= phase.starts_s)
}

fn told(control: ControlState) -> String {
    match control {
        ControlState { stopping: true, .. } => "stopping".to_owned(),
        ControlState { paused: true, .. } => "paused: no new users".to_owned(),
        ControlState { rate, .. } => format!("arrivals at {rate} times the scenario's rate"),
    }
}

fn line(live: &Live, phase: &str) -> String {
    let value = |name: &str| live.point.get(name).copied().unwrap_or(0.0);
    let span_s = value("span_s");
    let per_s = |column| rate(if span_s > 0.0 { value(column) / span_s } else { 0.0 });
    let mut text = format!("{:>6.0} s", live.at_s);
    if !phase.is_empty() {
        let _ = write!(text, "  {phase}");
    }
    let _ = write!(
        text,
        "  users {}  connected {}  arrivals {}  requests {}  frames in {}  errors {}",
        grouped(live.users),
        grouped(live.connected),
        per_s("arrivals"),
        per_s("requests"),
        per_s("frames_in"),
        grouped(live.errors_total),
    );
    for (name, row) in headlines(live).take(2) {
        let _ = write!(text, "  {} p99 {}", visible(name), micros(row.p99 as f64));
    }
    text
}

/// Metrics of the last second, the most important first.
fn headlines(live: &Live) -> impl Iterator<Item = (&str, &TimePoint)> {
    let known = HEADLINES.iter().filter_map(|metric| live.point_times.get_key_value(metric.name()));
    let named = live.point_times.iter().filter(|(name, _)| name.starts_with("tr_"));
    known.chain(named).map(|(name, row)| (name.as_str(), row))
}

#[cfg(test)]
mod tests {
    use simurgh_load_record::{Count, Ending, ErrorKind, Meta, Names, Recorder, Warning, WorkerId};

    use super::*;

    const HOSTILE: &str = "lob\x1b[2Jby\n\u{9b}31m";

    /// A run of seven seconds, with one more user in each.
    fn log(is_terminal: bool) -> Log {
        let phase = PhasePlan { name: "ramp".into(), duration_s: 10.0, ..PhasePlan::default() };
        let names = Names { phases: vec!["ramp".into()], ..Names::default() };
        let mut worker = Recorder::new(WorkerId::default(), &names, false);
        let meta = Meta { scenario: HOSTILE.into(), phases: vec![phase], names, ..Meta::default() };
        let mut record = Record::new(meta);
        for second in 1..=7 {
            worker.user_started(0, 0, 5);
            worker.count(Count::UsersDue, 1);
            worker.count(Count::FramesInText, 1234);
            worker.time(Metric::Join, 1500);
            worker.gauges(second, second);
            if second == 3 {
                worker.error_with(ErrorKind::JoinRefused, 0, || HOSTILE.to_owned());
                worker.warn(Warning::Other { text: HOSTILE.into() });
            }
            record.merge(worker.take(0).unwrap());
            record.close_second(second * 1000);
        }
        Log::new(Arc::new(Mutex::new(record)), Control::to(drop), is_terminal)
    }

    fn finish(log: &Log) {
        log.record.lock().unwrap().finish(7500, Ending::Stopped);
    }

    #[test]
    fn log_has_a_periodic_progress_line_and_one_line_for_each_event() {
        let mut log = log(false);
        assert!(log.is_due());
        let first = log.lines(80);
        let [warning, line] = first.lines().collect::<Vec<_>>()[..] else { panic!("{first}") };
        assert!(warning.starts_with("warning: lob"), "{warning:?}");
        assert!(line.contains("7 s  ramp  users 7  connected 7  arrivals 1/s"), "{line}");
        assert!(line.contains("frames in 1,234/s  errors 1  join p99 1.5 ms"), "{line}");
        assert!(!first.contains(|c: char| c.is_control() && c != '\n'), "{first:?}");
        assert!(!log.is_due(), "nothing is new");

        log.control.pause();
        assert!(log.is_due());
        assert_eq!(log.lines(80), "paused: no new users\n");

        finish(&log);
        assert!(log.is_due());
        assert!(log.lines(80).contains("users 7"));
        assert!(!log.is_due(), "the end is told once");
        assert_eq!(log.lines(80), "");
    }

    #[test]
    fn terminal_shows_one_fitting_progress_line_below_the_events() {
        let mut log = log(true);
        let first = log.lines(40);
        let (warning, line) = first.rsplit_once('\n').unwrap();
        assert!(warning.starts_with("\r\x1b[Kwarning: lob"), "{first:?}");
        assert!(line.chars().count() == 39 && line.ends_with('…'), "{line:?}");
        log.control.rate(2.0);
        let second = log.lines(200);
        assert!(
            second.starts_with("\r\x1b[Karrivals at 2 times the scenario's rate\n     7 s  ramp")
        );
        assert!(second.ends_with("join p99 1.5 ms"), "{second:?}");
    }

    #[test]
    fn last_progress_line_is_written_when_the_view_ends() {
        for is_terminal in [false, true] {
            let (stop, stopped) = channel::<()>();
            drop(stop);
            let mut out = Vec::new();
            write_lines(&mut log(is_terminal), &stopped, &mut out);
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains("users 7") && text.ends_with('\n'), "{text:?}");
        }
    }
}

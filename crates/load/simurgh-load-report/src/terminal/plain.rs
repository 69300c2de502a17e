//! Lines for a log or a pipe: one every few seconds, and one for each warning and command.

use std::fmt::Write as _;

use simurgh_text::format::{grouped, micros, plain, rate};

use super::Shown;
use crate::control::ControlState;

#[derive(Debug)]
pub(super) struct PlainLog {
    every_ms: u64,
    next_ms: u64,
    warned: Vec<String>,
    control: Option<ControlState>,
    over: bool,
}

impl PlainLog {
    pub(super) fn new(every_ms: u64) -> Self {
        Self { every_ms, next_ms: 0, warned: Vec::new(), control: None, over: false }
    }

    pub(super) fn is_due(&self, (at_ms, over, control): (u64, bool, ControlState)) -> bool {
        let changed = self.control.is_some_and(|before| before != control);
        !self.over && (over || changed || (at_ms > 0 && at_ms >= self.next_ms))
    }

    /// The lines to write, with line ends; may be empty.
    pub(super) fn lines(&mut self, shown: &Shown) -> String {
        let mut text = String::new();
        if self.over {
            return text;
        }
        let at_ms = (shown.live.at_s * 1000.0) as u64;
        self.over = shown.live.ending.is_some();
        for warning in &shown.live.warnings {
            // Some have newer figures each second; they are only printed once.
            if !self.warned.iter().any(|told| told == warning.code) {
                self.warned.push(warning.code.to_owned());
                let _ = writeln!(text, "warning: {}", plain(&warning.text));
            }
        }
        if self.control.is_some_and(|before| before != shown.control) {
            let _ = writeln!(text, "{}", state(shown.control));
        }
        self.control = Some(shown.control);
        if at_ms >= self.next_ms || self.over {
            self.next_ms = at_ms - at_ms % self.every_ms.max(1) + self.every_ms;
            text.push_str(&line(shown));
        }
        text
    }
}

fn state(control: ControlState) -> String {
    match control {
        ControlState { stopping: true, .. } => "stopping".to_owned(),
        ControlState { paused: true, .. } => "paused: no new users".to_owned(),
        ControlState { rate, .. } => format!("arrivals at {rate} times the scenario's rate"),
    }
}

fn line(shown: &Shown) -> String {
    let live = &shown.live;
    let mut text = format!("{:>6.0} s", live.at_s);
    if let Some(phase) = shown.phase() {
        let _ = write!(text, "  {}", plain(&phase.name));
    }
    let _ = write!(
        text,
        "  users {}  connected {}  arrivals {}  requests {}  frames in {}  errors {}",
        grouped(live.users),
        grouped(live.connected),
        rate(shown.rate("arrivals")),
        rate(shown.rate("requests")),
        rate(shown.rate("frames_in")),
        grouped(live.errors_total),
    );
    for (name, row) in super::block::headlines(live).take(2) {
        let _ = write!(text, "  {} p99 {}", plain(name), micros(row.p99 as f64));
    }
    text.push('\n');
    text
}

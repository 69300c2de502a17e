//! Logs: one thread writes lines from a bounded queue to standard error. A shard cannot write them
//! itself, since descriptor 2 of its own table may be another file, and a full pipe would block it.
//! If the queue is full, lines are dropped; and of lines that a client can cause again and again,
//! only some are written.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::reload;

use crate::log_queue::{self, LogQueue};
use crate::settings::values::LogFormat;

/// The queue of log lines; dropping this writes it out.
pub(crate) struct Log {
    queue: Arc<Mutex<Option<LogQueue>>>,
    set_level: Arc<dyn Fn(LevelFilter) + Send + Sync>,
}

impl Log {
    /// Writes the queue out from another thread, which ends the process.
    pub(crate) fn finisher(&self) -> impl FnOnce() + Send + 'static {
        let queue = Arc::clone(&self.queue);
        move || finish(&queue)
    }

    /// Sets another level; an application's own setup of `tracing` keeps its own.
    pub(crate) fn level_setter(&self) -> Arc<dyn Fn(LevelFilter) + Send + Sync> {
        Arc::clone(&self.set_level)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        finish(&self.queue);
    }
}

/// With the lock, so that a second caller waits for the first.
fn finish(queue: &Mutex<Option<LogQueue>>) {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = queue.take() {
        queue.finish();
    }
}

/// Starts logging, including panics.
///
/// An application's own `tracing` setup is kept.
pub(crate) fn start(level: LevelFilter, format: LogFormat) -> Log {
    let (writer, queue) = log_queue::start(std::io::stderr());
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(!is_plain && std::io::stderr().is_terminal())
        // Such errors would be written by the shard's thread.
        .log_internal_errors(false)
        .with_writer(move || writer.clone());
    let (level, handle) = reload::Layer::new(level);
    let subscriber = tracing_subscriber::registry().with(level).with(Repeated::default());
    let is_first = match format {
        LogFormat::Text => tracing::subscriber::set_global_default(subscriber.with(lines)),
        LogFormat::Json => tracing::subscriber::set_global_default(subscriber.with(lines.json())),
    };
    if is_first.is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
    let queue = Arc::new(Mutex::new(Some(queue)));
    Log { queue, set_level: Arc::new(move |level| drop(handle.reload(level))) }
}

/// Leaves out lines of the same place in the program when there are many: a client must not fill a
/// disk. The next line of that place is preceded by their number. Debug lines are all written.
#[derive(Default)]
struct Repeated(Mutex<HashMap<Identifier, Lines>>);

struct Lines {
    since: Instant,
    count: u64,
}

impl Lines {
    const PERIOD: Duration = Duration::from_secs(10);
    /// Lines of one place in a period.
    const MAX: u64 = 50;

    /// Counts a line. Returns whether it is written, and how many were left out before it.
    fn count(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.duration_since(self.since) >= Self::PERIOD {
            left_out = self.count.saturating_sub(Self::MAX);
            *self = Self { since: now, count: 0 };
        }
        self.count += 1;
        (self.count <= Self::MAX, left_out)
    }
}

impl<S: Subscriber> Layer<S> for Repeated {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let place = event.metadata();
        if *place.level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let (is_written, left_out) = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = all.entry(place.callsite());
            lines.or_insert(Lines { since: now, count: 0 }).count(now)
        };
        if left_out > 0 {
            let (file, line) = (place.file().unwrap_or_default(), place.line().unwrap_or_default());
            tracing::warn!(left_out, file, line, "suppressed lines like the next one");
        }
        is_written
    }
}

/// Replaces the standard hook, which writes to standard error from the thread that panics.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = panic.payload_as_str().unwrap_or("a value that is not text");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // Only if RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, place, %backtrace, "panic: {message}");
    } else {
        tracing::error!(thread, place, "panic: {message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_log_lines_are_omitted_and_counted() {
        let now = Instant::now();
        let mut lines = Lines { since: now, count: 0 };
        for n in 1..=Lines::MAX {
            assert_eq!(lines.count(now), (true, 0), "{n}");
        }
        for _ in 0..1_000 {
            assert_eq!(lines.count(now + Lines::PERIOD / 2), (false, 0));
        }
        assert_eq!(lines.count(now + Lines::PERIOD), (true, 1_000));
        assert_eq!(lines.count(now + Lines::PERIOD), (true, 0));
    }
}

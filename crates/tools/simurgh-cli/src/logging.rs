//! Logs: one thread writes lines from a bounded queue to standard error. A shard cannot write them
//! itself, since descriptor 2 of its own table may be another file, and a full pipe would block it.
//! If the queue is full, lines are dropped.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use std::sync::{Arc, Mutex, PoisonError};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;

use crate::settings::values::LogFormat;

/// Queued lines, of a few hundred bytes each.
const LINES_MAX: usize = 16_384;

/// The queue of log lines; dropping this writes it out.
pub(crate) struct Log(Arc<Mutex<Option<WorkerGuard>>>);

impl Log {
    /// Writes the queue out from another thread, which ends the process.
    pub(crate) fn finisher(&self) -> impl FnOnce() + Send + 'static {
        let guard = Arc::clone(&self.0);
        move || finish(&guard)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        finish(&self.0);
    }
}

fn finish(guard: &Mutex<Option<WorkerGuard>>) {
    drop(guard.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Starts logging, including panics.
///
/// An application's own `tracing` setup is kept.
pub(crate) fn start(level: LevelFilter, format: LogFormat) -> Log {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LINES_MAX)
        .thread_name("simurgh-log")
        .finish(std::io::stderr());
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(!is_plain && std::io::stderr().is_terminal())
        // Such errors would be written by the shard's thread.
        .log_internal_errors(false)
        .with_writer(writer);
    let is_first = match format {
        LogFormat::Text => tracing::subscriber::set_global_default(subscriber.finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(subscriber.json().finish()),
    };
    if is_first.is_ok() {
        std::panic::set_hook(Box::new(log_panic));
    }
    Log(Arc::new(Mutex::new(Some(guard))))
}

/// Replaces the standard hook, which writes to standard error from the thread that panics.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = panic.payload_as_str().unwrap_or("a value that is no text");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // Only if RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, place, %backtrace, "panic: {message}");
    } else {
        tracing::error!(thread, place, "panic: {message}");
    }
}

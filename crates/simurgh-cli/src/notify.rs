//! What a service manager (systemd, `Type=notify`) is told: ready, stopping, alive. Without one,
//! which is without `NOTIFY_SOCKET`, nothing is said and nothing is needed.
//!
//! Each word is a socket that is opened, written to and closed at once, always by a thread of the
//! process's own descriptor table, never a shard's.

use std::net::SocketAddr;
use std::time::Duration;

use sd_notify::NotifyState;
use simurgh::Handle;

/// What a drain may take longer than it was given, for the manager's patience.
const MARGIN: Duration = Duration::from_secs(10);

/// All addresses are listened on.
pub(crate) fn ready(addresses: &[SocketAddr], shards: usize) {
    let addresses: Vec<String> = addresses.iter().map(|it| format!("http://{it}")).collect();
    let status = format!("listening on {}, {shards} shards", addresses.join(", "));
    say(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// A drain begins that ends `within` this time; the manager waits for so long, and a little more,
/// whatever its own patience (`TimeoutStopSec`) is.
pub(crate) fn stopping(within: Duration) {
    let patience = format!("EXTEND_TIMEOUT_USEC={}", (within + MARGIN).as_micros());
    let status = format!("draining within {}", humantime::format_duration(within));
    say(&[NotifyState::Stopping, NotifyState::Status(&status), NotifyState::Custom(&patience)]);
}

/// Says that the server lives for as long as every shard does, if the manager wants to hear it
/// (`WatchdogSec`). A shard that is held by a callback does not: then the manager ends the process
/// and starts it again.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn keep_alive(server: Handle) -> std::io::Result<()> {
    let Some(patience) = sd_notify::watchdog_enabled() else { return Ok(()) };
    // Twice in that time, as sd_watchdog_enabled(3) has it.
    let interval = (patience / 2).max(Duration::from_millis(1));
    let watch = move || {
        loop {
            let asked = server.ask_pulse();
            std::thread::sleep(interval);
            match server.silent_shard(&asked) {
                None => say(&[NotifyState::Watchdog]),
                Some(shard) => tracing::error!(
                    shard,
                    "gives no sign of life; the service manager is not told that the server lives"
                ),
            }
        }
    };
    std::thread::Builder::new()
        .name("simurgh-notify".into())
        .stack_size(128 << 10)
        .spawn(watch)
        .map(drop)
}

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told");
    }
}

//! Messages to a service manager (systemd, `Type=notify`): ready, stopping, alive. Without
//! `NOTIFY_SOCKET` nothing is sent.
//!
//! Each message opens a socket, writes to it and closes it, always on a thread with the process's
//! own descriptor table, never a shard's. Writing has a time limit, unlike in the crate
//! `sd-notify`, so that a manager that does not read cannot stop a drain.

use std::io;
use std::time::Duration;

use simurgh::Handle;

/// The time beyond the plan that a drain may take before the manager kills it.
const MARGIN: Duration = Duration::from_secs(10);

const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports that the server listens on all addresses.
pub(crate) fn ready(urls: &[String], shards: usize) {
    let addresses = urls.join(", ");
    notify(&format!("READY=1\nSTATUS=listening on {addresses}, {shards} shards\n"));
}

/// Reports a drain that ends `within` this time, and asks the manager to wait a little longer,
/// whatever its own limit (`TimeoutStopSec`).
pub(crate) fn stopping(within: Duration) {
    let timeout_us = (within + MARGIN).as_micros();
    let within = humantime::format_duration(within);
    notify(&format!(
        "STOPPING=1\nEXTEND_TIMEOUT_USEC={timeout_us}\nSTATUS=draining within {within}\n"
    ));
}

/// Reports a reload, for `Type=notify-reload`; [`reloaded`] has to follow.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={us}\n"));
}

/// Reports the end of a reload, whether or not something has changed.
pub(crate) fn reloaded() {
    notify("READY=1\n");
}

/// Reports that the process with this id is the service from now on.
pub(crate) fn main_process(pid: u32) {
    notify(&format!("MAINPID={pid}\n"));
}

/// Sends keep-alives while every shard responds, if the manager asks for them (`WatchdogSec`). A
/// shard that a callback blocks does not respond: the manager restarts the process.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn keep_alive(server: Handle) -> io::Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let Some(timeout) = watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID")) else {
        return Ok(());
    };
    // Twice in that time, as sd_watchdog_enabled(3) recommends.
    let interval = (timeout / 2).max(Duration::from_millis(1));
    let watch = move || {
        loop {
            let asked = server.ask_pulse();
            std::thread::sleep(interval);
            match server.silent_shard(&asked) {
                None => notify("WATCHDOG=1\n"),
                Some(shard) => tracing::error!(
                    shard,
                    "the shard does not respond; no keep-alive is sent to the service manager"
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

/// How long the manager waits for a keep-alive: sd_watchdog_enabled(3).
fn watchdog(timeout_us: Option<String>, pid: Option<String>) -> Option<Duration> {
    let timeout_us: u64 = timeout_us?.parse().ok()?;
    let is_meant = pid.is_none_or(|pid| pid == std::process::id().to_string());
    (is_meant && timeout_us > 0).then(|| Duration::from_micros(timeout_us))
}

fn notify(message: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&name, message) {
        tracing::warn!(%error, "cannot send to the service manager (NOTIFY_SOCKET)");
    }
}

/// A path, or after `@` an abstract name: sd_notify(3).
#[allow(
    clippy::disallowed_types,
    reason = "opened and closed by one thread of the main table, as said above"
)]
fn send(name: &std::ffi::OsStr, message: &str) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let address = match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', rest @ ..] => {
            <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(rest)?
        }
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_needs_a_valid_interval_and_the_own_process_id() {
        let text = |text: &str| Some(text.to_owned());
        let own = std::process::id();
        let minute = Some(Duration::from_secs(60));
        assert_eq!(watchdog(text("60000000"), None), minute);
        assert_eq!(watchdog(text("60000000"), text(&own.to_string())), minute);
        assert_eq!(watchdog(text("60000000"), text(&(own + 1).to_string())), None);
        for none in [None, text("0"), text("-1"), text("soon"), text("")] {
            assert_eq!(watchdog(none.clone(), None), None, "{none:?}");
        }
    }
}

//! Logs a callback that blocks its shard.
//!
//! A shard notes when it enters and leaves application code. It logs slow callbacks itself when
//! they return; this thread logs those that never return.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use simurgh_shard::server::Server;

/// How often shards are checked, and how long a callback may run before it is logged.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct Watchdog {
    _stop: Sender<()>,
}

pub(crate) fn start(server: &Arc<Server>) -> std::io::Result<Watchdog> {
    let server = Arc::downgrade(server);
    let (stop, end) = channel();
    std::thread::Builder::new()
        .name("simurgh-watchdog".into())
        .stack_size(128 << 10)
        .spawn(move || watch(&server, &end))?;
    Ok(Watchdog { _stop: stop })
}

fn watch(server: &Weak<Server>, end: &Receiver<()>) {
    let mut named = Vec::new();
    // Not a sleep: a process with a server for each of its tests would collect sleeping threads.
    while end.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
        let Some(server) = server.upgrade() else { return };
        named.resize(server.watches.len(), 0);
        for ((shard, watch), named) in server.watches.iter().enumerate().zip(&mut named) {
            let Some((callback, held, entered)) = watch.stuck(PERIOD) else { continue };
            // Once for each blocked callback, not once a second.
            if *named != entered {
                *named = entered;
                tracing::error!(
                    shard,
                    callback = callback.name(),
                    held_ms = held.as_millis() as u64,
                    "a callback still blocks its shard; its connections wait"
                );
            }
        }
    }
}

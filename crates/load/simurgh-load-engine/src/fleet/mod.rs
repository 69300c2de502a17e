//! Several hosts: one controls the run, the others are its agents.
//!
//! ```text
//!  simurgh load FILE (controller)                      simurgh load agent
//!  run: Run                                            agent: one run at a time
//!    └ Host ─ Local: WorkerPool                          └ WorkerPool
//!           └ Remote: Link ── Hello, Prepare, Command ──►    ▲
//!                          ◄── Greeting, Pong, Worker ───────┘
//! ```
//!
//! An agent runs the same engine and sends the same events as workers of the controller's own host
//! ([`wire`]); it gets the whole scenario. They use one TCP connection, opened by the controller; a
//! side that is silent for [`wire::SILENCE`] is lost to the other. A token authenticates the
//! controller, but nothing is encrypted: use a private network or a tunnel.
//!
//! All threads and sockets here are in the process's main descriptor table. Workers close the
//! descriptors that they inherit of it when they start (docs/ARCHITECTURE.md).

pub mod agent;
pub(crate) mod clock;
pub(crate) mod controller;
pub(crate) mod host;
pub(crate) mod hosts;
mod peer;
pub mod wire;

pub use agent::{Agent, serve};

/// The token that `text` means: the value of the environment variable NAME for `$NAME`, else the
/// text itself. An error says that the variable is not set or empty, to be put after the name of
/// the flag or key.
pub fn token(text: &str) -> Result<String, String> {
    let Some(name) = text.strip_prefix('$') else { return Ok(text.to_owned()) };
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => Err(format!(
            "the environment variable {name} is not set; set it to the agent's token, \
                or name another"
        )),
    }
}

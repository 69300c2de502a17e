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
//! ([`wire`]); the scenario comes to it whole. What connects them is one TCP connection, opened by
//! the controller; who of the two is silent for [`wire::SILENCE`] is lost to the other. The token
//! keeps strangers out, but nothing is encrypted: the connection belongs into a network of one's
//! own, or into a tunnel.
//!
//! All threads here live in the process's own descriptor table, and so do the sockets. Workers
//! close what they inherit of them when they start (docs/ARCHITECTURE.md).

pub mod agent;
pub(crate) mod clock;
pub(crate) mod controller;
pub(crate) mod host;
pub(crate) mod hosts;
mod peer;
pub mod wire;

pub use agent::{Agent, serve};

/// The token that `text` stands for: the value of the environment variable NAME for `$NAME`, else
/// the text itself.
///
/// # Errors
/// The variable is not set or empty, in words that follow the name of the flag or key.
pub fn token(text: &str) -> Result<String, String> {
    let Some(name) = text.strip_prefix('$') else { return Ok(text.to_owned()) };
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        _ => {
            Err(format!("the environment variable {name} holds no token; set it, or name another"))
        }
    }
}

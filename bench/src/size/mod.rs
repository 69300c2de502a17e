//! The floor at size: what millions of connections cost a server that does nothing else.
//!
//! ```text
//! bare-server   tables ──► server (epoll, accept, read, send) ──► wire (what it understands)
//! bare-pairs    pairs ──► bare-server, bare-dial (processes) ──► seconds, CPU, memory: JSON
//! ```
//!
//! The floor of `floor.rs` is one thread; a descriptor limit of 20,000 a table asks for a hundred
//! at two million. Here are as many, with as many tables, as `simurgh serve` would have.

use std::net::SocketAddrV4;

use anyhow::Result;

mod counts;
mod dial;
mod pairs;
mod server;
mod tables;
mod wire;

/// What this part of the benchmark can be told to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Task {
    /// Be the bare server.
    Serve(Serve),
    /// Measure how long bare connections take.
    Pairs(Pairs),
    /// Be the one who makes them.
    Dial(Dial),
}

/// Options of the bare server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Serve {
    /// Where it listens.
    pub(crate) listen: SocketAddrV4,
    /// Connections it must have tables for.
    pub(crate) connections: usize,
    /// After so many accepted it says so and when; 0: never.
    pub(crate) tell_at: u64,
}

/// Options of a measurement of bare connections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pairs {
    /// How many.
    pub(crate) connections: usize,
    /// How often.
    pub(crate) runs: usize,
}

/// Options of the one who makes bare connections.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dial {
    /// Where to.
    pub(crate) server: SocketAddrV4,
    /// How many.
    pub(crate) connections: usize,
}

/// Does it.
pub(crate) fn run(task: &Task) -> Result<()> {
    match task {
        Task::Serve(options) => server::serve(options),
        Task::Pairs(options) => pairs::run(options),
        Task::Dial(options) => dial::run(options),
    }
}

//! The floor at size: the cost of millions of connections to a server that does nothing else.
//!
//! ```text
//! bare-server   tables ──► server (epoll, accept, read, send) ──► wire (what it understands)
//! bare-pairs    pairs ──► bare-server, bare-dial (processes) ──► seconds, CPU, memory: JSON
//! ```
//!
//! The floor of `floor.rs` has one thread; at a descriptor limit of 20,000 per table two million
//! connections need a hundred. This one has as many threads and tables as `simurgh serve`.

use std::net::SocketAddrV4;

use anyhow::Result;
use clap::{Args, Subcommand};

use simurgh_bench_kit::flags::{at_least, number};

mod counts;
mod dial;
mod pairs;
mod server;
mod tables;
mod wire;

/// What this part of the benchmark can be told to do.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub(crate) enum Task {
    /// The floor at size: as many threads and descriptor tables as `simurgh serve` has for N;
    /// speaks enough of Channels for `simurgh load` and `simurgh road`
    #[command(name = "bare-server")]
    Serve(Serve),
    /// How long N bare connections take from nothing, and what they cost: a line of JSON for each
    /// run
    #[command(name = "bare-pairs")]
    Pairs(Pairs),
    /// Makes bare connections
    #[command(name = "bare-dial", hide = true)]
    Dial(Dial),
}

/// Options of the bare server.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct Serve {
    /// Where it listens
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: SocketAddrV4,
    /// Connections it must have tables for
    #[arg(long = "max-connections", value_name = "N", value_parser = at_least::<1>)]
    pub(crate) connections: usize,
    /// After so many accepted it prints when; 0: never
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::<u64>)]
    pub(crate) tell_at: u64,
    /// Ignored: `simurgh serve` has it
    #[arg(long)]
    pub(crate) idle_timeout: Option<String>,
    /// Ignored: `simurgh serve` has it
    #[arg(long)]
    pub(crate) check_origin: Option<String>,
}

/// Options of a measurement of bare connections.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct Pairs {
    /// How many
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    pub(crate) connections: usize,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least::<1>)]
    pub(crate) runs: usize,
}

/// Options of the process that makes bare connections.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct Dial {
    /// Where to
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) server: SocketAddrV4,
    /// How many
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    pub(crate) connections: usize,
}

pub(crate) fn run(task: &Task) -> Result<()> {
    match task {
        Task::Serve(options) => server::serve(options),
        Task::Pairs(options) => pairs::run(options),
        Task::Dial(options) => dial::run(options),
    }
}

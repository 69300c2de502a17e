//! The engine: runs a scenario.
//!
//! ```text
//! Scenario ──compile──► Program ─┐ one for each worker
//!      └──► PhaseSchedule ───────┤
//!                                ▼
//! Order (start, pause, stop) ─► Worker ◄─ reactor: sockets, clock
//!                                │ users, wheel, recorder
//!                                ▼
//!                   Word (Delta, idle, stopped) ──► run: Record, exporters, exit
//! ```
//!
//! A worker is a thread on the reactor with a descriptor table of its own; what a user does is in
//! `steps` (its way through the program), `wire` (its connection), `incoming` (frames),
//! `turns` (which server it goes to), `presence` (times of who comes and goes),
//! `longpoll` and `posts` (users without a WebSocket),
//! `losses` and `rejoin` (connections that are lost), `cuts` (those that are cut on purpose),
//! `follow` (what of all that is said has come, by `heard` and `ledger`), `positions` (what joins
//! ask for again), `requests` (HTTP), `answers` (captures and checks) and `values` (templates).

mod answers;
mod arrivals;
mod compile;
mod crew;
mod cuts;
pub mod fleet;
mod follow;
mod heard;
mod incoming;
mod ledger;
mod longpoll;
mod losses;
mod positions;
mod posts;
mod presence;
mod program;
mod rejoin;
mod requests;
mod run;
mod schedule;
mod shared;
pub mod stamp;
mod steps;
mod sweep;
mod team;
mod traffic;
mod turns;
mod upgrade;
mod user;
mod values;
mod ways;
mod wheel;
mod wire;
mod worker;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

pub use crew::Options;
pub(crate) use crew::{Crew, Part, Words};
pub use run::{Outcome, Run};
pub(crate) use worker::Word;

/// What the workers of a host are told. Times are of that host's workers' clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The run begins; what is added to the clock makes it the controller's.
    Start { at_ns: u64, clock_offset_ns: i64 },
    /// Clocks drift: this is added from now on.
    Clock { clock_offset_ns: i64 },
    /// The phase that waited for its users is followed by the next.
    NextPhase { at_ns: u64 },
    /// No arrivals from now on.
    Pause,
    /// Arrivals go on.
    Resume,
    /// So many times the scenario's rates.
    Rate(f64),
    /// As many users as others waited for have come.
    Gathered,
    /// The run is over, users and all.
    Stop,
}

/// Why a run did not begin.
#[derive(Debug)]
pub enum RunError {
    /// The scenario cannot be run.
    Scenario(String),
    /// What the system refused, and how.
    System(&'static str, io::Error),
    /// A worker did not start.
    Worker(String),
    /// Agents that cannot take part: each with its name, what is wrong and what to do.
    Agents(Vec<String>),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scenario(what) => write!(f, "the scenario cannot be run: {what}"),
            Self::System(what, error) => write!(f, "{what}: {error}"),
            Self::Worker(what) => write!(f, "a worker did not start: {what}"),
            Self::Agents(what) => f.write_str(&what.join("\n")),
        }
    }
}

impl std::error::Error for RunError {}

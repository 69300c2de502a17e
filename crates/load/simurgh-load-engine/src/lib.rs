//! The engine: runs a scenario.
//!
//! ```text
//! Scenario ──compile──► Program ─┐ one for each worker
//!      └──► PhaseSchedule ───────┤
//!                                ▼
//!     WorkerCommand (start, stop) ─► Worker ◄─ reactor: sockets, clock
//!                                │ users, wheel, recorder
//!                                ▼
//!               WorkerEvent (Delta, idle, stopped) ──► run: Record, exporters, exit
//! ```
//!
//! A worker is a thread on the reactor with a descriptor table of its own (`worker`; `pool` starts
//! all of a host, [`fleet`] joins hosts, `run` stands above). What a user does is in `steps` (its
//! way through the program), `connection` and `upgrade` (its connection), `frames` (what comes over
//! a WebSocket), `spread` (its server), `presence` (times of joins and leaves), `longpoll` and
//! `longpoll_posts` (users without a WebSocket), `reconnects` and `rejoin` (lost connections),
//! `disconnects` (connections that are cut on purpose), `deliveries` (which stamped messages came,
//! by `tracker` and `sent`), `resume` (positions in a topic's history), `heartbeats`, `requests`
//! (HTTP), `answers` (captures and checks), `values` (templates) and `dump` (Tsung's dump).

mod arrivals;
mod chance;
mod command;
mod error;
pub mod fleet;
mod pool;
mod program;
mod run;
mod schedule;
mod shared;
mod spread;
pub mod stamp;
mod time;
mod tracker;
mod user;
mod wheel;
mod worker;

pub use error::RunError;
pub use pool::Options;
pub use run::{Outcome, Run};

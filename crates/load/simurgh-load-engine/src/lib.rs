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

mod answers;
mod arrivals;
mod command;
mod compile;
mod connection;
mod deliveries;
mod disconnects;
mod dump;
mod error;
pub mod fleet;
mod frames;
mod heartbeats;
mod longpoll;
mod longpoll_posts;
mod pool;
mod presence;
mod program;
mod reachable;
mod reconnects;
mod rejoin;
mod requests;
mod resume;
mod run;
mod schedule;
mod sent;
mod shared;
mod spread;
pub mod stamp;
mod steps;
mod tracker;
mod upgrade;
mod user;
mod values;
mod wheel;
mod worker;

pub use error::RunError;
pub use pool::Options;
pub use run::{Outcome, Run};

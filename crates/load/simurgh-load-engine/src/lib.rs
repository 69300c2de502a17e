//! The engine: runs a scenario.
//!
//! ```text
//! Scenario ──compile──► Program ─┐ one for each worker
//!      └──► PhaseSchedule ───────┤
//!                                ▼
//!     WorkerCommand (start, stop) ─► Worker ◄─ reactor: sockets, clock
//!                                │  ▲ wheel, recorder
//!                                │  └─ Input ─► user ─► Outputs
//!                                ▼
//!               WorkerEvent (Delta, idle, stopped) ──► run: Record, exporters, exit
//! ```
//!
//! A worker is a thread on the reactor with its own descriptor table (`worker`; `pool` starts those
//! of a host, [`fleet`] joins hosts, `run` controls all). A user is a state machine without sockets
//! and clocks (`user`), which a worker drives. `program` has its operations, `protocol` translates
//! its messages for servers other than Phoenix, `spread` chooses its server, and `wheel` has its
//! timer. `tracker` and `shared` record the stamped messages that it received, and the times of
//! presence changes. `arrivals` and `schedule` determine when users arrive, with random numbers of
//! `chance`, which follow from the run's seed.

mod arrivals;
mod chance;
mod command;
mod error;
pub mod fleet;
mod pool;
mod program;
mod protocol;
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

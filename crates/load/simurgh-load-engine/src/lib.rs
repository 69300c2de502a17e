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
//! A worker is a thread on the reactor with a descriptor table of its own (`worker`; `pool` starts
//! all of a host, [`fleet`] joins hosts, `run` stands above). What a user does is a machine without
//! sockets and clocks (`user`), which a worker drives: `program` has the operations that it runs,
//! `spread` the choice of its server, `wheel` its timer, `tracker` and `shared` which stamped
//! messages of others it has got, and since when presences are so. `arrivals` and `schedule` say
//! who comes when, by `chance`, which follows from the run's seed.

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

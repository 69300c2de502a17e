//! The engine: runs a scenario.
//!
//! ```text
//! Scenario ──compile──► Program ─┐ one for each worker
//!      └──► PhaseSchedule ───────┤
//!                                ▼
//!  Mail (start, pause, stop) ─► Worker ◄─ reactor: sockets, clock
//!                                │ users, wheel, recorder
//!                                ▼
//!                   Word (Delta, idle, stopped) ──► run: Record, exporters, exit
//! ```
//!
//! A worker is a thread on the reactor with a descriptor table of its own; what a user does is in
//! `steps` (its way through the program), `wire` (its connection), `incoming` (frames),
//! `requests` (HTTP), `answers` (captures and checks) and `values` (templates).

mod answers;
mod arrivals;
mod compile;
mod incoming;
mod losses;
mod program;
mod requests;
mod schedule;
mod shared;
mod sources;
mod steps;
mod sweep;
mod user;
mod values;
mod wheel;
mod wire;
mod worker;

//! An HTTP benchmark: one request again and again, on kept connections.
//!
//! ```text
//! Plan ──Job::new──► Job ─┐ the request's bytes, the address, TLS: made once
//!                         ▼
//! WorkerCommand (start, stop) ─► Worker ◄─ reactor: sockets, clock
//!                         │ links, pace, tally
//!                         ▼
//!       WorkerEvent (opened, done) ──► Runner ─► Outcome ─► text, JSON, Sweep ─► table, page
//! ```
//!
//! *Closed loop*, as wrk: each connection sends its next request as soon as its answer has come.
//! *Open loop* (a rate), as wrk2: requests are due at fixed times, and their latency counts from
//! then. So a stalling server does not get fewer requests.
//!
//! Each worker is a thread with its own reactor and histograms, which are added at the end. All
//! connections are opened before the clock starts, so this does not affect the figures.

mod job;
mod link;
mod message;
mod outcome;
mod pace;
mod page;
mod run;
mod sweep;
mod tally;
mod text;
mod wire;
mod worker;

pub use job::{Job, Plan};
pub use outcome::{OpenLoop, Outcome, SocketErrors, Spread};
pub use run::{BenchmarkError, Runner};
pub use sweep::{Prediction, Row, Sweep};
pub use text::{chart, head, outcome as text, prediction, sweep as table};

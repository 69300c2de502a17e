//! An HTTP benchmark: one request again and again, on connections that are kept.
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
//! *Closed loop*, as wrk: each connection sends its next request as soon as its answer is there.
//! *Open loop* (a rate), as wrk2: requests are due at fixed times whatever the server does, and
//! their latency counts from then, so that a server that stalls does not thereby get fewer of them.
//!
//! Each worker is a thread with a reactor and histograms of its own; they are added up at the end.
//! All connections are opened before the clock starts, so no figure holds how that went.

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

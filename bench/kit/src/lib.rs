//! The common base of all measurements of the benchmark: processes and their CPU and memory,
//! thousands of sockets with the clients behind them, rounds, medians, tables, and the raw files.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it must not rest on the reactor it measures, so it has no shards"
)]

pub mod clients;
pub mod flags;
pub mod flood;
pub mod frames;
pub mod machine;
pub mod net;
pub mod probe;
pub mod process;
pub mod report;
pub mod rounds;
pub mod stats;
pub mod sys;
pub mod target;
pub mod wait;

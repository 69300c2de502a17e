//! The load generator behind `simurgh load`: scenarios and Tsung's own files, virtual users, what
//! was measured, reports and a dashboard. It knows nothing of the server.
//!
//! [`scenario`] is the one form of a run; [`toml`] and [`tsung`] read it, [`engine`] runs it,
//! [`record`] measures, [`report`] writes, [`dashboard`] and [`terminal`] show, [`fleet`] spans
//! hosts. [`meter`] asks servers what they take. [`benchmark`] sends one HTTP request again and
//! again.

pub mod answer;
pub mod benchmark;
pub mod control;
pub mod dashboard;
pub mod engine;
pub mod fleet;
pub mod http;
pub mod meter;
pub mod record;
pub mod report;
pub mod scenario;
pub mod stamp;
pub mod terminal;
pub mod tls;
pub mod toml;
pub mod tsung;

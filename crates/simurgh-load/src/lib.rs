//! The load generator.

pub mod answer;
pub mod benchmark;
pub mod control;
pub mod dashboard;
pub mod engine;
pub mod fleet;
pub mod http;
pub mod record;
pub mod report;
pub mod scenario;
pub mod stamp;
pub mod terminal;
pub mod tls;
pub mod toml;
pub mod tsung;

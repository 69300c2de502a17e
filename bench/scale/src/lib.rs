//! The plan for a hundred million clients: how many machines a load takes, by measured prices, and
//! which assumption breaks first.
//!
//! [`plan`] computes from `prices.toml` and `loads.toml`, [`simulate`] simulates what can be
//! simulated, [`tables`] shows the results, and [`document`] puts them into docs/SCALE.md.

pub mod args;
pub mod document;
pub mod figures;
pub mod load;
pub mod plan;
pub mod prices;
pub mod simulate;
pub mod tables;

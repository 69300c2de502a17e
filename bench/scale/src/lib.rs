//! The plan for a hundred million clients: how many machines a load takes, by measured prices, and
//! which assumption of that breaks first.
//!
//! `prices.toml` and `loads.toml` go through [`plan`], which works out, and [`simulate`], which
//! simulates what can be; [`tables`] shows it, and [`document`] puts it into docs/SCALE.md.

pub mod args;
pub mod document;
pub mod figures;
pub mod load;
pub mod plan;
pub mod prices;
pub mod simulate;
pub mod tables;

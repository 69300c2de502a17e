//! One node whose topics are kept (docs/HISTORY.md): clients leave, drop and come back, and have
//! got everything once, in the order in which it was stored, or a gap.
//!
//! The [`model`](crate::model) of the other simulation expects a broadcast as soon as a shard takes
//! it, and what a callback does at once. Where broadcasts are kept neither is so, hence the
//! [`ledger`] of its own.

mod app;
mod client;
mod ledger;
mod plan;
mod rest;
mod restart;
mod resume;
mod simulation;
#[cfg(test)]
mod tests;

pub(crate) use self::plan::Plan;
pub(crate) use self::simulation::HistorySimulation;

//! One node whose topics are kept (docs/HISTORY.md): clients leave, lose their connection and
//! reconnect, and have received everything once, in the order in which it was stored, or a gap.
//!
//! The [`model`](crate::model) of the other simulation expects a broadcast as soon as a shard takes
//! it, and the effects of a callback at once. Neither holds where broadcasts are kept, so this
//! simulation has its own [`ledger`].

mod app;
mod client;
mod ledger;
mod plan;
mod rest;
mod restart;
mod resume;
mod simulation;

pub(crate) use self::plan::Plan;
pub(crate) use self::simulation::HistorySimulation;

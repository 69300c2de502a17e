//! Counters: of each shard ([`ShardMetrics`]), and of the whole process.

pub(crate) mod process;
mod reactor;

pub(crate) use reactor::REACTOR_METRICS;
pub use simurgh_core::metrics::{Counter, Described, HISTOGRAM_BOUNDS_NS, Histogram, ShardMetrics};

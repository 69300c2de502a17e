//! What is counted: by each shard ([`ShardMetrics`]), and of the whole process.

pub(crate) mod process;

pub use simurgh_core::metrics::{Counter, Described, HISTOGRAM_BOUNDS_NS, Histogram, ShardMetrics};

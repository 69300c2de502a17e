//! Counters: of each shard ([`ShardMetrics`]), and of the whole process.

pub(crate) mod process;
mod reactor;

use std::fmt::Write;

pub(crate) use reactor::{REACTOR_METRICS, TLS_METRICS};
pub use simurgh_core::metrics::{Counter, Described, HISTOGRAM_BOUNDS_NS, Histogram, ShardMetrics};

/// Begins a family of metrics in Prometheus' text format.
pub(crate) fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", help.trim());
}

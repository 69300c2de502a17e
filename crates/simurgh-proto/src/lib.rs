//! simurgh-proto

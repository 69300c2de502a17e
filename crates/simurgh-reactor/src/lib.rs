//! simurgh-reactor

//! simurgh

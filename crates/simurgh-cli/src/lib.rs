//! simurgh-cli

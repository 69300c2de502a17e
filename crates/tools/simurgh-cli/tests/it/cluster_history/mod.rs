//! Faults of several `simurgh serve` whose topics have histories, on a real engine: engines that
//! are killed, restored from a copy, emptied, full or unsuitable, killed nodes, and lost messages.
//!
//! They need a nats-server (`cargo xtask engine`), and some of them root, so `cargo test` ignores
//! them; `-- --include-ignored` runs them. After each fault, messages that were answered `ok` are
//! in the history of every node, others at most once, and members receive all messages once and in
//! the same order, or a notice of a gap.

mod api;
mod back_end;
mod confirmed;
mod disk;
mod epochs;
mod lost;
mod member;
mod node_faults;
mod operator;
mod permissions;
mod refusals;

//! Faults of three `simurgh serve` on a real engine: killed, frozen and restarted engines and
//! nodes, wrong clocks, other clusters on the same engine, hostile envelopes, and network failures.
//!
//! They need a nats-server (`cargo xtask engine`), and some of them root, so `cargo test` ignores
//! them; `-- --include-ignored` runs them. After each fault, messages of a publisher are received
//! in order and at most once, missing ones are counted as lost, and all members have the same
//! presences.

mod client;
mod clocks;
mod engine_faults;
mod hostile;
mod neighbours;
mod network;
mod node_faults;
mod room;

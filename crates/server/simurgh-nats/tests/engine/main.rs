//! The adapter against a real nats-server from `cargo xtask engine`. `cargo test` ignores tests
//! that need it; `-- --include-ignored` runs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod contract;
mod credentials;
mod encryption;
mod kept;
mod links;
mod log;
mod permissions;
mod streams;
mod support;

//! The adapter against a real nats-server from `cargo xtask engine`. Without one the tests print so
//! and pass; in CI they fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod contract;
mod credentials;
mod encryption;
mod kept;
mod links;
mod permissions;
mod replicas;
mod streams;
mod support;

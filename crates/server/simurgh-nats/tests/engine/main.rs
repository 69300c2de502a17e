//! The adapter against a real nats-server: `cargo xtask engine` brings it. Where there is none the
//! tests say so and do nothing; in CI they fail.
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

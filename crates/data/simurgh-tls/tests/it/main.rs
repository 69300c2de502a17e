//! Tests of this crate with stock rustls on the other side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod differential;
mod fuzz_corpus;
mod handshake;
mod hostile;
mod stock;
mod support;

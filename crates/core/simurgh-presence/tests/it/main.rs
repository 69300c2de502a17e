//! Tests of tables on one node and on several.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fuzz_corpus;
mod linear;
mod properties;
#[allow(dead_code, reason = "the example uses a part of it")]
mod support;

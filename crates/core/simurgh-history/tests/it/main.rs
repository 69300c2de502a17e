//! Tests of rings and topics with what they keep.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fuzz_corpus;
mod model;
mod properties;

//! Tests of tokens: vectors of others, refusals, and the corpus.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fuzz_corpus;
mod inspect;
mod jwt;
mod phoenix;

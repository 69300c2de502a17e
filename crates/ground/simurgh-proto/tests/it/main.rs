//! Tests of the wire's bytes: vectors, properties, and comparisons with other implementations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod frames;
mod fuzz_corpus;
mod serializer_properties;
mod serializer_vectors;
mod supabase_vectors;
mod ws_differential;
mod ws_properties;
mod ws_vectors;

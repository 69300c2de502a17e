//! The bodies of the fuzz targets, apart from libFuzzer.
//!
//! `crates/ground/simurgh-proto/tests/it/fuzz_corpus.rs` includes this file too and runs every body
//! over the committed corpus, so an added finding stays tested without a nightly compiler. Each
//! body asserts something about its input beyond not panicking. The load generator's bodies are in
//! `load/`, which its own tests include.
pub mod deflate;
pub mod handshake;
pub mod origin;
pub mod params;
pub mod serializer;
pub mod serializer_v1;
pub mod serializer_v2;
pub mod session;
pub mod topic;
pub mod ws_codec;

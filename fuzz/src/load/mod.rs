//! Bodies of the targets for the load generator.
//!
//! They are separate from the others, because `simurgh-proto`'s tests include those and do not
//! depend on the load generator; `crates/load/simurgh-load/tests/it/fuzz_corpus.rs` includes these.
pub mod find;
pub mod http_response;
pub mod scenario;
pub mod tsung_xml;

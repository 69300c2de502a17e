//! Bodies of the targets for tokens, apart from the others, whose tests do not depend on tokens;
//! `crates/server/simurgh-token/tests/fuzz_corpus.rs` includes these.
pub mod etf;
pub mod tokens;

//! Bodies of the targets that try tokens, apart from the others, because their tests know nothing
//! of tokens; `crates/server/simurgh-token/tests/fuzz_corpus.rs` includes these.
pub mod etf;
pub mod tokens;

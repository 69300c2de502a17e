//! Bodies of the targets for tokens, separate because the tests of the others do not depend on
//! tokens; `crates/server/simurgh-token/tests/it/fuzz_corpus.rs` includes these.
pub mod etf;
pub mod tokens;

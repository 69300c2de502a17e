//! Runs the body of the fuzz target over its committed corpus, as a plain test.
#![allow(unreachable_pub, reason = "the body belongs to the fuzz target")]

#[path = "../../../../../fuzz/src/tls/handshake.rs"]
mod body;
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

use corpus::run;

#[test]
fn handshake_corpus_passes() {
    run("tls_handshake", body::run);
}

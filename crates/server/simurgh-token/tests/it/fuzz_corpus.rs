//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/token/mod.rs"]
mod bodies;
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

use corpus::run;

#[test]
fn etf_corpus_passes() {
    run("etf", bodies::etf::run);
}

#[test]
fn tokens_corpus_passes() {
    run("tokens", bodies::tokens::run);
}

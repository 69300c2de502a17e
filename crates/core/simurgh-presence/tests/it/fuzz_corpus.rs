//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/src/presence/meta.rs"]
mod meta;

use corpus::run;

#[test]
fn presence_meta_corpus_passes() {
    run("presence_meta", meta::run);
}

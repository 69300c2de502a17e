//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/src/cluster/envelope.rs"]
mod envelope;
#[path = "../../../../../fuzz/src/cluster/notices.rs"]
mod notices;

use corpus::run;

#[test]
fn cluster_envelope_corpus_passes() {
    run("cluster_envelope", envelope::run);
}

#[test]
fn notices_corpus_passes() {
    run("notices", notices::run);
}

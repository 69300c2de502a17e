//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/src/cluster/envelope.rs"]
mod envelope;

use corpus::run;

#[test]
fn cluster_envelope_corpus_passes() {
    run("cluster_envelope", envelope::run);
}

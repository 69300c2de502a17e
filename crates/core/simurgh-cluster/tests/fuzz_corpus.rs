//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/src/cluster/envelope.rs"]
pub mod envelope;

use corpus::run;

#[test]
fn cluster_envelope() {
    run("cluster_envelope", envelope::run);
}

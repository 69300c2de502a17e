//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/src/presence/meta.rs"]
pub mod meta;

use corpus::run;

#[test]
fn presence_meta() {
    run("presence_meta", meta::run);
}

//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../../../fuzz/src/token/mod.rs"]
pub mod bodies;
#[path = "../../../../fuzz/src/corpus.rs"]
mod corpus;

use corpus::run;

#[test]
fn etf() {
    run("etf", bodies::etf::run);
}

#[test]
fn tokens() {
    run("tokens", bodies::tokens::run);
}

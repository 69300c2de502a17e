//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.

#[allow(unreachable_pub, reason = "the fuzzer has these modules too")]
#[path = "../../../../../fuzz/src/load/mod.rs"]
mod bodies;
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

use corpus::run;

#[test]
fn find_corpus_passes() {
    run("find", bodies::find::run);
}

#[test]
fn http_response_corpus_passes() {
    run("http_response", bodies::http_response::run);
}

#[test]
fn tsung_xml_corpus_passes() {
    run("tsung_xml", bodies::tsung_xml::run);
}

#[test]
fn scenario_corpus_passes() {
    run("scenario", bodies::scenario::run);
}

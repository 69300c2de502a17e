//! Runs the bodies of the fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/lib.rs"]
mod bodies;
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

use corpus::run;

#[test]
fn ws_codec_corpus_passes() {
    run("ws_codec", bodies::ws_codec::run);
}

#[test]
fn deflate_corpus_passes() {
    run("deflate", bodies::deflate::run);
}

#[test]
fn handshake_corpus_passes() {
    run("handshake", bodies::handshake::run);
}

#[test]
fn serializer_v1_corpus_passes() {
    run("serializer_v1", bodies::serializer_v1::run);
}

#[test]
fn serializer_v2_corpus_passes() {
    run("serializer_v2", bodies::serializer_v2::run);
}

#[test]
fn params_corpus_passes() {
    run("params", bodies::params::run);
}

#[test]
fn origin_corpus_passes() {
    run("origin", bodies::origin::run);
}

#[test]
fn topic_corpus_passes() {
    run("topic", bodies::topic::run);
}

#[test]
fn session_corpus_passes() {
    run("session", bodies::session::run);
}

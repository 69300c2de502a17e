//! Runs the bodies of the fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/lib.rs"]
mod bodies;
#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

use corpus::run;

#[test]
fn ws_codec() {
    run("ws_codec", bodies::ws_codec::run);
}

#[test]
fn handshake() {
    run("handshake", bodies::handshake::run);
}

#[test]
fn serializer_v1() {
    run("serializer_v1", bodies::serializer_v1::run);
}

#[test]
fn serializer_v2() {
    run("serializer_v2", bodies::serializer_v2::run);
}

#[test]
fn params() {
    run("params", bodies::params::run);
}

#[test]
fn origin() {
    run("origin", bodies::origin::run);
}

#[test]
fn topic() {
    run("topic", bodies::topic::run);
}

#[test]
fn session() {
    run("session", bodies::session::run);
}

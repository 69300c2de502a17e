//! Runs the bodies of the fuzz targets over their committed corpus, as plain tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/lib.rs"]
pub mod bodies;

/// Runs `body` over every file of one corpus; a corpus that went missing is a failure.
fn run(target: &str, body: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{target} has a corpus");
    for file in files {
        println!("{}", file.display());
        body(&fs::read(&file).unwrap());
    }
}

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

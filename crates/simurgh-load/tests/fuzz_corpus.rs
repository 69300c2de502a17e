//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/load/mod.rs"]
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
fn find() {
    run("find", bodies::find::run);
}

#[test]
fn http_response() {
    run("http_response", bodies::http_response::run);
}

#[test]
fn tsung_xml() {
    run("tsung_xml", bodies::tsung_xml::run);
}

#[test]
fn scenario() {
    run("scenario", bodies::scenario::run);
}

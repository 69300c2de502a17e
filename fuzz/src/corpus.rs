//! Runs the body of a target over its committed corpus, for the tests of the crates.

use std::fs;
use std::path::Path;

/// Runs `body` over every file of one corpus. A missing corpus is a failure.
pub(super) fn run(target: &str, body: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{target} has a corpus");
    for file in files {
        println!("{}", file.display());
        body(&fs::read(&file).unwrap());
    }
}

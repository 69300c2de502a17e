//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(unreachable_pub, reason = "the bodies belong to the fuzz targets")]

#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../../fuzz/src/history/resume.rs"]
mod resume;
#[path = "../../../../../fuzz/src/history/save.rs"]
mod save;

use corpus::run;

#[test]
fn history_resume_corpus_passes() {
    run("history_resume", resume::run);
}

#[test]
fn history_save_corpus_passes() {
    run("history_save", save::run);
}

//! Runs the bodies of this crate's fuzz targets over their committed corpus, as plain tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/src/history/resume.rs"]
pub mod resume;
#[path = "../../../../fuzz/src/history/save.rs"]
pub mod save;

use corpus::run;

#[test]
fn history_resume() {
    run("history_resume", resume::run);
}

#[test]
fn history_save() {
    run("history_save", save::run);
}

//! The fuzzers' initial inputs, and the finds that are kept.
//!
//! `fuzz/corpus/<target>` is committed: inputs named after what they show, finds, and inputs that
//! only reach further code. The corpus that grows is below `fuzz/target`.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::Task;

use super::build::Programs;

/// Committed inputs of one target at most: the tests run through all of them.
#[cfg(test)]
pub(super) const INPUTS_MAX: usize = 200;
/// Bytes of one input.
const BYTES_MAX: u64 = 4096;
const MERGE_MINUTES_MAX: u64 = 15;

pub(super) fn kept(target: &str) -> PathBuf {
    super::directory().join("corpus").join(target)
}

pub(super) fn working(target: &str) -> PathBuf {
    super::directory().join("target/corpus").join(target)
}

/// The files of a directory, in order of name.
#[cfg(test)]
pub(super) fn inputs(directory: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Adds to the committed corpus inputs that reach new edges; libFuzzer names them by their hash.
pub(super) fn merge(programs: &Programs, target: &str) -> Result<()> {
    let mut arguments = vec!["-set_cover_merge=1".to_owned(), format!("-max_len={BYTES_MAX}")];
    // Edges only: counts of each edge would keep ten times as many.
    arguments.extend(["-use_counters=0".to_owned(), "-use_cmp=0".to_owned()]);
    arguments.extend([kept(target), working(target)].map(|path| path.display().to_string()));
    let done = Task::new(&programs.path(target), &arguments, MERGE_MINUTES_MAX).quiet().run();
    done.or_fail(format_args!("{target} is not merged")).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn committed_inputs_are_small() {
        let all = fs::read_dir(super::super::directory().join("corpus")).unwrap();
        for input in all.flat_map(|target| inputs(&target.unwrap().path())) {
            // Three files were written by hand as whole examples.
            let bytes = fs::metadata(&input).unwrap().len();
            assert!(bytes <= 2 * BYTES_MAX, "{}: {bytes} bytes", input.display());
        }
    }
}

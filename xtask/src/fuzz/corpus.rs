//! The fuzzers' initial inputs, and the finds that are kept.
//!
//! `fuzz/corpus/<target>` is committed: inputs named after what they show, finds, and, within
//! bounds, inputs that only reach further code. The corpus that grows is below `fuzz/target`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::Task;

use super::build::Programs;

/// Committed inputs of one target: the tests run through all of them.
pub(super) const INPUTS_MAX: usize = 200;
/// Bytes of one input.
const BYTES_MAX: u64 = 4096;
/// The prefix of inputs without a descriptive name.
const UNNAMED: &str = "reaches_";
const MERGE_MINUTES_MAX: u64 = 15;

pub(super) fn kept(target: &str) -> PathBuf {
    super::directory().join("corpus").join(target)
}

pub(super) fn working(target: &str) -> PathBuf {
    super::directory().join("target/corpus").join(target)
}

pub(super) fn artifacts(target: &str) -> PathBuf {
    super::directory().join("artifacts").join(target)
}

/// The files of a directory, in order of name.
pub(super) fn inputs(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// A name for a find, from its kind and message, until it is renamed by hand.
pub(super) fn name_of_find(artifact: &Path, said: &str) -> String {
    const WORDS_MAX: usize = 6;
    let file = artifact.file_name().unwrap_or_default().to_string_lossy();
    let (kind, hash) = file.split_once('-').unwrap_or(("find", &file));
    let said = said.to_ascii_lowercase();
    let words = said.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.filter(|word| word.len() < 16).take(WORDS_MAX).collect();
    let hash: String = hash.chars().take(6).collect();
    format!("{kind}_{}_{hash}", words.join("_"))
}

pub(super) fn keep(target: &str, name: &str, input: &Path) -> Result<PathBuf> {
    let path = kept(target).join(name);
    fs::copy(input, &path).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Adds to the committed corpus inputs that reach new edges, the smallest first, as long as there
/// is room. Inputs without a descriptive name are chosen again.
pub(super) fn merge(programs: &Programs, target: &str) -> Result<()> {
    let (kept, chosen) = (kept(target), working(target).with_extension("merged"));
    let _ = fs::remove_dir_all(&chosen);
    fs::create_dir_all(&chosen).with_context(|| chosen.display().to_string())?;
    let is_named = |path: &PathBuf| {
        !path.file_name().unwrap_or_default().to_string_lossy().starts_with(UNNAMED)
    };
    let (named, unnamed): (Vec<PathBuf>, Vec<PathBuf>) =
        inputs(&kept).into_iter().partition(is_named);
    for path in &named {
        let copy = chosen.join(path.file_name().unwrap_or_default());
        fs::copy(path, &copy).with_context(|| copy.display().to_string())?;
    }
    let before: HashSet<OsString> = names(&chosen);
    let grown = copy_of_working(target).with_context(|| format!("the corpus of {target}"))?;
    let directories = [&chosen, &kept, &grown].map(|path| path.display().to_string());
    let mut arguments = vec!["-set_cover_merge=1".to_owned(), format!("-max_len={BYTES_MAX}")];
    // Edges only: counts of each edge would keep ten times as many.
    arguments.extend(["-use_counters=0".to_owned(), "-use_cmp=0".to_owned()]);
    arguments.extend(directories);
    let done = Task::new(&programs.path(target), &arguments, MERGE_MINUTES_MAX).quiet().run();
    done.or_fail(format_args!("{target} is not merged"))?;
    let is_new = |path: &PathBuf| path.file_name().is_some_and(|name| !before.contains(name));
    let size = |path: &PathBuf| fs::metadata(path).map_or(u64::MAX, |meta| meta.len());
    let mut new: Vec<PathBuf> = inputs(&chosen).into_iter().filter(is_new).collect();
    new.retain(|path| size(path) <= BYTES_MAX);
    new.sort_by_key(size);
    new.truncate(INPUTS_MAX.saturating_sub(named.len()));
    for path in unnamed {
        fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    for path in &new {
        let hash = path.file_name().unwrap_or_default().to_string_lossy();
        let hash = hash.strip_prefix(UNNAMED).unwrap_or(&hash);
        let copy = kept.join(format!("{UNNAMED}{}", hash.get(..12).unwrap_or(hash)));
        fs::copy(path, &copy).with_context(|| copy.display().to_string())?;
    }
    println!("{target}: {} inputs with a name, {} that reach further", named.len(), new.len());
    [chosen, grown].iter().try_for_each(fs::remove_dir_all).context("what was merged")
}

/// A running fuzzer replaces inputs by smaller ones, so they are copied.
fn copy_of_working(target: &str) -> std::io::Result<PathBuf> {
    let copy = working(target).with_extension("copy");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy)?;
    for path in inputs(&working(target)) {
        // A removed input has a smaller one in its place.
        let _ = fs::copy(&path, copy.join(path.file_name().unwrap_or_default()));
    }
    Ok(copy)
}

fn names(directory: &Path) -> HashSet<OsString> {
    inputs(directory).iter().filter_map(|path| Some(path.file_name()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_find_is_named_after_what_was_said() {
        let artifact = Path::new("fuzz/artifacts/find/crash-0a1b2c3d4e5f");
        let name = name_of_find(artifact, "assertion `left == right` failed: the same each time");
        assert_eq!(name, "crash_assertion_left_right_failed_the_same_0a1b2c");
        assert_eq!(
            name_of_find(Path::new("timeout-ff"), "libFuzzer: timeout after 6 seconds"),
            "timeout_libfuzzer_timeout_after_6_seconds_ff"
        );
    }

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

//! Writes settings of the system, and restores them.
//!
//! The old values are on disk before anything is changed. A value that the kernel refuses or rounds
//! is reported, and the others are written. At the end the undo file is rewritten with the actual
//! changes, so that later changes by others are recognised.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::machine::{SYSCTLS, numbers, read_text, sysctl_path};
use super::needs::{Change, plain};

/// The outcome for one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub(crate) name: String,
    pub(crate) before: Vec<u64>,
    pub(crate) after: Vec<u64>,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written,
    AlreadyThere,
    /// Why: the system refused it or set another value.
    Refused(String),
    /// Another program has changed it since, to this value.
    ChangedSince(String),
}

/// The outcome for all settings of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Each setting, in the order in which they were written.
    pub steps: Vec<Step>,
    /// Whether there is an undo file now.
    pub undo_file_is_there: bool,
    /// The settings are as in `steps`, but the undo file could not be updated.
    pub(crate) warning: Option<String>,
}

impl Step {
    /// Whether the setting is as it should be.
    pub fn is_done(&self) -> bool {
        matches!(self.outcome, Outcome::Written | Outcome::AlreadyThere)
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, before, after, outcome } = self;
        let (before, after) = (plain(before), plain(after));
        match outcome {
            Outcome::Written => write!(f, "{name} {before} → {after}"),
            Outcome::AlreadyThere => write!(f, "{name} is already {after}"),
            Outcome::Refused(why) => write!(f, "{name} stays {before}, not {after}: {why}"),
            Outcome::ChangedSince(now) => {
                write!(f, "{name} was not restored: --apply set {before}, and it is {now} now")
            }
        }
    }
}

/// The undo file, in its only version.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Undo {
    simurgh_tune_undo: u32,
    changes: Vec<Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    before: Vec<u64>,
    after: Vec<u64>,
}

const VERSION: u32 = 1;

/// Writes `changes` below `root`, which is `/` except in tests, and the old values to `undo_file`;
/// replaces an existing one only if `overwrite`. Without changes no file is written.
///
/// # Errors
/// The undo file cannot be written; nothing is changed then.
pub fn apply(
    root: &Path,
    changes: &[Change],
    undo_file: &Path,
    overwrite: bool,
) -> Result<Done, String> {
    if changes.is_empty() {
        return Ok(Done::default());
    }
    let planned = changes.iter().map(|change| Entry {
        name: change.name.to_owned(),
        before: change.before.clone(),
        after: change.after.clone(),
    });
    let planned: Vec<Entry> = planned.collect();
    create(undo_file, &planned, overwrite)?;
    let mut steps = Vec::new();
    let mut done = Vec::new();
    for entry in planned {
        let Entry { name, before, after } = entry;
        let (outcome, now) = match current(root, &name, before.len()) {
            // Writing could lower a value that another program has raised meanwhile.
            Ok(now) if now != before => {
                let why =
                    format!("another program set it to {} meanwhile; run tune again", plain(&now));
                steps.push(Step { name, before, after, outcome: Outcome::Refused(why) });
                continue;
            }
            _ => write(root, &name, &before, &after),
        };
        if now != before {
            // The kernel may have rounded it; an undo compares with the value it set.
            done.push(Entry { name: name.clone(), before: before.clone(), after: now });
        }
        steps.push(Step { name, before, after, outcome });
    }
    Ok(Done::settle(steps, undo_file, &done))
}

/// Restores the values of `undo_file` that were not changed since, the last change first. The file
/// is removed when all are restored, else it keeps the rest.
///
/// # Errors
/// The file cannot be read, or is not an undo file.
pub fn undo(root: &Path, undo_file: &Path) -> Result<Done, String> {
    let undo = load(undo_file)?;
    let (mut steps, mut left) = (Vec::new(), Vec::new());
    for entry in undo.changes.into_iter().rev() {
        let step = put_back(root, &entry);
        if !step.is_done() {
            left.push(entry);
        }
        steps.push(step);
    }
    left.reverse();
    Ok(Done::settle(steps, undo_file, &left))
}

impl Done {
    /// Leaves an undo file with these entries, or none if there are none.
    fn settle(steps: Vec<Step>, path: &Path, entries: &[Entry]) -> Self {
        let settled = match entries {
            [] => std::fs::remove_file(path)
                .map_err(|error| format!("cannot remove {}: {error}", path.display())),
            _ => replace(path, entries),
        };
        Self { steps, undo_file_is_there: path.exists(), warning: settled.err() }
    }
}

fn put_back(root: &Path, entry: &Entry) -> Step {
    let Entry { name, before, after } = entry;
    // For an undo, the value that `apply` set is the one before.
    let step = |outcome| Step {
        name: name.clone(),
        before: after.clone(),
        after: before.clone(),
        outcome,
    };
    match current(root, name, after.len()) {
        Err(why) => step(Outcome::Refused(why)),
        Ok(now) if now == *before => step(Outcome::AlreadyThere),
        Ok(now) if now != *after => step(Outcome::ChangedSince(plain(&now))),
        Ok(_) => step(write(root, name, after, before).0),
    }
}

/// Writes one setting and returns the outcome and the value read back.
fn write(root: &Path, name: &str, before: &[u64], after: &[u64]) -> (Outcome, Vec<u64>) {
    let path = sysctl_path(root, name);
    let text = format!("{}\n", plain(after));
    let written = OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    let now = current(root, name, after.len());
    match (written, now) {
        (_, Ok(now)) if now == after => (Outcome::Written, now),
        (Err(error), now) => {
            (Outcome::Refused(refusal(&path, &error)), now.unwrap_or_else(|_| before.to_vec()))
        }
        (Ok(()), Ok(now)) if now == before => {
            let why = "the kernel accepted the value but did not change it".to_owned();
            (Outcome::Refused(why), now)
        }
        (Ok(()), Ok(now)) => {
            (Outcome::Refused(format!("the kernel set {} instead", plain(&now))), now)
        }
        // It may have changed, so the undo file has to name it.
        (Ok(()), Err(why)) => (Outcome::Refused(why), after.to_vec()),
    }
}

fn refusal(path: &Path, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let help = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => " (in a container it is the host that sets it)",
        ErrorKind::PermissionDenied => " (only root may, and some not even root)",
        ErrorKind::InvalidInput => " (the kernel takes no such value)",
        _ => "",
    };
    format!("cannot write {}: {error}{help}", path.display())
}

fn current(root: &Path, name: &str, fields: usize) -> Result<Vec<u64>, String> {
    let path = sysctl_path(root, name);
    numbers(&read_text(&path)?, fields).map_err(|why| format!("{} {why}", path.display()))
}

fn load(path: &Path) -> Result<Undo, String> {
    let shown = path.display();
    let wrong = |why: String| {
        format!(
            "{shown} is not an undo file of `simurgh tune --apply`: \
        {why}"
        )
    };
    let text = read_text(path)?;
    let undo: Undo = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if undo.simurgh_tune_undo != VERSION {
        let version = undo.simurgh_tune_undo;
        return Err(wrong(format!("it has version {version}, this program reads {VERSION}")));
    }
    for Entry { name, before, after } in &undo.changes {
        if !SYSCTLS.iter().any(|(it, _, is_writable)| it == name && *is_writable) {
            return Err(wrong(format!("it contains {name:?}, which --apply never changes")));
        }
        if before.is_empty() || before.len() != after.len() {
            return Err(wrong(format!("the values of {name} do not match each other")));
        }
    }
    Ok(undo)
}

/// Writes the file before anything is changed.
fn create(path: &Path, entries: &[Entry], overwrite: bool) -> Result<(), String> {
    if overwrite {
        return replace(path, entries);
    }
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => fill(file, entries).map_err(|error| cannot(path, &error)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let path = path.display();
            Err(format!(
                "{path} exists and holds the values before an earlier --apply. Restore them with \
                 `simurgh tune --undo {path}`, name another file with --undo-file, or overwrite \
                 it with --overwrite"
            ))
        }
        Err(error) => Err(cannot(path, &error)),
    }
}

/// Replaces the file atomically, so that a crash leaves a whole file.
fn replace(path: &Path, entries: &[Entry]) -> Result<(), String> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // A killed process may have left one. It is created anew, since it could be a link.
    let _ = std::fs::remove_file(&beside);
    let created = OpenOptions::new().write(true).create_new(true).open(&beside);
    created
        .and_then(|file| fill(file, entries))
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|error| cannot(path, &error))
}

fn fill(mut file: File, entries: &[Entry]) -> std::io::Result<()> {
    let undo = Undo { simurgh_tune_undo: VERSION, changes: entries.to_vec() };
    let text = serde_json::to_string_pretty(&undo).map_err(std::io::Error::other)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

fn cannot(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}; choose another --undo-file", path.display())
}

#[cfg(test)]
mod tests;

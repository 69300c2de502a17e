//! The file that saves histories over a planned restart: written whole at the end of a drain, read
//! and removed at the next start. After a crash there is none, so stale data is not used.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use simurgh_core::{HandedOverNumbers, SaveError, SavedHistory};

const ALONE: &str = "the server does not overwrite this file, and saves nothing until you remove \
    it or change history_save";

/// The histories of the shards, between the file and the shards' start and end.
#[derive(Default)]
pub struct Saved {
    before: Mutex<Vec<Option<SavedHistory>>>,
    after: Mutex<Vec<SavedHistory>>,
    /// Of the process that this one takes over from.
    pub numbers: OnceLock<HandedOverNumbers>,
    /// The file exists and is not ours: it is not overwritten.
    is_foreign: AtomicBool,
}

impl Saved {
    /// Reads and removes the file of the last drain. An unreadable file stays and is logged: the
    /// server begins without it, and saves nothing while it exists.
    pub fn read(&self, path: &Path, shards: usize) {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                self.is_foreign.store(true, Relaxed);
                return tracing::error!(?path, %error, "cannot read the saved histories: {ALONE}");
            }
        };
        let found = match decode(&bytes, shards) {
            Ok(found) => found,
            Err(error) => {
                self.is_foreign.store(true, Relaxed);
                return tracing::error!(?path, %error, "the saved histories are invalid: {ALONE}");
            }
        };
        // Before anything new is kept: a second start from the same file would assign numbers
        // twice.
        if let Err(error) = fs::remove_file(path).and_then(|()| sync_folder(path)) {
            return tracing::error!(?path, %error, "cannot remove the file of saved histories, so \
                the server does not use it");
        }
        let topics: usize = found.iter().map(SavedHistory::topics).sum();
        tracing::info!(?path, topics, bytes = bytes.len(), "loaded the saved histories");
        *lock(&self.before) = found.into_iter().map(Some).collect();
    }

    /// Continues the histories of another process.
    ///
    /// # Errors
    /// The bytes are not what [`SavedHistory::encode`] has made.
    pub fn take_over(
        &self,
        histories: &[u8],
        numbers: HandedOverNumbers,
        shards: usize,
    ) -> Result<(), SaveError> {
        *lock(&self.before) = decode(histories, shards)?.into_iter().map(Some).collect();
        let _ = self.numbers.set(numbers);
        Ok(())
    }

    /// The history that a shard begins with.
    pub fn begin(&self, shard: usize) -> Option<SavedHistory> {
        lock(&self.before).get_mut(shard).and_then(Option::take)
    }

    /// Takes the history that a shard ends with.
    pub fn end(&self, history: SavedHistory) {
        lock(&self.after).push(history);
    }

    /// Writes the shards' histories: all of them, or nothing.
    ///
    /// # Errors
    /// The file cannot be written; what was written of it is removed. A file that is not ours
    /// stays, as logged at the start.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let all = std::mem::take(&mut *lock(&self.after));
        if self.is_foreign.load(Relaxed) && path.exists() {
            tracing::error!(?path, "did not save the histories: {ALONE}");
            return Ok(());
        }
        let written =
            write_whole(path, |file| SavedHistory::encode(all, |part| file.write_all(part)));
        match &written {
            Ok(topics) => tracing::info!(?path, topics, "saved the histories"),
            Err(error) => {
                tracing::error!(?path, %error, "cannot save the histories: clients will get gaps");
            }
        }
        written.map(drop)
    }
}

fn decode(bytes: &[u8], shards: usize) -> Result<Vec<SavedHistory>, SaveError> {
    SavedHistory::decode(bytes, shards, RandomState::new().hash_one(shards))
}

fn lock<T>(it: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a temporary file and renames it, so that the file is never incomplete. It is readable by
/// its owner only.
pub(crate) fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>,
) -> io::Result<T> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let written = write_new(&beside, write).and_then(|written| {
        fs::rename(&beside, path)?;
        sync_folder(path)?;
        Ok(written)
    });
    if written.is_err() {
        // It may not have been made.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn write_new<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>,
) -> io::Result<T> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let written = write(&mut file)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(written)
}

/// Makes the renames in a file's folder survive a loss of power.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

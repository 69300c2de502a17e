//! Compressed copies of files, made once each on other threads, and kept.
//!
//! Compressing a file takes far longer than sending it, so it must not block a thread that serves
//! requests, nor be repeated for each request. The number of copies in progress and the bytes of
//! all copies are limited; until a copy exists, the file is sent uncompressed. A copy of a changed
//! file is made anew.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_compression::Level;
use async_compression::tokio::bufread::{BrotliEncoder, GzipEncoder};
use axum::body::Bytes;
use simurgh_shard::config::cores;
use tokio::io::AsyncReadExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Higher levels of brotli are for archives: they cost more than they save in traffic.
const LEVEL: Level = Level::Precise(4);
/// Shorter files are not worth it.
const FILE_BYTES_MIN: u64 = 256;
/// A file above this part of the whole limit would displace too many others.
const FILE_PART_MAX: u64 = 4;
/// A request waits for the copy of a file up to this size; the copy of a larger one serves later
/// requests only.
const WAITED_FOR_BYTES: u64 = 1 << 20;
/// The cost of an entry besides its copies.
const ENTRY_BYTES: usize = 256;
/// A copy must save at least one byte in this many.
const SPARED_PART: usize = 10;

/// Extensions of compressed files that may exist beside a file.
const EXTENSIONS: [&str; 3] = ["br", "zst", "gz"];

/// How a copy is compressed. Without zstd: clients that accept it accept brotli as well, and its
/// encoder took a sixth of the server's whole build time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Encoding {
    Brotli,
    Gzip,
}

impl Encoding {
    const ALL: [(&str, Self); 2] = [("br", Self::Brotli), ("gz", Self::Gzip)];

    pub(super) fn of(path: &Path) -> Option<(PathBuf, Self)> {
        let extension = path.extension()?;
        let (_, encoding) = Self::ALL.into_iter().find(|(name, _)| extension == *name)?;
        Some((path.with_extension(""), encoding))
    }

    /// The names of compressed files that an operator may have put beside a file.
    pub(super) fn names(path: &Path) -> impl Iterator<Item = PathBuf> {
        EXTENSIONS.into_iter().map(|extension| {
            let mut name = path.as_os_str().to_owned();
            name.push(".");
            name.push(extension);
            name.into()
        })
    }

    async fn compress(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(bytes.len() / 4);
        match self {
            Self::Brotli => BrotliEncoder::with_quality(bytes, LEVEL).read_to_end(&mut out).await?,
            Self::Gzip => GzipEncoder::with_quality(bytes, LEVEL).read_to_end(&mut out).await?,
        };
        Ok(out)
    }
}

/// The version of a file that a copy belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) modified: SystemTime,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Copies {
    bytes_max: usize,
    at_work: Arc<Semaphore>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<Key, Known>,
    bytes: usize,
    /// Numbers the lookups, for LRU order.
    looks: u64,
}

type Key = (PathBuf, Encoding);

#[derive(Debug)]
struct Known {
    version: Version,
    is_at_work: bool,
    /// None while it is made, or if it is not worth it.
    copy: Option<Bytes>,
    looked_at: u64,
}

struct Work {
    copies: Arc<Copies>,
    key: Key,
    version: Version,
    made: Option<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl Copies {
    /// Keeps at most this many bytes; with 0 no copies are made.
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        let at_work = Arc::new(Semaphore::new((cores() / 2).max(1)));
        Arc::new(Self { bytes_max, at_work, kept: Mutex::default() })
    }

    /// Makes the copy if that can be done soon. `has_own` checks for a compressed file beside the
    /// file.
    pub(super) async fn find(
        self: &Arc<Self>,
        path: PathBuf,
        encoding: Encoding,
        file: File,
        version: Version,
        has_own: impl FnOnce() -> bool + Send + 'static,
    ) -> Option<Bytes> {
        let most = self.bytes_max as u64 / FILE_PART_MAX;
        if !(FILE_BYTES_MIN..=most).contains(&version.bytes) {
            return None;
        }
        let mut work = match self.look((path, encoding), version) {
            Ok(work) => work,
            Err(known) => return known,
        };
        let making = tokio::task::spawn_blocking(move || {
            if !has_own() {
                work.made = work.make(&file).ok();
            }
            work.made.clone()
        });
        if version.bytes > WAITED_FOR_BYTES {
            return None;
        }
        making.await.ok().flatten()
    }

    /// The work to be done, or as an error the copy, if there is one.
    fn look(self: &Arc<Self>, key: Key, version: Version) -> Result<Work, Option<Bytes>> {
        let mut kept = self.kept();
        kept.looks += 1;
        let looked_at = kept.looks;
        if let Some(known) = kept.files.get_mut(&key).filter(|it| it.version == version) {
            known.looked_at = looked_at;
            return Err(known.copy.clone());
        }
        kept.forget(&key);
        let permit = Arc::clone(&self.at_work).try_acquire_owned().map_err(|_| None)?;
        kept.bytes += ENTRY_BYTES;
        let known = Known { version, is_at_work: true, copy: None, looked_at };
        kept.files.insert(key.clone(), known);
        let copies = Arc::clone(self);
        Ok(Work { copies, key, version, made: None, _permit: permit })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn forget(&mut self, key: &Key) {
        if let Some(known) = self.files.remove(key) {
            self.bytes -= ENTRY_BYTES + known.copy.map_or(0, |copy| copy.len());
        }
    }

    /// Removes the least recently used entries.
    fn fit(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let idle = self.files.iter().filter(|(_, known)| !known.is_at_work);
            let Some((key, _)) = idle.min_by_key(|(_, known)| known.looked_at) else { return };
            self.forget(&key.clone());
        }
    }
}

impl Work {
    /// Slow: compresses a whole file.
    fn make(&self, file: &File) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        file.take(self.version.bytes).read_to_end(&mut bytes)?;
        // No I/O in here waits: everything is in memory.
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let copy = runtime.block_on(self.key.1.compress(&bytes))?;
        match copy.len() <= bytes.len() - bytes.len() / SPARED_PART {
            true => Ok(copy.into()),
            false => Err(io::ErrorKind::FileTooLarge.into()),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut kept = self.copies.kept();
        let known = kept.files.get_mut(&self.key).filter(|it| it.version == self.version);
        let Some(known) = known else { return };
        (known.is_at_work, known.copy) = (false, self.made.take());
        kept.bytes += known.copy.as_ref().map_or(0, Bytes::len);
        kept.fit(self.copies.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "All work and no play makes Jack a dull boy.\n";

    fn file(lines: usize) -> (PathBuf, Version) {
        let name = format!("simurgh-copies-{}-{lines}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, TEXT.repeat(lines)).unwrap();
        let about = std::fs::metadata(&path).unwrap();
        let version = Version { modified: about.modified().unwrap(), bytes: about.len() };
        (path, version)
    }

    fn find(copies: &Arc<Copies>, (path, version): &(PathBuf, Version)) -> Option<Bytes> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let opened = File::open(path).unwrap();
        runtime.block_on(copies.find(path.clone(), Encoding::Gzip, opened, *version, || false))
    }

    #[test]
    fn copy_names_contain_file_and_encoding() {
        let of = |name: &str| Encoding::of(Path::new(name));
        assert_eq!(of("a/b.css.br"), Some(("a/b.css".into(), Encoding::Brotli)));
        assert_eq!(of("b.gz"), Some(("b".into(), Encoding::Gzip)));
        assert_eq!(of("b.zst"), None);
        assert_eq!(of("a.css"), None);
        let names: Vec<_> = Encoding::names(Path::new("a/b.css")).collect();
        assert_eq!(names, ["a/b.css.br", "a/b.css.zst", "a/b.css.gz"].map(PathBuf::from));
    }

    #[test]
    fn copy_is_made_once_per_version_of_a_file() {
        let copies = Copies::new(1 << 20);
        let mut one = file(101);
        let first = find(&copies, &one).unwrap();
        assert!(first.len() < 400);
        assert_eq!(first.as_ptr(), find(&copies, &one).unwrap().as_ptr());
        one.1.modified += std::time::Duration::from_secs(1);
        assert_ne!(first.as_ptr(), find(&copies, &one).unwrap().as_ptr());
        assert_eq!(copies.kept().bytes, ENTRY_BYTES + first.len());
        std::fs::remove_file(one.0).unwrap();
    }

    #[test]
    fn copies_are_bounded_and_the_least_recent_goes_first() {
        let copies = Copies::new(6_000);
        let files: Vec<_> = (6..34).map(file).collect();
        for one in &files {
            assert!(find(&copies, one).is_some());
            assert!(find(&copies, &files[0]).is_some());
            assert!(copies.kept().bytes <= copies.bytes_max);
        }
        assert!(copies.kept().files.contains_key(&(files[0].0.clone(), Encoding::Gzip)));
        assert!(!copies.kept().files.contains_key(&(files[1].0.clone(), Encoding::Gzip)));
        let too_large = file(2_000);
        assert!(find(&copies, &too_large).is_none());
        assert!(find(&Copies::new(0), &files[0]).is_none());
        for (path, _) in files.iter().chain([&too_large]) {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn concurrent_copies_are_limited_without_waiting() {
        let copies = Copies::new(1 << 20);
        let one = file(102);
        let free = copies.at_work.available_permits();
        let permits = copies.at_work.try_acquire_many(u32::try_from(free).unwrap()).unwrap();
        assert!(find(&copies, &one).is_none());
        drop(permits);
        assert!(find(&copies, &one).is_some());
        std::fs::remove_file(one.0).unwrap();
    }
}

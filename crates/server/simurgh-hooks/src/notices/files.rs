//! The lifecycle log in files, for a server without a cluster: `state_dir/notices/`.
//!
//! ```text
//! head                 simurgh-notices 1 EPOCH BOOT
//! PARTITION-PLACE      frames; PLACE is the number of bytes of the partition before it
//! frame                u32 length; u32 CRC-32 of the partition's number and the record; the record
//! ```
//! The place of a record is the number of bytes up to its end. A frame that is cut off at the end
//! of a partition was being written when the process ended, and is removed. After another boot of
//! the system the newest records may be missing, so the log begins anew, unless it was closed.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use simurgh_history::Epoch;
use simurgh_notices::{Entry, PARTITIONS};

/// A further file begins behind so many bytes.
const SEGMENT_BYTES: u64 = 4 << 20;
/// No record is longer: its four texts have 64 kB each.
const RECORD_BYTES_MAX: usize = 1 << 19;
const HEAD_BYTES: usize = 8;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const CLOSED: &str = "closed";

/// Records with their places.
pub(super) type Records = Vec<(u64, Entry)>;

/// The log of all partitions. Another process cannot open it meanwhile.
pub(super) struct Files {
    directory: PathBuf,
    epoch: Epoch,
    parts: [Part; PARTITIONS as usize],
    /// The log was there before: each partition has a record at least.
    is_known: bool,
    _lock: File,
}

/// The files of one partition.
#[derive(Default)]
struct Part {
    /// Where each file begins.
    begins: VecDeque<u64>,
    /// Where the last one ends.
    end: u64,
    last: Option<File>,
    is_synced: bool,
}

impl Files {
    /// Opens the log in a directory, which is created. `None`: another process has it. `seed` makes
    /// the epoch of a new log.
    pub(super) fn open(directory: &Path, seed: u64) -> io::Result<Option<Self>> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let lock = options().open(directory.join("lock"))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        let (directory, epoch) = (directory.to_owned(), Epoch::from_seed(seed));
        let mut files =
            Self { directory, epoch, parts: Default::default(), is_known: true, _lock: lock };
        files.find()?;
        let boot = boot_id()?;
        match files.read_head().filter(|(_, of)| [CLOSED, &boot].contains(&&**of)) {
            Some((epoch, _)) => {
                files.epoch = epoch;
                files.write_head(&boot)?;
            }
            None => files.begin_anew(seed)?,
        }
        Ok(Some(files))
    }

    /// The epoch of the log.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Removes everything, and begins another log.
    pub(super) fn begin_anew(&mut self, seed: u64) -> io::Result<()> {
        (self.epoch, self.is_known) = (Epoch::from_seed(seed), false);
        for partition in 0..PARTITIONS {
            let part = std::mem::take(&mut self.parts[usize::from(partition)]);
            for from in part.begins {
                fs::remove_file(self.path(partition, from))?;
            }
        }
        self.write_head(&boot_id()?)
    }

    /// Finds the files.
    fn find(&mut self) -> io::Result<()> {
        for file in fs::read_dir(&self.directory)? {
            let file = file?;
            let name = file.file_name();
            let parsed = name.to_str().and_then(|name| name.split_once('-'));
            let parsed = parsed.and_then(|(partition, from)| {
                Some((partition.parse::<usize>().ok()?, from.parse::<u64>().ok()?))
            });
            let Some((partition, from)) = parsed else { continue };
            let Some(part) = self.parts.get_mut(partition) else { continue };
            part.begins.push_back(from);
            part.end = part.end.max(from + file.metadata()?.len());
        }
        for part in &mut self.parts {
            part.begins.make_contiguous().sort_unstable();
        }
        Ok(())
    }

    fn read_head(&self) -> Option<(Epoch, String)> {
        let text = fs::read_to_string(self.directory.join("head")).ok()?;
        let mut words = text.strip_prefix("simurgh-notices 1 ")?.split_whitespace();
        let epoch = Epoch::new(words.next()?.parse().ok()?)?;
        Some((epoch, words.next()?.to_owned()))
    }

    fn write_head(&self, boot: &str) -> io::Result<()> {
        let (new, head) = (self.directory.join("head.new"), self.directory.join("head"));
        let mut file = options().truncate(true).open(&new)?;
        writeln!(file, "simurgh-notices 1 {} {boot}", self.epoch.get())?;
        file.sync_all()?;
        fs::rename(new, head)?;
        File::open(&self.directory)?.sync_all()
    }

    /// Reads all records of a partition. A frame that is cut off at its end is removed.
    ///
    /// # Errors
    /// The log cannot be read, or is damaged.
    pub(super) fn read_all(&mut self, partition: u8) -> io::Result<Records> {
        let begins = self.parts[usize::from(partition)].begins.clone();
        if self.is_known && self.parts[usize::from(partition)].end == 0 {
            return Err(damaged());
        }
        let mut records = Vec::new();
        for (index, from) in begins.iter().enumerate() {
            let path = self.path(partition, *from);
            let bytes = fs::read(&path)?;
            let whole = frames(&bytes, partition, *from, &mut records)?;
            let end = from + whole as u64;
            let is_last = index + 1 == begins.len();
            if begins.get(index + 1).is_some_and(|next| *next != end) {
                return Err(damaged());
            }
            if is_last && whole < bytes.len() {
                OpenOptions::new().write(true).open(&path)?.set_len(whole as u64)?;
                self.parts[usize::from(partition)].end = end;
            }
        }
        Ok(records)
    }

    /// Appends records, all or none, and returns their places.
    pub(super) fn append(&mut self, partition: u8, records: &[Entry]) -> io::Result<Vec<u64>> {
        let at = usize::from(partition);
        let end = self.parts[at].end;
        let mut bytes = Vec::new();
        let places = records.iter().map(|record| {
            put_frame(&mut bytes, partition, record);
            end + bytes.len() as u64
        });
        let places: Vec<u64> = places.collect();
        let is_full = self.parts[at].begins.back().is_none_or(|from| end - from >= SEGMENT_BYTES);
        if is_full {
            self.sync_part(partition)?;
            let part = &mut self.parts[at];
            (part.last, part.is_synced) = (None, true);
            part.begins.push_back(end);
        }
        let from = self.parts[at].begins.back().copied().unwrap_or(end);
        let path = self.path(partition, from);
        let part = &mut self.parts[at];
        let file = match &mut part.last {
            Some(file) => file,
            None => part.last.insert(options().open(path)?),
        };
        file.seek(SeekFrom::Start(end - from))?;
        if let Err(error) = file.write_all(&bytes) {
            // What is left of it is not read: the next records are written over it.
            let _ = file.set_len(end - from);
            return Err(error);
        }
        (part.end, part.is_synced) = (end + bytes.len() as u64, false);
        Ok(places)
    }

    /// Removes records before a place, as far as whole files have no others.
    pub(super) fn purge(&mut self, partition: u8, before: u64) -> io::Result<()> {
        let at = usize::from(partition);
        while self.parts[at].begins.get(1).is_some_and(|next| *next < before) {
            let Some(from) = self.parts[at].begins.pop_front() else { break };
            fs::remove_file(self.path(partition, from))?;
        }
        Ok(())
    }

    /// Reads the records behind a place, of one file at most. Returns whether there are no more.
    pub(super) fn read(&mut self, partition: u8, behind: u64) -> io::Result<(Records, bool)> {
        let part = &self.parts[usize::from(partition)];
        let (mut records, mut at, end) = (Vec::new(), behind, part.end);
        let index = part.begins.partition_point(|from| *from <= behind).saturating_sub(1);
        for from in part.begins.iter().skip(index) {
            at = at.max(*from);
            let mut file = File::open(self.path(partition, *from))?;
            file.seek(SeekFrom::Start(at - from))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            at += frames(&bytes, partition, at, &mut records)? as u64;
            if !records.is_empty() {
                break;
            }
        }
        Ok((records, at >= end))
    }

    /// The files with records that may be in memory only. They count as synced.
    pub(super) fn unsynced(&mut self) -> Vec<File> {
        let unsynced = self.parts.iter_mut().filter(|part| !part.is_synced);
        unsynced
            .filter_map(|part| {
                part.is_synced = true;
                part.last.as_ref()?.try_clone().ok()
            })
            .collect()
    }

    fn sync_part(&mut self, partition: u8) -> io::Result<()> {
        let part = &mut self.parts[usize::from(partition)];
        part.is_synced = true;
        part.last.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Writes everything to the disk: the log counts after another boot, too.
    pub(super) fn close(mut self) -> io::Result<()> {
        (0..PARTITIONS).try_for_each(|partition| self.sync_part(partition))?;
        self.write_head(CLOSED)
    }

    fn path(&self, partition: u8, from: u64) -> PathBuf {
        self.directory.join(format!("{partition}-{from}"))
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

fn put_frame(bytes: &mut Vec<u8>, partition: u8, record: &Entry) {
    let at = bytes.len();
    bytes.extend_from_slice(&[0; HEAD_BYTES]);
    record.encode(bytes);
    let Some((head, record)) =
        bytes.get_mut(at..).and_then(|it| it.split_at_mut_checked(HEAD_BYTES))
    else {
        return;
    };
    let (length, sum) = (record.len() as u32, checksum(partition, record));
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..].copy_from_slice(&sum.to_le_bytes());
}

/// A file of another partition is damaged, too.
fn checksum(partition: u8, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[partition]);
    hasher.update(record);
    hasher.finalize()
}

/// Reads whole frames. Returns their bytes; the rest is cut off.
fn frames(bytes: &[u8], partition: u8, from: u64, records: &mut Records) -> io::Result<usize> {
    let mut left = bytes;
    while let Some((head, rest)) = left.split_first_chunk::<HEAD_BYTES>() {
        let [a, b, c, d, sum @ ..] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > RECORD_BYTES_MAX {
            return Err(damaged());
        }
        let Some((record, rest)) = rest.split_at_checked(length) else { break };
        if checksum(partition, record) != u32::from_le_bytes(sum) {
            return Err(damaged());
        }
        left = rest;
        let place = from + (bytes.len() - left.len()) as u64;
        records.push((place, Entry::decode(record).map_err(|_| damaged())?));
    }
    Ok(bytes.len() - left.len())
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the log is damaged, or of a later version")
}

#[cfg(test)]
mod tests {
    use simurgh_notices::{Record, Term};
    use tempfile::{TempDir, tempdir};

    use super::*;

    fn open(directory: &TempDir) -> Files {
        Files::open(directory.path(), 1).unwrap().unwrap()
    }

    fn record(n: u64) -> Entry {
        let term = Term { count: n, node: 7 };
        Entry { term, record: Record::Delivered { hook: "x".repeat(100).into(), n } }
    }

    fn numbers(records: &Records) -> Vec<u64> {
        records.iter().map(|(_, entry)| entry.term.count).collect()
    }

    fn append(files: &mut Files, numbers: std::ops::Range<u64>) -> Vec<u64> {
        let all: Vec<u64> = numbers.collect();
        let mut places = Vec::new();
        for some in all.chunks(1_000) {
            let records: Vec<Entry> = some.iter().copied().map(record).collect();
            places.extend(files.append(3, &records).unwrap());
        }
        places
    }

    #[test]
    fn records_are_read_back_over_several_files() {
        let directory = tempdir().unwrap();
        let mut files = open(&directory);
        let places = append(&mut files, 0..70_000);
        assert!(files.parts[3].begins.len() > 1);
        drop(files);
        let mut files = open(&directory);
        let read = files.read_all(3).unwrap();
        assert_eq!(numbers(&read), (0..70_000).collect::<Vec<_>>());
        assert!(read.iter().map(|(place, _)| place).eq(&places));
        let (mut behind, mut again) = (places[9], Vec::new());
        loop {
            let (records, is_all) = files.read(3, behind).unwrap();
            behind = records.last().unwrap().0;
            again.extend(numbers(&records));
            if is_all {
                break;
            }
        }
        assert_eq!(again, (10..70_000).collect::<Vec<_>>());
        files.purge(3, places[60_000]).unwrap();
        let first = numbers(&files.read_all(3).unwrap())[0];
        assert!(first > 0 && first <= 60_000, "{first}");
        append(&mut files, 70_000..70_001);
        drop(files);
        assert_eq!(numbers(&open(&directory).read_all(3).unwrap()).last(), Some(&70_000));
    }

    #[test]
    fn record_that_was_cut_off_is_removed_and_written_over() {
        let directory = tempdir().unwrap();
        let mut files = open(&directory);
        let places = append(&mut files, 0..3);
        drop(files);
        let file = OpenOptions::new().write(true).open(directory.path().join("3-0")).unwrap();
        file.set_len(places[2] - 1).unwrap();
        let mut files = open(&directory);
        assert_eq!(numbers(&files.read_all(3).unwrap()), [0, 1]);
        append(&mut files, 5..6);
        assert_eq!(numbers(&files.read_all(3).unwrap()), [0, 1, 5]);
    }

    #[test]
    fn damaged_record_is_an_error() {
        let directory = tempdir().unwrap();
        append(&mut open(&directory), 0..3);
        let path = directory.path().join("3-0");
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(open(&directory).read_all(3).is_err());
    }

    #[test]
    fn file_of_another_partition_is_an_error() {
        let directory = tempdir().unwrap();
        append(&mut open(&directory), 0..3);
        fs::rename(directory.path().join("3-0"), directory.path().join("4-0")).unwrap();
        assert!(open(&directory).read_all(4).is_err());
    }

    #[test]
    fn log_of_another_boot_is_new_unless_it_was_closed() {
        let directory = tempdir().unwrap();
        let mut files = open(&directory);
        append(&mut files, 0..3);
        files.close().unwrap();
        let files = open(&directory);
        let epoch = files.epoch();
        files.write_head("another").unwrap();
        drop(files);
        let mut files = Files::open(directory.path(), 2).unwrap().unwrap();
        assert_eq!(numbers(&files.read_all(3).unwrap()), [0_u64; 0]);
        assert_ne!(files.epoch(), epoch);
    }

    #[test]
    fn files_are_those_of_one_process_and_of_their_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempdir().unwrap();
        let mut files = open(&directory);
        append(&mut files, 0..1);
        assert!(Files::open(directory.path(), 1).unwrap().is_none());
        for file in fs::read_dir(directory.path()).unwrap() {
            let mode = file.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}

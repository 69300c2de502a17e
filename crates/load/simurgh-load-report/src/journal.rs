//! The journal: one line for each second of a run, enough to make its record again.
//!
//! The first line is the [`Meta`], each other one a [`Tick`]. A line is one `write`, so at most the
//! last line of a killed run is incomplete.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use simurgh_load_record::{Meta, Record, Tick, Warning};

use crate::outputs::Exporter;

const FILE: &str = "journal.jsonl";

/// Writes the journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    line: Vec<u8>,
}

impl Journal {
    /// Creates the journal of a run in `dir`. It stays locked until this process ends, so that no
    /// other run overwrites it. Fails with the system's error, or if another run writes there.
    pub fn create(dir: &Path, meta: &Meta) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.create(true).write(true).truncate(false).open(dir.join(FILE))?;
        if is_locked(&file) {
            let what = "another run is writing there";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        let mut journal = Self { file, line: Vec::new() };
        journal.write(meta)?;
        Ok(journal)
    }

    fn write(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, value)?;
        self.line.push(b'\n');
        self.file.write_all(&self.line)
    }
}

/// Whether another process, or another part of this one, writes the journal. If not, this locks it.
/// On a file system without locks it counts as free.
fn is_locked(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

impl Exporter for Journal {
    fn tick(&mut self, _: &Record, tick: &Tick) -> io::Result<()> {
        self.write(tick)
    }

    fn finish(&mut self, _: &Record) -> io::Result<()> {
        self.file.sync_data().or_else(|error| match error.kind() {
            // A pipe or a device cannot be synced.
            io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(error),
        })
    }

    fn name(&self) -> &str {
        FILE
    }
}

/// Reads a journal, second by second.
#[derive(Debug)]
pub struct Replay<R> {
    reader: R,
    record: Record,
    line: Vec<u8>,
    lines: u64,
    over: bool,
}

impl Replay<BufReader<File>> {
    /// Opens the journal of a run in `dir`. Fails if it does not exist, or is not a journal.
    pub fn open(dir: &Path) -> Result<Self, String> {
        let path = dir.join(FILE);
        let say = |error: String| format!("{}: {error}", path.display());
        let file = File::open(&path).map_err(|error| {
            say(format!("{error}; name a directory that `simurgh load --out` has written"))
        })?;
        Self::new(BufReader::new(file)).map_err(say)
    }

    /// Whether the run has not ended; if it has, no new run can start here while this is open.
    pub(super) fn is_running(&self) -> bool {
        is_locked(self.reader.get_ref())
    }
}

impl<R: BufRead> Replay<R> {
    /// Reads the first line of a journal. Fails if it is not a journal, or has another version.
    pub fn new(mut reader: R) -> Result<Self, String> {
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        #[derive(serde::Deserialize)]
        struct Format {
            format: u32,
        }
        let no_journal = |error| format!("line 1 is not the head of a journal: {error}");
        let Format { format } = serde_json::from_slice(&line).map_err(no_journal)?;
        if format != Meta::FORMAT {
            return Err(format!(
                "the journal has format {format}, this version reads {}; use the version that \
                 wrote it",
                Meta::FORMAT
            ));
        }
        let meta: Meta = serde_json::from_slice(&line).map_err(no_journal)?;
        Ok(Self { reader, record: Record::new(meta), line, lines: 1, over: false })
    }

    /// The record so far.
    pub fn record(&mut self) -> &mut Record {
        &mut self.record
    }

    /// The record after all seconds were read.
    pub fn into_record(self) -> Record {
        self.record
    }

    /// The next second, which is then part of the record; `None` at the end. Fails if a line before
    /// the end is invalid: the journal is damaged.
    pub fn next_tick(&mut self) -> Result<Option<Tick>, String> {
        if self.over {
            return Ok(None);
        }
        self.line.clear();
        self.lines += 1;
        let read = self.reader.read_until(b'\n', &mut self.line);
        let bytes = read.map_err(|error| format!("line {}: {error}", self.lines))?;
        let whole = self.line.ends_with(b"\n");
        match serde_json::from_slice::<Tick>(&self.line) {
            Ok(tick) => {
                self.record.apply(&tick);
                Ok(Some(tick))
            }
            Err(error) if whole => Err(format!(
                "line {} is damaged ({error}); remove it and all after it to see what was before",
                self.lines
            )),
            Err(_) => {
                self.end(bytes as u64);
                Ok(None)
            }
        }
    }

    fn end(&mut self, torn_bytes: u64) {
        self.over = true;
        if torn_bytes > 0 {
            self.record.note(&Warning::JournalTorn { bytes: torn_bytes });
        }
        if self.record.ending().is_none() {
            self.record.note(&Warning::Unfinished);
        }
    }
}

/// The record of the run whose journal is in `dir`. An incomplete last line is ignored, with a
/// warning. Fails if there is no journal, or it is damaged.
pub fn replay(dir: &Path) -> Result<Record, String> {
    let mut replay = Replay::open(dir)?;
    while replay.next_tick()?.is_some() {}
    Ok(replay.into_record())
}

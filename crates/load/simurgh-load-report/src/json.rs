//! `report.json`: the run for programs, with the schema `docs/report.schema.json`.

use std::io;
use std::path::{Path, PathBuf};

use simurgh_load_record::{Record, Tick};

use crate::outputs::Exporter;
use crate::whole::write_whole;

/// Interval between two versions of the file during the run, milliseconds.
const EVERY_MS: u64 = 10_000;

/// Writes `report.json`, always as a whole.
#[derive(Debug)]
pub struct ReportJson {
    path: PathBuf,
    written_ms: u64,
}

impl ReportJson {
    /// A report in `dir`; nothing is written yet.
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("report.json"), written_ms: 0 }
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(&record.summary())?;
        bytes.push(b'\n');
        write_whole(&self.path, &bytes)
    }
}

impl Exporter for ReportJson {
    fn tick(&mut self, record: &Record, tick: &Tick) -> io::Result<()> {
        if tick.at_ms < self.written_ms.saturating_add(EVERY_MS) {
            return Ok(());
        }
        self.written_ms = tick.at_ms;
        self.write(record)
    }

    fn finish(&mut self, record: &Record) -> io::Result<()> {
        self.write(record)
    }

    fn name(&self) -> &str {
        "report.json"
    }
}

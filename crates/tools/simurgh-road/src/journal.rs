//! Reads the journal of a run while it is written.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use simurgh_load::record::{Broadcast, Count, Metric, MetricId, Tick, Total};

/// Reads the seconds of a run, each once it is closed.
pub(super) struct JournalReader {
    path: PathBuf,
    reader: Option<BufReader<File>>,
    line: Vec<u8>,
    lines: u64,
}

impl JournalReader {
    /// The run writes to `dir`; the journal need not exist yet.
    pub(super) fn new(dir: &Path) -> Self {
        Self { path: path(dir), reader: None, line: Vec::new(), lines: 0 }
    }

    /// The seconds that were closed since the last call.
    pub(super) fn read(&mut self) -> Result<Vec<Tick>, String> {
        let mut ticks = Vec::new();
        if self.reader.is_none() {
            // The run creates its journal before it starts.
            let Ok(file) = File::open(&self.path) else { return Ok(ticks) };
            self.reader = Some(BufReader::new(file));
        }
        let Some(reader) = &mut self.reader else { return Ok(ticks) };
        let path = self.path.display();
        loop {
            let read = reader.read_until(b'\n', &mut self.line);
            read.map_err(|error| format!("{path}: {error}"))?;
            // An incomplete line is kept for the next call.
            if self.line.last() != Some(&b'\n') {
                return Ok(ticks);
            }
            self.lines += 1;
            // The first line is the head.
            if self.lines > 1 {
                let tick = serde_json::from_slice(&self.line);
                ticks.push(tick.map_err(|error| format!("{path}:{}: {error}", self.lines))?);
            }
            self.line.clear();
        }
    }
}

/// Where the journal of the run that writes to `dir` is.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join("journal.jsonl")
}

#[derive(Default)]
pub(super) struct Interval {
    pub(super) ticks: Vec<Tick>,
}

impl Interval {
    /// The times of one metric; empty if it did not occur.
    pub(super) fn times(&self, metric: Metric) -> Total {
        let metric = MetricId::from(metric);
        let mut all = Total::new();
        for hist in self.ticks.iter().filter_map(|tick| tick.all.times.get(&metric)) {
            all.absorb(hist);
        }
        all
    }

    /// The broadcast with this number, once it is complete.
    pub(super) fn broadcast(&self, number: u32) -> Option<Broadcast> {
        let all = self.ticks.iter().flat_map(|tick| &tick.broadcasts);
        all.copied().find(|broadcast| broadcast.seq == number)
    }

    pub(super) fn count(&self, count: Count) -> u64 {
        self.ticks.iter().map(|tick| tick.all.counts[count]).sum()
    }

    pub(super) fn errors(&self) -> u64 {
        self.ticks.iter().map(|tick| tick.all.errors.total()).sum()
    }

    /// Details of users' errors, each once.
    pub(super) fn details(&self) -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for detail in self.ticks.iter().flat_map(|tick| &tick.all.details) {
            if !texts.contains(&detail.text) {
                texts.push(detail.text.clone());
            }
        }
        texts
    }
}

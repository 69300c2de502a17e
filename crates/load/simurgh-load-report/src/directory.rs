//! The files of a run's directory: written during the run, or later from its journal.

use std::path::Path;
use std::{fs, io};

use simurgh_load_record::Record;

use crate::figures::FigureFiles;
use crate::html::HtmlReport;
use crate::journal::{Journal, Replay, replay};
use crate::json::ReportJson;
use crate::outputs::Outputs;
use crate::tsung_log::{LineLog, TsungLog};

impl Outputs {
    /// The files of a run in `dir`, which is created if necessary. A file that cannot be opened
    /// becomes a warning of `record`. The caller adds [`HtmlReport`], which needs the server's own
    /// figures.
    pub fn in_dir(dir: &Path, record: &mut Record) -> Self {
        let mut outputs = Self::new();
        // If this fails, so does each file, with the reason.
        let _ = fs::create_dir_all(dir);
        let journal = Journal::create(dir, record.meta());
        let busy = journal.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
        outputs.add_or_warn("journal.jsonl", journal, record);
        if busy {
            // Then the other files belong to another run too.
            return outputs;
        }
        outputs.add(ReportJson::new(dir));
        outputs.add(FigureFiles::new(dir));
        outputs.add_tsung(dir, record);
        if record.meta().full_stats {
            outputs.add_or_warn("tsung-fullstats.log", LineLog::full_stats(dir), record);
        }
        let dump = record.meta().dump;
        if dump != simurgh_load_scenario::Dump::Off {
            outputs.add_or_warn("tsung.dump", LineLog::dump(dir, dump), record);
        }
        outputs
    }

    fn add_tsung(&mut self, dir: &Path, record: &mut Record) {
        let log = TsungLog::create(dir, record.meta());
        self.add_or_warn("tsung.log", log, record);
        self.add_or_warn("match.log", LineLog::matches(dir), record);
    }
}

/// Writes `report.json`, `junit.xml`, `figures.csv`, `report.html`, `tsung.log` and `match.log` of
/// the run in `dir` again, from its journal. Write errors are warnings of the record. The files of
/// a run in progress are not changed; the record then contains what has happened so far. Fails,
/// without changing a file, if there is no journal, or it is damaged.
pub fn make(dir: &Path) -> Result<Record, String> {
    let guard = Replay::open(dir)?;
    if guard.is_running() {
        return replay(dir);
    }
    // Read once before anything is overwritten: a damaged journal must not cost the files.
    replay(dir)?;
    let mut ticks = Replay::open(dir)?;
    let mut outputs = Outputs::new();
    outputs.add(ReportJson::new(dir));
    outputs.add(FigureFiles::new(dir));
    outputs.add(HtmlReport::new(dir));
    outputs.add_tsung(dir, ticks.record());
    while let Some(tick) = ticks.next_tick()? {
        outputs.tick(ticks.record(), &tick);
    }
    outputs.finish(ticks.record());
    Ok(ticks.into_record())
}

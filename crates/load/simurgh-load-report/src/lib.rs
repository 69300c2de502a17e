//! Outputs that are written while the run goes on, and made again from its journal.
//!
//! | file | what | written |
//! |---|---|---|
//! | `journal.jsonl` | everything: all other files follow from it | each second |
//! | `report.json` | the run for programs; `docs/report.schema.json` | each 10 s and at the end |
//! | `report.html` | the run for people: charts and tables in one file | at the end |
//! | `tsung.log`, `match.log` | as Tsung writes them | each 10 s, each second |
//! | `tsung-fullstats.log`, `tsung.dump` | if a Tsung file asks for them | each second |

pub mod control;
pub mod dashboard;
mod html;
mod journal;
mod json;
mod make;
pub mod meter;
mod outputs;
pub mod terminal;
pub(crate) mod text;
mod tsung_log;

pub use html::HtmlReport;
pub use journal::{Journal, Replay, replay};
pub use json::ReportJson;
pub use make::make;
pub use outputs::{Exporter, Outputs};
pub use simurgh_text::format::{bytes, grouped, micros as time, number as decimal, time as span};
pub use text::summary;
pub use tsung_log::{LineLog, TsungLog};

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use simurgh_load_record::Record;

impl Outputs {
    /// The files of a run in `dir`, which is made if it is not there. One that cannot be opened is
    /// warned of in `record`. The caller adds [`HtmlReport`], which needs the server's own figures.
    pub fn in_dir(dir: &Path, record: &mut Record) -> Self {
        let mut outputs = Self::new();
        // If this fails, so does each file, with the reason.
        let _ = fs::create_dir_all(dir);
        let journal = Journal::create(dir, record.meta());
        let busy = journal.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
        outputs.add_or_warn("journal.jsonl", journal, record);
        if busy {
            // The other files are another run's, too.
            return outputs;
        }
        outputs.add(ReportJson::new(dir));
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

    /// The logs that follow from the journal.
    fn add_tsung(&mut self, dir: &Path, record: &mut Record) {
        let log = TsungLog::create(dir, record.meta());
        self.add_or_warn("tsung.log", log, record);
        self.add_or_warn("match.log", LineLog::matches(dir), record);
    }
}

/// Puts a file in the place of another at one stroke: a reader sees the old or the new one.
///
/// # Errors
/// What the system said; the old file is still there.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let written = fs::File::create(&fresh).and_then(|mut file| {
        file.write_all(bytes)?;
        file.flush()?;
        fs::rename(&fresh, path)
    });
    if written.is_err() {
        // Half a file is of no use; if it cannot be removed, the error says enough.
        let _ = fs::remove_file(&fresh);
    }
    written
}

//! `simurgh load report DIR`: all that follows from a journal, made again.

use std::path::Path;

use super::{HtmlReport, Outputs, Replay, ReportJson};
use simurgh_load_record::Record;

/// Makes `report.json`, `report.html`, `tsung.log` and `match.log` of the run in `dir` again, from
/// its journal. What cannot be written is among the warnings of the record. A run that goes on
/// keeps its files; then the record is what happened so far.
///
/// # Errors
/// There is no journal, or it is damaged; then no file is touched.
pub fn make(dir: &Path) -> Result<Record, String> {
    let guard = Replay::open(dir)?;
    if guard.is_running() {
        return super::replay(dir);
    }
    // Read once before anything is overwritten: a damaged journal should not cost what is there.
    super::replay(dir)?;
    let mut replay = Replay::open(dir)?;
    let mut outputs = Outputs::new();
    outputs.add(ReportJson::new(dir));
    outputs.add(HtmlReport::new(dir));
    outputs.add_tsung(dir, replay.record());
    while let Some(tick) = replay.next_tick()? {
        outputs.tick(replay.record(), &tick);
    }
    outputs.finish(replay.record());
    Ok(replay.into_record())
}

//! Outputs that are written during the run, and can be made again from its journal.
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
mod directory;
mod figures;
mod html;
mod journal;
mod json;
pub mod meter;
mod outputs;
pub mod progress;
pub(crate) mod text;
mod tsung_log;
mod whole;

pub use directory::make;
pub use html::HtmlReport;
pub use journal::{Journal, Replay, replay};
pub use json::ReportJson;
pub use outputs::{Exporter, Outputs};
pub use text::summary;
pub use tsung_log::{LineLog, TsungLog};
pub use whole::write_whole;

//! Measurements: recorded per worker, merged once a second, without loss.
//!
//! ```text
//! Recorder (one per worker, hot) --take()--> Delta --channel or TCP--> Record::merge
//! Record::close_second --> Tick: one second of the whole run, for the journal and all outputs
//! journal --> Record::apply: the same record again
//! ```
//!
//! Time is an argument everywhere; the same deltas give the same record.

/// Adds fields of one struct to the same ones of another, without overflow.
macro_rules! add_fields {
    ($sum:expr, $more:expr; $($field:ident),+) => {
        $($sum.$field = $sum.$field.saturating_add($more.$field);)+
    };
}

mod broadcasts;
mod delta;
pub mod figures;
mod hist;
mod meta;
mod record;
mod recorder;
mod series;
mod servers;
mod tick;
mod view;
mod warnings;

pub use broadcasts::Broadcast;
pub use delta::{BroadcastPart, Delta, Detail, Errors, MatchLine, Sample, Users, WorkerId};
pub use hist::{Hist, Stats, TIME_US_MAX, Total};
pub use meta::{Meta, PhasePlan};
pub use record::{Record, Worker};
pub use recorder::{DETAIL_BYTES_MAX, DETAILS_MAX, LATE_US, Recorder, Seen};
pub use series::{Point, Series, TimePoint};
pub use servers::{OfServer, Origin, ServerTotal};
pub use simurgh_load_scenario::figures::{Count, Counts, ErrorKind, Metric, MetricId, Names};
pub use tick::{Ending, Tick, WorkerTick};
pub use view::{
    ErrorRow, Live, MetricRow, PhaseRow, ServerRow, SessionRow, StatusRow, Summary, WarningRow,
    WorkerRow,
};
pub use warnings::Warning;

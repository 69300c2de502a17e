//! Measurements: recorded per worker, merged once a second, without loss.
//!
//! ```text
//! Recorder (one per worker, hot) --take()--> Delta --channel or TCP--> Record::merge
//! Record::close_second --> Tick: one second of the whole run, for the journal and all outputs
//! journal --> Record::apply: the same record again
//! ```
//!
//! Time is an argument everywhere; the same deltas give the same record.

use std::collections::BTreeMap;

macro_rules! add_fields {
    ($sum:expr, $more:expr; $($field:ident),+) => {
        $($sum.$field = $sum.$field.saturating_add($more.$field);)+
    };
}

fn add_each<K: Copy + Ord, V: Default, M>(
    sums: &mut BTreeMap<K, V>,
    more: &BTreeMap<K, M>,
    add: impl Fn(&mut V, &M),
) {
    for (key, more) in more {
        add(sums.entry(*key).or_default(), more);
    }
}

fn add_number(sum: &mut u64, more: &u64) {
    *sum = sum.saturating_add(*more);
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
pub use delta::{
    BroadcastPart, Delta, Detail, Errors, MatchLine, OfServer, Sample, Users, WorkerId,
};
pub use hist::{Hist, Stats, TIME_US_MAX, Total};
pub use meta::{Meta, PhasePlan};
pub use record::{Record, Worker};
pub use recorder::{DETAIL_BYTES_MAX, DETAILS_MAX, LATE_US, Recorder, Seen};
pub use series::{Point, Series, TimePoint};
pub use servers::{Origin, ServerTotal};
pub use simurgh_load_scenario::figures::{Count, Counts, ErrorKind, Metric, MetricId, Names};
pub use tick::{Ending, Tick, WorkerTick};
pub use view::{
    ErrorRow, Live, MetricRow, PhaseRow, ServerRow, SessionRow, StatusRow, Summary, WarningRow,
    WorkerRow,
};
pub use warnings::Warning;

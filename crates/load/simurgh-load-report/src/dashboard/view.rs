//! The data of a page: the summary of `report.json`, and additions of the pages.

use serde::Serialize;
use simurgh_load_record::figures::{self, Verdict};
use simurgh_load_record::{Live, Record, Summary};

use super::Shared;
use super::target::{Target, TargetPoint, TargetView};
use crate::control::ControlState;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PageView {
    #[serde(flatten)]
    summary: Summary,
    plan: Plan,
    /// `null` in a report.
    control: Option<ControlState>,
    /// `null` if the server has no metrics.
    target: Option<TargetView>,
    /// The original text; `null` on the live page.
    scenario_text: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Plan {
    duration_s: Option<f64>,
    users_max: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TickView {
    #[serde(flatten)]
    live: Live,
    verdicts: Vec<Verdict>,
    passed: Option<bool>,
    control: ControlState,
    target_point: Option<TargetPoint>,
}

impl PageView {
    pub(crate) fn report(record: &Record, target: &Target, scenario_text: Option<String>) -> Self {
        Self { scenario_text, ..Self::of(record, None, target) }
    }

    pub(super) fn live(shared: &Shared) -> Self {
        let control = Some(shared.control.state());
        shared.record(|record| Self::of(record, control, &shared.target))
    }

    fn of(record: &Record, control: Option<ControlState>, target: &Target) -> Self {
        let meta = record.meta();
        Self {
            summary: record.summary(),
            plan: Plan { duration_s: meta.duration_s, users_max: meta.users_max },
            control,
            target: target.view(),
            scenario_text: None,
        }
    }
}

impl TickView {
    pub(super) fn of(shared: &Shared) -> Self {
        let (live, verdicts, passed) = shared.record(|record| {
            let verdicts = figures::verdicts(record, &record.meta().pass);
            let passed = figures::passed(record, &verdicts);
            (record.live(), verdicts, passed)
        });
        let (control, target_point) = (shared.control.state(), shared.target.last());
        Self { live, verdicts, passed, control, target_point }
    }
}

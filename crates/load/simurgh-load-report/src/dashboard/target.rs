//! The servers' own figures over time, from their `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// Maximum of points; when they are full, every second one is dropped.
const POINTS_MAX: usize = 3600;

/// The servers' own figures. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Target(Arc<Mutex<Points>>);

#[derive(Debug, Default)]
struct Points {
    points: Vec<TargetPoint>,
    /// One in this number of points is kept.
    stride: u32,
    skipped: u32,
    last: Option<TargetPoint>,
}

/// Figures at one time, by column, summed over all servers.
pub(crate) type TargetPoint = BTreeMap<&'static str, Option<f64>>;

/// The column with the time since the start of the run, seconds.
const T_S: &str = "t_s";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TargetView {
    columns: BTreeMap<&'static str, Vec<Option<f64>>>,
}

impl Target {
    /// The newest figures; `None`: none yet.
    pub(crate) fn last(&self) -> Option<TargetPoint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }

    /// Adds figures of a time since the start of the run, seconds.
    pub(crate) fn push(&self, t_s: f64, mut point: TargetPoint) {
        point.insert(T_S, Some(t_s));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.last = Some(point.clone());
        all.skipped += 1;
        if all.skipped < all.stride {
            return;
        }
        all.skipped = 0;
        if all.points.len() >= POINTS_MAX {
            let mut odd = false;
            all.points.retain(|_| {
                odd = !odd;
                odd
            });
            all.stride = all.stride.max(1).saturating_mul(2);
        }
        all.points.push(point);
    }

    pub(super) fn view(&self) -> Option<TargetView> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut columns: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (column, value) in all.points.iter().flatten() {
            columns.entry(*column).or_default().push(*value);
        }
        (!all.points.is_empty()).then_some(TargetView { columns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_stores_its_whole_past_in_bounded_memory() {
        let target = Target::default();
        assert_eq!(target.view(), None);
        for second in 0..20_000 {
            target.push(f64::from(second), TargetPoint::new());
        }
        let columns = target.view().unwrap().columns;
        let times: Vec<f64> = columns["t_s"].iter().flatten().copied().collect();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted() && times[0] < 1.0 && times[times.len() - 1] > 19_980.0);
        assert_eq!(target.last().unwrap()[T_S], Some(19_999.0));
    }
}

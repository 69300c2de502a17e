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

/// Figures at one time, summed over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TargetPoint {
    /// Since the start of the run, seconds.
    pub t_s: f64,
    /// Connections open.
    pub connections: Option<f64>,
    /// Share of a core since the previous point, percent; above 100 with several cores.
    pub cpu_percent: Option<f64>,
    /// Resident memory, bytes.
    pub memory_bytes: Option<f64>,
    /// Channel messages received per second.
    pub messages_in: Option<f64>,
}

impl TargetPoint {
    /// The sum of two servers' figures, as far as known.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        let sum = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        Self {
            t_s: self.t_s.max(other.t_s),
            connections: sum(self.connections, other.connections),
            cpu_percent: sum(self.cpu_percent, other.cpu_percent),
            memory_bytes: sum(self.memory_bytes, other.memory_bytes),
            messages_in: sum(self.messages_in, other.messages_in),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TargetView {
    columns: BTreeMap<&'static str, Vec<Option<f64>>>,
}

impl Target {
    /// The newest figures; `None`: none yet.
    pub fn last(&self) -> Option<TargetPoint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    pub(super) fn push(&self, point: TargetPoint) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.last = Some(point);
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
        let column =
            |value: fn(&TargetPoint) -> Option<f64>| all.points.iter().map(value).collect();
        let columns = BTreeMap::from([
            ("t_s", column(|point| Some(point.t_s))),
            ("connections", column(|point| point.connections)),
            ("cpu_percent", column(|point| point.cpu_percent)),
            ("memory_bytes", column(|point| point.memory_bytes)),
            ("messages_in", column(|point| point.messages_in)),
        ]);
        (!all.points.is_empty()).then_some(TargetView { columns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_summed_as_far_as_they_have_figures() {
        let one = TargetPoint { t_s: 1.0, connections: Some(3.0), ..TargetPoint::default() };
        let two = TargetPoint { t_s: 2.0, cpu_percent: Some(5.0), ..one };
        let sum = one.and(two);
        let expected = TargetPoint { connections: Some(6.0), ..two };
        assert_eq!((sum, sum.memory_bytes), (expected, None));
    }

    #[test]
    fn a_long_run_keeps_its_whole_past_in_bounded_memory() {
        let target = Target::default();
        assert_eq!(target.view(), None);
        for second in 0..20_000 {
            target.push(TargetPoint { t_s: f64::from(second), ..TargetPoint::default() });
        }
        let columns = target.view().unwrap().columns;
        let times: Vec<f64> = columns["t_s"].iter().flatten().copied().collect();
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted() && times[0] < 1.0 && times[times.len() - 1] > 19_980.0);
        assert_eq!(target.last().unwrap().t_s, 19_999.0);
    }
}

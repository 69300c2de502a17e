//! The run over time, in a fixed number of points: when they are full, each two are merged.

use serde::Serialize;

use super::{Count, Delta, ErrorKind, Errors, MetricId, Tick};

/// Points at most: an hour of seconds.
const POINTS_MAX: usize = 3600;

/// The run over time. Sums of points are the totals of the run, however long it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    points: Vec<Point>,
    points_max: usize,
    ticks_per_point: u32,
    ticks_in_last: u32,
}

/// A span of time, at first one second, with the values of its columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    values: [u64; COLUMNS.len()],
    /// Times, by metric in the order of their numbers; only those that occurred.
    pub times: Vec<(MetricId, TimePoint)>,
    /// Errors by kind, in order; only those that occurred.
    pub kinds: Vec<(ErrorKind, u64)>,
}

type Column = (&'static str, f64, fn(&Tick) -> u64);

/// Names in outputs, units there, and values in a second.
const COLUMNS: [Column; 15] = [
    ("t_s", 1e3, |tick| tick.at_ms),
    ("users", 1.0, |tick| tick.all.users),
    ("connected", 1.0, |tick| tick.all.connected),
    ("span_s", 1e3, |tick| tick.span_ms),
    ("due", 1.0, |tick| tick.all.counts[Count::UsersDue]),
    ("arrivals", 1.0, |tick| tick.all.counts[Count::UsersStarted]),
    ("departures", 1.0, |Tick { all: Delta { counts, .. }, .. }| {
        counts[Count::UsersFinished].saturating_add(counts[Count::UsersAborted])
    }),
    ("connects", 1.0, |tick| tick.all.counts[Count::Connects]),
    ("requests", 1.0, |tick| tick.all.counts[Count::Requests]),
    ("frames_in", 1.0, |tick| tick.all.counts.frames_in()),
    ("frames_out", 1.0, |tick| tick.all.counts.frames_out()),
    ("bytes_in", 1.0, |tick| tick.all.counts[Count::BytesIn]),
    ("bytes_out", 1.0, |tick| tick.all.counts[Count::BytesOut]),
    ("errors", 1.0, |tick| tick.all.errors.total()),
    ("cpu_s", 1e6, |tick| tick.all.cpu_ns / 1000),
];

/// The first columns, whose values are those at the end of the span, or the highest where seconds
/// were merged; those of all others are what happened in it, not a rate.
const GAUGES: usize = 3;

/// Times of one metric in one [`Point`], µs. Where seconds were merged, the percentiles are those
/// of the worst second, so that a peak is not averaged away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimePoint {
    /// How many.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
}

impl Point {
    pub(super) fn of(tick: &Tick) -> Self {
        let all = &tick.all;
        let times = all.times.iter().map(|(&metric, hist)| {
            let stats = TimePoint {
                count: hist.count(),
                p50: hist.percentile(50.0),
                p90: hist.percentile(90.0),
                p99: hist.percentile(99.0),
                p99_9: hist.percentile(99.9),
                max: hist.max(),
            };
            (metric, stats)
        });
        let values = COLUMNS.map(|(_, _, value)| value(tick));
        Self { values, times: times.collect(), kinds: kinds(&all.errors) }
    }

    /// Names and values of all columns.
    pub fn columns(&self) -> impl Iterator<Item = (&'static str, f64)> {
        COLUMNS.iter().zip(self.values).map(|((name, unit, _), value)| (*name, value as f64 / unit))
    }

    /// Users alive at its end.
    pub fn users(&self) -> u64 {
        self.values[1]
    }

    fn append(&mut self, next: &Self) {
        for (at, (mine, theirs)) in self.values.iter_mut().zip(next.values).enumerate() {
            *mine = if at < GAUGES { (*mine).max(theirs) } else { mine.saturating_add(theirs) };
        }
        for (metric, theirs) in &next.times {
            match self.times.binary_search_by_key(metric, |(id, _)| *id) {
                Ok(index) => self.times[index].1.append(theirs),
                Err(index) => self.times.insert(index, (*metric, *theirs)),
            }
        }
        for (kind, count) in &next.kinds {
            match self.kinds.binary_search_by_key(kind, |(kind, _)| *kind) {
                Ok(index) => self.kinds[index].1 = self.kinds[index].1.saturating_add(*count),
                Err(index) => self.kinds.insert(index, (*kind, *count)),
            }
        }
    }
}

fn kinds(errors: &Errors) -> Vec<(ErrorKind, u64)> {
    let mut kinds: Vec<(ErrorKind, u64)> = Vec::new();
    // Kinds come in order, so an equal one is the last.
    for (kind, _, count) in errors.iter().filter(|(_, _, count)| *count > 0) {
        match kinds.last_mut().filter(|(last, _)| *last == kind) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => kinds.push((kind, count)),
        }
    }
    kinds
}

impl TimePoint {
    fn append(&mut self, next: &Self) {
        self.count = self.count.saturating_add(next.count);
        self.p50 = self.p50.max(next.p50);
        self.p90 = self.p90.max(next.p90);
        self.p99 = self.p99.max(next.p99);
        self.p99_9 = self.p99_9.max(next.p99_9);
        self.max = self.max.max(next.max);
    }
}

impl Default for Series {
    fn default() -> Self {
        Self::with_points_max(POINTS_MAX)
    }
}

impl Series {
    /// `points_max` is even and at least 2.
    fn with_points_max(points_max: usize) -> Self {
        Self { points: Vec::new(), points_max, ticks_per_point: 1, ticks_in_last: 0 }
    }

    pub(super) fn push(&mut self, point: Point) {
        if let Some(last) = self.points.last_mut()
            && self.ticks_in_last < self.ticks_per_point
        {
            last.append(&point);
            self.ticks_in_last += 1;
            return;
        }
        if self.points.len() >= self.points_max {
            self.halve();
        }
        self.points.push(point);
        self.ticks_in_last = 1;
    }

    fn halve(&mut self) {
        let mut pairs = std::mem::take(&mut self.points).into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.append(&second);
            }
            self.points.push(first);
        }
        self.ticks_per_point = self.ticks_per_point.saturating_mul(2);
    }

    /// All points, from the start of the run.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// How many seconds one point represents.
    pub fn ticks_per_point(&self) -> u32 {
        self.ticks_per_point
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hist, Metric};

    fn tick(second: u64) -> Tick {
        let mut tick = Tick { at_ms: second * 1000, span_ms: 1000, ..Tick::default() };
        tick.all.counts[Count::UsersStarted] = second * 7 % 11;
        tick.all.counts[Count::BytesIn] = second;
        tick.all.connected = 1000 - second;
        let metric = if second.is_multiple_of(3) { Metric::Join } else { Metric::Push };
        let mut hist = Hist::new();
        hist.record(second);
        tick.all.times.insert(metric.into(), hist);
        tick
    }

    #[test]
    fn rolling_up_preserves_totals_order_and_peaks() {
        for seconds in 1..200 {
            let mut series = Series::with_points_max(8);
            let mut sums = (0, 0);
            for second in 1..=seconds {
                let tick = tick(second);
                sums.0 += tick.all.counts[Count::UsersStarted];
                sums.1 += tick.all.counts[Count::BytesIn];
                series.push(Point::of(&tick));
            }
            let points = series.points();
            let column = |name: &str| -> Vec<u64> {
                let columns = points.iter().flat_map(Point::columns);
                columns.filter(|(known, _)| *known == name).map(|(_, value)| value as u64).collect()
            };
            let sum = |name: &str| column(name).iter().sum::<u64>();
            assert!(points.len() <= 8);
            assert_eq!((sum("arrivals"), sum("bytes_in")), sums);
            assert_eq!(sum("span_s"), seconds);
            assert!(column("t_s").is_sorted());
            assert_eq!(column("t_s").last(), Some(&seconds));
            assert_eq!(column("connected").first(), Some(&999));
            let times = |point: &Point| point.times.iter().map(|(_, time)| time.count).sum::<u64>();
            assert_eq!(points.iter().map(times).sum::<u64>(), seconds);
            let max = points.iter().flat_map(|point| &point.times).map(|(_, time)| time.max).max();
            assert_eq!(max, Some(seconds));
            let full = usize::try_from(seconds).unwrap_or(0).div_ceil(points.len());
            assert!(series.ticks_per_point() as usize >= full);
        }
    }
}

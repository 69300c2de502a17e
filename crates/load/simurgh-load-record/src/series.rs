//! The run over time, in a fixed number of points: when they are full, each two are merged.

use serde::Serialize;

use super::{Count, ErrorKind, Errors, MetricId, Tick};

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

/// A span of time, at first one second. Everything except `users`, `connected` and percentiles is
/// the number of events in it, not a rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// End of the span, milliseconds since the start of the run.
    pub at_ms: u64,
    /// Its length, milliseconds.
    pub span_ms: u64,
    /// Users alive at its end; the maximum where seconds were merged.
    pub users: u64,
    /// Connections open at its end; the maximum where seconds were merged.
    pub connected: u64,
    /// Users that were due, started or not.
    pub due: u64,
    /// Users started.
    pub arrivals: u64,
    /// Users ended.
    pub departures: u64,
    /// Connections made.
    pub connects: u64,
    /// Requests sent that expect an answer.
    pub requests: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// CPU time of all workers, microseconds.
    pub cpu_us: u64,
    /// Times, by metric in the order of their numbers; only those that occurred.
    pub times: Vec<(MetricId, TimePoint)>,
    /// Errors by kind, in order; only those that occurred.
    pub kinds: Vec<(ErrorKind, u64)>,
}

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
        let counts = &all.counts;
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
        Self {
            at_ms: tick.at_ms,
            span_ms: tick.span_ms,
            users: all.users,
            connected: all.connected,
            due: counts[Count::UsersDue],
            arrivals: counts[Count::UsersStarted],
            departures: counts[Count::UsersFinished].saturating_add(counts[Count::UsersAborted]),
            connects: counts[Count::Connects],
            requests: counts[Count::Requests],
            frames_in: counts.frames_in(),
            frames_out: counts.frames_out(),
            bytes_in: counts[Count::BytesIn],
            bytes_out: counts[Count::BytesOut],
            errors: all.errors.total(),
            cpu_us: all.cpu_ns / 1000,
            times: times.collect(),
            kinds: kinds(&all.errors),
        }
    }

    fn append(&mut self, next: &Self) {
        self.at_ms = next.at_ms;
        self.users = self.users.max(next.users);
        self.connected = self.connected.max(next.connected);
        add_fields!(self, next; span_ms, due, arrivals, departures, connects, requests,
            frames_in, frames_out, bytes_in, bytes_out, errors, cpu_us);
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
    fn rolling_up_keeps_totals_order_and_peaks() {
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
            let sum = |of: fn(&Point) -> u64| points.iter().map(of).sum::<u64>();
            assert!(points.len() <= 8);
            assert_eq!((sum(|point| point.arrivals), sum(|point| point.bytes_in)), sums);
            assert_eq!(sum(|point| point.span_ms), seconds * 1000);
            assert!(points.is_sorted_by_key(|point| point.at_ms));
            assert_eq!(points.last().map(|point| point.at_ms), Some(seconds * 1000));
            assert_eq!(points.first().map(|point| point.connected), Some(999));
            let times = |point: &Point| point.times.iter().map(|(_, time)| time.count).sum::<u64>();
            assert_eq!(points.iter().map(times).sum::<u64>(), seconds);
            let max = points.iter().flat_map(|point| &point.times).map(|(_, time)| time.max).max();
            assert_eq!(max, Some(seconds));
            let full = usize::try_from(seconds).unwrap_or(0).div_ceil(points.len());
            assert!(series.ticks_per_point() as usize >= full);
        }
    }
}

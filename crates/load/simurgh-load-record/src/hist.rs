//! Histograms of times: 1 µs to 1 h with three digits, no larger than their longest time needs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::{Deserializer as V2Reader, Serializer as _, V2Serializer};
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest time, one hour, in microseconds. Longer ones are counted as this.
pub const TIME_US_MAX: u64 = 3_600_000_000;

/// Significant digits of a time.
const DIGITS: u8 = 3;

/// Times in microseconds. With times up to 2 ms it takes 8 kB, and 4 kB more for each doubling.
/// Merging is exact: the sum of two equals one histogram of everything.
///
/// As text it is base64 of HdrHistogram's V2 encoding, which other tools can read.
#[derive(Clone, PartialEq)]
pub struct Hist<C: Counter = u32>(Histogram<C>);

/// A histogram over a whole run.
pub type Total = Hist<u64>;

impl<C: Counter> Hist<C> {
    /// An empty histogram.
    #[allow(clippy::expect_used, reason = "fails for more than five digits only")]
    pub fn new() -> Self {
        Self(Histogram::new(DIGITS).expect("three digits are allowed"))
    }

    /// Records a time in microseconds. Allocates when it is longer than all before.
    #[inline]
    pub fn record(&mut self, us: u64) {
        // Cannot fail within the bound, as the histogram grows.
        let _ = self.0.record(us.min(TIME_US_MAX));
    }

    /// Adds all of `other`.
    pub fn add(&mut self, other: &Self) {
        // Both have the same digits and grow, so there is always room.
        let _ = self.0.add(&other.0);
    }

    /// The number of times.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The shortest, µs; 0 if it is empty.
    pub fn min(&self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.min() }
    }

    /// The longest, µs; 0 if it is empty.
    pub fn max(&self) -> u64 {
        self.0.max().min(TIME_US_MAX)
    }

    /// Mean, µs; 0 if it is empty.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// Standard deviation, µs; 0 if it is empty.
    pub fn deviation(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.stdev() }
    }

    /// The time in µs that `percent` of all do not exceed; 0 if it is empty.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_percentile(percent).min(self.max()) }
    }

    /// The share of all values from `low` to `high`; 0 if it is empty.
    pub fn share_between(&self, low: f64, high: f64) -> f64 {
        let is_within = |value: u64| (low..=high).contains(&(value as f64));
        let steps = self.0.iter_recorded().filter(|step| is_within(step.value_iterated_to()));
        let within: u64 = steps.map(|step| step.count_since_last_iteration()).sum();
        within as f64 / (self.count() as f64).max(1.0)
    }

    /// Count and percentiles.
    pub fn stats(&self) -> Stats {
        Stats {
            count: self.count(),
            min: self.min(),
            mean: self.mean(),
            p50: self.percentile(50.0),
            p90: self.percentile(90.0),
            p95: self.percentile(95.0),
            p99: self.percentile(99.0),
            p99_9: self.percentile(99.9),
            p99_99: self.percentile(99.99),
            p99_999: self.percentile(99.999),
            max: self.max(),
        }
    }
}

impl Total {
    /// Adds the requests that a slow answer held back, as wrk does: for each time longer than twice
    /// the interval, the requests that were due every `interval_us` during it.
    #[must_use]
    pub fn corrected(&self, interval_us: u64) -> Self {
        Self(self.0.clone_correct(interval_us.max(1)))
    }

    /// Adds the histogram of one second.
    pub fn absorb(&mut self, second: &Hist) {
        for step in second.0.iter_recorded() {
            let count = u64::from(step.count_at_value());
            let _ = self.0.record_n(step.value_iterated_to(), count);
        }
    }
}

impl<C: Counter> std::fmt::Debug for Hist<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its thousands of counts are not printed.
        self.stats().fmt(f)
    }
}

impl<C: Counter> Default for Hist<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Counter> Serialize for Hist<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.0, &mut bytes).map_err(|error| {
            serde::ser::Error::custom(format_args!("histogram cannot be written: {error:?}"))
        })?;
        serializer.serialize_str(&STANDARD.encode(bytes))
    }
}

impl<'de, C: Counter> Deserialize<'de> for Hist<C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        read(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

const HEAD_BYTES: usize = 40;

fn read<C: Counter>(text: &str) -> Result<Histogram<C>, String> {
    let bytes = STANDARD.decode(text).map_err(|error| format!("histogram: {error}"))?;
    if !is_ours(&bytes) {
        return Err("histogram with another range, or damaged".to_owned());
    }
    let mut hist: Histogram<C> = V2Reader::new()
        .deserialize(&mut bytes.as_slice())
        .map_err(|error| format!("histogram cannot be read: {error:?}"))?;
    if hist.max() > 2 * TIME_US_MAX {
        return Err(format!("histogram with a time of {} µs", hist.max()));
    }
    hist.auto(true);
    Ok(hist)
}

/// Whether bytes can be the output of [`Hist`]. Checked before decoding, since the decoder trusts
/// the length and the range in the head, and could allocate gigabytes.
fn is_ours(bytes: &[u8]) -> bool {
    let Some((head, counts)) = bytes.split_at_checked(HEAD_BYTES) else { return false };
    let word = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u64::from(bytes.map_or(0, u32::from_be_bytes))
    };
    let long = |at: usize| word(at) << 32 | word(at + 4);
    // Nine bytes could be the smallest i64, which the decoder negates; ours have at most eight.
    let nine = counts.windows(8).any(|bytes| bytes.iter().all(|byte| *byte >= 0x80));
    word(0) == 0x1C84_9313
        && word(4) == counts.len() as u64
        && word(12) == u64::from(DIGITS)
        && long(16) == 1
        && long(24) <= 2 * TIME_US_MAX
        && !nine
}

/// Figures of a histogram for tables and charts; times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// How many.
    pub count: u64,
    /// The shortest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p99_9: u64,
    /// 99.99th percentile.
    pub p99_99: u64,
    /// 99.999th percentile.
    pub p99_999: u64,
    /// The longest.
    pub max: u64,
}

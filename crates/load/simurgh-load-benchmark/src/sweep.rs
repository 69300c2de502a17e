//! Benchmarks with increasing numbers of connections: where the server saturates, compared with
//! queueing theory.
//!
//! Two rules, simple enough to be checked by hand:
//!
//! - The server *saturates* at the least number of connections that reach 95 % of the greatest rate
//!   of all rows, once a row has shown that more connections bring less than 5 % more.
//! - *Little's law*: open requests = rate × mean latency. In a closed loop there are as many as
//!   connections, so each row shows which part of the time connections waited for the server.
//!   Beyond saturation, where the rate no longer grows, it predicts the latency of the next row:
//!   connections ÷ the greatest rate so far.

use serde::Serialize;

use super::outcome::Outcome;

/// This share of the greatest rate counts as all of it.
const SATURATED: f64 = 0.95;
/// A row below this multiple of the greatest rate before it shows no growth.
const GAIN: f64 = 1.05;

/// The prediction for a row that has not been measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Mean latency, µs.
    pub latency_us: f64,
    /// The greatest rate so far, requests per second.
    pub rate: f64,
}

/// One number of connections.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The measurements.
    pub outcome: Outcome,
    /// The prediction for it; absent before saturation.
    pub prediction: Option<Prediction>,
}

impl Row {
    /// The relative deviation of the measured latency from the prediction: 0.1 for 10 % more.
    pub fn deviation(&self) -> Option<f64> {
        let predicted = self.prediction?.latency_us;
        Some(self.outcome.latency_us.mean / predicted - 1.0)
    }

    /// Rate × mean latency against the number of connections: −0.1 for 10 % less.
    pub fn little(&self) -> f64 {
        self.outcome.in_flight / (self.outcome.connections as f64).max(1.0) - 1.0
    }
}

/// All rows so far.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    rows: Vec<Row>,
}

impl Sweep {
    /// The rows, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The prediction for a row with this number of connections; `None` before saturation.
    pub fn predict(&self, connections: usize) -> Option<Prediction> {
        let rate = self.greatest_rate();
        let known = self.has_stopped_growing() && rate > 0.0;
        known.then(|| Prediction { latency_us: connections as f64 / rate * 1e6, rate })
    }

    /// Adds a row, with its prediction by [`Sweep::predict`].
    pub fn add(&mut self, outcome: Outcome, prediction: Option<Prediction>) {
        self.rows.push(Row { outcome, prediction });
    }

    /// Requests a second of the best row; 0 without rows.
    pub fn greatest_rate(&self) -> f64 {
        self.rows.iter().map(|row| row.outcome.requests_per_second).fold(0.0, f64::max)
    }

    /// A row's rate as a share of the greatest rate.
    pub fn saturation(&self, row: &Row) -> f64 {
        row.outcome.requests_per_second / self.greatest_rate().max(f64::MIN_POSITIVE)
    }

    /// The number of connections that saturates the server; `None`: none of these.
    pub fn saturates_at(&self) -> Option<usize> {
        let full = self.rows.iter().filter(|row| self.saturation(row) >= SATURATED);
        let least = full.map(|row| row.outcome.connections).min();
        least.filter(|_| self.has_stopped_growing())
    }

    fn has_stopped_growing(&self) -> bool {
        let mut greatest = f64::INFINITY;
        for row in &self.rows {
            let rate = row.outcome.requests_per_second;
            if greatest.is_finite() && rate < GAIN * greatest {
                return true;
            }
            greatest = rate.max(if greatest.is_finite() { greatest } else { 0.0 });
        }
        false
    }

    /// The whole sweep, for scripts.
    pub fn report(&self) -> impl Serialize + '_ {
        #[derive(Serialize)]
        struct Report<'a> {
            saturates_at: Option<usize>,
            greatest_rate: f64,
            rows: Vec<Line<'a>>,
        }
        #[derive(Serialize)]
        struct Line<'a> {
            connections: usize,
            saturation: f64,
            little_deviation: f64,
            prediction: Option<Prediction>,
            prediction_deviation: Option<f64>,
            outcome: &'a Outcome,
        }
        let rows = self.rows.iter().map(|row| Line {
            connections: row.outcome.connections,
            saturation: self.saturation(row),
            little_deviation: row.little(),
            prediction: row.prediction,
            prediction_deviation: row.deviation(),
            outcome: &row.outcome,
        });
        Report {
            saturates_at: self.saturates_at(),
            greatest_rate: self.greatest_rate(),
            rows: rows.collect(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::job::Job;
    use crate::job::tests::plan;
    use crate::tally::Tally;

    /// One second of a run with these connections, answers and mean latency.
    pub(crate) fn outcome(connections: usize, rate: u64, latency_us: u64) -> Outcome {
        let job = Job::new(plan("http://127.0.0.1:1/<x>")).unwrap();
        let mut tally = Tally::default();
        for _ in 0..rate {
            tally.answered(200, latency_us * 1000);
        }
        tally.elapsed_ns = 1_000_000_000;
        Outcome::new(&job, connections, 1, &tally, false)
    }

    /// The specification's table: connections, requests a second, average latency in µs.
    const MEASURED: [(usize, u64, u64); 9] = [
        (1, 2_075, 491),
        (2, 3_583, 569),
        (4, 4_530, 890),
        (8, 4_907, 1_640),
        (16, 4_965, 3_220),
        (32, 4_956, 6_440),
        (128, 4_855, 26_340),
        (256, 4_318, 59_350),
        (512, 4_091, 125_540),
    ];

    pub(crate) fn page_benchmark() -> Sweep {
        let mut sweep = Sweep::default();
        for (connections, rate, latency_us) in MEASURED {
            let prediction = sweep.predict(connections);
            sweep.add(outcome(connections, rate, latency_us), prediction);
        }
        sweep
    }

    #[test]
    fn table_of_the_page_benchmark_saturates_at_8_connections() {
        let sweep = page_benchmark();
        assert_eq!(sweep.saturates_at(), Some(8));
        assert!((sweep.saturation(&sweep.rows()[0]) - 0.418).abs() < 0.001);
        let predicted: Vec<Option<f64>> = sweep
            .rows()
            .iter()
            .map(|row| row.prediction.map(|it| (it.latency_us / 100.0).round() / 10.0))
            .collect();
        // "Almost 25 ms", "almost 50 ms", "almost 100 ms".
        let beyond = [Some(6.4), Some(25.8), Some(51.6), Some(103.1)];
        assert_eq!(predicted, [&[None; 5][..], &beyond].concat());
        let deviation = sweep.rows()[6].deviation().unwrap();
        assert!((deviation - 0.0217).abs() < 0.001, "{deviation}");
        assert!(sweep.rows().iter().all(|row| row.little().abs() < 0.05), "Little's law holds");
    }

    #[test]
    fn growing_rate_is_not_saturated() {
        let mut sweep = Sweep::default();
        assert_eq!((sweep.saturates_at(), sweep.predict(5)), (None, None));
        for (connections, rate) in [(1, 100), (2, 200), (4, 390)] {
            assert_eq!(sweep.predict(connections), None);
            sweep.add(outcome(connections, rate, 10_000), None);
        }
        assert_eq!(sweep.saturates_at(), None);
        sweep.add(outcome(8, 400, 20_000), None);
        assert_eq!(sweep.saturates_at(), Some(4));
        assert_eq!(sweep.predict(16).unwrap().latency_us, 40_000.0);
    }
}

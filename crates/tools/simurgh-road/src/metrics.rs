//! The text of /metrics, summed over shards.

use std::collections::HashMap;

#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By name: sum and number of lines.
    sums: HashMap<String, (f64, u64)>,
    /// By name and labels as in the text.
    lines: HashMap<String, f64>,
}

impl Metrics {
    /// Skips lines that are not figures.
    pub(super) fn read(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            metrics.lines.insert(name.to_owned(), value);
            let name = name.split_once('{').map_or(name, |(name, _)| name);
            let place = metrics.sums.entry(name.to_owned()).or_default();
            *place = (place.0 + value, place.1 + 1);
        }
        metrics
    }

    pub(super) fn add(&mut self, other: Self) {
        for (name, (value, lines)) in other.sums {
            let place = self.sums.entry(name).or_default();
            *place = (place.0 + value, place.1 + lines);
        }
        for (line, value) in other.lines {
            *self.lines.entry(line).or_default() += value;
        }
    }

    /// A counter or gauge of whole numbers; 0 if there is none.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, below 2⁵³")]
    pub(super) fn count(&self, name: &str) -> u64 {
        self.sums.get(name).map_or(0.0, |(sum, _)| sum.max(0.0)) as u64
    }

    /// One line, named with its labels; 0 if there is none.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, below 2⁵³")]
    pub(super) fn count_of(&self, line: &str) -> u64 {
        self.lines.get(line).map_or(0.0, |value| value.max(0.0)) as u64
    }

    /// The number of shards, for a metric with a line for each shard.
    pub(super) fn lines(&self, name: &str) -> u64 {
        self.sums.get(name).map_or(0, |(_, lines)| *lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_summed() {
        let text = "# HELP a b\n# TYPE a counter\na{shard=\"0\"} 3\na{shard=\"1\"} 4\nb 5\nbad\n";
        let metrics = Metrics::read(text);
        assert_eq!((metrics.count("a"), metrics.count("b"), metrics.count("c")), (7, 5, 0));
        assert_eq!((metrics.lines("a"), metrics.lines("c")), (2, 0));
        assert_eq!((metrics.count_of("a{shard=\"1\"}"), metrics.count_of("a")), (4, 0));
        let mut two = Metrics::read(text);
        two.add(metrics);
        assert_eq!((two.count("a"), two.count("b"), two.lines("a")), (14, 10, 4));
        assert_eq!(two.count_of("a{shard=\"1\"}"), 8);
    }
}

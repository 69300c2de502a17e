//! The text of /metrics, summed over shards.

use std::collections::HashMap;

/// Values by name and labels, as in the text.
#[derive(Debug, Default)]
pub(super) struct Metrics(HashMap<String, f64>);

impl Metrics {
    /// Skips lines that are not figures.
    pub(super) fn read(text: &str) -> Self {
        let figures = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(figures.collect())
    }

    pub(super) fn add(&mut self, other: Self) {
        for (line, value) in other.0 {
            *self.0.entry(line).or_default() += value;
        }
    }

    /// The values of a metric, with whatever labels.
    fn of(&self, name: &str) -> impl Iterator<Item = f64> {
        let is_it = move |line: &str| line.split_once('{').map_or(line, |(name, _)| name) == name;
        self.0.iter().filter(move |(line, _)| is_it(line)).map(|(_, value)| *value)
    }

    /// A counter or gauge of whole numbers; 0 if there is none.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, below 2⁵³")]
    pub(super) fn count(&self, name: &str) -> u64 {
        self.of(name).sum::<f64>().max(0.0) as u64
    }

    /// One line, named with its labels; 0 if there is none.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, below 2⁵³")]
    pub(super) fn count_of(&self, line: &str) -> u64 {
        self.0.get(line).map_or(0.0, |value| value.max(0.0)) as u64
    }

    /// The number of shards, for a metric with a line for each shard.
    pub(super) fn lines(&self, name: &str) -> u64 {
        self.of(name).count() as u64
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
        assert_eq!((two.count("a"), two.count("b"), two.lines("a")), (14, 10, 2));
        assert_eq!(two.count_of("a{shard=\"1\"}"), 8);
    }
}

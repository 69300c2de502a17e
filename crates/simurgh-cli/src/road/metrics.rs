//! What a server says under /metrics, summed over its shards.

use std::collections::HashMap;

/// Sums and numbers of lines by name.
#[derive(Debug, Default)]
pub(super) struct Metrics(HashMap<String, (f64, u64)>);

impl Metrics {
    /// From the text of the page; lines that are no figures are left out.
    pub(super) fn read(text: &str) -> Self {
        let mut sums = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let name = name.split_once('{').map_or(name, |(name, _)| name);
            let place: &mut (f64, u64) = sums.entry(name.to_owned()).or_default();
            *place = (place.0 + value, place.1 + 1);
        }
        Self(sums)
    }

    /// A counter or gauge of whole numbers; 0 if there is none.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, below 2⁵³")]
    pub(super) fn count(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0.0, |(sum, _)| sum.max(0.0)) as u64
    }

    /// On how many lines it is: as many as shards, for what each of them counts.
    pub(super) fn lines(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |(_, lines)| *lines)
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
    }
}

//! Compares the costs of several nodes with those of one server with the same lobby.

use super::results::{BroadcastResult, Comparison, Medians, Milestone, Results};

impl Comparison {
    /// None unless both have reached a milestone.
    pub(super) fn of(several: &Results, one: Results) -> Option<Self> {
        let nodes = Medians::of(&several.broadcasts, several.milestones.last()?);
        let alone = Medians::of(&one.broadcasts, one.milestones.last()?);
        let server_us_ratio = nodes.server_us / alone.server_us.max(f64::MIN_POSITIVE);
        Some(Self { nodes, one: alone, server_us_ratio, road: Box::new(one) })
    }
}

impl Medians {
    pub(super) fn of(all: &[BroadcastResult], milestone: &Milestone) -> Self {
        Self {
            broadcasts: all.len(),
            server_us: median(all.iter().map(|one| one.server_us)),
            last_us: median(all.iter().map(|one| one.last_us as f64)),
            server_bytes: milestone.server_bytes,
        }
    }
}

/// The mean of the middle two if the number is even; 0 if there are no values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
    f64::midpoint(at(values.len().saturating_sub(1) / 2), at(values.len() / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(us: &[f64]) -> Results {
        let broadcast = |us: &f64| BroadcastResult {
            server_us: *us,
            last_us: *us as u64,
            ..BroadcastResult::default()
        };
        Results {
            milestones: vec![Milestone { server_bytes: 150.0, ..Milestone::default() }],
            broadcasts: us.iter().map(broadcast).collect(),
            ..Results::default()
        }
    }

    #[test]
    fn comparison_uses_medians() {
        let compared = Comparison::of(&results(&[9.0, 2.0, 4.0]), results(&[1.0, 3.0])).unwrap();
        assert_eq!((compared.nodes.server_us, compared.one.server_us), (4.0, 2.0));
        assert_eq!((compared.server_us_ratio, compared.one.broadcasts), (2.0, 2));
        assert!(super::super::report::comparison_words(&compared).contains("2.000 times"));
        assert!(Comparison::of(&results(&[]), Results::default()).is_none());
    }
}

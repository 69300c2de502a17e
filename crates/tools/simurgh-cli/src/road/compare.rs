//! What several nodes cost beside one server with the same lobby.

use std::fmt::Write as _;

use serde::Serialize;
use simurgh_load::report::grouped;

use super::measure::Milestone;
use super::report::{Road, time};
use super::told::Told;

/// Several nodes and one, each by the median of what was said to all when everybody was there.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Compared {
    /// The several.
    pub(super) nodes: Medians,
    /// The one.
    pub(super) one: Medians,
    /// CPU of all servers for each delivery: the several's divided by the one's.
    pub(super) server_us_ratio: f64,
    /// The road of the one.
    pub(super) road: Box<Road>,
}

/// Medians of a road's broadcasts, and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Medians {
    /// Broadcasts.
    pub(super) broadcasts: usize,
    /// CPU of all servers for each delivery, µs.
    pub(super) server_us: f64,
    /// Until the last of all had it, µs.
    pub(super) last_us: f64,
    /// Bytes of all servers for each client.
    pub(super) server_bytes: f64,
}

impl Medians {
    pub(super) fn of(told: &[Told], milestone: &Milestone) -> Self {
        Self {
            broadcasts: told.len(),
            server_us: median(told.iter().map(|told| told.server_us)),
            last_us: median(told.iter().map(|told| told.last_us as f64)),
            server_bytes: milestone.server_bytes,
        }
    }
}

/// The one in the middle, or the mean of the two there; 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => at(count / 2),
        count => f64::midpoint(at(count / 2 - 1), at(count / 2)),
    }
}

impl Compared {
    /// Nothing where either did not come to a milestone.
    pub(super) fn of(several: &Road, one: Road) -> Option<Self> {
        let nodes = Medians::of(&several.told, several.milestones.last()?);
        let alone = Medians::of(&one.told, one.milestones.last()?);
        let server_us_ratio = nodes.server_us / alone.server_us.max(f64::MIN_POSITIVE);
        Some(Self { nodes, one: alone, server_us_ratio, road: Box::new(one) })
    }
}

/// The comparison in words.
pub(super) fn compared_words(compared: &Compared) -> String {
    let Compared { nodes, one, server_us_ratio, .. } = compared;
    format!(
        "One server with the same lobby: {:.2} µs of server CPU per delivery (median of {}), last \
         of all {}, {:.0} B each. Several nodes: {:.2} µs (of {}), {}, {:.0} B each: {:.3} times \
         the CPU per delivery.",
        one.server_us,
        one.broadcasts,
        time(one.last_us as u64),
        one.server_bytes,
        nodes.server_us,
        nodes.broadcasts,
        time(nodes.last_us as u64),
        nodes.server_bytes,
        server_us_ratio,
    )
}

/// Several nodes at the last milestone in words.
pub(super) fn nodes_words(road: &Road) -> Option<String> {
    let last = road.milestones.last()?;
    let told = road.told.last().unwrap_or(&last.broadcast);
    let mut text = String::from("Nodes:");
    for (number, (node, told)) in (1..).zip(last.nodes.iter().zip(&told.nodes)) {
        // Writing to a text does not fail.
        let _ = write!(
            text,
            " node-{number} {} connections, {:.0} B each, {} deliveries, {:.2} µs each;",
            grouped(node.sockets),
            node.bytes,
            grouped(told.delivered),
            told.server_us
        );
    }
    let medians = Medians::of(&road.told, last);
    let _ = write!(
        text,
        " all together {} deliveries of one broadcast to {} members, nobody twice; median of {}: \
         {:.2} µs of CPU each, last of all {}. The engine has {:.1} MB and took {:.2} ms of CPU \
         for the last.",
        grouped(told.delivered),
        grouped(last.members),
        medians.broadcasts,
        medians.server_us,
        time(medians.last_us as u64),
        last.engine_memory.unwrap_or(0) as f64 / 1e6,
        told.engine_us.unwrap_or(0.0) / 1e3,
    );
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn road(us: &[f64]) -> Road {
        let told = |us: &f64| Told { server_us: *us, last_us: *us as u64, ..Told::default() };
        Road {
            milestones: vec![Milestone { server_bytes: 150.0, ..Milestone::default() }],
            told: us.iter().map(told).collect(),
            ..Road::default()
        }
    }

    #[test]
    fn medians_are_compared() {
        let compared = Compared::of(&road(&[9.0, 2.0, 4.0]), road(&[1.0, 3.0])).unwrap();
        assert_eq!((compared.nodes.server_us, compared.one.server_us), (4.0, 2.0));
        assert_eq!((compared.server_us_ratio, compared.one.broadcasts), (2.0, 2));
        assert!(compared_words(&compared).contains("2.000 times"));
        assert!(Compared::of(&road(&[]), Road::default()).is_none());
    }
}

//! Compares a [`Machine`] with the needs of a number of connections: a [`Row`] for each limit, with
//! have, need and how. Reads nothing and changes nothing.
//!
//! No row asks for less than there is: the target is the greater of the two, number by number.

mod files;
mod net;
mod row;
mod shards;

use serde::Serialize;

use super::machine::Machine;
use row::Plan;
pub use row::{Change, Wanted};
pub(crate) use row::{Row, State, about, grouped, plain};

/// A comparison of a machine with a number of connections.
#[derive(Debug, Clone)]
pub struct Report {
    pub(crate) wanted: Wanted,
    pub(crate) cores: u64,
    /// Whether settings can be written; `None` if that is unknown.
    pub is_root: Option<bool>,
    /// Shards that the server needs.
    pub(crate) shards: u64,
    /// Threads that server and clients need together.
    pub(crate) threads: u64,
    /// The value of `RLIMIT_NOFILE` at which few shards are enough.
    pub(crate) descriptors_good: u64,
    pub(crate) rows: Vec<Row>,
    /// With the current settings.
    pub(crate) holds: Holds,
    /// The same after `changes`.
    pub(crate) would_hold: Holds,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Holds {
    /// Approximate number; at most [`CONNECTIONS_MAX`](crate::CONNECTIONS_MAX).
    pub(crate) connections: u64,
    pub(crate) shards: u64,
    /// The limit that is reached first.
    pub(crate) first_limit: String,
}

impl Report {
    pub(crate) fn new(machine: &Machine, wanted: Wanted) -> Self {
        let plan = Plan::new(machine, wanted);
        let mut rows = files::rows(machine, &plan);
        rows.extend(net::rows(machine, &plan));
        Self {
            wanted,
            cores: machine.cores,
            is_root: machine.is_root,
            shards: plan.shards,
            threads: plan.threads(),
            descriptors_good: descriptors_good(machine, wanted),
            holds: Holds::new(&plan, plan.descriptors_now, &rows, |row| row.caps),
            would_hold: Holds::new(&plan, plan.descriptors, &rows, |row| {
                match row.is_changeable() {
                    true => row.caps.map(|caps| caps.max(wanted.connections)),
                    false => row.caps,
                }
            }),
            rows,
        }
    }

    /// The settings to write, so that as much as possible is enough.
    pub fn changes(&self) -> Vec<Change> {
        self.rows.iter().filter_map(Row::change).collect()
    }

    /// Whether nothing is known to be too small.
    pub fn is_enough(&self) -> bool {
        self.rows.iter().all(|row| row.state != State::TooSmall)
    }
}

/// A million, the default of `fs.nr_open`. More than the present `fs.nr_open` would break logins. A
/// higher present limit stays.
fn descriptors_good(machine: &Machine, wanted: Wanted) -> u64 {
    let need = shards::descriptors(wanted.connections);
    let open_max = machine.number("fs.nr_open").unwrap_or(DESCRIPTORS_GOOD).max(need);
    let hard = machine.nofile.as_ref().map_or(0, |limit| limit.hard);
    hard.max(need).max(DESCRIPTORS_GOOD).min(open_max)
}

const DESCRIPTORS_GOOD: u64 = 1 << 20;

impl Holds {
    fn new(
        plan: &Plan,
        descriptors: u64,
        rows: &[Row],
        caps: impl Fn(&Row) -> Option<u64>,
    ) -> Self {
        let most = u64::from(crate::CONNECTIONS_MAX);
        let lowest = rows.iter().filter_map(|row| Some((caps(row)?, row)));
        let (connections, first_limit) = match lowest.min_by_key(|(caps, _)| *caps) {
            Some((caps, row)) if caps < most => (caps, format!("{}{}", row.name, row.exempt)),
            _ => (most, "the maximum number of shards".to_owned()),
        };
        Self {
            connections,
            shards: plan.cores.max(shards::shards(connections, descriptors)),
            first_limit,
        }
    }
}

#[cfg(test)]
mod tests;

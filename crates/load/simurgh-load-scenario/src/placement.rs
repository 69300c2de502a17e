//! Computes how many workers a run needs.

use crate::{Arrivals, Scenario, Session, Transport};

/// Users of one worker, if its descriptor table holds as many.
const USERS_PER_WORKER: u64 = 18_000;
/// Descriptors of a worker that are no connections.
const OWN_DESCRIPTORS: u64 = 32;
/// More threads than this are a mistake in the scenario.
const WORKERS_MAX: u64 = 2_000;

/// Workers for a scenario on this host: one for each core, fewer for a few users, more when their
/// connections need more descriptor tables, each of this many `descriptors`.
pub fn workers(scenario: &Scenario, descriptors: u64) -> usize {
    let connections = connections_max(scenario);
    // Without sockets, no worker runs out of descriptors.
    let is_tun = scenario.sources.tun.is_some();
    workers_for(if is_tun { connections.min(USERS_PER_WORKER) } else { connections }, descriptors)
}

/// The maximum of connections at a time: one for each user, two if users poll or are cut silently.
pub fn connections_max(scenario: &Scenario) -> u64 {
    let has_two = |session: &Session| {
        session.transport == Transport::LongPoll
            || session.drop.is_some_and(|drop| drop.how.is_silent())
    };
    let twice = scenario.sessions.iter().any(has_two);
    users_max(scenario).saturating_mul(if twice { 2 } else { 1 })
}

/// Workers for a number of connections, each with a table of this many `descriptors`.
pub fn workers_for(users: u64, descriptors: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    usize::try_from(needed(users, descriptors, cores).min(WORKERS_MAX)).unwrap_or(1)
}

fn needed(users: u64, descriptors: u64, cores: u64) -> u64 {
    let free = descriptors.saturating_sub(OWN_DESCRIPTORS);
    let each = USERS_PER_WORKER.min(free / 10 * 9).max(1);
    users.div_ceil(each).max(users.div_ceil(100).min(cores)).max(1)
}

/// The maximum of users at a time, if none ended before the last came.
pub fn users_max(scenario: &Scenario) -> u64 {
    let load = &scenario.load;
    let mut open = 0_u64;
    let mut closed = 0;
    for phase in &load.phases {
        match phase.arrivals {
            Arrivals::Open { from, to, .. } => {
                let users = ((from + to) / 2.0 * phase.duration.as_secs_f64()).ceil() as u64;
                open = open.saturating_add(users.min(phase.users_max.unwrap_or(u64::MAX)));
            }
            Arrivals::Closed { from, to } => closed = closed.max(from).max(to),
        }
    }
    let rounds = u64::from(load.repeat) + 1;
    let users = open.saturating_mul(rounds).saturating_add(closed);
    let users = users.saturating_add(load.appointments.len() as u64);
    users.min(load.users_max.unwrap_or(u64::MAX))
}

/// A host's input for the number of its workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Share of the users.
    pub weight: f64,
    /// Cores of the host.
    pub cores: u64,
    /// Connections that one worker can hold there.
    pub capacity: u64,
}

/// Additional workers that may be used to get closer to the weights.
const MORE_WORKERS_MAX: u64 = 64;
/// Shares this close to the weights are accepted.
const NEAR: f64 = 0.01;

/// Workers of each host. All workers have the same share of the users, so the numbers follow the
/// weights as closely as whole numbers can; a host has at least one.
pub fn split(users: u64, wanted: Option<u64>, rooms: &[Room]) -> Vec<u64> {
    let sum: f64 = rooms.iter().map(|room| room.weight).sum();
    let shares: Vec<f64> = rooms.iter().map(|room| room.weight / sum).collect();
    if let Some(wanted) = wanted {
        return apportion(wanted, &shares);
    }
    let needed = rooms.iter().zip(&shares).map(|(room, share)| {
        needed((users as f64 * share).ceil() as u64, room.capacity, room.cores)
    });
    let least: u64 = needed.sum::<u64>().min(WORKERS_MAX);
    let mut best = (f64::INFINITY, Vec::new());
    for workers in least..=least + MORE_WORKERS_MAX {
        let split = apportion(workers, &shares);
        let all = split.iter().sum::<u64>() as f64;
        let error =
            split.iter().zip(&shares).map(|(n, share)| (*n as f64 / all / share - 1.0).abs());
        let error = error.fold(0.0, f64::max);
        // Another worker must be worth it.
        if error < best.0 * 0.8 {
            best = (error, split);
        }
        if best.0 <= NEAR {
            break;
        }
    }
    best.1
}

/// Divides `workers` by shares that add up to 1, at least one for each (largest remainders).
pub fn apportion(workers: u64, shares: &[f64]) -> Vec<u64> {
    let ideal = |share: f64| workers as f64 * share;
    let mut split: Vec<u64> = shares.iter().map(|share| (ideal(*share) as u64).max(1)).collect();
    let mut left = workers.saturating_sub(split.iter().sum());
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let missing = |host: usize| ideal(shares.get(host).copied().unwrap_or(0.0)).fract();
    order.sort_by(|a, b| missing(*b).total_cmp(&missing(*a)));
    for host in order.into_iter().cycle().take(shares.len().saturating_mul(2)) {
        if left > 0
            && let Some(n) = split.get_mut(host)
        {
            *n += 1;
            left -= 1;
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(weights: &[f64]) -> Vec<Room> {
        weights.iter().map(|&weight| Room { weight, cores: 4, capacity: 20_000 }).collect()
    }

    #[test]
    fn workers_follow_the_host_weights_with_at_least_one_each() {
        assert_eq!(split(10, None, &rooms(&[1.0, 1.0])), [1, 1]);
        assert_eq!(split(10, None, &rooms(&[1.0, 2.0])), [1, 2]);
        assert_eq!(split(10, None, &rooms(&[1.0, 4.0, 0.5])), [2, 8, 1]);
        // Ratios that cannot be exact are as good as 64 more workers allow.
        let near = split(10, None, &rooms(&[1.0, 3.1]));
        let error = near[1] as f64 / near[0] as f64 / 3.1 - 1.0;
        assert!(error.abs() < 0.03, "{near:?}");
    }

    #[test]
    fn more_users_than_a_worker_can_hold_get_more_workers() {
        assert_eq!(split(100_000, None, &rooms(&[1.0, 1.0])), [4, 4]);
        assert_eq!(split(300_000, None, &rooms(&[1.0, 1.0])), [9, 9]);
        let small = Room { weight: 1.0, cores: 1, capacity: 1000 };
        assert_eq!(split(9_000, None, &[small, small]), [6, 6]);
        let tiny = Room { weight: 1.0, cores: 1, capacity: 64 };
        assert_eq!(split(1_000, None, &[tiny]), [38], "27 each, beside their own descriptors");
    }

    #[test]
    fn requested_number_of_workers_is_used() {
        assert_eq!(split(1_000_000, Some(4), &rooms(&[1.0, 1.0])), [2, 2]);
        assert_eq!(split(10, Some(7), &rooms(&[1.0, 2.0])), [2, 5]);
        assert_eq!(split(10, Some(1), &rooms(&[1.0, 1.0, 1.0])), [1, 1, 1]);
    }
}

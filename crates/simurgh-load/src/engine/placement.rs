//! How many workers a run needs.

use crate::scenario::{Arrivals, Scenario};

/// Users that one worker takes, below what its descriptor table holds (20,000 by default on the
/// systems that bound it most).
const USERS_PER_WORKER: u64 = 18_000;
/// More threads than this are a mistake in the scenario rather than a wish.
const WORKERS_MAX: u64 = 2_000;

/// Workers for a scenario on this host: one for each core, fewer for a handful of users, more when
/// their connections need more descriptor tables.
pub fn workers(scenario: &Scenario) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let users = users_max(scenario);
    let wanted = users.div_ceil(USERS_PER_WORKER).max(users.div_ceil(100).min(cores)).max(1);
    usize::try_from(wanted.min(WORKERS_MAX)).unwrap_or(1)
}

/// The most users that can be there at a time, if none ended before the last came.
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

//! Estimates when users arrive, how long they stay, how many there are; servers answer at once.

use std::time::Duration;

use crate::check::weights;
use crate::{Act, Arrivals, Bound, Connect, Phase, Scenario, Session, Step, Think, Transport};

/// A phase with its start and end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Planned<'s> {
    pub(super) phase: &'s Phase,
    /// Since the start, seconds.
    pub(super) from: f64,
    /// Since the start, seconds; not after the run's end.
    pub(super) to: f64,
    /// Users that arrive; in a closed model the initial ones and their successors.
    pub(super) users: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan<'s> {
    /// All phases in order, with repetitions.
    pub(super) phases: Vec<Planned<'s>>,
    /// Phases that were left out because there are too many, or because the one before never ends.
    pub(super) left_out: u64,
    pub(super) users: f64,
    pub(super) peak: f64,
    /// When the last user has ended, seconds; infinite: never.
    pub(super) end: f64,
}

const PHASES_MAX: usize = 1000;

const POINTS: u32 = 2000;

/// How long the steps of a session take, seconds; infinite if they never end.
pub(super) fn stay(session: &Session) -> f64 {
    seconds(&session.steps).0
}

/// Whether a step waits for something that may never come, without a limit.
pub(super) fn may_wait_forever(session: &Session) -> bool {
    let mut may = false;
    session.each_step(&mut |step| {
        may |= matches!(step.act, Act::WaitServer | Act::Gather { timeout: None, .. });
    });
    may
}

/// How long the steps take, seconds, and whether they end the user.
fn seconds(steps: &[Step]) -> (f64, bool) {
    let mut sum = 0.0;
    for step in steps {
        let (one, ended) = match &step.act {
            Act::Think(think) => (mean(*think), false),
            Act::Receive(receive) => (receive.time.map_or(f64::INFINITY, mean), false),
            Act::For(each) => {
                let rounds =
                    rounds(each.from, each.to, each.step).max(f64::from(each.at_least_once));
                let (body, ended) = seconds(&each.steps);
                let round = each.every.map_or(body, |every| body.max(every.as_secs_f64()));
                // Also without a wait of the user's own: each round waits for the server.
                // 0 times infinity is NaN.
                let whole = match (rounds, round) {
                    (0.0, _) => 0.0,
                    (f64::INFINITY, _) => f64::INFINITY,
                    (rounds, round) => rounds * round,
                };
                (if ended { body } else { whole }, ended && rounds > 0.0)
            }
            Act::Abort | Act::AbortRun => (0.0, true),
            // Steps under a condition do not always run, so they do not count as the user's end.
            Act::If { steps, .. } => (seconds(steps).0, false),
            act => seconds(act.steps()),
        };
        sum += one;
        if ended {
            return (sum, true);
        }
    }
    (sum, false)
}

fn mean(think: Think) -> f64 {
    match think {
        Think::Constant(time) | Think::Exponential(time) => time.as_secs_f64(),
        Think::Uniform(from, to) => f64::midpoint(from.as_secs_f64(), to.as_secs_f64()),
        Think::Var(..) => 0.0,
    }
}

/// The rounds of a loop; one if a variable has the number.
pub(super) fn rounds(from: Bound, to: Bound, step: i64) -> f64 {
    match (from, to) {
        (_, Bound::Endless) => f64::INFINITY,
        (Bound::Number(from), Bound::Number(to)) if step != 0 => {
            ((to as f64 - from as f64) / step as f64 + 1.0).floor().max(0.0)
        }
        _ => 1.0,
    }
}

/// Sockets that one user of a session has at a time.
pub(super) fn sockets(session: &Session) -> f64 {
    let (mut websocket, mut http) = (false, false);
    session.each_step(&mut |step| match &step.act {
        Act::Connect(Connect { .. }) | Act::Send(_) | Act::Raw(_) => websocket = true,
        Act::Http(_) => http = true,
        _ => {}
    });
    let of_messages = match session.transport {
        // A silently cut connection stays open until the next one is established.
        Transport::WebSocket if session.drop.is_some_and(|drop| drop.how.is_silent()) => {
            2 * u8::from(websocket)
        }
        Transport::WebSocket => u8::from(websocket),
        // One for the waiting poll, one for POSTs.
        Transport::LongPoll => 2 * u8::from(websocket),
    };
    f64::from(of_messages + u8::from(http))
}

pub(super) fn sockets_per_user(scenario: &Scenario) -> f64 {
    // Phases may weigh sessions differently, so the maximum of all sessions is used.
    scenario.sessions.iter().map(sockets).fold(0.0, f64::max)
}

pub(super) fn plan(scenario: &Scenario) -> Plan<'_> {
    let stays: Vec<f64> = scenario.sessions.iter().map(stay).collect();
    let longest = stays.iter().copied().fold(0.0, f64::max);
    let end_of_run = scenario.load.duration.map_or(f64::INFINITY, |end| end.as_secs_f64());
    let times = u64::from(scenario.load.repeat) + 1;
    let all = scenario.load.phases.len() as u64 * times;
    let mut phases = Vec::new();
    let mut from = 0.0;
    let mut left = scenario.load.users_max.map_or(f64::INFINITY, |most| most as f64);
    let order = (0..times).flat_map(|_| &scenario.load.phases);
    for phase in order.take(PHASES_MAX) {
        if from >= end_of_run {
            break;
        }
        let to = (from + phase.duration.as_secs_f64()).min(end_of_run);
        let users = arriving(scenario, phase, to - from, &stays).min(left);
        left -= users;
        phases.push(Planned { phase, from, to, users });
        from = if phase.wait_for_users { to + longest } else { to };
    }
    let appointments = scenario.load.appointments.len() as f64;
    let users = phases.iter().map(|one| one.users).sum::<f64>() + appointments;
    let last = phases.last().map_or(0.0, |one| one.to);
    let appointed = scenario
        .load
        .appointments
        .iter()
        .map(|one| one.at.as_secs_f64() + stays.get(one.session).copied().unwrap_or_default());
    let end = appointed.fold(last + if users > 0.0 { longest } else { 0.0 }, f64::max);
    let peak = peak(scenario, &phases, &stays).min(users) + appointments.min(users);
    let left_out = all.saturating_sub(phases.len() as u64);
    Plan { left_out, users, peak: peak.min(users), end: end.min(end_of_run), phases }
}

fn arriving(scenario: &Scenario, phase: &Phase, seconds: f64, stays: &[f64]) -> f64 {
    let most = phase.users_max.map_or(f64::INFINITY, |most| most as f64);
    let users = match phase.arrivals {
        Arrivals::Open { from, to, .. } => {
            // The run may end before the ramp does.
            let share = seconds / phase.duration.as_secs_f64().max(f64::MIN_POSITIVE);
            seconds * (from + (to - from) * share.min(1.0) / 2.0)
        }
        Arrivals::Closed { from, to } => {
            let stay: f64 =
                shares(scenario, phase).zip(stays).map(|(share, stay)| share * stay).sum();
            let mean = f64::midpoint(from as f64, to as f64);
            let successors = if stay > 0.0 { mean * seconds / stay } else { 0.0 };
            successors.max(from.max(to) as f64)
        }
    };
    users.min(most)
}

fn shares(scenario: &Scenario, phase: &Phase) -> impl Iterator<Item = f64> {
    let sum: f64 = weights(scenario, phase).sum();
    weights(scenario, phase).map(move |weight| weight / sum.max(f64::MIN_POSITIVE))
}

/// The maximum of users at a time: for each session the arrivals minus the departures.
fn peak(scenario: &Scenario, phases: &[Planned<'_>], stays: &[f64]) -> f64 {
    let last = phases.last().map_or(0.0, |one| one.to);
    let mut most: f64 = 0.0;
    let grid = (0..=POINTS).map(|point| last * f64::from(point) / f64::from(POINTS));
    // Peaks are at the ends of phases.
    for time in grid.chain(phases.iter().map(|one| one.to)) {
        let mut there = 0.0;
        for planned in phases.iter().take_while(|one| one.from <= time) {
            if let Arrivals::Closed { from, to } = planned.phase.arrivals {
                let is_over = time > planned.to;
                there += if is_over { 0.0 } else { (from.max(to) as f64).min(planned.users) };
                continue;
            }
            for (share, stay) in shares(scenario, planned.phase).zip(stays) {
                there += share * (come(planned, time) - come(planned, time - stay));
            }
        }
        most = most.max(there);
    }
    most
}

/// How many of a phase's users have arrived at a time.
fn come(planned: &Planned<'_>, time: f64) -> f64 {
    if time < planned.from {
        return 0.0;
    }
    let Arrivals::Open { from, to, .. } = planned.phase.arrivals else { return 0.0 };
    let since = time.min(planned.to) - planned.from;
    let whole = planned.phase.duration.max(Duration::from_nanos(1)).as_secs_f64();
    (since * (from + (to - from) * since / whole / 2.0)).min(planned.users)
}

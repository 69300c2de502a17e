//! Chooses the server of each user, and counts users per server.
//!
//! A user's first server follows from its number in the run, so that all workers of all hosts
//! spread users evenly without communication. Each round over the servers has a different order,
//! drawn from the seed. Otherwise it would be in step with other choices that users make in turn,
//! such as rooms, and all members of a room would be on one server.

use simurgh_load_scenario::placement::apportion;
use simurgh_load_scenario::{Spread, Target};

use crate::chance::{mix, pick, sums};

/// Places of a round over servers whose weights are not small whole numbers.
const PLACES: u64 = 1000;

/// A user's server, and whether it is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerChoice(u16);

impl ServerChoice {
    /// A step of the scenario has named the server.
    const PINNED: u16 = 1 << 15;
    /// The user has begun a connection.
    const BEGUN: u16 = 1 << 14;
    /// The index is in the other bits; `check` limits the number of servers to it.
    const INDEX: u16 = Self::BEGUN - 1;

    fn new(index: u16) -> Self {
        Self(index & Self::INDEX)
    }

    pub(crate) fn index(self) -> u16 {
        self.0 & Self::INDEX
    }

    /// The same as a list index.
    pub(crate) fn place(self) -> usize {
        usize::from(self.index())
    }

    /// Binds the user to this server, as a step says.
    pub(crate) fn pin(&mut self, index: u16) {
        self.0 = index & Self::INDEX | self.0 & Self::BEGUN | Self::PINNED;
    }

    /// Notes that a connection begins; returns whether it is the user's first.
    pub(crate) fn begin(&mut self) -> bool {
        let is_first = self.0 & Self::BEGUN == 0;
        self.0 |= Self::BEGUN;
        is_first
    }

    fn go_to(&mut self, index: u16) {
        self.0 = index & Self::INDEX | self.0 & !Self::INDEX;
    }

    fn is_free(self) -> bool {
        self.0 & Self::PINNED == 0
    }
}

#[derive(Debug)]
pub(crate) struct ServerSpread {
    spread: Spread,
    seed: u64,
    /// One round: each server as often as its weight says.
    round: Vec<u16>,
    sums: Vec<f64>,
    /// Connections of this worker's users after their first.
    again: u64,
}

impl ServerSpread {
    pub(crate) fn new(spread: Spread, targets: &[Target], seed: u64, worker: u64) -> Self {
        let weights: Vec<f64> = targets.iter().map(|target| target.weight.max(0.0)).collect();
        let sums = sums(weights.iter().copied());
        Self { spread, seed, round: round(&weights), sums, again: worker }
    }

    pub(crate) fn first(&self, id: u32) -> ServerChoice {
        ServerChoice::new(match self.spread {
            Spread::Random => pick(&self.sums, mix(self.seed ^ 0x7a26, u64::from(id))),
            Spread::RoundRobin | Spread::Sticky | Spread::Elsewhere => {
                self.turn(u64::from(id).saturating_sub(1))
            }
        })
    }

    /// Chooses the server of a user's later connection.
    pub(crate) fn again(&mut self, choice: &mut ServerChoice) {
        if self.spread == Spread::RoundRobin && choice.is_free() {
            let turn = self.turn(self.again);
            self.again = self.again.wrapping_add(1);
            choice.go_to(turn);
        }
    }

    /// The connection broke or was refused; returns whether the user now changes servers.
    pub(crate) fn broke(&self, choice: &mut ServerChoice) -> bool {
        if self.spread != Spread::Elsewhere || !choice.is_free() {
            return false;
        }
        let here = choice.index();
        // The first places of the servers are in the order of the scenario.
        let next = self.round.iter().copied().find(|other| *other > here);
        match next.or(self.round.first().copied()).filter(|other| *other != here) {
            Some(other) => {
                choice.go_to(other);
                true
            }
            None => false,
        }
    }

    /// The server of a turn, counted from 0.
    fn turn(&self, number: u64) -> u16 {
        let places = self.round.len().max(1) as u64;
        let (round, place) = (number / places, number % places);
        let drawn = mix(self.seed ^ 0x7091, round);
        // All places once, in this round's order: the step is coprime to their number.
        let mut step = drawn % places + 1;
        while common_divisor(step, places) > 1 {
            step += 1;
        }
        let at = (place * step + (drawn >> 32)) % places;
        usize::try_from(at).ok().and_then(|at| self.round.get(at)).copied().unwrap_or(0)
    }
}

fn round(weights: &[f64]) -> Vec<u16> {
    let taken: Vec<(u16, f64)> =
        (0..).zip(weights.iter().copied()).filter(|(_, weight)| *weight > 0.0).collect();
    let sum: f64 = taken.iter().map(|(_, weight)| weight).sum();
    let is_whole = taken.iter().all(|(_, weight)| weight.fract() == 0.0) && sum < 1e9;
    let whole: Vec<u64> = taken.iter().map(|(_, weight)| *weight as u64).collect();
    let divisor = if is_whole { whole.iter().copied().fold(0, common_divisor).max(1) } else { 1 };
    let alike = taken.iter().all(|(_, weight)| Some(*weight) == taken.first().map(|it| it.1));
    let counts = match sum / divisor as f64 <= PLACES as f64 {
        _ if alike => vec![1; taken.len()],
        true if is_whole => whole.iter().map(|count| count / divisor).collect(),
        _ => {
            let shares: Vec<f64> = taken.iter().map(|(_, weight)| weight / sum).collect();
            apportion(PLACES, &shares)
        }
    };
    let times = |count: u64| usize::try_from(count).unwrap_or(1);
    let places = taken.iter().zip(counts);
    places.flat_map(|((index, _), count)| std::iter::repeat_n(*index, times(count))).collect()
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn targets(weights: &[f64]) -> Vec<Target> {
        let target = |weight: &f64| Target {
            host: "a".into(),
            address: ([127, 0, 0, 1], 1).into(),
            tls: false,
            credentials: None,
            weight: *weight,
        };
        weights.iter().map(target).collect()
    }

    fn turns(spread: Spread, weights: &[f64]) -> ServerSpread {
        ServerSpread::new(spread, &targets(weights), 7, 0)
    }

    fn counted(
        turns: &ServerSpread,
        users: std::ops::RangeInclusive<u32>,
        servers: usize,
    ) -> Vec<u32> {
        let mut counts = vec![0; servers];
        users.for_each(|id| counts[turns.first(id).place()] += 1);
        counts
    }

    #[test]
    fn users_are_spread_evenly_whichever_worker_starts_them() {
        let three = turns(Spread::RoundRobin, &[1.0; 3]);
        assert_eq!(counted(&three, 1..=3_000, 3), [1_000; 3]);
        // Another worker computes the same without communication.
        let other = ServerSpread::new(Spread::Sticky, &targets(&[1.0; 3]), 7, 5);
        assert!((1..=3_000).all(|id| three.first(id) == other.first(id)));
        let weighted = turns(Spread::Elsewhere, &[3.0, 0.0, 1.0]);
        assert_eq!(counted(&weighted, 1..=4_000, 3), [3_000, 0, 1_000]);
        let odd = turns(Spread::Sticky, &[0.5, 0.25, 1e-9]);
        assert_eq!(counted(&odd, 1..=1_000, 3), [666, 333, 1]);
    }

    #[test]
    fn every_channel_of_round_robin_users_has_members_on_all_servers() {
        let three = turns(Spread::RoundRobin, &[1.0; 3]);
        for room in 1..=600 {
            let mut counts = [0; 3];
            (0..30).for_each(|n| counts[three.first(room + 600 * n).place()] += 1);
            assert!(counts.iter().all(|count| (1..30).contains(count)), "{room}: {counts:?}");
        }
    }

    #[test]
    fn only_round_robin_changes_the_server_for_each_connection() {
        for spread in [Spread::Random, Spread::Sticky, Spread::Elsewhere] {
            let mut turns = turns(spread, &[1.0; 3]);
            let mut choice = turns.first(1);
            let before = choice;
            (0..9).for_each(|_| turns.again(&mut choice));
            assert_eq!(choice, before);
        }
        let mut turns = turns(Spread::RoundRobin, &[1.0; 3]);
        let mut counts = [0; 3];
        let mut choice = turns.first(1);
        for _ in 0..9 {
            turns.again(&mut choice);
            counts[choice.place()] += 1;
        }
        assert_eq!(counts, [3; 3]);
        // A pinned server stays.
        choice.pin(2);
        (0..9).for_each(|_| turns.again(&mut choice));
        assert_eq!(choice.index(), 2);
    }

    #[test]
    fn only_spread_elsewhere_leaves_a_broken_server() {
        let elsewhere = turns(Spread::Elsewhere, &[2.0, 0.0, 1.0, 1.0]);
        let mut choice = ServerChoice::new(0);
        assert!(choice.begin() && !choice.begin());
        let order: Vec<u16> = (0..4)
            .map(|_| {
                assert!(elsewhere.broke(&mut choice));
                choice.index()
            })
            .collect();
        assert_eq!(order, [2, 3, 0, 2]);
        assert!(!choice.begin(), "it is remembered");
        choice.pin(1);
        assert!(!elsewhere.broke(&mut choice) && choice.index() == 1);
        assert!(!turns(Spread::Elsewhere, &[1.0]).broke(&mut ServerChoice::new(0)));
        for spread in [Spread::Random, Spread::Sticky, Spread::RoundRobin] {
            assert!(!turns(spread, &[1.0; 3]).broke(&mut ServerChoice::new(0)));
        }
    }

    proptest! {
        #[test]
        fn round_robin_follows_the_weights(weights in proptest::collection::vec(0_u16..40, 1..9)) {
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let all: f64 = weights.iter().sum();
            prop_assume!(all > 0.0);
            let turns = turns(Spread::RoundRobin, &weights);
            let users = all as u32 * 5;
            let counts = counted(&turns, 1..=users, weights.len());
            let wanted: Vec<u32> = weights.iter().map(|weight| *weight as u32 * 5).collect();
            prop_assert_eq!(counts, wanted);
        }
    }
}

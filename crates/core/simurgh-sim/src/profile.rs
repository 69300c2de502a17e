//! The profile that a seed makes for a run: sizes, features and rates. Each seed switches some
//! features off altogether (swarm testing), so that rare ones meet undisturbed.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use simurgh_core::{Config, FanoutPermits, PresenceConfig};

use crate::features::Features;
use crate::limits::Limits;
use crate::op::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    Push,
    Broadcast,
    BroadcastFrom,
    BroadcastTo,
    Disconnect,
    Subscribe,
    Unsubscribe,
    CloseSocket,
    Tell,
    Keep,
    Assign,
    Link,
    Hold,
    Proceed,
    Speak,
    Track,
    Update,
    Untrack,
    AskState,
    Expire,
}

/// With their weights.
const HABITS: [(Habit, u8); 20] = [
    (Habit::Push, 12),
    (Habit::Broadcast, 10),
    (Habit::BroadcastFrom, 4),
    (Habit::BroadcastTo, 4),
    (Habit::Disconnect, 1),
    (Habit::Subscribe, 2),
    (Habit::Unsubscribe, 1),
    (Habit::CloseSocket, 1),
    (Habit::Tell, 3),
    (Habit::Keep, 2),
    (Habit::Assign, 2),
    (Habit::Link, 2),
    (Habit::Hold, 1),
    (Habit::Proceed, 2),
    (Habit::Speak, 3),
    (Habit::Track, 12),
    (Habit::Update, 5),
    (Habit::Untrack, 3),
    (Habit::AskState, 6),
    (Habit::Expire, 4),
];
const USUAL: Range<usize> = 0..10;
/// Habits of [`Features::reaches`].
const REACHING: Range<usize> = 10..15;
/// Habits of [`Features::is_present`].
const PRESENT: Range<usize> = 15..19;
/// Habits of [`Features::expires`].
const EXPIRING: Range<usize> = 19..20;

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) seed: u64,
    pub(crate) shards: usize,
    /// Cores of the machine, from which permits are counted; 0: no permits.
    pub(crate) cores: usize,
    pub(crate) clients: usize,
    pub(crate) topics: usize,
    pub(crate) channels_max: u16,
    pub(crate) counts_members: bool,
    habits: [u8; HABITS.len()],
    pub(crate) effects_max: u8,
    /// How many of 256 callbacks panic, or stop their channel.
    pub(crate) panics: u8,
    pub(crate) stops: u8,
    /// How many of 256 joins are refused, decided later, intercept, or intercept all.
    pub(crate) refused: u8,
    pub(crate) later: u8,
    pub(crate) intercepts: u8,
    /// How many of 256 payloads are binary, or long.
    pub(crate) binary: u8,
    pub(crate) long: u8,
    pub(crate) pad: usize,
    /// Most nanoseconds between two readings of the clock.
    pub(crate) jump_ns: u32,
    /// Bytes that the network holds between a peer and its socket.
    pub(crate) window: usize,
    pub(crate) config: Config,
    pub(crate) weights: Vec<u16>,
    pub(crate) features: Features,
    /// Used where [`Features::is_limited`].
    limits: Limits,
}

impl Profile {
    pub(crate) fn of(seed: u64) -> Self {
        let mut it = Self::sizes(seed);
        it.features = Features::of(seed, it.shards);
        let mut rng = Rng::with_seed(seed ^ 0x57_45_49_47);
        it.weights = Kind::ALL.iter().map(|_| swarm(&mut rng)).collect();
        if it.features.is_crowded {
            it.crowd();
        }
        it.weights[Kind::Restart as usize] = if it.features.restarts { 16 } else { 0 };
        let bursts = &mut it.weights[Kind::Burst as usize];
        *bursts = if it.features.is_limited { (*bursts).max(1) } else { 0 };
        for (habits, of_256) in [(USUAL, 170), (REACHING, 170), (PRESENT, 210), (EXPIRING, 210)] {
            draw_habits(&mut it.habits, habits, of_256, &mut rng);
        }
        let most = it.config.broadcast_bytes_max();
        it.config.presence = presence(&mut rng, most);
        it.limits = Limits::of(&mut rng);
        it
    }

    /// Sizes and rates; without features, weights and habits.
    fn sizes(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x51_4d_55_52);
        let is_large = rng.u8(..) < 8;
        let some = |rng: &mut Rng, of_256: u8, value: u8| match rng.u8(..) < of_256 {
            true => value,
            false => 0,
        };
        let shards = match rng.u8(..) {
            0..90 => 1,
            90..170 => 2,
            170..245 => rng.usize(3..=5),
            _ => 8,
        };
        // Without any permit, topics with many members are never served.
        let cores = if is_large || rng.u8(..) < 240 { 1 } else { 0 };
        let clients = if is_large { rng.usize(20..90) } else { rng.usize(1..=7) };
        let topics = if is_large { 1 } else { rng.usize(1..=4) };
        Self {
            seed,
            shards,
            cores,
            clients,
            topics,
            channels_max: if rng.u8(..) < 40 { rng.u16(1..=2) } else { 100 },
            counts_members: rng.bool(),
            habits: [0; HABITS.len()],
            effects_max: rng.u8(1..=4),
            panics: some(&mut rng, 128, 6),
            stops: some(&mut rng, 150, 12),
            refused: some(&mut rng, 128, 30),
            later: some(&mut rng, 110, 90),
            intercepts: some(&mut rng, 110, 110),
            binary: some(&mut rng, 90, 60),
            long: some(&mut rng, 40, 40),
            pad: [200, 3_000, 70_000][rng.usize(..3)],
            jump_ns: [50, 5_000, 300_000, 600_000][rng.usize(..4)],
            window: [1 << 20, 4_000, 300][rng.usize(..3)],
            config: config(&mut rng),
            weights: Vec::new(),
            features: Features::default(),
            limits: Limits::default(),
        }
    }

    pub(crate) fn habits(&self) -> impl Iterator<Item = (Habit, u32)> + Clone {
        let Features { reaches, is_present, expires, .. } = self.features;
        let all = HABITS.iter().zip(self.habits).enumerate();
        let is_on = move |at: usize| match at {
            it if REACHING.contains(&it) => reaches,
            it if PRESENT.contains(&it) => is_present,
            it => expires || !EXPIRING.contains(&it),
        };
        all.filter(move |(at, _)| is_on(*at)).map(|(_, (habit, weight))| (habit.0, weight.into()))
    }

    pub(crate) fn limits(&self) -> Option<&Limits> {
        Some(&self.limits).filter(|_| self.features.is_limited)
    }

    /// Puts so many members into one topic that no shard serves them without a permit.
    fn crowd(&mut self) {
        (self.shards, self.topics) = (2 + self.shards % 2, 1);
        self.clients = 100 + self.clients % 7 * 10;
        for kind in [Kind::Connect, Kind::Join] {
            self.weights[kind as usize] = 60;
        }
    }

    pub(crate) fn permits(&self) -> FanoutPermits {
        match self.features.permits {
            Some(permits) => FanoutPermits::of(self.shards, usize::from(permits)),
            None => FanoutPermits::new(self.shards, self.cores),
        }
    }

    /// Draws an event with a chance of `of_256` in 256.
    pub(crate) fn is(rng: &mut Rng, of_256: u8) -> bool {
        of_256 > 0 && rng.u8(..) < of_256
    }
}

/// Gives a seed each of these habits with a chance of `of_256` in 256.
fn draw_habits(habits: &mut [u8], of: Range<usize>, of_256: u8, rng: &mut Rng) {
    for (place, (_, weight)) in habits.iter_mut().zip(HABITS).take(of.end).skip(of.start) {
        *place = if rng.u8(..) < of_256 { weight } else { 0 };
    }
}

/// A factor for the weight of an operation: most seeds switch some off.
fn swarm(rng: &mut Rng) -> u16 {
    match rng.u8(..) {
        0..40 => 0,
        40..200 => 4,
        _ => 16,
    }
}

fn config(rng: &mut Rng) -> Config {
    let usual = Config::default();
    Config {
        idle_timeout: usual.idle_timeout.filter(|_| rng.bool()),
        hibernate_after: usual.hibernate_after.filter(|_| rng.bool()),
        outbound_bytes_max: [usual.outbound_bytes_max, 200_000, 20_000][rng.usize(..3)],
        mailbox_bytes_max: [usual.mailbox_bytes_max, 100_000, 8_000][rng.usize(..3)],
        ..usual
    }
}

/// Mostly small bounds of presence, so that lists often become too long, and short again.
fn presence(rng: &mut Rng, payload_bytes_max: usize) -> PresenceConfig {
    let ms = Duration::from_millis(1);
    let interval = [1, 30, 100, 700][rng.usize(..4)] * ms;
    let list_max = if rng.u8(..) < 200 { rng.usize(3..=20) } else { 1000 };
    let key_bytes_max = [256, 256, 8][rng.usize(..3)];
    // Some are so long that lists become too long.
    let longest = (400 << 10).min(payload_bytes_max);
    let meta_bytes_max = if rng.u8(..) < 24 { longest } else { [4096, 60][rng.usize(..2)] };
    PresenceConfig {
        leave_delay: Duration::ZERO,
        interval,
        list_max,
        summary_interval: interval + [0, 50, 2_000][rng.usize(..3)] * ms,
        sample: rng.usize(..=6),
        key_bytes_max,
        meta_bytes_max,
        channel_entries_max: rng.usize(1..=3),
        turn_bytes: [1 << 20, 1, 300, 2_000][rng.usize(..4)],
    }
}

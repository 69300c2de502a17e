//! The application: what its channels do, and which features it has. Each seed switches some off
//! altogether (swarm testing), so that rare ones meet undisturbed.

mod actor;
mod effects;

use super::*;
pub(crate) use crate::world::app::actor::{Actor, Ready, join, prepare};
use crate::world::app::effects::Draw;
pub(crate) use crate::world::app::effects::{Assigned, Linked, speech};

weighted! {
    /// The actions of a callback, with their weights.
    Habit, HABITS: u8;
    Push 12,
    Broadcast 10,
    BroadcastFrom 4,
    BroadcastTo 4,
    Disconnect 1,
    Subscribe 2,
    Unsubscribe 1,
    CloseSocket 1,
    Tell 3,
    Keep 2,
    Assign 2,
    Link 2,
    Hold 3,
    Proceed 2,
    Speak 3,
    Track 12,
    Update 5,
    Untrack 3,
    AskState 6,
    Expire 4,
}
const USUAL: Range<usize> = 0..10;
const REACHING: Range<usize> = 10..15;
const PRESENT: Range<usize> = 15..19;
const EXPIRING: Range<usize> = 19..20;

/// Without the first operations nothing happens at all.
const NEEDED: usize = 5;

#[derive(Clone, Debug, Default)]
pub(crate) struct AppPlan {
    /// The number of topics that can be joined.
    rooms: usize,
    /// Cores of the machine, from which permits are counted; 0: no permits.
    cores: usize,
    /// How many shards may fan out at once; `None` leaves that to the number of cores.
    permits: Option<u8>,
    pub(crate) channels_max: u16,
    pub(crate) counts_members: bool,
    habits: [u8; HABITS.len()],
    pub(crate) effects_max: u8,
    /// How many of 256 callbacks panic, or stop their channel.
    pub(crate) panics: u8,
    pub(crate) stops: u8,
    /// How many of 256 joins are refused, decided later, or intercept.
    pub(crate) refused: u8,
    pub(crate) later: u8,
    pub(crate) intercepts: u8,
    /// How many of 256 payloads are binary, or long.
    pub(crate) binary: u8,
    pub(crate) long: u8,
    pub(crate) pad: usize,
    /// Texts of clients longer than this are read and prepared away from their shard; 0: none.
    pub(crate) prepare_above: u32,
    /// Topic names about as long as fits a binary frame (1), or as can be joined (2).
    long_names: u8,
    pub(crate) has_odd_refs: bool,
    /// Servers drain more often and start again.
    restarts: bool,
    pub(crate) is_present: bool,
    /// Channels hold sockets, keep values with them, link work, and broadcast by handles.
    pub(crate) reaches: bool,
    /// Sockets have a lifetime, which channels may change.
    pub(crate) expires: bool,
    pub(crate) limits: Option<Limits>,
}

impl Plan {
    /// The plan of one node without a broker and without histories.
    pub(super) fn single(seed: u64, steps: usize) -> Self {
        let mut plan = Self::of_several(seed);
        plan.steps = steps;
        let mut rng = Rng::with_seed(seed ^ 0x51_4d_55_52);
        let is_large = rng.u8(..) < 8;
        let is_crowded = rng.u8(..) < 3;
        let shards = match rng.u8(..) {
            _ if is_crowded => rng.usize(2..=3),
            0..90 => 1,
            90..170 => 2,
            170..245 => rng.usize(3..=5),
            _ => 8,
        };
        plan.nodes = vec![shards];
        plan.clients = match (is_crowded, is_large) {
            (true, _) => 100 + rng.usize(..7) * 10,
            (false, true) => rng.usize(20..90),
            (false, false) => rng.usize(1..=7),
        };
        let mut factors = [(); OF_ONE_NODE].map(|()| swarm(&mut rng));
        let mut app = AppPlan::of(&mut plan, &mut rng, is_large || is_crowded);
        if is_crowded {
            app.permits = Some(1);
            factors[..2].fill(60);
        }
        plan.weights = app.weights(factors);
        plan.topics = Topics::new(app.rooms, app.long_names);
        (plan.network, plan.has_broker) = (Default::default(), false);
        plan.app = app;
        plan
    }

    /// Plans that are each simpler in one way.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let text = format!("{self:?}");
        let is_single = self.is_one_node() && self.history.is_none();
        let changed = CHANGES.iter().filter(|_| is_single).map(|change| {
            let mut plan = self.clone();
            change(&mut plan.app, &mut plan.nodes[0], &mut plan.clients);
            plan.topics = Topics::new(plan.app.rooms, plan.app.long_names);
            plan
        });
        changed.filter(|plan| format!("{plan:?}") != text).collect()
    }
}

type Change = fn(&mut AppPlan, &mut usize, &mut usize);

/// What shrinking tries to make simpler: the plan, the number of shards, and that of clients.
const CHANGES: [Change; 19] = [
    |_, shards, _| *shards = 1,
    |_, shards, _| *shards = (*shards).min(2),
    |_, _, clients| *clients = clients.div_ceil(2),
    |plan, _, _| plan.rooms = 1,
    |plan, _, _| plan.panics = 0,
    |plan, _, _| plan.stops = 0,
    |plan, _, _| plan.intercepts = 0,
    |plan, _, _| plan.later = 0,
    |plan, _, _| (plan.binary, plan.long) = (0, 0),
    |plan, _, _| plan.effects_max = plan.effects_max.saturating_sub(1),
    |plan, _, _| plan.permits = None,
    |plan, _, _| plan.prepare_above = 0,
    |plan, _, _| plan.long_names = 0,
    |plan, _, _| plan.has_odd_refs = false,
    |plan, _, _| plan.restarts = false,
    |plan, _, _| plan.reaches = false,
    |plan, _, _| plan.is_present = false,
    |plan, _, _| plan.limits = None,
    |plan, _, _| plan.expires = false,
];

impl AppPlan {
    fn of(plan: &mut Plan, rng: &mut Rng, has_one_topic: bool) -> Self {
        let mut habits = [0; HABITS.len()];
        for (range, of_256) in [(USUAL, 170), (REACHING, 170), (PRESENT, 210), (EXPIRING, 210)] {
            for at in range {
                habits[at] = if rng.u8(..) < of_256 { HABITS[at].1 } else { 0 };
            }
        }
        plan.config = config(rng);
        plan.config.presence = presence(rng, plan.config.broadcast_bytes_max());
        plan.jump_ns = [50, 5_000, 300_000, 600_000][rng.usize(..4)];
        plan.window = [1 << 20, 4_000, 300][rng.usize(..3)];
        let limits = Limits::of(rng);
        Self {
            rooms: if has_one_topic { 1 } else { rng.usize(1..=4) },
            // Without any permit, topics with many members are never served.
            cores: usize::from(has_one_topic || rng.u8(..) < 240),
            permits: Some(rng.usize(1..=plan.nodes[0]) as u8).filter(|_| rng.u8(..) < 150),
            channels_max: if rng.u8(..) < 40 { rng.u16(1..=2) } else { 100 },
            counts_members: rng.bool(),
            habits,
            effects_max: rng.u8(1..=4),
            panics: some(rng, 128, 6),
            stops: some(rng, 150, 12),
            refused: some(rng, 128, 30),
            later: some(rng, 110, 90),
            intercepts: some(rng, 110, 110),
            binary: some(rng, 90, 60),
            long: some(rng, 40, 40),
            pad: [200, 3_000, 70_000][rng.usize(..3)],
            prepare_above: match rng.u8(..) {
                0..80 => 200,
                80..84 => 64 << 10,
                _ => 0,
            },
            long_names: match rng.u8(..) {
                0..40 => 1,
                40..46 => 2,
                _ => 0,
            },
            has_odd_refs: rng.u8(..) < 60,
            restarts: rng.u8(..) < 40,
            is_present: rng.u8(..) < 160,
            reaches: rng.u8(..) < 110,
            expires: rng.u8(..) < 80,
            limits: Some(limits).filter(|_| rng.u8(..) < 80),
        }
    }

    /// For several nodes, or topics with a history: broadcasts and presences alone.
    pub(super) fn plain(rng: &mut Rng, has_history: bool, pad: usize) -> Self {
        let is_on = |at: usize| match at {
            at if PRESENT.contains(&at) => true,
            at if has_history => at < 4,
            at => USUAL.contains(&at),
        };
        let mut habits = [0; HABITS.len()];
        for at in (0..habits.len()).filter(|at| is_on(*at)) {
            habits[at] = if rng.u8(..) < 210 { HABITS[at].1 } else { 0 };
        }
        Self {
            cores: 1,
            channels_max: 100,
            counts_members: rng.bool(),
            habits,
            effects_max: rng.u8(1..=3),
            panics: some(rng, 60, 4),
            stops: some(rng, 150, 8),
            refused: 16,
            later: 48,
            intercepts: if has_history { 0 } else { some(rng, 60, 110) },
            binary: 36,
            long: some(rng, 110, 30),
            pad,
            is_present: rng.u8(..) < 220,
            ..Self::default()
        }
    }

    pub(crate) fn habits(&self) -> impl Iterator<Item = (Habit, u32)> + Clone {
        let Self { reaches, is_present, expires, .. } = *self;
        let all = HABITS.iter().zip(self.habits).enumerate();
        let chosen = all.filter(move |(at, _)| match at {
            at if REACHING.contains(at) => reaches,
            at if PRESENT.contains(at) => is_present,
            at => expires || !EXPIRING.contains(at),
        });
        chosen.map(|(_, (habit, weight))| (habit.0, u32::from(weight)))
    }

    pub(crate) fn permits(&self, shards: usize) -> FanoutPermits {
        match self.permits {
            Some(permits) => FanoutPermits::of(shards, usize::from(permits)),
            None => FanoutPermits::new(shards, self.cores),
        }
    }

    /// The weights of the kinds of operations, with the factors that a seed has drawn.
    fn weights(&self, factors: [u32; OF_ONE_NODE]) -> Vec<(Kind, u32)> {
        let weigh = |at: usize, factor: u32| match KINDS[at].0 {
            _ if at < NEEDED => factor.max(4),
            Kind::Restart if self.restarts => 16,
            Kind::Restart => 0,
            Kind::Burst if self.limits.is_some() => factor.max(1),
            Kind::Burst => 0,
            Kind::Finish | Kind::Speak | Kind::Listen | Kind::Proceed if !self.reaches => 0,
            Kind::Who if !self.is_present => 0,
            _ => factor,
        };
        let all = KINDS.iter().zip(factors).enumerate();
        let all =
            all.map(|(at, ((kind, weights), factor))| (*kind, weights[0] * weigh(at, factor)));
        let sum: u32 = all.clone().map(|(_, weight)| weight).sum();
        // Rare operations, independent of the others' weights: how many in 40,000.
        let drains = if self.restarts { 80 } else { 8 };
        let rare = [(Kind::Drain, drains), (Kind::Rest, 52)];
        let rare = rare.map(|(kind, count)| (kind, sum * count / 400));
        all.map(|(kind, weight)| (kind, 100 * weight)).chain(rare).collect()
    }
}

/// Draws an event with a chance of `of_256` in 256.
pub(crate) fn is(rng: &mut Rng, of_256: u8) -> bool {
    of_256 > 0 && rng.u8(..) < of_256
}

fn some(rng: &mut Rng, of_256: u8, value: u8) -> u8 {
    if rng.u8(..) < of_256 { value } else { 0 }
}

/// A factor for the weight of an operation: most seeds switch some off.
fn swarm(rng: &mut Rng) -> u32 {
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
    let longest = (400 << 10).min(payload_bytes_max);
    PresenceConfig {
        leave_delay: Duration::ZERO,
        interval,
        list_max: if rng.u8(..) < 200 { rng.usize(3..=20) } else { 1000 },
        summary_interval: interval + [0, 50, 2_000][rng.usize(..3)] * ms,
        sample: rng.usize(..=6),
        key_bytes_max: [256, 256, 8][rng.usize(..3)],
        // Some are so long that lists become too long.
        meta_bytes_max: if rng.u8(..) < 24 { longest } else { [4096, 60][rng.usize(..2)] },
        channel_entries_max: rng.usize(1..=3),
        turn_bytes: [1 << 20, 1, 300, 2_000][rng.usize(..4)],
    }
}

/// Kinds of limits, in the order in which the core checks a message against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Limited {
    Joins,
    Messages,
    Bytes,
    PresenceCalls,
    PayloadBytes,
}

/// How many kinds there are, and how many of them have a bucket.
pub(crate) const LIMITS: usize = 5;
pub(crate) const RATES: usize = 4;

impl Limited {
    pub(crate) const ALL: [Self; LIMITS] =
        [Self::Joins, Self::Messages, Self::Bytes, Self::PresenceCalls, Self::PayloadBytes];

    /// The name of PROTOCOL §6.7.
    pub(crate) fn name(self) -> &'static str {
        ["joins", "messages", "bytes", "presence_calls", "payload_bytes"][self as usize]
    }
}

/// A count per period in milliseconds, and the burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    pub(crate) count: u64,
    pub(crate) period_ms: u64,
    pub(crate) burst: u64,
    pub(crate) policy: LimitPolicy,
}

/// Limits of sockets and channels, indexed by [`Limited`]; channels have none for joins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) socket: [Option<Quota>; RATES],
    pub(crate) channel: [Option<Quota>; RATES],
    pub(crate) payload: Option<(usize, LimitPolicy)>,
}

impl Limits {
    pub(crate) fn of(rng: &mut Rng) -> Self {
        let all = [Limited::Joins, Limited::Messages, Limited::Bytes, Limited::PresenceCalls];
        let mut some = |what: Limited| {
            let quota = quota(rng, what);
            Some(quota).filter(|_| rng.u8(..) < 110)
        };
        let socket = all.map(&mut some);
        let mut channel = all.map(&mut some);
        channel[Limited::Joins as usize] = None;
        let bytes_max = [26, 30, 40, 300][rng.usize(..4)];
        let payload = Some((bytes_max, policy(rng))).filter(|_| rng.u8(..) < 80);
        Self { socket, channel, payload }
    }

    pub(crate) fn of_socket(&self) -> SocketLimits {
        let [joins, messages, bytes, presence_calls] = self.socket.map(limit);
        SocketLimits { joins, messages, bytes, presence_calls }
    }

    pub(crate) fn of_channel(&self) -> ChannelLimits {
        let [_, messages, bytes, presence_calls] = self.channel.map(limit);
        let payload_bytes = self.payload.map(|(bytes_max, policy)| SizeLimit { bytes_max, policy });
        ChannelLimits { messages, bytes, presence_calls, payload_bytes }
    }
}

pub(crate) fn policy(rng: &mut Rng) -> LimitPolicy {
    match rng.u8(..) {
        0..120 => LimitPolicy::Reply,
        120..220 => LimitPolicy::Drop,
        _ => LimitPolicy::Close,
    }
}

fn quota(rng: &mut Rng, what: Limited) -> Quota {
    let (counts, burst) = match what {
        Limited::Joins => ([1, 2, 5], rng.u64(1..=5)),
        Limited::Bytes => ([50, 333, 4_000], rng.u64(30..2_000)),
        _ => ([1, 3, 20], rng.u64(1..=9)),
    };
    let count = counts[rng.usize(..3)];
    // The core allows at most an hour to fill an empty bucket; all of these take less.
    let period_ms = [1, 70, 1_000, 11_000, 60_000][rng.usize(..5)];
    Quota { count, period_ms, burst, policy: policy(rng) }
}

fn limit(quota: Option<Quota>) -> Option<RateLimit> {
    let Quota { count, period_ms, burst, policy } = quota?;
    let rate = Rate::every(count, Duration::from_millis(period_ms));
    let rate = rate.and_then(|it| it.with_burst(burst)).ok()?;
    Some(RateLimit::from(rate).or(policy))
}

/// The lifetime of a socket: unlimited, longer than can be represented, or this many nanoseconds.
pub(crate) fn lifetime(word: u32) -> Option<Duration> {
    let part = u64::from(word >> 8);
    Some(Duration::from_nanos(match word % 16 {
        0 => return None,
        1 => return Some(Duration::MAX),
        2 => part % 3,
        3..6 => part % 400_000_000,
        6..11 => part * 300,
        _ => part * 4_000,
    }))
}

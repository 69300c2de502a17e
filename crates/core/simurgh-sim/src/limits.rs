//! Limits of what clients send and lifetimes of sockets, as a seed draws them: plain numbers, from
//! which the core and the model each make their own.

use std::time::Duration;

use fastrand::Rng;
use simurgh_core::{ChannelLimits, LimitPolicy, Rate, RateLimit, SizeLimit, SocketLimits};

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
pub(crate) const KINDS: usize = 5;
pub(crate) const RATES: usize = 4;

impl Limited {
    pub(crate) const ALL: [Self; KINDS] =
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
    /// The most bytes of a payload.
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
        if let Some(joins) = channel.first_mut() {
            *joins = None;
        }
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

//! One member publishes more than the room can take, as fast as the server lets it.
//!
//! A hundred members read, and two probes are not involved. In the first flood the members read as
//! fast as their core can, in the second each as fast as a line of 40 Mbit/s, since a publisher on
//! the server's own machine is faster than that. The third crosses from one shard to another: both
//! share the server's core, and the probes wait for the scheduler as well, so that is shown and not
//! judged. The last are bursts, to members with lines of 8 Mbit/s.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::clients::{Clients, Pace};
use super::messages::{Event, Serializer};
use super::probe::{Activity, Probe};
use super::server::{Setup, Target, USUAL};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

pub(super) const READERS: usize = 100;
/// The longest wait without progress.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A line of 40 Mbit/s, in bytes a second.
const LINE: Pace = Pace::Steady(5_000_000);
/// A line of 8 Mbit/s, on which a burst arrives as a burst.
const SLOW_LINE: Pace = Pace::Steady(1_000_000);
const CALM: Duration = Duration::from_secs(2);

struct Attack {
    /// The prefix of its figures.
    name: &'static str,
    shards: u32,
    readers: Pace,
    event: Event,
    messages: u32,
    body: usize,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let many = bench.options.size(100_000, 10_000);
    // A flood's answers are empty: otherwise the publisher would have the most unsent bytes and be
    // cut first, which would end the flood. Bursts are answered as in the chat.
    let flood = |name, shards, readers| {
        let (event, messages, body) = (Event::Say, many, 1_000);
        Attack { name, shards, readers, event, messages, body }
    };
    let burst = |name, messages, body| {
        let (shards, readers, event) = (1, SLOW_LINE, Event::Chat);
        Attack { name, shards, readers, event, messages, body }
    };
    let attacks = [
        flood("flood", 1, Pace::Reads),
        flood("lines", 1, LINE),
        flood("two-shards", 2, Pace::Reads),
        burst("burst", 6_000, 1_000),
        burst("two", 2, 9_900_000),
    ];
    attacks.iter().try_for_each(|it| attack(bench, sample, it))
}

fn attack(bench: &Bench<'_>, sample: &mut Sample, it: &Attack) -> Result<()> {
    let mut target = Target::start(bench, Setup { shards: it.shards, ..USUAL })?;
    let body = it.body;
    let mut clients = Clients::new(move |_| body)?;
    let room = target.room(Serializer::V2, "flood", it.event);
    clients.join_many(&room, it.readers, READERS)?;
    let publisher = clients.join(&room, Pace::Reads)?;
    if it.event == Event::Chat {
        clients.expect_answers_of(publisher, body);
    }
    let beats = Probe::start(target.server.address, Activity::Heartbeat)?;
    let publishes = Probe::start(target.server.address, Activity::Publish)?;
    clients.rest(CALM)?;
    let idle = target.memory.idle()?;

    let begun = Instant::now();
    clients.publish(publisher, 0, it.messages);
    let all = u64::from(it.messages);
    let is_whole = clients.until(WAIT_MAX, |clients| {
        let mut members = clients.clients().iter();
        let has_its_answers = clients
            .client(publisher)
            .is_none_or(|it| it.is_over() || it.received.answered + it.received.refused == all);
        has_its_answers && members.all(|it| it.is_over() || it.received.broadcasts == all)
    })?;
    let ended = clients.moved_at();
    clients.rest(Duration::from_millis(500))?;
    let (most, high_water) = target.memory.most();
    let (beats, publishes) = (beats.end()?, publishes.end()?);

    let calm = begun - CALM / 2;
    for (waits, who) in [(&beats, "heartbeat"), (&publishes, "publish")] {
        let (_, [before]) = waits.between(calm, begun, [0.99]);
        sample.put_some(format!("{}_{who}_calm_p99_ms", it.name), before);
        waits.put(sample, &format!("{}_{who}", it.name), begun, ended);
    }
    let took = (ended - begun).as_secs_f64();
    let mut put = |what: &str, value: f64| sample.put(format!("{}_{what}", it.name), value);
    put("memory_mb", stats::per(most.saturating_sub(idle), 1_000_000));
    put("high_water_mb", stats::per(high_water.saturating_sub(idle), 1_000_000));
    put("seconds", took);
    target.turn_cpu_ms().into_iter().for_each(|ms| put("turn_cpu_ms", ms));
    if !is_whole {
        sample.note(format!("{}: nothing more came for {} s", it.name, WAIT_MAX.as_secs()));
    }
    if let Some(ending) = target.ending()? {
        sample.note(format!("{}: the server ended: {ending}", it.name));
    }
    put_members(sample, it, &clients, took);
    Ok(())
}

/// The members' figures; the publisher is the last member.
fn put_members(sample: &mut Sample, it: &Attack, clients: &Clients, took: f64) {
    let (members, all) = (clients.clients(), u64::from(it.messages));
    let missing: u64 = members.iter().map(|it| all.saturating_sub(it.received.broadcasts)).sum();
    let received: u64 = members.iter().map(|it| it.received.broadcasts).sum();
    let mut put = |what: &str, value: f64| sample.put(format!("{}_{what}", it.name), value);
    put("cut", stats::per(members.iter().filter(|it| it.is_over()).count(), 1));
    put("missing", stats::per(missing, 1));
    put("mb_per_s", stats::per(received, 1_000_000) * stats::per(it.body, 1) / took);
    let endings = clients.endings();
    if !endings.is_empty() {
        sample.note(format!("{}: connections closed, by code: {endings:?}", it.name));
    }
    let refused = members.last().map_or(0, |publisher| publisher.received.refused);
    if refused > 0 {
        sample.note(format!("{}: {refused} messages were refused", it.name));
    }
    if members.last().is_none_or(|publisher| publisher.is_over()) {
        sample.note(format!("{}: the publisher was cut", it.name));
    }
    sample.check_wrong(it.name, clients.wrong(refused));
}

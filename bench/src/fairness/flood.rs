//! One member says more than the room can take, as fast as the server lets it.
//!
//! A hundred members read well, and two bystanders have nothing to do with it. Once the members
//! read as fast as their core can, once each as fast as a line of 40 Mbit/s brings it: whoever
//! publishes on the server's own machine is faster than that. Then on two shards, so that the flood
//! crosses from one to the other: both share the server's core, and what bystanders wait for there
//! is the scheduler as well, so that is shown and not judged. At last bursts, to members with lines
//! of 8 Mbit/s.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::bystander::{Bystander, Habit};
use super::crowd::{Crowd, Pace};
use super::server::{How, Served, USUAL};
use super::talk::{Event, Wire};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Members that read well.
pub(super) const READERS: usize = 100;
/// Nobody waits longer for something that does not come.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// What a line of 40 Mbit/s carries, bytes a second.
const LINE: Pace = Pace::Steady(5_000_000);
/// The same of a line of 8 Mbit/s, on which a burst arrives as a burst.
const SLOW_LINE: Pace = Pace::Steady(1_000_000);
/// Before anything is said.
const CALM: Duration = Duration::from_secs(2);

/// What is said.
struct Attack {
    /// What its figures begin with.
    name: &'static str,
    shards: u32,
    readers: Pace,
    event: Event,
    messages: u32,
    body: usize,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let many = bench.options.size(100_000, 10_000);
    // A flood's answers are empty: a publisher to whom more is owed than to any reader would be the
    // first to be cut, and then there is no flood. Bursts are answered as in the chat.
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
    let mut server = Served::start(bench, How { shards: it.shards, ..USUAL })?;
    let body = it.body;
    let mut crowd = Crowd::new(move |_| body)?;
    let room = server.room(Wire::V2, "flood", it.event);
    crowd.join_many(&room, it.readers, READERS)?;
    let publisher = crowd.join(&room, Pace::Reads)?;
    if it.event == Event::Chat {
        crowd.expect_answers_of(publisher, body);
    }
    let beats = Bystander::start(server.running.address, Habit::Heartbeat)?;
    let elsewhere = Bystander::start(server.running.address, Habit::Publish)?;
    crowd.rest(CALM)?;
    let idle = server.watch.idle()?;

    let begun = Instant::now();
    crowd.say(publisher, 0, it.messages);
    let all = u64::from(it.messages);
    let is_whole = crowd.until(WAIT_MAX, |crowd| {
        let mut members = crowd.clients().iter();
        let has_its_answers = crowd
            .client(publisher)
            .is_none_or(|it| it.is_over() || it.heard.answered + it.heard.refused == all);
        has_its_answers && members.all(|it| it.is_over() || it.heard.said == all)
    })?;
    let ended = crowd.moved_at();
    crowd.rest(Duration::from_millis(500))?;
    let (most, high_water) = server.watch.most();
    let (beats, elsewhere) = (beats.end()?, elsewhere.end()?);

    let calm = begun - CALM / 2;
    for (waits, who) in [(&beats, "heartbeat"), (&elsewhere, "publish")] {
        let (_, [before]) = waits.between(calm, begun, [0.99]);
        sample.put_some(format!("{}_{who}_calm_p99_ms", it.name), before);
        waits.put(sample, &format!("{}_{who}", it.name), begun, ended);
    }
    let took = (ended - begun).as_secs_f64();
    let mut put = |what: &str, value: f64| sample.put(format!("{}_{what}", it.name), value);
    put("memory_mb", stats::per(most.saturating_sub(idle), 1_000_000));
    put("high_water_mb", stats::per(high_water.saturating_sub(idle), 1_000_000));
    put("seconds", took);
    server.turn_cpu_ms().into_iter().for_each(|ms| put("turn_cpu_ms", ms));
    if !is_whole {
        sample.note(format!("{}: nothing more came for {} s", it.name, WAIT_MAX.as_secs()));
    }
    if let Some(ending) = server.ending()? {
        sample.note(format!("{}: the server ended: {ending}", it.name));
    }
    put_members(sample, it, &crowd, took);
    Ok(())
}

/// What became of the members, of whom the last is the publisher.
fn put_members(sample: &mut Sample, it: &Attack, crowd: &Crowd, took: f64) {
    let (members, all) = (crowd.clients(), u64::from(it.messages));
    let missing: u64 = members.iter().map(|it| all.saturating_sub(it.heard.said)).sum();
    let said: u64 = members.iter().map(|it| it.heard.said).sum();
    let mut put = |what: &str, value: f64| sample.put(format!("{}_{what}", it.name), value);
    put("cut", stats::per(members.iter().filter(|it| it.is_over()).count(), 1));
    put("missing", stats::per(missing, 1));
    put("mb_per_s", stats::per(said, 1_000_000) * stats::per(it.body, 1) / took);
    let endings = crowd.endings();
    if !endings.is_empty() {
        sample.note(format!("{}: connections closed, by code: {endings:?}", it.name));
    }
    let refused = members.last().map_or(0, |publisher| publisher.heard.refused);
    if refused > 0 {
        sample.note(format!("{}: {refused} messages were refused", it.name));
    }
    if members.last().is_none_or(|publisher| publisher.is_over()) {
        sample.note(format!("{}: the publisher was cut", it.name));
    }
    sample.check_wrong(it.name, crowd.wrong(refused));
}

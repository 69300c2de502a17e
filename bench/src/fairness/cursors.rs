//! One large message is published while 1,500 members, none of whom reads, say something small
//! each: every one of them stands at another place in the topic when the large message is due.
//!
//! The last bytes of the large message and all the small ones are sent at once, so that the server
//! finds them together. Who says something is brought up to date before it gets its answer, and by
//! then one small message more has been published than for the one before. Half of the members
//! speak V1. Four members of either kind read, and must get everything.

use std::time::Duration;

use anyhow::Result;

use super::crowd::{Crowd, Pace};
use super::server::{How, NARROW, Served, USUAL};
use super::talk::{Event, Wire};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Bytes of the large body.
pub(super) const LARGE: usize = 5_000_000;
/// Bytes of a small one.
pub(super) const SMALL: usize = 16;
/// Members that do not read.
pub(super) const SILENT: usize = 1_500;
/// The same in a short run.
pub(super) const SILENT_SHORT: usize = 300;
/// Of each serializer.
const WITNESSES: usize = 4;
const WAIT_MAX: Duration = Duration::from_secs(5);
/// What of the large message is sent together with the small ones.
const TAIL: usize = 32 << 10;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    attack(bench, sample, "wide", USUAL)?;
    attack(bench, sample, "narrow", How { is_narrow: true, ..USUAL })
}

fn attack(bench: &Bench<'_>, sample: &mut Sample, name: &str, how: How) -> Result<()> {
    let mut server = Served::start(bench, how)?;
    let silent = bench.options.size(SILENT, SILENT_SHORT);
    let mut crowd = Crowd::new(|from| if from == 0 { LARGE } else { SMALL })?;
    let rooms = Wire::ALL.map(|wire| server.room(wire, "cursors", Event::Say));
    for at in 0..silent {
        let [v1, v2] = &rooms;
        crowd.join(if at % 2 == 0 { v2 } else { v1 }, Pace::Never)?;
    }
    for room in &rooms {
        crowd.join_many(room, Pace::Reads, WITNESSES)?;
    }
    let [_, v2] = &rooms;
    let publisher = crowd.join(v2, Pace::Reads)?;
    crowd.rest(Duration::from_secs(1))?;
    let idle = server.watch.idle()?;

    let mut large = Vec::new();
    v2.say(0, 0, LARGE, &mut large);
    let tail = large.split_off(large.len().saturating_sub(TAIL));
    crowd.send(publisher, &large);
    crowd.until(WAIT_MAX, |crowd| crowd.client(publisher).is_none_or(|it| it.has_sent_all()))?;
    crowd.rest(Duration::from_millis(200))?;
    let mut small = Vec::new();
    for at in 0..silent {
        let [v1, v2] = &rooms;
        let mut frame = Vec::new();
        let from = u32::try_from(at + 1)?;
        (if at % 2 == 0 { v2 } else { v1 }).say(from, 0, SMALL, &mut frame);
        small.push(frame);
    }
    crowd.send(publisher, &tail);
    small.iter().enumerate().for_each(|(at, frame)| crowd.send(at, frame));
    let all = u64::try_from(silent)? + 1;
    crowd.until(WAIT_MAX, |crowd| {
        let witnesses = crowd.clients().iter().skip(silent);
        witnesses.into_iter().all(|it| it.is_over() || it.heard.said == all)
    })?;
    crowd.rest(Duration::from_secs(2))?;

    let (most, high_water) = server.watch.most();
    let mut put = |what: &str, value: f64| sample.put(format!("{name}_{what}"), value);
    put("memory_mb", stats::per(most.saturating_sub(idle), 1_000_000));
    put("high_water_mb", stats::per(high_water.saturating_sub(idle), 1_000_000));
    // Whoever does not read may be cut before its own message is read. Of a server that has ended
    // nobody knows what it took.
    let published = server.sum("simurgh_broadcasts_total").unwrap_or(stats::per(all, 1));
    put("published", published);
    let witnesses = || crowd.clients().iter().skip(silent);
    put("witnesses_cut", stats::per(witnesses().filter(|it| it.is_over()).count(), 1));
    let missing = witnesses().map(|it| (published - stats::per(it.heard.said, 1)).max(0.0)).sum();
    put("witnesses_missing", missing);
    server.turn_cpu_ms().into_iter().for_each(|ms| put("turn_cpu_ms", ms));
    let cut = server.sum("simurgh_slow_peer_disconnects_total").ok();
    cut.into_iter().for_each(|cut| put("silent_cut", cut));
    sample.check_wrong("cursors", crowd.wrong(0));
    let endings = crowd.endings();
    if !endings.is_empty() {
        sample.note(format!("{name}: connections closed, by code: {endings:?}"));
    }
    aftermath(&mut server, sample, name, how)
}

/// Whether the server is still there, and serves.
pub(super) fn aftermath(
    server: &mut Served,
    sample: &mut Sample,
    name: &str,
    how: How,
) -> Result<()> {
    let newcomer = server.serves_a_newcomer();
    let ending = server.ending()?;
    sample.put(format!("{name}_ended"), f64::from(u8::from(ending.is_some())));
    sample.put(format!("{name}_newcomer_failed"), f64::from(u8::from(newcomer.is_err())));
    if let Some(ending) = ending {
        let space = how.is_narrow.then(|| format!(" with {} MiB of address space", NARROW >> 20));
        sample.note(format!("{name}: the server ended{}: {ending}", space.unwrap_or_default()));
    } else if let Err(error) = newcomer {
        sample.note(format!("{name}: {error:#}"));
    }
    Ok(())
}

//! One large message is published while 1,500 members that do not read publish a small one each:
//! every one of them is at another place in the topic when the large message is due.
//!
//! The last bytes of the large message and all the small ones are sent at once, so that the server
//! finds them together. Each member is brought up to date before its answer, and by then one more
//! small message has been published than for the member before. Half of the members use V1. Four
//! members of either kind read, and must receive everything.

use std::time::Duration;

use anyhow::Result;

use super::clients::{Clients, Pace};
use super::messages::{Event, Serializer};
use super::server::{NARROW, Setup, Target, USUAL};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

pub(super) const LARGE: usize = 5_000_000;
pub(super) const SMALL: usize = 16;
pub(super) const SILENT: usize = 1_500;
pub(super) const SILENT_SHORT: usize = 300;
/// Reading members of each serializer.
const WITNESSES: usize = 4;
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The part of the large message that is sent together with the small ones.
const TAIL: usize = 32 << 10;

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    attack(bench, sample, "wide", USUAL)?;
    attack(bench, sample, "narrow", Setup { is_narrow: true, ..USUAL })
}

fn attack(bench: &Bench<'_>, sample: &mut Sample, name: &str, setup: Setup) -> Result<()> {
    let mut target = Target::start(bench, setup)?;
    let silent = bench.options.size(SILENT, SILENT_SHORT);
    let mut clients = Clients::new(|from| if from == 0 { LARGE } else { SMALL })?;
    let rooms = Serializer::ALL.map(|serializer| target.room(serializer, "cursors", Event::Say));
    for at in 0..silent {
        let [v1, v2] = &rooms;
        clients.join(if at % 2 == 0 { v2 } else { v1 }, Pace::Never)?;
    }
    for room in &rooms {
        clients.join_many(room, Pace::Reads, WITNESSES)?;
    }
    let [_, v2] = &rooms;
    let publisher = clients.join(v2, Pace::Reads)?;
    clients.rest(Duration::from_secs(1))?;
    let idle = target.memory.idle()?;

    let mut large = Vec::new();
    v2.push(0, 0, LARGE, &mut large);
    let tail = large.split_off(large.len().saturating_sub(TAIL));
    clients.send(publisher, &large);
    clients
        .until(WAIT_MAX, |clients| clients.client(publisher).is_none_or(|it| it.has_sent_all()))?;
    clients.rest(Duration::from_millis(200))?;
    let mut small = Vec::new();
    for at in 0..silent {
        let [v1, v2] = &rooms;
        let mut frame = Vec::new();
        let from = u32::try_from(at + 1)?;
        (if at % 2 == 0 { v2 } else { v1 }).push(from, 0, SMALL, &mut frame);
        small.push(frame);
    }
    clients.send(publisher, &tail);
    small.iter().enumerate().for_each(|(at, frame)| clients.send(at, frame));
    let all = u64::try_from(silent)? + 1;
    clients.until(WAIT_MAX, |clients| {
        let witnesses = clients.clients().iter().skip(silent);
        witnesses.into_iter().all(|it| it.is_over() || it.received.broadcasts == all)
    })?;
    clients.rest(Duration::from_secs(2))?;

    let (most, high_water) = target.memory.most();
    let mut put = |what: &str, value: f64| sample.put(format!("{name}_{what}"), value);
    put("memory_mb", stats::per(most.saturating_sub(idle), 1_000_000));
    put("high_water_mb", stats::per(high_water.saturating_sub(idle), 1_000_000));
    // A silent member may be cut before its message is read; an ended server's count is unknown.
    let published = target.server.sum("simurgh_broadcasts_total").unwrap_or(stats::per(all, 1));
    put("published", published);
    let witnesses = || clients.clients().iter().skip(silent);
    put("witnesses_cut", stats::per(witnesses().filter(|it| it.is_over()).count(), 1));
    let missing =
        witnesses().map(|it| (published - stats::per(it.received.broadcasts, 1)).max(0.0)).sum();
    put("witnesses_missing", missing);
    target.turn_cpu_ms().into_iter().for_each(|ms| put("turn_cpu_ms", ms));
    let cut = target.server.sum("simurgh_slow_peer_disconnects_total").ok();
    cut.into_iter().for_each(|cut| put("silent_cut", cut));
    sample.check_wrong("cursors", clients.wrong(0));
    let endings = clients.endings();
    if !endings.is_empty() {
        sample.note(format!("{name}: connections closed, by code: {endings:?}"));
    }
    aftermath(&mut target, sample, name, setup)
}

/// Whether the server still runs and serves.
pub(super) fn aftermath(
    target: &mut Target,
    sample: &mut Sample,
    name: &str,
    setup: Setup,
) -> Result<()> {
    let newcomer = target.serves_a_newcomer();
    let ending = target.ending()?;
    sample.put(format!("{name}_ended"), f64::from(u8::from(ending.is_some())));
    sample.put(format!("{name}_newcomer_failed"), f64::from(u8::from(newcomer.is_err())));
    if let Some(ending) = ending {
        let space = setup.is_narrow.then(|| format!(" with {} MiB of address space", NARROW >> 20));
        sample.note(format!("{name}: the server ended{}: {ending}", space.unwrap_or_default()));
    } else if let Err(error) = newcomer {
        sample.note(format!("{name}: {error:#}"));
    }
    Ok(())
}

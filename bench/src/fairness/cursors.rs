//! One large message is published while 1,500 members that do not read publish a small one each:
//! every one of them is at another place in the topic when the large message is due.
//!
//! The last bytes of the large message and all the small ones are sent at once, so that the server
//! finds them together. Each member is brought up to date before its answer, and by then one more
//! small message has been published than for the member before. Half of the members use V1. Four
//! members of either kind read, and must receive everything.

use std::time::Duration;

use anyhow::Result;

use super::clients::Pace;
use super::field::{Field, Setup, USUAL, attack};
use super::messages::{Event, Serializer};
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
    attack(bench, sample, "wide", USUAL, at_once)?;
    attack(bench, sample, "narrow", Setup { is_narrow: true, ..USUAL }, at_once)
}

fn at_once(field: &mut Field<'_>) -> Result<()> {
    let silent = field.bench.options.size(SILENT, SILENT_SHORT);
    field.clients.bodies = Box::new(|from| if from == 0 { LARGE } else { SMALL });
    let [v1, v2] = Serializer::ALL.map(|it| field.room(it, "cursors", Event::Say));
    let room = |at: usize| if at.is_multiple_of(2) { &v2 } else { &v1 };
    for at in 0..silent {
        field.clients.join(room(at), Pace::Never)?;
    }
    for room in [&v1, &v2] {
        field.clients.join_many(room, Pace::Reads, WITNESSES)?;
    }
    let publisher = field.clients.join(&v2, Pace::Reads)?;
    field.begin(Duration::from_secs(1))?;

    let mut large = Vec::new();
    v2.push(0, 0, LARGE, &mut large);
    let tail = large.split_off(large.len().saturating_sub(TAIL));
    field.clients.send(publisher, &large);
    let is_sent =
        |it: &super::clients::Clients| it.client(publisher).is_none_or(|it| it.has_sent_all());
    field.until(WAIT_MAX, is_sent)?;
    field.clients.rest(Duration::from_millis(200))?;
    let mut small = Vec::new();
    for at in 0..silent {
        let mut frame = Vec::new();
        room(at).push(u32::try_from(at + 1)?, 0, SMALL, &mut frame);
        small.push(frame);
    }
    field.clients.send(publisher, &tail);
    small.iter().enumerate().for_each(|(at, frame)| field.clients.send(at, frame));
    let all = u64::try_from(silent)? + 1;
    field.until(WAIT_MAX, |clients| {
        let mut witnesses = clients.clients().iter().skip(silent);
        witnesses.all(|it| it.is_over() || it.received.broadcasts == all)
    })?;
    field.clients.rest(Duration::from_secs(2))?;

    // A silent member may be cut before its message is read; an ended server's count is unknown.
    let published = field.server.sum("simurgh_broadcasts_total").unwrap_or(stats::per(all, 1));
    let witnesses = field.clients.clients().iter().skip(silent);
    let missing =
        witnesses.map(|it| (published - stats::per(it.received.broadcasts, 1)).max(0.0)).sum();
    field.put("published", published);
    field.put("witnesses_missing", missing);
    let cut = field.server.sum("simurgh_slow_peer_disconnects_total");
    cut.into_iter().for_each(|cut| field.put("silent_cut", cut));
    Ok(())
}

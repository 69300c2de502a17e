//! Sockets that never read are owed large messages.
//!
//! Once one message is broadcast to twenty of them (`heard`), and then it is watched how long they
//! stay; once each of the twenty says something in a room of its own and is owed the answer and the
//! message itself (`said`), the second time with little address space.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::crowd::{Crowd, Pace};
use super::cursors::aftermath;
use super::server::{How, Served, USUAL};
use super::talk::{Event, Wire};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

/// Sockets that never read.
pub(super) const SILENT: usize = 20;
/// Bytes of each body.
pub(super) const LARGE: usize = 9_900_000;
/// How long they are watched: whoever is there then counts as there for ever.
pub(super) const WATCHED_S: u64 = 60;
const WAIT_MAX: Duration = Duration::from_secs(15);

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    heard(bench, sample)?;
    said(bench, sample, "said", USUAL)?;
    said(bench, sample, "said-narrow", How { is_narrow: true, ..USUAL })
}

/// One broadcast to all of them, by somebody who reads.
fn heard(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut server = Served::start(bench, USUAL)?;
    let mut crowd = Crowd::new(|_| LARGE)?;
    let room = server.room(Wire::V2, "silent", Event::Say);
    crowd.join_many(&room, Pace::Never, SILENT)?;
    let publisher = crowd.join(&room, Pace::Reads)?;
    crowd.rest(Duration::from_secs(1))?;
    let idle = server.watch.idle()?;
    let begun = Instant::now();
    crowd.say(publisher, 0, 1);
    let is_whole = crowd.until(WAIT_MAX, |crowd| {
        let publisher = crowd.client(publisher);
        publisher.is_none_or(|it| it.is_over() || (it.heard.said == 1 && it.heard.answered == 1))
    })?;
    crowd.rest(Duration::from_secs(1))?;
    put_memory(sample, "heard", server.watch.most(), idle);
    // Only the server knows when it has given up a socket that would have to read to be told.
    let watched = Duration::from_secs(bench.options.size(WATCHED_S, 8));
    let gone = loop {
        let open = server.sum("simurgh_sockets")?;
        if open < 2.0 {
            break true;
        }
        if begun.elapsed() > watched {
            sample.note(format!("heard: {} of {SILENT} are still there", open - 1.0));
            break false;
        }
        crowd.rest(Duration::from_millis(250))?;
    };
    sample.put("heard_gone_s", begun.elapsed().as_secs_f64());
    sample.put("heard_stayed", f64::from(u8::from(!gone)));
    let missed = crowd.client(publisher).is_none_or(|it| it.is_over() || it.heard.said != 1);
    sample.put("heard_publisher_missed", f64::from(u8::from(missed)));
    if !is_whole {
        sample.note(format!("heard: nothing more came for {} s", WAIT_MAX.as_secs()));
    }
    sample.check_wrong("never-reads", crowd.wrong(0));
    aftermath(&mut server, sample, "heard", USUAL)
}

/// Each says something, as in the chat, and reads nothing of what comes.
fn said(bench: &Bench<'_>, sample: &mut Sample, name: &str, how: How) -> Result<()> {
    let mut server = Served::start(bench, how)?;
    let mut crowd = Crowd::new(|_| LARGE)?;
    for at in 0..SILENT {
        let room = server.room(Wire::V2, &format!("silent-{at}"), Event::Chat);
        crowd.join(&room, Pace::Never)?;
    }
    crowd.rest(Duration::from_secs(1))?;
    let idle = server.watch.idle()?;
    for at in 0..SILENT {
        crowd.say(at, 0, 1);
        let is_sent = crowd.until(WAIT_MAX, |crowd| {
            crowd.client(at).is_none_or(|it| it.is_over() || it.has_sent_all())
        })?;
        if !is_sent {
            sample.note(format!("{name}: nobody took message {at} for {} s", WAIT_MAX.as_secs()));
        }
    }
    crowd.rest(Duration::from_secs(2))?;
    put_memory(sample, name, server.watch.most(), idle);
    aftermath(&mut server, sample, name, how)
}

fn put_memory(sample: &mut Sample, name: &str, (most, high_water): (u64, u64), idle: u64) {
    sample.put(format!("{name}_memory_mb"), stats::per(most.saturating_sub(idle), 1_000_000));
    let high_water = stats::per(high_water.saturating_sub(idle), 1_000_000);
    sample.put(format!("{name}_high_water_mb"), high_water);
}

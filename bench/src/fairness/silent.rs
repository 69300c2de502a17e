//! Large messages for sockets that never read.
//!
//! In `heard` one message is broadcast to twenty of them, and the server is watched for how long
//! they stay; in `said` each of the twenty publishes in its own room and has the answer and the
//! message itself waiting, the second time with little address space.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::clients::{Clients, Pace};
use super::cursors::aftermath;
use super::messages::{Event, Serializer};
use super::server::{Setup, Target, USUAL};
use super::{Bench, Sample};
use simurgh_bench_kit::stats;

pub(super) const SILENT: usize = 20;
pub(super) const LARGE: usize = 9_900_000;
/// How long they are watched: those still connected then count as staying for ever.
pub(super) const WATCHED_S: u64 = 60;
const WAIT_MAX: Duration = Duration::from_secs(15);

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    one_broadcast(bench, sample)?;
    own_messages(bench, sample, "said", USUAL)?;
    own_messages(bench, sample, "said-narrow", Setup { is_narrow: true, ..USUAL })
}

/// One broadcast to all of them, by a client that reads.
fn one_broadcast(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut target = Target::start(bench, USUAL)?;
    let mut clients = Clients::new(|_| LARGE)?;
    let room = target.room(Serializer::V2, "silent", Event::Say);
    clients.join_many(&room, Pace::Never, SILENT)?;
    let publisher = clients.join(&room, Pace::Reads)?;
    clients.rest(Duration::from_secs(1))?;
    let idle = target.memory.idle()?;
    let begun = Instant::now();
    clients.publish(publisher, 0, 1);
    let is_whole = clients.until(WAIT_MAX, |clients| {
        let publisher = clients.client(publisher);
        publisher.is_none_or(|it| {
            it.is_over() || (it.received.broadcasts == 1 && it.received.answered == 1)
        })
    })?;
    clients.rest(Duration::from_secs(1))?;
    put_memory(sample, "heard", target.memory.most(), idle);
    // Only the server knows when it has closed a socket that does not read.
    let watched = Duration::from_secs(bench.options.size(WATCHED_S, 8));
    let gone = loop {
        let open = target.server.sum("simurgh_sockets")?;
        if open < 2.0 {
            break true;
        }
        if begun.elapsed() > watched {
            sample.note(format!("heard: {} of {SILENT} are still there", open - 1.0));
            break false;
        }
        clients.rest(Duration::from_millis(250))?;
    };
    sample.put("heard_gone_s", begun.elapsed().as_secs_f64());
    sample.put("heard_stayed", f64::from(u8::from(!gone)));
    let missed =
        clients.client(publisher).is_none_or(|it| it.is_over() || it.received.broadcasts != 1);
    sample.put("heard_publisher_missed", f64::from(u8::from(missed)));
    if !is_whole {
        sample.note(format!("heard: nothing more came for {} s", WAIT_MAX.as_secs()));
    }
    sample.check_wrong("never-reads", clients.wrong(0));
    aftermath(&mut target, sample, "heard", USUAL)
}

/// Each publishes, as in the chat, and reads nothing.
fn own_messages(bench: &Bench<'_>, sample: &mut Sample, name: &str, setup: Setup) -> Result<()> {
    let mut target = Target::start(bench, setup)?;
    let mut clients = Clients::new(|_| LARGE)?;
    for at in 0..SILENT {
        let room = target.room(Serializer::V2, &format!("silent-{at}"), Event::Chat);
        clients.join(&room, Pace::Never)?;
    }
    clients.rest(Duration::from_secs(1))?;
    let idle = target.memory.idle()?;
    for at in 0..SILENT {
        clients.publish(at, 0, 1);
        let is_sent = clients.until(WAIT_MAX, |clients| {
            clients.client(at).is_none_or(|it| it.is_over() || it.has_sent_all())
        })?;
        if !is_sent {
            sample.note(format!("{name}: nobody took message {at} for {} s", WAIT_MAX.as_secs()));
        }
    }
    clients.rest(Duration::from_secs(2))?;
    put_memory(sample, name, target.memory.most(), idle);
    aftermath(&mut target, sample, name, setup)
}

fn put_memory(sample: &mut Sample, name: &str, (most, high_water): (u64, u64), idle: u64) {
    sample.put(format!("{name}_memory_mb"), stats::per(most.saturating_sub(idle), 1_000_000));
    let high_water = stats::per(high_water.saturating_sub(idle), 1_000_000);
    sample.put(format!("{name}_high_water_mb"), high_water);
}

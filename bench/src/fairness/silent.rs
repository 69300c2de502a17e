//! Large messages for sockets that never read.
//!
//! In `heard` one message is broadcast to twenty of them, and the server is watched for how long
//! they stay; in `said` each of the twenty publishes in its own room and has the answer and the
//! message itself waiting, the second time with little address space.

use std::time::Duration;

use anyhow::Result;

use super::clients::Pace;
use super::field::{Field, Setup, USUAL, attack};
use super::messages::{Event, Serializer};
use super::{Bench, Sample};

pub(super) const SILENT: usize = 20;
pub(super) const LARGE: usize = 9_900_000;
/// How long they are watched: those still connected then count as staying for ever.
pub(super) const WATCHED_S: u64 = 60;
const WAIT_MAX: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    attack(bench, sample, "heard", USUAL, one_broadcast)?;
    attack(bench, sample, "said", USUAL, own_messages)?;
    attack(bench, sample, "said-narrow", Setup { is_narrow: true, ..USUAL }, own_messages)
}

/// One broadcast to all of them, by a client that reads.
fn one_broadcast(field: &mut Field<'_>) -> Result<()> {
    field.clients.bodies = Box::new(|_| LARGE);
    let room = field.room(Serializer::V2, "silent", Event::Say);
    field.clients.join_many(&room, Pace::Never, SILENT)?;
    let publisher = field.clients.join(&room, Pace::Reads)?;
    let begun = field.begin(SECOND)?;
    field.clients.publish(publisher, 0, 1);
    field.until(WAIT_MAX, |clients| {
        clients.client(publisher).is_none_or(|it| {
            it.is_over() || (it.received.broadcasts == 1 && it.received.answered == 1)
        })
    })?;
    field.clients.rest(SECOND)?;
    // Only the server knows when it has closed a socket that does not read.
    let watched = Duration::from_secs(field.bench.options.size(WATCHED_S, 8));
    loop {
        let open = field.server.sum("simurgh_sockets")?;
        if open < 2.0 {
            break;
        }
        if begun.elapsed() > watched {
            field.note(&format!("{} of {SILENT} are still there", open - 1.0));
            break;
        }
        field.clients.rest(Duration::from_millis(250))?;
    }
    field.put("gone_s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Each publishes, as in the chat, and reads nothing.
fn own_messages(field: &mut Field<'_>) -> Result<()> {
    field.clients.bodies = Box::new(|_| LARGE);
    for at in 0..SILENT {
        let room = field.room(Serializer::V2, &format!("silent-{at}"), Event::Chat);
        field.clients.join(&room, Pace::Never)?;
    }
    field.begin(SECOND)?;
    for at in 0..SILENT {
        field.clients.publish(at, 0, 1);
        field.until(WAIT_MAX, |clients| {
            clients.client(at).is_none_or(|it| it.is_over() || it.has_sent_all())
        })?;
    }
    field.clients.rest(2 * SECOND)
}

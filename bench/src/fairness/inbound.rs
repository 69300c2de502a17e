//! A few sockets fill a shard's budget of half-received messages, and keep it.
//!
//! 49 holders announce a message each, send all of it except a few bytes, and then a byte each now
//! and then. 1,000 others publish messages that arrive in two reads each. A holder that is cut
//! comes back and fills its part again, once a second, as an attacker would.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::clients::{Clients, Pace};
use super::field::{Field, INBOUND_BUDGET, USUAL, attack};
use super::messages::{Event, Room, Serializer};
use super::{Bench, Sample};
use simurgh_bench_kit::flood::{Crowd, SOCKET};
use simurgh_bench_kit::{frames, stats};

const HOLDERS: usize = 49;
pub(super) const OTHERS: usize = 1_000;
/// Bytes of the others' messages, and of the first part.
const BODY: usize = 40_000;
const FIRST: usize = 32_000;
/// Others with half a message in progress at once.
const WAVE: usize = 50;
/// The pause between the two parts, so that they arrive in two reads.
const BETWEEN: Duration = Duration::from_millis(20);
/// Bytes that each holder keeps back, to send them one by one.
const KEPT_BACK: usize = 64;
/// The free part of the budget: less than a first part.
const LEFT: usize = 16_000;
const TRICKLE: Duration = Duration::from_secs(5);
const WAIT_MAX: Duration = Duration::from_secs(15);

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    attack(bench, sample, "inbound", USUAL, |field| {
        let (sent, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let holders = Crowd::http(field.server.address, 1, &sent).at(SOCKET).open(HOLDERS)?;
        thread::scope(|scope| {
            let holding = scope.spawn(|| hold(holders, || !is_over.load(Ordering::Relaxed)));
            let done = filled(field).and_then(|()| others(field));
            is_over.store(true, Ordering::Relaxed);
            holding.join().ok().context("the holders panicked")??;
            done
        })
    })
}

/// Holds nearly all of the budget while `is_on`.
fn hold(mut holders: Crowd<'_>, is_on: impl Fn() -> bool) -> Result<()> {
    let each = (INBOUND_BUDGET - LEFT) / HOLDERS;
    let mask = frames::MASK.first().copied().unwrap_or(0);
    let mut frame = Vec::new();
    // Not text: the bytes kept back would have to fit.
    frames::masked_header(frames::BINARY, each, &mut frame);
    frame.resize(frame.len() + each - KEPT_BACK, mask);
    let mut trickled = [Instant::now(); HOLDERS];
    holders.flood_while(is_on, |at, number| {
        let trickled = trickled.get_mut(at)?;
        let is_due = number == 0 || trickled.elapsed() > TRICKLE;
        is_due.then(|| {
            *trickled = Instant::now();
            if number == 0 { frame.clone() } else { vec![mask] }
        })
    })
}

/// Waits until the server holds what the kernel has taken from the holders.
fn filled(field: &mut Field<'_>) -> Result<()> {
    let mut held = (-1.0, 0.0);
    for _ in 0..100 {
        held = (held.1, field.server.sum("simurgh_inbound_bytes")?);
        if held.1 > 0.0 && held.1 <= held.0 {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    field.put("held_mb", held.1 / 1e6);
    Ok(())
}

fn others(field: &mut Field<'_>) -> Result<()> {
    field.clients.bodies = Box::new(|_| BODY);
    let room = field.room(Serializer::V2, "held", Event::Hush);
    field.clients.join_many(&room, Pace::Reads, OTHERS)?;
    let begun = Instant::now();
    let lasts = Duration::from_secs(field.bench.options.size(30, 5));
    let mut published = 0;
    while begun.elapsed() < lasts && field.clients.clients().iter().any(|it| !it.is_over()) {
        for wave in 0..OTHERS / WAVE {
            publish(&mut field.clients, &room, wave * WAVE..(wave + 1) * WAVE, published)?;
        }
        published += 1;
    }
    let all = u64::from(published);
    field.until(WAIT_MAX, |clients| {
        clients.clients().iter().all(|it| it.is_over() || it.received.answered >= all)
    })?;
    let clients = field.clients.clients();
    let closed = clients.iter().filter(|it| it.is_over()).count();
    let open = clients.iter().filter(|it| !it.is_over());
    let unanswered: u64 = open.map(|it| all.saturating_sub(it.received.answered)).sum();
    field.put("closed", stats::per(closed, 1));
    field.put("messages_each", f64::from(published));
    field.put("unanswered", stats::per(unanswered, 1));
    Ok(())
}

fn publish(others: &mut Clients, room: &Room, places: Range<usize>, number: u32) -> Result<()> {
    let mut frame = Vec::new();
    room.push(0, number, BODY, &mut frame);
    let (first, second) = frame.split_at_checked(FIRST).context("a short message")?;
    let is_there =
        |clients: &Clients, place: usize| clients.client(place).is_some_and(|it| !it.is_over());
    let there: Vec<usize> = places.filter(|place| is_there(others, *place)).collect();
    there.iter().for_each(|place| others.send(*place, first));
    others.rest(BETWEEN)?;
    there.iter().for_each(|place| others.send(*place, second));
    others.pump(Duration::from_millis(5))
}

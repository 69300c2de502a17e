//! A few sockets fill a shard's budget of half-received messages, and keep it.
//!
//! 49 holders announce a message each, send all of it except a few bytes, and then a byte each now
//! and then. 1,000 others publish messages that arrive in two reads each. A holder that is cut
//! comes back and fills its part again, once a second, as an attacker would.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::clients::{Clients, Pace};
use super::messages::{Event, Room, Serializer};
use super::server::{INBOUND_BUDGET, Target, USUAL};
use super::{Bench, Sample};
use simurgh_bench_kit::frames;
use simurgh_bench_kit::stats;

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

/// Clients that hold half a message each, and reconnect when they are cut.
struct Holders {
    room: Rc<Room>,
    clients: Clients,
    /// Their indices in the clients.
    places: Vec<usize>,
    frame: Vec<u8>,
    returned: usize,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut target = Target::start(bench, USUAL)?;
    let room = target.room(Serializer::V2, "held", Event::Hush);
    let mut holders = Holders::new(&target, &room)?;
    let held = target.server.sum("simurgh_inbound_bytes")?;
    sample.put("inbound_held_mb", held / 1e6);

    let mut others = Clients::new(|_| BODY)?;
    others.join_many(&room, Pace::Reads, OTHERS)?;
    let begun = Instant::now();
    let lasts = Duration::from_secs(bench.options.size(30, 5));
    let (mut trickled, mut refilled) = (begun, begun);
    let mut published = 0;
    while begun.elapsed() < lasts {
        for wave in 0..OTHERS / WAVE {
            publish(&mut others, &room, wave * WAVE..(wave + 1) * WAVE, published)?;
            holders.clients.pump(Duration::ZERO)?;
        }
        published += 1;
        if trickled.elapsed() > TRICKLE {
            trickled = Instant::now();
            holders.trickle();
        }
        if refilled.elapsed() > Duration::from_secs(1) {
            refilled = Instant::now();
            holders.come_back();
        }
        if others.clients().iter().all(|it| it.is_over()) {
            break;
        }
    }
    let alive = |clients: &Clients| {
        clients
            .clients()
            .iter()
            .all(|it| it.is_over() || it.received.answered >= u64::from(published))
    };
    let is_whole = others.until(WAIT_MAX, alive)?;
    let closed = others.clients().iter().filter(|it| it.is_over()).count();
    sample.put_count("inbound_closed", closed);
    sample.put_count(
        "inbound_holders_cut",
        holders.clients.clients().iter().filter(|it| it.is_over()).count(),
    );
    sample.put_count("inbound_holders_returned", holders.returned);
    sample.put("inbound_messages_each", f64::from(published));
    let open = others.clients().iter().filter(|it| !it.is_over());
    let unanswered: u64 =
        open.map(|it| u64::from(published).saturating_sub(it.received.answered)).sum();
    sample.put("inbound_unanswered", stats::per(unanswered, 1));
    if closed > 0 {
        sample.note(format!("others closed, by code: {:?}", others.endings()));
    }
    if !is_whole {
        sample.note(format!("nothing more came for {} s", WAIT_MAX.as_secs()));
    }
    sample.check_wrong("inbound", others.wrong(0));
    super::cursors::aftermath(&mut target, sample, "inbound", USUAL)
}

fn publish(
    others: &mut Clients,
    room: &Room,
    places: std::ops::Range<usize>,
    number: u32,
) -> Result<()> {
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

impl Holders {
    /// Starts all of them, which then hold nearly all of the budget.
    fn new(target: &Target, room: &Rc<Room>) -> Result<Self> {
        let each = (INBOUND_BUDGET - LEFT) / HOLDERS;
        let mut frame = Vec::new();
        // Not text: the bytes kept back would have to fit.
        frames::masked_header(frames::BINARY, each, &mut frame);
        frame.resize(frame.len() + each - KEPT_BACK, frames::MASK.first().copied().unwrap_or(0));
        let mut holders = Self {
            room: Rc::clone(room),
            clients: Clients::new(|_| 0)?,
            places: Vec::new(),
            frame,
            returned: 0,
        };
        for _ in 0..HOLDERS {
            holders.hold()?;
        }
        holders.clients.until(WAIT_MAX, |clients| {
            clients.clients().iter().all(|it| it.is_over() || it.has_sent_all())
        })?;
        // The kernel has it; the server has it when its memory stops growing.
        let mut before = -1.0;
        for _ in 0..100 {
            let now = target.server.sum("simurgh_inbound_bytes")?;
            if now <= before {
                break;
            }
            before = now;
            holders.clients.rest(Duration::from_millis(100))?;
        }
        Ok(holders)
    }

    fn hold(&mut self) -> Result<()> {
        let place = self.clients.join(&self.room, Pace::Reads)?;
        self.clients.send(place, &self.frame);
        self.places.push(place);
        Ok(())
    }

    /// Each sends a byte.
    fn trickle(&mut self) {
        let mask = frames::MASK.first().copied().unwrap_or(0);
        for place in &self.places {
            self.clients.send(*place, &[mask]);
        }
    }

    /// Those that were cut hold their part again, if they are accepted.
    fn come_back(&mut self) {
        let clients = &self.clients;
        let is_there = |place: &usize| clients.client(*place).is_some_and(|it| !it.is_over());
        self.places.retain(is_there);
        let mut is_let_in = true;
        while is_let_in && self.places.len() < HOLDERS {
            is_let_in = self.hold().is_ok();
            self.returned += usize::from(is_let_in);
        }
    }
}

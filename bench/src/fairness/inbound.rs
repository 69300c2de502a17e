//! A few sockets fill what all half-received messages of a shard may hold together, and keep it.
//!
//! 49 holders announce a message each, send all of it but a few bytes, and then a byte each now and
//! then. 1,000 others say something of which each message arrives in two reads. A holder that is
//! cut comes back and fills its part again, once a second: that is what somebody would do who means
//! it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::crowd::{Crowd, Pace};
use super::server::{INBOUND_BUDGET, Served, USUAL};
use super::talk::{Event, Room, Wire};
use super::{Bench, Sample};
use simurgh_bench_kit::frames;
use simurgh_bench_kit::stats;

const HOLDERS: usize = 49;
pub(super) const OTHERS: usize = 1_000;
/// Bytes of what the others say, and of its first part.
const BODY: usize = 40_000;
const FIRST: usize = 32_000;
/// Others with half a message under way at once.
const WAVE: usize = 50;
/// Between the two parts, so that they arrive in two reads.
const BETWEEN: Duration = Duration::from_millis(20);
/// What each holder keeps back, to send it byte by byte.
const KEPT_BACK: usize = 64;
/// Of the budget nobody holds: less than a first part.
const LEFT: usize = 16_000;
const TRICKLE: Duration = Duration::from_secs(5);
const WAIT_MAX: Duration = Duration::from_secs(15);

/// Those who hold, and those who come back.
struct Holders {
    room: Rc<Room>,
    crowd: Crowd,
    /// Their places in the crowd.
    places: Vec<usize>,
    frame: Vec<u8>,
    returned: usize,
}

pub(super) fn run(bench: &Bench<'_>, sample: &mut Sample) -> Result<()> {
    let mut server = Served::start(bench, USUAL)?;
    let room = server.room(Wire::V2, "held", Event::Hush);
    let mut holders = Holders::new(&server, &room)?;
    let held = server.sum("simurgh_inbound_bytes")?;
    sample.put("inbound_held_mb", held / 1e6);

    let mut others = Crowd::new(|_| BODY)?;
    others.join_many(&room, Pace::Reads, OTHERS)?;
    let begun = Instant::now();
    let lasts = Duration::from_secs(bench.options.size(30, 5));
    let (mut trickled, mut looked) = (begun, begun);
    let mut said = 0;
    while begun.elapsed() < lasts {
        for wave in 0..OTHERS / WAVE {
            say(&mut others, &room, wave * WAVE..(wave + 1) * WAVE, said)?;
            holders.crowd.pump(Duration::ZERO)?;
        }
        said += 1;
        if trickled.elapsed() > TRICKLE {
            trickled = Instant::now();
            holders.trickle();
        }
        if looked.elapsed() > Duration::from_secs(1) {
            looked = Instant::now();
            holders.come_back();
        }
        if others.clients().iter().all(|it| it.is_over()) {
            break;
        }
    }
    let alive = |crowd: &Crowd| {
        crowd.clients().iter().all(|it| it.is_over() || it.heard.answered >= u64::from(said))
    };
    let is_whole = others.until(WAIT_MAX, alive)?;
    let closed = others.clients().iter().filter(|it| it.is_over()).count();
    sample.put_count("inbound_closed", closed);
    sample.put_count(
        "inbound_holders_cut",
        holders.crowd.clients().iter().filter(|it| it.is_over()).count(),
    );
    sample.put_count("inbound_holders_returned", holders.returned);
    sample.put("inbound_messages_each", f64::from(said));
    let open = others.clients().iter().filter(|it| !it.is_over());
    let unanswered: u64 = open.map(|it| u64::from(said).saturating_sub(it.heard.answered)).sum();
    sample.put("inbound_unanswered", stats::per(unanswered, 1));
    if closed > 0 {
        sample.note(format!("others closed, by code: {:?}", others.endings()));
    }
    if !is_whole {
        sample.note(format!("nothing more came for {} s", WAIT_MAX.as_secs()));
    }
    sample.check_wrong("inbound", others.wrong(0));
    super::cursors::aftermath(&mut server, sample, "inbound", USUAL)
}

/// Some of the others say their message `number`, in two parts.
fn say(others: &mut Crowd, room: &Room, places: std::ops::Range<usize>, number: u32) -> Result<()> {
    let mut frame = Vec::new();
    room.say(0, number, BODY, &mut frame);
    let (first, second) = frame.split_at_checked(FIRST).context("a short message")?;
    let is_there =
        |crowd: &Crowd, place: usize| crowd.client(place).is_some_and(|it| !it.is_over());
    let there: Vec<usize> = places.filter(|place| is_there(others, *place)).collect();
    there.iter().for_each(|place| others.send(*place, first));
    others.rest(BETWEEN)?;
    there.iter().for_each(|place| others.send(*place, second));
    others.pump(Duration::from_millis(5))
}

impl Holders {
    /// All of them, with nearly all of the budget in their hands.
    fn new(server: &Served, room: &Rc<Room>) -> Result<Self> {
        let each = (INBOUND_BUDGET - LEFT) / HOLDERS;
        let mut frame = Vec::new();
        // Not text: what is kept back would have to fit.
        frames::masked_header(frames::BINARY, each, &mut frame);
        frame.resize(frame.len() + each - KEPT_BACK, frames::MASK.first().copied().unwrap_or(0));
        let mut holders = Self {
            room: Rc::clone(room),
            crowd: Crowd::new(|_| 0)?,
            places: Vec::new(),
            frame,
            returned: 0,
        };
        for _ in 0..HOLDERS {
            holders.hold()?;
        }
        holders.crowd.until(WAIT_MAX, |crowd| {
            crowd.clients().iter().all(|it| it.is_over() || it.has_sent_all())
        })?;
        // The system has it; the server has it when it stops growing.
        let mut before = -1.0;
        for _ in 0..100 {
            let now = server.sum("simurgh_inbound_bytes")?;
            if now <= before {
                break;
            }
            before = now;
            holders.crowd.rest(Duration::from_millis(100))?;
        }
        Ok(holders)
    }

    fn hold(&mut self) -> Result<()> {
        let place = self.crowd.join(&self.room, Pace::Reads)?;
        self.crowd.send(place, &self.frame);
        self.places.push(place);
        Ok(())
    }

    /// A byte each.
    fn trickle(&mut self) {
        let mask = frames::MASK.first().copied().unwrap_or(0);
        for place in &self.places {
            self.crowd.send(*place, &[mask]);
        }
    }

    /// Who was cut holds its part again, if it is let in.
    fn come_back(&mut self) {
        let crowd = &self.crowd;
        let is_there = |place: &usize| crowd.client(*place).is_some_and(|it| !it.is_over());
        self.places.retain(is_there);
        let mut is_let_in = true;
        while is_let_in && self.places.len() < HOLDERS {
            is_let_in = self.hold().is_ok();
            self.returned += usize::from(is_let_in);
        }
    }
}

//! Those who have nothing to do with an attack, and how long the server lets them wait.
//!
//! Each is a thread of its own before all others on the clients' core (`probe::raise_priority`), so
//! that what it measures is the server and not the crowd's reader. Something is due at fixed times;
//! a wait counts from when it was due, so that a server which stands still for 100 ms is seen by
//! all ten heartbeats that were due meanwhile, and not by one.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::talk::{Event, Heard, Room, Wire};
use super::{crowd, stats};
use crate::{frames, probe};

/// What is not answered by then never will be.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bounds a thread that nobody ends.
const BEATS_MAX: u32 = 200_000;
/// Bytes of what a publisher says.
const BODY: usize = 64;

/// What a bystander does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Habit {
    /// A heartbeat each 10 ms, on a socket that is in no room.
    Heartbeat,
    /// A message each 20 ms in a room of its own, of which it wants the answer and the message.
    Publish,
}

impl Habit {
    const fn every(self) -> Duration {
        match self {
            Self::Heartbeat => Duration::from_millis(10),
            Self::Publish => Duration::from_millis(20),
        }
    }
}

/// One wait.
#[derive(Clone, Copy, Debug)]
struct Wait {
    due: Instant,
    took: Duration,
}

/// A bystander at work.
pub(super) struct Bystander {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Waits>>,
}

/// What a bystander has seen.
#[derive(Default)]
pub(super) struct Waits {
    all: Vec<Wait>,
    /// Why it ended before it was told to.
    pub(super) fault: Option<String>,
}

impl Bystander {
    /// Connects and begins; it goes on until it is asked for its waits.
    pub(super) fn start(room: &Rc<Room>, habit: Habit) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let server = room.server;
        let thread = thread::Builder::new().name("bystander".into()).spawn(move || {
            probe::raise_priority();
            let mut waits = Waits::default();
            let room = Room::new(server, Wire::V2, "elsewhere", Event::Say);
            if let Err(error) = go_on(&room, habit, &told, &mut waits.all) {
                waits.fault = Some(format!("{error:#}"));
            }
            waits
        })?;
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends it, and gives what it saw.
    pub(super) fn end(mut self) -> Result<Waits> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        thread.join().map_err(|_| anyhow!("a bystander panicked"))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Waits {
    /// Of what was due in between: how many, and the waits at these quantiles, ms.
    pub(super) fn between<const N: usize>(
        &self,
        from: Instant,
        to: Instant,
        quantiles: [f64; N],
    ) -> (usize, [Option<f64>; N]) {
        let within = self.all.iter().filter(|wait| wait.due >= from && wait.due <= to);
        let waits: Vec<f64> = within.map(|wait| wait.took.as_secs_f64() * 1e3).collect();
        (waits.len(), quantiles.map(|q| stats::quantile(&waits, q)))
    }
}

fn go_on(room: &Room, habit: Habit, is_over: &AtomicBool, waits: &mut Vec<Wait>) -> Result<()> {
    let mut stream = match habit {
        Habit::Heartbeat => probe::upgraded(room.server, 0, &room.script)?,
        Habit::Publish => crowd::joined(room, 0)?,
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let begun = Instant::now();
    let mut input = Vec::new();
    for number in 0..BEATS_MAX {
        let due = begun + habit.every() * number;
        if let Some(left) = due.checked_duration_since(Instant::now()) {
            thread::sleep(left);
        }
        if is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut frame = Vec::new();
        match habit {
            Habit::Heartbeat => frames::masked(frames::TEXT, frames::HEARTBEAT, &mut frame),
            Habit::Publish => room.say(0, number, BODY, &mut frame),
        }
        let outcome = stream
            .write_all(&frame)
            .map_err(Into::into)
            .and_then(|()| answered(&mut stream, room, habit, number, &mut input));
        // One that is never answered has waited for as long as somebody waited for it.
        waits.push(Wait { due, took: due.elapsed() });
        outcome?;
    }
    bail!("nobody has ended it")
}

/// Reads until all is there that one beat asks for.
fn answered(
    stream: &mut TcpStream,
    room: &Room,
    habit: Habit,
    number: u32,
    input: &mut Vec<u8>,
) -> Result<()> {
    let wanted = match habit {
        Habit::Heartbeat => 1,
        Habit::Publish => 2,
    };
    let mut found = 0;
    let mut buf = [0; 4096];
    loop {
        while let Some(frame) = frames::frame(input) {
            ensure!(frame.opcode != frames::CLOSE, "a bystander was closed");
            let heard = room.hear(frame.payload);
            let is_it = match habit {
                Habit::Heartbeat => heard == Heard::Beat,
                Habit::Publish => {
                    heard == Heard::Said { from: 0, number, body: BODY }
                        || heard == Heard::Answered { number, body: 0 }
                }
            };
            ensure!(is_it, "a bystander heard something else: {heard:?}");
            found += 1;
            let used = frame.len;
            input.drain(..used);
        }
        if found == wanted {
            return Ok(());
        }
        let count = match stream.read(&mut buf) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            outcome => outcome.context("a bystander got no answer")?,
        };
        ensure!(count > 0, "a bystander was cut");
        input.extend_from_slice(buf.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_those_that_were_due_meanwhile() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let wait = |at, took| Wait { due: begun + ms(at), took: ms(took) };
        let all = vec![wait(0, 1), wait(10, 90), wait(20, 80), wait(100, 2)];
        let waits = Waits { all, fault: None };
        let (count, [p50, most]) = waits.between(begun + ms(5), begun + ms(50), [0.5, 1.0]);
        assert_eq!((count, p50, most), (2, Some(80.0), Some(90.0)));
        let (count, [p99]) = waits.between(begun + ms(200), begun + ms(300), [0.99]);
        assert_eq!((count, p99), (0, None));
    }
}

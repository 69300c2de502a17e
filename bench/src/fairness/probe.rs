//! Clients that are not involved in an attack, and how long the server lets them wait.
//!
//! Each is a thread with the highest priority on the clients' core (`probe::raise_priority`), so
//! that it measures the server and not the other clients' reader. Messages are due at fixed times
//! and sent then, whether or not earlier ones were answered: a server that stops for 100 ms delays
//! all ten heartbeats that were due meanwhile, not one.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::messages::{Event, Message, Room, Serializer};
use super::{Sample, clients};
use simurgh_bench_kit::{frames, probe, stats};

/// Unanswered messages count as lost after this time.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Bounds a thread that is never ended.
const BEATS_MAX: u32 = 200_000;
const BODY: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activity {
    /// A heartbeat each 10 ms, on a socket without rooms.
    Heartbeat,
    /// A message each 20 ms in its own room; it waits for the answer and the message.
    Publish,
}

impl Activity {
    const fn every(self) -> Duration {
        match self {
            Self::Heartbeat => Duration::from_millis(10),
            Self::Publish => Duration::from_millis(20),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    due: Instant,
    took: Duration,
}

pub(crate) struct Probe {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Latencies>>,
}

#[derive(Default)]
pub(crate) struct Latencies {
    all: Vec<Wait>,
    /// Why it ended too early.
    fault: Option<String>,
    /// Messages that differ from the sent ones.
    wrong: u64,
    /// How it was given priority over the other clients' reader.
    priority: &'static str,
}

impl Probe {
    /// Connects and begins; it runs until `end`.
    pub(crate) fn start(server: SocketAddrV4, activity: Activity) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("probe".into()).spawn(move || {
            let priority = probe::raise_priority();
            Latencies { priority, ..work(server, activity, &shared) }
        })?;
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Ends it, and returns its measurements.
    pub(crate) fn end(mut self) -> Result<Latencies> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        thread.join().map_err(|_| anyhow!("a probe panicked"))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Latencies {
    /// Records the waits due in this time as the figures of `who`, and the faults.
    pub(crate) fn put(&self, sample: &mut Sample, who: &str, from: Instant, to: Instant) {
        let (count, [p50, p99, max]) = self.between(from, to, [0.5, 0.99, 1.0]);
        sample.put_count(format!("{who}s"), count);
        for (value, quantile) in [(p50, "p50"), (p99, "p99"), (max, "max")] {
            sample.put_some(format!("{who}_{quantile}_ms"), value);
        }
        if let Some(fault) = &self.fault {
            sample.note(format!("{who}: {fault}"));
        }
        if !self.priority.starts_with("SCHED_FIFO") {
            sample.note(format!("{who}: priority of the probe is {}", self.priority));
        }
        sample.check_wrong(who, self.wrong);
    }

    /// Of the waits due in this time: their number, and these quantiles, ms.
    pub(crate) fn between<const N: usize>(
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

/// The messages in progress: when each was due, oldest first, and the oldest's replies so far.
#[derive(Default)]
struct UnderWay {
    due: VecDeque<Instant>,
    /// The number of the oldest.
    number: u32,
    has_answer: bool,
    has_message: bool,
}

impl UnderWay {
    /// Handles a message; returns when the one was due that it completes.
    fn take(&mut self, activity: Activity, message: &Message) -> Result<Option<Instant>> {
        let (has, number) = match (activity, message) {
            (Activity::Heartbeat, Message::Heartbeat) => (&mut self.has_answer, self.number),
            (Activity::Publish, Message::Answered { number, body: 0 }) => {
                (&mut self.has_answer, *number)
            }
            (Activity::Publish, Message::Broadcast { from: 0, number, body: BODY }) => {
                (&mut self.has_message, *number)
            }
            _ => bail!("a probe got something else: {message:?}"),
        };
        let is_it = number == self.number && !*has && !self.due.is_empty();
        ensure!(is_it, "a probe got {message:?} out of its turn");
        *has = true;
        if !self.has_answer || (activity == Activity::Publish && !self.has_message) {
            return Ok(None);
        }
        (self.has_answer, self.has_message) = (false, false);
        self.number += 1;
        Ok(self.due.pop_front())
    }
}

struct Work {
    room: Room,
    activity: Activity,
    stream: TcpStream,
    input: Vec<u8>,
    under_way: UnderWay,
    waits: Vec<Wait>,
    wrong: u64,
}

impl Work {
    fn new(server: SocketAddrV4, activity: Activity) -> Result<Self> {
        let room = Room::new(server, Serializer::V2, "elsewhere", Event::Say);
        let stream = match activity {
            Activity::Heartbeat => probe::upgraded(server, 0, &room.script)?,
            Activity::Publish => clients::joined(&room, 0)?,
        };
        stream.set_nonblocking(true)?;
        let (input, under_way, waits) = Default::default();
        Ok(Self { room, activity, stream, input, under_way, waits, wrong: 0 })
    }

    /// Runs until `is_over` and no message is in progress.
    fn run(&mut self, is_over: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        for number in 0..BEATS_MAX {
            let due = begun + self.activity.every() * number;
            while Instant::now() < due {
                self.read(due)?;
            }
            if is_over.load(Ordering::Relaxed) {
                let last = Instant::now() + WAIT_MAX;
                while !self.under_way.due.is_empty() {
                    ensure!(Instant::now() < last, "a probe got no answer");
                    self.read(last)?;
                }
                return Ok(());
            }
            let mut frame = Vec::new();
            match self.activity {
                Activity::Heartbeat => frames::masked(frames::TEXT, frames::HEARTBEAT, &mut frame),
                Activity::Publish => self.room.push(0, number, BODY, &mut frame),
            }
            self.under_way.due.push_back(due);
            // This few bytes always fit, unless the server has read nothing for minutes.
            self.stream.write_all(&frame).context("what a probe sends is not taken")?;
        }
        bail!("nobody has ended it")
    }

    /// Reads once, until `until` at most.
    fn read(&mut self, until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left)?;
        let mut sockets = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut sockets, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            outcome => outcome.context("poll")?,
        };
        let mut buf = [0; 4096];
        let count = match self.stream.read(&mut buf) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            outcome => outcome.context("a probe was cut")?,
        };
        ensure!(count > 0, "a probe was cut");
        self.input.extend_from_slice(buf.get(..count).unwrap_or_default());
        while let Some(frame) = frames::frame(&self.input) {
            ensure!(frame.opcode != frames::CLOSE, "a probe was closed");
            let message = self.room.read(frame.payload);
            let taken = self.under_way.take(self.activity, &message);
            self.wrong += u64::from(taken.is_err() && message != Message::Refused);
            if let Some(due) = taken? {
                self.waits.push(Wait { due, took: due.elapsed() });
            }
            let used = frame.len;
            self.input.drain(..used);
        }
        Ok(())
    }
}

fn work(server: SocketAddrV4, activity: Activity, is_over: &AtomicBool) -> Latencies {
    let mut work = match Work::new(server, activity) {
        Ok(work) => work,
        Err(error) => {
            return Latencies { fault: Some(format!("{error:#}")), ..Latencies::default() };
        }
    };
    let outcome = work.run(is_over);
    let Work { mut waits, under_way, wrong, .. } = work;
    // Messages that were never answered have waited until now.
    waits.extend(under_way.due.into_iter().map(|due| Wait { due, took: due.elapsed() }));
    let fault = outcome.err().map(|error| format!("{error:#}"));
    Latencies { all: waits, fault, wrong, ..Latencies::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_include_only_waits_due_in_the_interval() {
        let begun = Instant::now();
        let ms = Duration::from_millis;
        let wait = |at, took| Wait { due: begun + ms(at), took: ms(took) };
        let all = vec![wait(0, 1), wait(10, 90), wait(20, 80), wait(100, 2)];
        let latencies = Latencies { all, ..Latencies::default() };
        let (count, [p50, most]) = latencies.between(begun + ms(5), begun + ms(50), [0.5, 1.0]);
        assert_eq!((count, p50, most), (2, Some(80.0), Some(90.0)));
        let (count, [p99]) = latencies.between(begun + ms(200), begun + ms(300), [0.99]);
        assert_eq!((count, p99), (0, None));
    }

    #[test]
    fn publisher_waits_for_its_reply_and_its_broadcast() {
        let begun = Instant::now();
        let answered = |number| Message::Answered { number, body: 0 };
        let broadcast = |number, body| Message::Broadcast { from: 0, number, body };
        let mut pushes = UnderWay { due: [begun, begun].into(), ..UnderWay::default() };
        let mut take = |message: Message| pushes.take(Activity::Publish, &message);
        assert_eq!(take(broadcast(0, BODY)).unwrap(), None);
        assert_eq!(take(answered(0)).unwrap(), Some(begun));
        assert!(take(broadcast(2, BODY)).is_err(), "one was passed over");
        assert!(take(broadcast(1, BODY - 1)).is_err(), "it is too short");
        assert_eq!(take(answered(1)).unwrap(), None);
        assert!(take(answered(1)).is_err(), "twice");
    }
}

//! The kernel's cost: a process that only sends as many bytes to as many sockets, equally timed.
//!
//! It reads from a file what to send, answers each upgrade with fixed bytes, and begins with the
//! first bytes after that. Bytes that a socket does not take are sent later, as in every server.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::epoll::{Event, EventFlags};
use serde::{Deserialize, Serialize};

use super::server::TOPIC;
use simurgh_bench_kit::net::{self, Listener, send};
use simurgh_bench_kit::{frames, sys};

/// A forgotten process ends by itself.
const LIFETIME: Duration = Duration::from_secs(600);

/// Options of the floor.
#[derive(clap::Args, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Where it listens
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: SocketAddrV4,
    /// JSON: what to send in each interval
    #[arg(long, value_name = "FILE")]
    pub(crate) pattern: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Interval {
    /// Milliseconds since the first interval.
    pub(super) at_ms: u64,
    /// The diff's frame, to all that are present.
    pub(super) diff_bytes: usize,
    /// The number of members present, which are the first to have joined.
    pub(super) present: usize,
    /// The list's frame, to those that came last: bytes, and how many of them.
    pub(super) states: Vec<(usize, usize)>,
}

impl Interval {
    pub(super) fn bytes(&self) -> u64 {
        let states: usize = self.states.iter().map(|(bytes, count)| bytes * count).sum();
        u64::try_from(self.diff_bytes * self.present + states).unwrap_or(u64::MAX)
    }
}

/// Sends the frames of the file once; then it waits to be killed.
pub(crate) fn serve(plan: &Plan) -> Result<()> {
    sys::raise_descriptor_limit()?;
    let intervals = read_pattern(&plan.pattern)?;
    let listener = Listener::open(plan.listen, false)?;
    println!("listening on http://{}", listener.address()?);
    let (peers, by_number) = (Vec::new(), Vec::new());
    let mut floor = Floor { listener, peers, by_number, began: None };
    let started = Instant::now();
    let mut intervals = intervals.into_iter().peekable();
    while started.elapsed() < LIFETIME {
        let due = floor
            .began
            .zip(intervals.peek())
            .map(|(began, next)| began + Duration::from_millis(next.at_ms));
        floor.poll(due)?;
        if due.is_some_and(|due| due <= Instant::now())
            && let Some(interval) = intervals.next()
        {
            floor.send(&interval)?;
        }
    }
    Ok(())
}

fn read_pattern(path: &Path) -> Result<Vec<Interval>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).context("the pattern")
}

/// A frame of this size in all, whose head is like the server's.
fn frame(event: &str, bytes: usize) -> Vec<u8> {
    let mut payload = format!("[null,null,\"{TOPIC}\",\"{event}\",").into_bytes();
    let header = match bytes {
        0..=127 => 2,
        128..=65_539 => 4,
        _ => 10,
    };
    payload.resize(bytes.saturating_sub(header), b'x');
    frames::plain(&payload)
}

struct Peer {
    socket: OwnedFd,
    is_upgraded: bool,
    /// The unsent frames, and the sent bytes of the first.
    waiting: VecDeque<Rc<[u8]>>,
    taken: usize,
}

struct Floor {
    listener: Listener,
    /// In the order in which they came.
    peers: Vec<Peer>,
    /// Indices in `peers` by descriptor.
    by_number: Vec<usize>,
    began: Option<Instant>,
}

impl Floor {
    /// Handles events until `due`, or until there were some.
    fn poll(&mut self, due: Option<Instant>) -> Result<()> {
        let time =
            due.map_or(Duration::from_secs(1), |due| due.saturating_duration_since(Instant::now()));
        let mut events: Vec<Event> = Vec::with_capacity(512);
        net::wait(&self.listener.epoll, &mut events, Some(time))?;
        for event in &events {
            let flags = event.flags;
            match event.data.u64() {
                Listener::NUMBER => self.accept()?,
                number => {
                    let place = self.by_number.get(usize::try_from(number)?).copied();
                    let place = place.context("an event of no socket")?;
                    if flags.contains(EventFlags::IN) {
                        self.read(place)?;
                    }
                    if flags.contains(EventFlags::OUT) {
                        self.flush(place)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let Self { listener, peers, by_number, .. } = self;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        listener.accept_some(flags, |number, socket| {
            if by_number.len() <= number {
                by_number.resize(number + 1, usize::MAX);
            }
            if let Some(place) = by_number.get_mut(number) {
                *place = peers.len();
            }
            let (waiting, taken) = (VecDeque::new(), 0);
            peers.push(Peer { socket, is_upgraded: false, waiting, taken });
        })?;
        Ok(())
    }

    fn read(&mut self, place: usize) -> Result<()> {
        let Some(peer) = self.peers.get_mut(place) else { return Ok(()) };
        let mut buf = [0; 4096];
        match rustix::io::read(&peer.socket, &mut buf) {
            Ok(count) if count > 0 && !peer.is_upgraded => {
                peer.is_upgraded = true;
                send(&peer.socket, &frames::switching(frames::UPGRADE_KEY))?;
            }
            Ok(count) if count > 0 => {
                self.began.get_or_insert_with(Instant::now);
            }
            // Closed: sends to it count as sent.
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    fn send(&mut self, interval: &Interval) -> Result<()> {
        let diff: Rc<[u8]> = frame("presence_diff", interval.diff_bytes).into();
        for peer in self.peers.iter_mut().take(interval.present) {
            peer.send(&diff)?;
        }
        let newcomers: usize = interval.states.iter().map(|(_, count)| count).sum();
        let mut first = interval.present.saturating_sub(newcomers);
        for &(bytes, count) in &interval.states {
            let state: Rc<[u8]> = frame("presence_state", bytes).into();
            for peer in self.peers.iter_mut().skip(first).take(count) {
                peer.send(&state)?;
            }
            first += count;
        }
        Ok(())
    }

    fn flush(&mut self, place: usize) -> Result<()> {
        let Some(peer) = self.peers.get_mut(place) else { return Ok(()) };
        while let Some(first) = peer.waiting.front() {
            let rest = first.get(peer.taken..).unwrap_or_default();
            let taken = send(&peer.socket, rest)?;
            if taken < rest.len() {
                peer.taken += taken;
                return Ok(());
            }
            peer.taken = 0;
            peer.waiting.pop_front();
        }
        Ok(())
    }
}

impl Peer {
    /// One `send`; the rest waits.
    fn send(&mut self, frame: &Rc<[u8]>) -> Result<()> {
        if self.waiting.is_empty() {
            self.taken = send(&self.socket, frame)?;
            if self.taken == frame.len() {
                return Ok(());
            }
        }
        self.waiting.push_back(Rc::clone(frame));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simurgh_bench_kit::clients::events::{Event, EventReader, Frame};

    #[test]
    fn frames_have_the_length_and_the_event_that_they_stand_for() {
        for bytes in [80, 127, 130, 131, 5_000, 65_539, 65_546, 170_000] {
            let frame = frame("presence_state", bytes);
            assert_eq!(frame.len(), bytes);
            let mut found = Vec::new();
            EventReader::default().read(&frame, |it| found.push(it));
            assert_eq!(found, [Frame { event: Event::State, bytes }]);
        }
    }

    #[test]
    fn an_interval_sends_the_diff_to_all_and_lists_to_newcomers() {
        let states = vec![(1000, 3), (900, 2)];
        let interval = Interval { at_ms: 0, diff_bytes: 10, present: 7, states };
        assert_eq!(interval.bytes(), 70 + 3000 + 1800);
    }
}

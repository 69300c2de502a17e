//! Clients that count what arrives by event and look only at the heads of frames; the first of them
//! keeps all its frames, so that their content can be checked.

use std::net::SocketAddrV4;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::io::Errno;

use super::events::{Event, EventReader, Frame};
use super::{Connections, IN_FLIGHT, Receiver};
use crate::frames;

/// The longest wait of a client.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// The counts of one member, or of all together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Bytes behind the upgrade.
    pub bytes: u64,
    /// Answers.
    pub replies: u64,
    /// `presence_state`s.
    pub states: u64,
    /// `presence_diff`s.
    pub diffs: u64,
    /// `presence_summary`s.
    pub summaries: u64,
    /// Broadcasts.
    pub messages: u64,
    /// `simurgh:resumed`s.
    pub resumed: u64,
    /// `phx_close`s.
    pub closed: u64,
    /// Every other frame.
    pub other: u64,
    /// Of the last state: bytes of its frame.
    pub state_bytes: usize,
    /// How many diffs came before that state.
    pub state_after: u64,
}

impl Counts {
    fn count(&mut self, frame: Frame) {
        *match frame.event {
            Event::Reply => &mut self.replies,
            Event::State => {
                (self.state_bytes, self.state_after) = (frame.bytes, self.diffs);
                &mut self.states
            }
            Event::Diff => &mut self.diffs,
            Event::Summary => &mut self.summaries,
            Event::Message => &mut self.messages,
            Event::Resumed => &mut self.resumed,
            Event::Closed => &mut self.closed,
            Event::Other => &mut self.other,
        } += 1;
    }
}

/// A diff as the first member got it.
#[derive(Clone, Copy, Debug)]
pub struct Diff {
    /// When it came.
    pub at: Instant,
    /// Bytes of its frame.
    pub bytes: usize,
}

#[derive(Default)]
struct Counter {
    readers: Vec<EventReader>,
    members: Vec<Counts>,
    total: Counts,
    diffs: Vec<Diff>,
    kept: Option<Vec<u8>>,
}

/// Clients of one server.
pub struct Clients {
    connections: Connections<Counter>,
    /// The payload of each client's joins.
    pub params: Box<dyn Fn(usize) -> String>,
}

/// The user, and so the key of the presence, of member `index`: all are equally long.
pub fn user(index: usize) -> String {
    format!("user-{index:07}")
}

impl Clients {
    /// No clients yet.
    pub fn new(server: SocketAddrV4) -> Result<Self> {
        Self::with_headers(server, |_| String::new())
    }

    /// The same with header lines of each client's upgrade, each with CRLF.
    pub fn with_headers(server: SocketAddrV4, lines: fn(usize) -> String) -> Result<Self> {
        let (path, host) = ("/socket/websocket?vsn=2.0.0", server.to_string());
        let request = Box::new(move |index| frames::upgrade_request(path, &host, &lines(index)));
        Ok(Self {
            connections: Connections::new(server, request, Counter::default())?,
            params: Box::new(|index| format!("{{\"user\":\"{}\"}}", user(index))),
        })
    }

    /// The members' counts, in the order in which they were opened.
    pub fn members(&self) -> &[Counts] {
        &self.connections.receiver.members
    }

    /// The sum over all members.
    pub fn total(&self) -> Counts {
        self.connections.receiver.total
    }

    /// Diffs of the first member.
    pub fn diffs(&self) -> &[Diff] {
        &self.connections.receiver.diffs
    }

    /// Frames of the first member; kept once this is `Some`.
    pub fn kept(&mut self) -> &mut Option<Vec<u8>> {
        &mut self.connections.receiver.kept
    }

    /// Opens connections until there are `total`, all upgraded.
    pub fn open(&mut self, total: usize) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        while self.connections.upgraded < total {
            let upgraded = self.connections.upgraded;
            ensure!(Instant::now() < deadline, "{upgraded} of {total} upgraded");
            if !self.open_next(total)? {
                self.connections.pump(Duration::from_millis(100))?;
            }
        }
        Ok(())
    }

    /// Begins the next connection if more are wanted and not too many are in progress.
    fn open_next(&mut self, total: usize) -> Result<bool> {
        let opened = self.connections.len();
        let is_next = opened < total && opened - self.connections.upgraded < IN_FLIGHT;
        if is_next {
            self.connections.open()?;
        }
        Ok(is_next)
    }

    /// Connects, upgrades and joins members, `IN_FLIGHT` at once, until all have their reply.
    pub fn open_and_join(&mut self, total: usize, topic: impl Fn(usize) -> String) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut joining = self.connections.len();
        let before = self.total().replies;
        let wanted = u64::try_from(total - joining)?;
        loop {
            let answered = self.total().replies - before;
            if answered >= wanted {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{:?} of {total} members", self.total());
            let under_way = self.connections.len().saturating_sub(usize::try_from(answered)?);
            if under_way < IN_FLIGHT && self.open_next(total)? {
                continue;
            }
            self.connections.pump(Duration::from_millis(100))?;
            while joining < self.connections.len() && self.connections.is_upgraded(joining) {
                self.join(joining, &topic(joining))?;
                joining += 1;
            }
        }
    }

    /// Joins all connected clients, `IN_FLIGHT` at once, until all have their reply.
    pub fn join_all(&mut self, topic: impl Fn(usize) -> String) -> Result<()> {
        self.each(0..self.connections.len(), |it, index| it.join(index, &topic(index)))
    }

    /// All leave their topics.
    pub fn leave_all(&mut self, topic: impl Fn(usize) -> String) -> Result<()> {
        let leave = |it: &Self, index| it.push(index, "2", &topic(index), "phx_leave", "{}");
        self.each(0..self.connections.len(), leave)
    }

    /// Each client sends a message that is answered, `IN_FLIGHT` at once.
    fn each(
        &mut self,
        members: Range<usize>,
        send: impl Fn(&Self, usize) -> Result<()>,
    ) -> Result<()> {
        let (before, count) = (self.total().replies, u64::try_from(members.len())?);
        for (sent, index) in (1..).zip(members) {
            send(self, index)?;
            let least = before + u64::saturating_sub(sent, IN_FLIGHT as u64);
            self.until(|total| total.replies >= least)?;
        }
        self.until(|total| total.replies >= before + count)
    }

    /// Sends one member's join without waiting for the answer.
    pub fn join(&self, index: usize, topic: &str) -> Result<()> {
        self.push(index, "1", topic, "phx_join", &(self.params)(index))
    }

    /// Sends one message of a member.
    pub fn push(
        &self,
        index: usize,
        msg_ref: &str,
        topic: &str,
        event: &str,
        payload: &str,
    ) -> Result<()> {
        let text = format!("[\"1\",\"{msg_ref}\",\"{topic}\",\"{event}\",{payload}]");
        self.connections.send(index, &frames::text(text.as_bytes()))
    }

    /// Reads until `done`; an error if that takes too long.
    pub fn until(&mut self, done: impl Fn(&Counts) -> bool) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        while !done(&self.total()) {
            ensure!(Instant::now() < deadline, "nothing more in {WAIT_MAX:?}: {:?}", self.total());
            self.connections.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Reads for `time`.
    pub fn rest(&mut self, time: Duration) -> Result<()> {
        self.rest_until(Instant::now() + time)
    }

    /// Reads until `until`.
    pub fn rest_until(&mut self, until: Instant) -> Result<()> {
        self.connections.rest_until(until)
    }
}

impl Receiver for Counter {
    fn opened(&mut self) {
        self.readers.push(EventReader::default());
        self.members.push(Counts::default());
    }

    fn upgraded(&mut self, _: usize) -> &[u8] {
        &[]
    }

    fn received(&mut self, index: usize, input: &[u8]) -> Result<usize> {
        let Self { readers, members, total, diffs, kept } = self;
        if let (0, Some(kept)) = (index, kept) {
            kept.extend_from_slice(input);
        }
        let (Some(reader), Some(member)) = (readers.get_mut(index), members.get_mut(index)) else {
            bail!("no such connection");
        };
        for counts in [&mut *member, &mut *total] {
            counts.bytes += u64::try_from(input.len())?;
        }
        reader.read(input, |frame| {
            member.count(frame);
            total.count(frame);
            if frame.event == Event::Diff && index == 0 {
                diffs.push(Diff { at: Instant::now(), bytes: frame.bytes });
            }
        });
        Ok(input.len())
    }

    fn ended(&mut self, index: usize, error: Option<Errno>) -> Result<()> {
        match error {
            None => bail!("the server has cut member {index}"),
            Some(error) => bail!("member {index}: {error}"),
        }
    }
}

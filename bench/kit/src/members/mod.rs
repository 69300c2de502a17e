//! The members: one thread, one epoll. They count what arrives by event and look at nothing but
//! the heads of frames; one of them keeps all it gets, so that somebody reads it.

use std::net::SocketAddrV4;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use self::heads::{Event, Heads};
use crate::frames;
use crate::net::{self, check_upgrade, head_length};

pub mod heads;

/// Handshakes and joins under way at once.
const IN_FLIGHT: u64 = 128;
const READ_BYTES: usize = 256 << 10;
/// How long anything is waited for.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Connecting,
    Upgrading,
    Upgraded,
}

/// What one member has heard.
#[derive(Clone, Copy, Debug, Default)]
pub struct Member {
    /// Answers.
    pub replies: u32,
    /// `presence_diff`s.
    pub diffs: u32,
    /// `presence_state`s.
    pub states: u32,
    /// Broadcasts.
    pub messages: u32,
    /// Of the last state: its frame, and how many diffs were there before it.
    pub state_bytes: usize,
    /// How many diffs came before that state.
    pub state_after: u32,
}

/// Everything that was heard, over all members.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Behind the upgrade.
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
    /// Everything else.
    pub other: u64,
}

#[derive(Default)]
struct Conn {
    socket: Option<OwnedFd>,
    phase: Phase,
    /// The answer to the upgrade, while it is not whole.
    answer: Vec<u8>,
    heads: Heads,
    heard: Member,
}

/// A diff as the first member got it.
#[derive(Clone, Copy, Debug)]
pub struct DiffHeard {
    /// When it came.
    pub at: Instant,
    /// Bytes of its frame.
    pub bytes: usize,
}

/// Clients of one server: one thread, one epoll.
pub struct Clients {
    epoll: OwnedFd,
    server: SocketAddrV4,
    conns: Vec<Conn>,
    events: Vec<epoll::Event>,
    buf: Vec<u8>,
    upgraded: usize,
    /// What all of them received.
    pub total: Total,
    /// Diffs of the first member.
    pub diffs: Vec<DiffHeard>,
    /// Frames that the first member has got, if that is wanted.
    pub kept: Option<Vec<u8>>,
    /// The payload of each one's joins.
    pub params: Box<dyn Fn(usize) -> String>,
}

/// The user, and so the key of the presence, of member `index`: all are equally long.
pub fn user(index: usize) -> String {
    format!("user-{index:07}")
}

impl Clients {
    /// No client yet.
    pub fn new(server: SocketAddrV4) -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            server,
            conns: Vec::new(),
            events: Vec::with_capacity(512),
            buf: vec![0; READ_BYTES],
            upgraded: 0,
            total: Total::default(),
            diffs: Vec::new(),
            kept: None,
            params: Box::new(|index| format!("{{\"user\":\"{}\"}}", user(index))),
        })
    }

    /// What each has heard, in the order in which they were opened.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.conns.iter().map(|conn| &conn.heard)
    }

    /// Opens connections until there are `total`, all upgraded.
    pub fn open(&mut self, total: usize) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        while self.upgraded < total {
            ensure!(Instant::now() < deadline, "{} of {total} upgraded", self.upgraded);
            if !self.open_next(total)? {
                self.pump(Duration::from_millis(100))?;
            }
        }
        Ok(())
    }

    /// Begins the next connection if there are to be more and not too many are under way.
    fn open_next(&mut self, total: usize) -> Result<bool> {
        let index = self.conns.len();
        if index >= total || u64::try_from(index - self.upgraded)? >= IN_FLIGHT {
            return Ok(false);
        }
        let socket = net::dial(self.server, index, false)?;
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        net::add(&self.epoll, &socket, index, flags)?;
        self.conns.push(Conn { socket: Some(socket), ..Conn::default() });
        Ok(true)
    }

    /// Connects, upgrades and joins members, `IN_FLIGHT` under way, until all have their reply.
    pub fn open_and_join(&mut self, total: usize, topic: impl Fn(usize) -> String) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut asked = self.conns.len();
        let before = self.total.replies;
        let wanted = before + u64::try_from(total - asked)?;
        while self.total.replies < wanted {
            ensure!(Instant::now() < deadline, "{:?} of {total} members", self.total);
            let answered = self.total.replies - before;
            let under_way = u64::try_from(self.conns.len())?.saturating_sub(answered);
            if under_way < IN_FLIGHT && self.open_next(total)? {
                continue;
            }
            self.pump(Duration::from_millis(100))?;
            while asked < self.conns.len() && self.is_upgraded(asked) {
                self.join(asked, &topic(asked))?;
                asked += 1;
            }
        }
        Ok(())
    }

    fn is_upgraded(&self, index: usize) -> bool {
        self.conns.get(index).is_some_and(|conn| conn.phase == Phase::Upgraded)
    }

    /// Joins members that are connected, from number `first` on up to `end`, `IN_FLIGHT` under way,
    /// until all have their reply.
    pub fn join_some(
        &mut self,
        first: usize,
        end: usize,
        topic: impl Fn(usize) -> String,
    ) -> Result<()> {
        self.each(first..end, |it, index| it.join(index, &topic(index)))
    }

    /// The same for all.
    pub fn join_all(&mut self, topic: impl Fn(usize) -> String) -> Result<()> {
        self.join_some(0, self.conns.len(), topic)
    }

    /// All leave their topics.
    pub fn leave_all(&mut self, topic: impl Fn(usize) -> String) -> Result<()> {
        let say = |it: &Self, index| it.say(index, "2", &topic(index), "phx_leave", "{}");
        self.each(0..self.conns.len(), say)
    }

    /// Has each say something that is answered, `IN_FLIGHT` under way.
    fn each(
        &mut self,
        members: Range<usize>,
        say: impl Fn(&Self, usize) -> Result<()>,
    ) -> Result<()> {
        let (before, count) = (self.total.replies, u64::try_from(members.len())?);
        for (said, index) in (1..).zip(members) {
            say(self, index)?;
            let least = before + u64::saturating_sub(said, IN_FLIGHT);
            self.until(|it| it.total.replies >= least)?;
        }
        self.until(|it| it.total.replies >= before + count)
    }

    /// Sends one member's join; the answer is not awaited.
    pub fn join(&self, index: usize, topic: &str) -> Result<()> {
        self.say(index, "1", topic, "phx_join", &(self.params)(index))
    }

    /// Sends one message of a member.
    pub fn say(
        &self,
        index: usize,
        msg_ref: &str,
        topic: &str,
        event: &str,
        payload: &str,
    ) -> Result<()> {
        let text = format!("[\"1\",\"{msg_ref}\",\"{topic}\",\"{event}\",{payload}]");
        let mut bytes = Vec::new();
        frames::masked(frames::TEXT, text.as_bytes(), &mut bytes);
        self.write(index, &bytes)
    }

    fn write(&self, index: usize, bytes: &[u8]) -> Result<()> {
        let socket = self.conns.get(index).and_then(|conn| conn.socket.as_ref());
        let socket = socket.context("the connection is closed")?;
        let sent = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?;
        ensure!(sent == bytes.len(), "the server does not read: {sent} of {} bytes", bytes.len());
        Ok(())
    }

    /// Reads until `done`; an error if that takes too long.
    pub fn until(&mut self, done: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        while !done(self) {
            ensure!(Instant::now() < deadline, "nothing more in {WAIT_MAX:?}: {:?}", self.total);
            self.pump(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Reads for as long.
    pub fn rest(&mut self, time: Duration) -> Result<()> {
        self.rest_until(Instant::now() + time)
    }

    /// Reads until that time.
    pub fn rest_until(&mut self, until: Instant) -> Result<()> {
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if left.is_zero() {
                break;
            }
            self.pump(left)?;
        }
        Ok(())
    }

    fn pump(&mut self, time: Duration) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        net::wait(&self.epoll, &mut events, Some(time))?;
        let mut buf = std::mem::take(&mut self.buf);
        let ready = |event: &epoll::Event| self.ready(usize::try_from(event.data.u64())?, &mut buf);
        let outcome = events.iter().try_for_each(ready);
        (self.buf, self.events) = (buf, events);
        outcome
    }

    fn ready(&mut self, index: usize, buf: &mut [u8]) -> Result<()> {
        let Some(conn) = self.conns.get_mut(index) else { return Ok(()) };
        let Some(socket) = &conn.socket else { return Ok(()) };
        if conn.phase == Phase::Connecting {
            if let Err(error) = sockopt::socket_error(socket)? {
                bail!("connection {index} failed: {error}");
            }
            conn.phase = Phase::Upgrading;
            let path = "/socket/websocket?vsn=2.0.0";
            let request = frames::upgrade_request(path, &self.server.to_string(), "");
            self.write(index, &request)?;
        }
        loop {
            let Some(conn) = self.conns.get_mut(index) else { return Ok(()) };
            let Some(socket) = &conn.socket else { return Ok(()) };
            let count = match rustix::io::read(socket, &mut *buf) {
                Ok(0) => bail!("the server has cut member {index}"),
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => bail!("member {index}: {error}"),
            };
            let is_all = count < buf.len();
            self.take(index, buf.get(..count).unwrap_or_default())?;
            if is_all {
                return Ok(());
            }
        }
    }

    fn take(&mut self, index: usize, input: &[u8]) -> Result<()> {
        let Some(conn) = self.conns.get_mut(index) else { return Ok(()) };
        let answer;
        let mut input = input;
        if conn.phase == Phase::Upgrading {
            conn.answer.extend_from_slice(input);
            let Some(length) = head_length(&conn.answer) else { return Ok(()) };
            answer = std::mem::take(&mut conn.answer);
            let (head, rest) = answer.split_at(length);
            check_upgrade(head)?;
            conn.phase = Phase::Upgraded;
            self.upgraded += 1;
            input = rest;
        }
        let (total, diffs) = (&mut self.total, &mut self.diffs);
        total.bytes += u64::try_from(input.len())?;
        if let (0, Some(kept)) = (index, &mut self.kept) {
            kept.extend_from_slice(input);
        }
        let Conn { heads, heard: member, .. } = conn;
        heads.feed(input, |heard| match heard.event {
            Event::Reply => {
                member.replies += 1;
                total.replies += 1;
            }
            Event::State => {
                member.states += 1;
                member.state_bytes = heard.bytes;
                member.state_after = member.diffs;
                total.states += 1;
            }
            Event::Diff => {
                member.diffs += 1;
                total.diffs += 1;
                if index == 0 {
                    diffs.push(DiffHeard { at: Instant::now(), bytes: heard.bytes });
                }
            }
            Event::Summary => total.summaries += 1,
            Event::Message => {
                member.messages += 1;
                total.messages += 1;
            }
            Event::Resumed => total.resumed += 1,
            Event::Closed => total.closed += 1,
            Event::Other => total.other += 1,
        });
        Ok(())
    }
}

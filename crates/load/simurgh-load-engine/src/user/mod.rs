//! A virtual user, as a state machine without sockets and clocks.
//!
//! ```text
//! Input: it has come, bytes, a message, its connection's end, its time ...
//!                     │
//!   Program ──► Machine::step ──► Outputs: dial, send, hang up, a timer, what is measured
//!                     │
//!                   User (80 bytes)
//! ```
//!
//! [`Machine`] joins a user with what it needs for a step; a driver (a worker with the reactor, or
//! a test with a list) reports events ([`Input`]) and carries out the results ([`Outputs`]). A user
//! runs the operations of its program (`machine`, `control`) until it has to wait for an event. Its
//! connection is in `connection` and `upgrade`, received messages in `messages`, a Channels
//! client's messages in `channel`, those of other protocols in `translation`; `http` has requests
//! and raw bytes, `longpoll` users without a WebSocket. `answers` checks answers, `reconnects` and
//! `positions` restore what a lost connection took, `deliveries` and `presence` follow what others
//! have sent.
//!
//! A waiting user with a connection has only its record and the reactor's record of its socket (32
//! bytes). State that few users need is in [`Extra`].

mod answers;
mod channel;
mod connection;
mod context;
mod control;
mod deliveries;
mod dump;
mod http;
mod longpoll;
mod machine;
mod messages;
mod outputs;
mod positions;
mod presence;
mod reconnects;
mod table;
#[cfg(test)]
mod tests;
mod translation;
mod upgrade;
mod values;

use std::collections::VecDeque;
use std::time::Duration;

use simurgh_load_record::{MetricId, Origin};
use simurgh_load_scenario::VarId;
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::Decoder;
use simurgh_reactor::Key;
use smallvec::SmallVec;

use crate::spread::ServerChoice;
use crate::wheel::Link;

pub(crate) use context::Context;
pub(crate) use longpoll::POLL_CHECK_INTERVAL;
pub(crate) use machine::{Ended, Input, Machine};
pub(crate) use outputs::{HangUp, Outputs};
pub(crate) use reconnects::{Interruptible, cut_seed};
pub(crate) use table::Users;

pub(crate) const NO_KEY: Key = Key { slot: u32::MAX, generation: 0 };

pub(crate) struct User {
    /// Its connection, or [`NO_KEY`].
    pub(crate) key: Key,
    pub(crate) held: Option<Box<Held>>,
    pub(crate) client: Client,
    pub(crate) timer: Link,
    pub(crate) at: u32,
    /// Its number in the run, from 1.
    pub(crate) id: u32,
    /// When the current operation was due: microseconds of the shard's clock, wrapping (latencies
    /// are far below the 71 minutes of a turn).
    pub(crate) since_us: u32,
    /// When it was due to arrive, milliseconds of the shard's clock.
    pub(crate) started_tick: u32,
    /// Register 0: the round of the outermost loop.
    pub(crate) round: u32,
    pub(crate) phase: u16,
    pub(crate) server: ServerChoice,
    pub(crate) draws: u16,
    pub(crate) state: UserState,
    pub(crate) conn: ConnState,
}

// A million users and their sockets must fit in 128 MB: 80 here, 32 in the reactor.
const _: () = assert!(size_of::<User>() <= 80);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UserState {
    /// Nothing: it continues at once.
    Running,
    Thinking,
    /// The due time of its current operation.
    Pacing,
    Opening,
    AwaitUpgrade,
    AwaitFirst,
    AwaitMatch,
    /// The reply with the ref in `awaits`.
    AwaitRef,
    AwaitHttp,
    /// The end of a receive.
    Receiving,
    /// Any frame that the server sends by itself.
    AwaitServer,
    /// All the other users.
    Gathering,
    /// The server's close.
    Closing,
    /// The next attempt to connect.
    BackingOff,
    /// Nothing any more: its session has ended.
    Left,
}

impl UserState {
    /// Whether the user only stays or waits for a time.
    pub(crate) fn is_rest(self) -> bool {
        matches!(self, Self::Thinking | Self::Pacing | Self::Receiving | Self::Gathering)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnState {
    None,
    /// Being established, for a WebSocket.
    Connecting,
    /// Being established, for HTTP.
    ConnectingHttp,
    /// Being established, for raw bytes.
    ConnectingRaw,
    Upgrading,
    WebSocket,
    /// An open WebSocket whose close has begun.
    WebSocketClosing,
    PollOpening,
    /// An open long-poll session, with the polling connection.
    Poll,
    Http,
    Raw,
}

impl ConnState {
    pub(crate) fn is_connecting(self) -> bool {
        matches!(self, Self::Connecting | Self::ConnectingHttp | Self::ConnectingRaw)
    }

    /// Whether it is a WebSocket, also while it closes.
    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::WebSocketClosing)
    }

    /// Whether it is a long-poll session, also before it begins.
    pub(crate) fn polls(self) -> bool {
        matches!(self, Self::PollOpening | Self::Poll)
    }

    /// Whether messages can be sent.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::WebSocket | Self::Poll)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    User,
    /// The POSTs of its long-poll session.
    Posts,
    Stored,
}

/// Memory that only some users need. A waiting user with a variable needs nothing else.
#[derive(Default)]
pub(crate) struct Held {
    vars: SmallVec<[(VarId, Value); 1]>,
    extra: Option<Box<Extra>>,
}

const _: () = assert!(size_of::<Held>() <= 40);

/// State that users have while they need it.
#[derive(Default)]
pub(crate) struct Extra {
    /// Registers from 1 on.
    pub(crate) registers: Vec<u32>,
    /// All its rests together, µs, from its first paced loop on.
    rested_us: u32,
    pub(crate) decoder: Decoder,
    pub(crate) head: Vec<u8>,
    pub(crate) http: Option<Box<http::HttpState>>,
    /// Open transactions, with their start.
    pub(crate) transactions: Vec<(MetricId, u32)>,
    /// The ref of the reply it waits for, or the number of frames it still wants; 0: none.
    pub(crate) awaits: u32,
    /// Attempts to connect that failed in a row.
    pub(crate) attempts: u32,
    /// How often a check has sent the user back: by operation.
    pub(crate) repeats: Vec<(u32, u32)>,
    /// Unexpected frames, for a later wait.
    pub(crate) kept: VecDeque<KeptFrame>,
    /// The operations of its joins, to be repeated after a reconnect.
    pub(crate) joins: Vec<u32>,
    /// After a reconnect: the joins that are left to repeat, and where to continue then.
    pub(crate) resume: Option<Resume>,
    pub(crate) lists: Vec<presence::AwaitedList>,
    pub(crate) poller: Option<Box<longpoll::Poller>>,
    pub(crate) positions: Option<Box<positions::Positions>>,
    /// A connection that was cut silently.
    pub(crate) abandoned: Option<Key>,
    pub(crate) stored: Option<Box<StoredConnection>>,
}

/// A connection stored by a switch, with its state. It is not read meanwhile.
pub(crate) struct StoredConnection {
    pub(crate) key: Key,
    pub(crate) server: u16,
    pub(crate) conn: ConnState,
    pub(crate) client: Client,
    pub(crate) decoder: Decoder,
}

/// The work of a reconnect before the session continues.
#[derive(Clone, Debug)]
pub(crate) struct Resume {
    /// Operations to repeat, the last one first.
    pub(crate) steps: Vec<u32>,
    pub(crate) lost_at: u32,
    /// Where the session continues.
    pub(crate) at: u32,
    /// Its rest at that operation.
    pub(crate) rest: Option<Rest>,
    /// When this tool cut the connection itself: the time away is no server's.
    pub(crate) cut_us: Option<u32>,
}

/// A rest that was interrupted by the loss of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) state: UserState,
    /// When it ends, in ticks of the wheel.
    pub(crate) due_tick: Option<u32>,
    pub(crate) since_us: u32,
    /// Frames it still wants.
    pub(crate) awaits: u32,
}

/// A frame that no step has waited for yet.
pub(crate) struct KeptFrame {
    pub(crate) binary: bool,
    pub(crate) payload: Box<[u8]>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    One(Box<[u8]>),
    List(Box<List>),
}

/// In a box of its own, so that a [`Value`] has no tag.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct List(Vec<Box<[u8]>>);

impl Value {
    /// A single value is a list of one.
    pub(crate) fn element(&self, index: usize) -> Option<&[u8]> {
        match self {
            Self::One(only) if index == 0 => Some(only),
            Self::One(_) => None,
            Self::List(list) => list.0.get(index).map(|element| &**element),
        }
    }

    /// The value for the matches in a text: none, one value, or a list.
    pub(crate) fn found(mut found: Vec<Vec<u8>>) -> Option<Self> {
        match found.len() {
            0 => None,
            1 => found.pop().map(|only| Self::One(only.into())),
            _ => {
                let list = List(found.into_iter().map(Vec::into_boxed_slice).collect());
                Some(Self::List(Box::new(list)))
            }
        }
    }
}

impl Extra {
    /// Whether all its fields are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.registers.is_empty()
            && !self.decoder.in_message()
            && self.head.is_empty()
            && self.http.is_none()
            && self.transactions.is_empty()
            && self.awaits == 0
            && self.attempts == 0
            && self.repeats.is_empty()
            && self.kept.is_empty()
            && self.joins.is_empty()
            && self.resume.is_none()
            && self.lists.is_empty()
            && self.poller.is_none()
            && self.positions.is_none()
            && self.abandoned.is_none()
            && self.stored.is_none()
    }
}

impl User {
    /// Where its errors are counted.
    pub(crate) fn origin(&self) -> Origin {
        Origin { phase: self.phase, target: Some(self.server.index()) }
    }

    /// Whether it waits for all other users, or will after its reconnect.
    pub(crate) fn is_gathering(&self) -> bool {
        let resume = self.extra_ref().and_then(|extra| extra.resume.as_ref());
        let rest = resume.and_then(|resume| resume.rest.as_ref());
        self.state == UserState::Gathering
            || rest.is_some_and(|rest| rest.state == UserState::Gathering)
    }

    pub(crate) fn rest(&self) -> Option<Rest> {
        self.state.is_rest().then(|| Rest {
            state: self.state,
            due_tick: self.timer.due_tick(),
            since_us: self.since_us,
            awaits: self.awaits(),
        })
    }

    /// The purpose of one of its connections.
    #[inline]
    pub(crate) fn purpose_of(&self, key: Key) -> Option<Purpose> {
        if key == self.key {
            return Some(Purpose::User);
        }
        let Extra { poller, stored, .. } = self.extra_ref()?;
        let is_stored = stored.as_ref().is_some_and(|stored| stored.key == key);
        let is_posts = poller.as_ref().is_some_and(|poller| poller.posts.key == key);
        if is_stored { Some(Purpose::Stored) } else { is_posts.then_some(Purpose::Posts) }
    }

    pub(crate) fn poller(&mut self) -> Option<&mut longpoll::Poller> {
        self.extra_mut()?.poller.as_deref_mut()
    }

    /// Whether it repeats steps after a reconnect.
    pub(crate) fn is_resuming(&self) -> bool {
        self.extra_ref().is_some_and(|extra| extra.resume.is_some())
    }

    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.held.get_or_insert_default().extra.get_or_insert_default()
    }

    pub(crate) fn extra_ref(&self) -> Option<&Extra> {
        self.held.as_ref()?.extra.as_deref()
    }

    pub(crate) fn extra_mut(&mut self) -> Option<&mut Extra> {
        self.held.as_mut()?.extra.as_deref_mut()
    }

    /// Drops the extra records that are empty.
    pub(crate) fn tidy(&mut self) {
        if let Some(held) = &mut self.held {
            held.extra.take_if(|extra| extra.is_empty());
            if held.extra.is_none() && held.vars.is_empty() {
                self.held = None;
            }
        }
    }

    /// The ref of the reply it waits for, or the number of frames it still wants; 0: none.
    pub(crate) fn awaits(&self) -> u32 {
        self.extra_ref().map_or(0, |extra| extra.awaits)
    }

    /// Sets what it waits for. It is in `Extra`, so that idle users do not need the memory.
    pub(crate) fn set_awaits(&mut self, awaits: u32) {
        if awaits != 0 {
            self.extra().awaits = awaits;
        } else if let Some(extra) = self.extra_mut()
            && extra.awaits != 0
        {
            extra.awaits = 0;
            self.tidy();
        }
    }

    /// All its rests together, µs, from its first paced loop on.
    pub(crate) fn rested_us(&self) -> u32 {
        self.extra_ref().map_or(0, |extra| extra.rested_us)
    }

    /// Only users of paced loops, which have registers, need it.
    pub(crate) fn add_rest(&mut self, time: Duration) {
        if let Some(extra) = self.extra_mut() {
            extra.rested_us = extra.rested_us.wrapping_add(time.as_micros() as u32);
        }
    }

    pub(crate) fn register(&self, register: u16) -> u32 {
        match register {
            0 => self.round,
            more => {
                let registers = self.extra_ref().map(|extra| extra.registers.as_slice());
                registers.and_then(|all| all.get(usize::from(more) - 1)).copied().unwrap_or(0)
            }
        }
    }

    pub(crate) fn set_register(&mut self, register: u16, value: u32) {
        let Some(index) = usize::from(register).checked_sub(1) else {
            self.round = value;
            return;
        };
        let registers = &mut self.extra().registers;
        if registers.len() <= index {
            registers.resize(index + 1, 0);
        }
        if let Some(place) = registers.get_mut(index) {
            *place = value;
        }
    }

    pub(crate) fn value(&self, var: VarId) -> Option<&Value> {
        let vars = &self.held.as_ref()?.vars;
        vars.iter().find(|(known, _)| *known == var).map(|(_, value)| value)
    }

    /// Keeps nothing but how often checks have sent it back.
    pub(crate) fn forget(&mut self) {
        let repeats = self.extra_mut().map(|extra| std::mem::take(&mut extra.repeats));
        self.held = None;
        if let Some(repeats) = repeats {
            self.extra().repeats = repeats;
        }
    }

    pub(crate) fn set(&mut self, var: VarId, value: Value) {
        let vars = &mut self.held.get_or_insert_default().vars;
        match vars.iter_mut().find(|(known, _)| *known == var) {
            Some((_, old)) => *old = value,
            None => vars.push((var, value)),
        }
    }
}

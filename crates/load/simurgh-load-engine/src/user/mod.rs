//! A virtual user, as a machine without sockets and clocks.
//!
//! ```text
//! Input: it has come, bytes, a message, its connection's end, its time ...
//!                     │
//!   Program ──► Machine::step ──► Outputs: dial, send, hang up, a timer, what is measured
//!                     │
//!                   User (80 bytes)
//! ```
//!
//! [`Machine`] joins a user with what it needs for a step; whoever drives it reports what has
//! happened ([`Input`]) and carries out what follows ([`Outputs`]): a worker with the reactor,
//! tests with a list. A user does one operation of its program after the other (`machine`,
//! `control`) until it has to wait; what ends a wait lets it go on. Its connection is in
//! `connection` and `upgrade`, what comes over it in `messages`, what it sends as a Channels client
//! in `channel`; `http` has requests and plain bytes, `longpoll` users without a WebSocket.
//! `answers` holds answers against what a step wants of them, `reconnects` and `positions` make
//! good what a lost connection took, `deliveries` and `presence` follow what others have sent.
//!
//! A user who holds a connection and waits has its record and the reactor's of its socket (32
//! bytes), and nothing else: what only some users need at some time is in [`Extra`].

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
mod upgrade;
mod values;

use std::collections::VecDeque;

use simurgh_load_client::tls::TlsClient;
use simurgh_load_record::{MetricId, Origin};
use simurgh_load_scenario::VarId;
use simurgh_proto::session::client::Client;
use simurgh_proto::ws::Decoder;
use simurgh_reactor::Key;

use crate::spread::ServerChoice;
use crate::wheel::Link;

pub(crate) use context::Context;
pub(crate) use longpoll::POLL_CHECK_INTERVAL;
pub(crate) use machine::{Ended, Input, Machine};
pub(crate) use outputs::{HangUp, Outputs};
pub(crate) use reconnects::{Interruptible, cut_seed};
pub(crate) use table::Users;

/// No connection.
pub(crate) const NO_KEY: Key = Key { slot: u32::MAX, generation: 0 };

pub(crate) struct User {
    /// Its connection, or [`NO_KEY`].
    pub(crate) key: Key,
    pub(crate) extra: Option<Box<Extra>>,
    /// Its half of a Channels session.
    pub(crate) client: Client,
    pub(crate) timer: Link,
    /// The operation it does, or does next.
    pub(crate) at: u32,
    /// Its number in the run, from 1.
    pub(crate) id: u32,
    /// When what it does now was meant to begin: microseconds of the shard's clock, wrapping
    /// (latencies are far below the 71 minutes of a turn).
    pub(crate) since_us: u32,
    /// When it was meant to arrive, milliseconds of the shard's clock.
    pub(crate) started_ms: u32,
    /// Register 0: the round of the outermost loop.
    pub(crate) round: u32,
    pub(crate) phase: u16,
    pub(crate) server: ServerChoice,
    /// Random values drawn so far.
    pub(crate) draws: u16,
    pub(crate) state: UserState,
    pub(crate) conn: ConnState,
}

// A million users and their sockets are to fit in 128 MB: 80 here, 32 in the reactor.
const _: () = assert!(size_of::<User>() <= 80);

/// What a user is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UserState {
    /// Nothing: it goes on at once.
    Running,
    /// The end of a think time.
    Thinking,
    /// The time of the operation it stands at.
    Pacing,
    /// Its connection: TCP, TLS.
    Opening,
    /// The answer to its upgrade.
    AwaitUpgrade,
    /// The first frame.
    AwaitFirst,
    /// A frame that matches.
    AwaitMatch,
    /// The reply with the ref in `awaits`.
    AwaitRef,
    /// The answer to an HTTP request.
    AwaitHttp,
    /// The end of a receive.
    Receiving,
    /// Any frame that the server sends by itself.
    AwaitServer,
    /// All the others.
    Gathering,
    /// The server's half of the close.
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

/// What the user's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnState {
    /// There is none.
    None,
    /// On its way, for a WebSocket.
    Connecting,
    /// On its way, for HTTP.
    ConnectingHttp,
    /// On its way, for bytes.
    ConnectingRaw,
    /// Waits for the answer to its upgrade.
    Upgrading,
    /// An open WebSocket.
    WebSocket,
    /// An open WebSocket whose close has begun.
    WebSocketClosing,
    /// Waits for the answer that begins its long-poll session.
    PollOpening,
    /// An open long-poll session, with the connection that polls.
    Poll,
    /// A kept-alive HTTP connection.
    Http,
    /// Plain bytes.
    Raw,
}

impl ConnState {
    /// Whether it is on its way.
    pub(crate) fn is_connecting(self) -> bool {
        matches!(self, Self::Connecting | Self::ConnectingHttp | Self::ConnectingRaw)
    }

    /// Whether it is a WebSocket, if only until it is closed.
    pub(crate) fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::WebSocketClosing)
    }

    /// Whether it is a long-poll session, if only to be begun.
    pub(crate) fn polls(self) -> bool {
        matches!(self, Self::PollOpening | Self::Poll)
    }

    /// Whether messages can be sent.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::WebSocket | Self::Poll)
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All that the user does.
    User,
    /// The POSTs of its long-poll session.
    Posts,
    /// Laid aside by a switch.
    Stored,
}

/// What only some users have, and only while they need it.
#[derive(Default)]
pub(crate) struct Extra {
    pub(crate) vars: Vec<(VarId, Value)>,
    /// Registers from 1 on.
    pub(crate) registers: Vec<u32>,
    /// A frame that is half received.
    pub(crate) decoder: Decoder,
    /// A head that is half received.
    pub(crate) head: Vec<u8>,
    pub(crate) tls: Option<Box<TlsClient>>,
    pub(crate) http: Option<Box<http::HttpState>>,
    /// Transactions under way: which, and since when.
    pub(crate) transactions: Vec<(MetricId, u32)>,
    /// The ref of the reply it waits for, or the frames it still wants; 0: none.
    pub(crate) awaits: u32,
    /// Attempts to connect that failed in a row.
    pub(crate) attempts: u32,
    /// How often a check has sent the user back: by operation.
    pub(crate) repeats: Vec<(u32, u32)>,
    /// Frames that came while nobody waited, for a later wait.
    pub(crate) kept: VecDeque<KeptFrame>,
    /// Where its joins are, to be repeated after a reconnect.
    pub(crate) joins: Vec<u32>,
    /// After a reconnect: the joins that are left to repeat, and where to go on then.
    pub(crate) resume: Option<Resume>,
    /// Lists of who is present that are to come.
    pub(crate) lists: Vec<presence::AwaitedList>,
    /// Its long-poll session, where it has no WebSocket.
    pub(crate) poller: Option<Box<longpoll::Poller>>,
    /// Where it stands in the history of its topics.
    pub(crate) positions: Option<Box<positions::Positions>>,
    /// A connection that was cut in silence.
    pub(crate) abandoned: Option<Key>,
    /// A connection laid aside by a switch.
    pub(crate) stored: Option<Box<StoredConnection>>,
}

/// A connection laid aside, with all that is known of it. It is not read meanwhile.
pub(crate) struct StoredConnection {
    pub(crate) key: Key,
    pub(crate) server: u16,
    pub(crate) conn: ConnState,
    pub(crate) client: Client,
    pub(crate) decoder: Decoder,
    pub(crate) tls: Option<Box<TlsClient>>,
}

/// What a reconnect has to do before the session goes on.
#[derive(Clone, Debug)]
pub(crate) struct Resume {
    /// Operations to repeat, the last one first.
    pub(crate) steps: Vec<u32>,
    /// The operation at which the connection was lost.
    pub(crate) lost_at: u32,
    /// Where the session goes on.
    pub(crate) at: u32,
    /// It was resting there.
    pub(crate) rest: Option<Rest>,
}

/// A rest that a lost connection has interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) state: UserState,
    /// When it ends, in wheel milliseconds.
    pub(crate) due_ms: Option<u32>,
    pub(crate) since_us: u32,
    /// Frames it still wants.
    pub(crate) awaits: u32,
}

/// A frame nobody has waited for yet.
pub(crate) struct KeptFrame {
    pub(crate) binary: bool,
    pub(crate) payload: Box<[u8]>,
}

/// A variable's value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    One(Box<[u8]>),
    List(Vec<Box<[u8]>>),
}

impl Value {
    /// A single value is a list of one.
    pub(crate) fn element(&self, index: usize) -> Option<&[u8]> {
        match self {
            Self::One(only) if index == 0 => Some(only),
            Self::One(_) => None,
            Self::List(list) => list.get(index).map(|element| &**element),
        }
    }

    /// What was found in a text: nothing, one value, or a list.
    pub(crate) fn found(mut found: Vec<String>) -> Option<Self> {
        match found.len() {
            0 => None,
            1 => found.pop().map(|only| Self::One(only.into_bytes().into())),
            _ => Some(Self::List(found.into_iter().map(|each| each.into_bytes().into()).collect())),
        }
    }
}

impl Extra {
    /// Whether there is nothing in it any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.vars.is_empty()
            && self.registers.is_empty()
            && !self.decoder.in_message()
            && self.head.is_empty()
            && self.tls.is_none()
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

    /// Whether it waits for all others, if only once its connection is back.
    pub(crate) fn is_gathering(&self) -> bool {
        let resume = self.extra.as_ref().and_then(|extra| extra.resume.as_ref());
        let rest = resume.and_then(|resume| resume.rest.as_ref());
        self.state == UserState::Gathering
            || rest.is_some_and(|rest| rest.state == UserState::Gathering)
    }

    /// The rest that it takes, if it takes one.
    pub(crate) fn rest(&self) -> Option<Rest> {
        self.state.is_rest().then(|| Rest {
            state: self.state,
            due_ms: self.timer.due_ms(),
            since_us: self.since_us,
            awaits: self.awaits(),
        })
    }

    /// What one of its connections is for.
    #[inline]
    pub(crate) fn purpose_of(&self, key: Key) -> Option<Purpose> {
        if key == self.key {
            return Some(Purpose::User);
        }
        let Extra { poller, stored, .. } = &**self.extra.as_ref()?;
        let is_stored = stored.as_ref().is_some_and(|stored| stored.key == key);
        let is_posts = poller.as_ref().is_some_and(|poller| poller.posts.key == key);
        if is_stored { Some(Purpose::Stored) } else { is_posts.then_some(Purpose::Posts) }
    }

    /// Takes TLS of a connection, to be set again.
    #[inline]
    pub(crate) fn take_tls(&mut self, purpose: Purpose) -> Option<Box<TlsClient>> {
        let extra = self.extra.as_mut()?;
        match purpose {
            Purpose::User => extra.tls.take(),
            Purpose::Posts => extra.poller.as_mut()?.posts.tls.take(),
            Purpose::Stored => None,
        }
    }

    pub(crate) fn set_tls(&mut self, purpose: Purpose, tls: Box<TlsClient>) {
        let extra = self.extra();
        match (purpose, &mut extra.poller) {
            (Purpose::User, _) => extra.tls = Some(tls),
            (Purpose::Posts, Some(poller)) => poller.posts.tls = Some(tls),
            _ => {}
        }
    }

    /// TLS on its connection, if it is encrypted.
    pub(crate) fn tls(&mut self) -> Option<&mut TlsClient> {
        self.extra.as_mut()?.tls.as_deref_mut()
    }

    /// Its long-poll session, if it has one.
    pub(crate) fn poller(&mut self) -> Option<&mut longpoll::Poller> {
        self.extra.as_mut()?.poller.as_deref_mut()
    }

    /// Whether a lost connection is being made good.
    pub(crate) fn is_resuming(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.resume.is_some())
    }

    /// The extra record, made if there is none.
    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Gives the extra record back if there is nothing in it.
    pub(crate) fn tidy(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            self.extra = None;
        }
    }

    /// The ref of the reply it waits for, or the frames it still wants; 0: none.
    pub(crate) fn awaits(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.awaits)
    }

    /// Sets what it waits for, which is kept apart from who holds a connection and is silent.
    pub(crate) fn set_awaits(&mut self, awaits: u32) {
        if awaits != 0 {
            self.extra().awaits = awaits;
        } else if let Some(extra) = &mut self.extra
            && extra.awaits != 0
        {
            extra.awaits = 0;
            self.tidy();
        }
    }

    pub(crate) fn register(&self, register: u16) -> u32 {
        match register {
            0 => self.round,
            more => {
                let registers = self.extra.as_ref().map(|extra| extra.registers.as_slice());
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
        let vars = &self.extra.as_ref()?.vars;
        vars.iter().find(|(known, _)| *known == var).map(|(_, value)| value)
    }

    pub(crate) fn set(&mut self, var: VarId, value: Value) {
        let vars = &mut self.extra().vars;
        match vars.iter_mut().find(|(known, _)| *known == var) {
            Some((_, old)) => *old = value,
            None => vars.push((var, value)),
        }
    }
}

//! The record of a socket: what its session has while idle, and what only temporarily.

use simurgh_channel::{Admission, ChannelId, Effect, SocketState};
use simurgh_data::Key;
use simurgh_history::Resume;
use simurgh_proto::message::{Message, OwnedRef, Payload, Ref};
use simurgh_proto::serializer::ServerMessage;

use crate::registry::List;
use crate::wire::Wire;
use simurgh_data::prelude::*;

/// Ticks of the coarse clock in a unit of a socket's age: 10 s. With the two bytes of the record's
/// budget an age is known to 10 s, for 7 days.
const AGE_UNIT_TICKS: u32 = 100;
/// Older ages stay at this: the rest is room for a late [`Socket::keep_age`].
const AGE_UNITS_MAX: u16 = 0xf000;

/// One socket, from its connection's first byte to its last. The transport keeps it in its own
/// record of the connection ([`Sockets`](crate::Sockets)).
#[derive(Debug, Default)]
pub struct Socket {
    /// Boxed: only few sockets have it, or have it for long.
    pub(crate) own: Option<Box<Own>>,
    /// When its client last sent something, in ticks of the coarse clock; the beginning of its
    /// phase while it is not open.
    pub(crate) last_heard: u32,
    pub(crate) list: List,
    /// When it connected, in units of [`AGE_UNIT_TICKS`], which wrap.
    born: u16,
    pub(crate) user_socket: u8,
    pub(crate) wire: Wire,
    pub(crate) phase: Phase,
    /// For the transport to tell its kinds of sockets apart.
    pub transport: u8,
}

const _: () = assert!(size_of::<Socket>() <= 24, "a socket's record is budgeted at 24 bytes");

/// The transport of sockets over a network. All others are within the process and cannot be lost:
/// they have no idle timeout, and their close is not answered.
pub const NETWORK: u8 = u8::MAX;

/// The phase of a socket. The first four are its transport's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// The upgrade request is incomplete.
    #[default]
    Head,
    /// Accepted beyond the shard's capacity: its request is refused.
    Full,
    /// Its bytes go to and from the HTTP side, which has its own limits of time.
    Relay,
    /// Its admission is being decided; nothing is read meanwhile.
    Connecting,
    /// It has a session.
    Open,
    /// A join is being decided, a message is read elsewhere, or a channel wants no more messages
    /// for now; nothing is read meanwhile.
    Waiting,
    /// A close frame was sent, its answer is awaited; everything else is ignored.
    Closing,
    /// Its last bytes are being written; further input is discarded.
    Ending,
}

impl Phase {
    /// Whether something is being decided, and nothing is read meanwhile.
    #[inline]
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Connecting | Self::Waiting)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) state: SocketState,
    /// Boxed: few wait, and only for a moment.
    pub(crate) awaited: Option<Box<AwaitedJoin>>,
    pub(crate) full: Option<ChannelId>,
    pub(crate) expires: Option<u32>,
}

const _: () = assert!(size_of::<Own>() <= 72, "what a socket with an id costs beside its record");

impl Own {
    pub(crate) fn is_waited_for(&self) -> bool {
        self.awaited.is_some() || self.full.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_waited_for() && self.expires.is_none() && self.state.is_empty()
    }
}

/// A joining client's progress, and when it was reported.
#[derive(Debug)]
pub(crate) struct Resuming {
    pub(crate) said: Resume,
    pub(crate) at_ns: u64,
}

/// A join that waits for its decision, with what its answer needs.
#[derive(Debug)]
pub(crate) struct AwaitedJoin {
    pub(crate) topic: Box<str>,
    pub(crate) join_ref: OwnedRef,
    pub(crate) message: OwnedRef,
    pub(crate) replaced: Option<Box<Replaced>>,
    pub(crate) ticket: u32,
    pub(crate) resume: Option<Box<Resuming>>,
    /// Whether the client joins for the first time, if that must be proved later.
    pub(crate) is_new: bool,
    /// The admitted channel, while it waits for what its client has missed.
    pub(crate) granted: Option<Granted>,
    /// Dropped if the join is no longer awaited: its question need not be asked.
    pub(crate) _waits: Option<Box<dyn core::any::Any + Send>>,
}

#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) admission: Admission,
    pub(crate) effects: Vec<Effect>,
}

/// The channel that a second join of its topic has ended: its `phx_close`, and what it pushed in
/// `terminate`, follow the reply to the new join (PROTOCOL §5).
#[derive(Debug)]
pub(crate) struct Replaced {
    pub(crate) speaker: Speaker,
    pub(crate) pushes: Vec<Effect>,
}

/// The identity of a channel for its messages, also after its end.
#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    pub(crate) conn: Key,
    pub(crate) wire: Wire,
    pub(crate) topic: Rc<str>,
    pub(crate) join_ref: OwnedRef,
    pub(crate) is_given: bool,
    pub(crate) id: ChannelId,
    /// The number of its client, which its last broadcasts exclude; 0: none.
    pub(crate) client: u64,
}

impl Speaker {
    /// A push of the channel, as its client receives it.
    pub(crate) fn push<'m>(&'m self, event: &'m str, payload: Payload<'m>) -> ServerMessage<'m> {
        let (join_ref, topic) = (self.join_ref.as_ref(), (&*self.topic).into());
        let (msg_ref, event) = (Ref::Null, event.into());
        ServerMessage::Event(Message { join_ref, msg_ref, topic, event, payload })
    }
}

impl Socket {
    /// A socket that has sent nothing, in a phase before its session; `tick` is the coarse clock's.
    pub fn new(phase: Phase, tick: u32, transport: u8) -> Self {
        Self {
            own: None,
            last_heard: tick,
            list: List::default(),
            born: (tick / AGE_UNIT_TICKS) as u16,
            user_socket: 0,
            wire: Wire::V1,
            phase,
            transport,
        }
    }

    /// Sets the user socket that the request asks for, and the wire.
    pub fn lead_to(&mut self, user_socket: u8, wire: Wire) {
        (self.user_socket, self.wire) = (user_socket, wire);
    }

    /// Puts it into a phase of its transport's own, or keeps it there; input was received now.
    pub fn enter(&mut self, phase: Phase, tick: u32) {
        (self.phase, self.last_heard) = (phase, tick);
    }

    /// Notes that the client has sent something.
    #[inline]
    pub fn heard(&mut self, tick: u32) {
        self.last_heard = tick;
    }

    /// Its phase.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Its wire.
    #[inline]
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// Its place among the user sockets.
    #[inline]
    pub fn user_socket(&self) -> u8 {
        self.user_socket
    }

    /// When the client last sent something, in ticks.
    pub fn last_heard(&self) -> u32 {
        self.last_heard
    }

    /// How many channels it has joined.
    pub fn channels(&self) -> u16 {
        self.list.channels()
    }

    /// The state that the application's connect gave it.
    pub fn state(&self) -> Option<&SocketState> {
        self.own.as_ref().map(|own| &own.state)
    }

    /// Whether it has a session that is not over.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Waiting)
    }

    pub(crate) fn is_driven(&self) -> bool {
        self.transport != NETWORK
    }

    /// Ticks since it connected, in steps of 10 s; and whether it is that or more.
    pub fn age_ticks(&self, now: u32) -> (u32, bool) {
        let units = ((now / AGE_UNIT_TICKS) as u16).wrapping_sub(self.born);
        (u32::from(units) * AGE_UNIT_TICKS, units >= AGE_UNITS_MAX)
    }

    /// Keeps an age from wrapping; to be called now and then.
    pub(crate) fn keep_age(&mut self, now: u32) {
        let now = (now / AGE_UNIT_TICKS) as u16;
        if now.wrapping_sub(self.born) > AGE_UNITS_MAX {
            self.born = now.wrapping_sub(AGE_UNITS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_grows_up_to_its_limit() {
        let began = 4_000_000_000;
        let mut socket = Socket::new(Phase::Open, began, NETWORK);
        assert_eq!(socket.age_ticks(began + 1000), (1000, false));
        let mut now = began;
        // Three weeks of sweeps.
        for _ in 0..200_000 {
            now = now.wrapping_add(91);
            socket.keep_age(now);
        }
        let (ticks, is_more) = socket.age_ticks(now);
        assert!(is_more);
        assert_eq!(ticks, u32::from(AGE_UNITS_MAX) * AGE_UNIT_TICKS);
    }
}

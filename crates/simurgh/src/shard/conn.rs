//! The record of a connection: what it owns while idle, and what it owns only in passing.

use std::net::SocketAddr;

use simurgh_proto::message::OwnedRef;
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::Decoder;

use super::callback::Speaker;
use crate::context::Effect;
use crate::driver::Answer;
use crate::socket::SocketState;

/// No membership.
pub(crate) const NO_MEMBERSHIP: u32 = u32::MAX;

/// One connection. With the reactor's part it fills a cache line; all pointers are empty while it
/// idles.
pub(crate) struct Conn {
    /// Owns memory only while a message is incomplete.
    pub(crate) decoder: Decoder,
    /// What only a connection in passing has.
    pub(crate) passing: Option<Box<Passing>>,
    /// What the application's connect gave the socket; `None` if it gave nothing.
    pub(crate) socket: Option<Box<SocketState>>,
    /// When it last said something, in ticks of the coarse clock; the deadline while it is not
    /// open.
    pub(crate) last_heard: u32,
    /// First of its memberships.
    pub(crate) memberships: u32,
    pub(crate) channels: u16,
    /// When it came, in units of [`AGE_UNIT_TICKS`], which wrap.
    pub(crate) born: u16,
    /// Its place in the list of mounts, of which there are [`MOUNTS_MAX`] at most.
    pub(crate) mount: u8,
    pub(crate) wire: Wire,
    pub(crate) phase: Phase,
    /// The driver of the socket, by its number on this shard, or [`NOBODY`]: it has a network.
    pub(crate) driver: u8,
}

/// No driver.
pub(crate) const NOBODY: u8 = u8::MAX;
/// Mounts that an endpoint may have.
pub(crate) const MOUNTS_MAX: usize = 1 << u8::BITS;

/// Ticks of the coarse clock in a unit of a connection's age: 10 s. Two bytes are what the record's
/// budget allows, and by them an age is known to 10 s and for 7 days.
const AGE_UNIT_TICKS: u32 = 100;
/// Above this an age stays as it is: the rest is room for [`Conn::keep_age`] to come late.
const AGE_UNITS_MAX: u16 = 0xf000;

const _: () = assert!(size_of::<Conn>() <= 40, "a connection's record is budgeted at 40 bytes");

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wire {
    V1,
    V2,
    /// No Channels: bare messages.
    Plain,
    /// Channels without any serializer: values, for a driven socket.
    Values,
}

/// Number of wires with frames, for tables by wire.
pub(crate) const WIRES: usize = 3;

impl Wire {
    pub(crate) fn serializer(self) -> Option<Serializer> {
        match self {
            Self::V1 => Some(Serializer::V1),
            Self::V2 => Some(Serializer::V2),
            Self::Plain | Self::Values => None,
        }
    }
}

impl From<Serializer> for Wire {
    fn from(serializer: Serializer) -> Self {
        match serializer {
            Serializer::V1 => Self::V1,
            Serializer::V2 => Self::V2,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The upgrade request is not whole yet.
    Head,
    /// Accepted beyond the shard's capacity: its request is answered with 503.
    Full,
    /// Something is awaited ([`Awaited`]); nothing is read meanwhile.
    Pending,
    Open,
    /// A close frame was sent, its answer is awaited; nothing else is listened to.
    Closing,
    /// An HTTP answer or our close frame is on its way out; what still comes in is thrown away.
    Ending,
}

/// What a connection owns in passing.
pub(crate) enum Passing {
    /// Bytes of an upgrade request, and who sends it if a PROXY header said so.
    Head { bytes: Vec<u8>, peer: Option<SocketAddr> },
    /// The application decides, or a message is read elsewhere.
    Waiting(Waiting),
}

/// What a socket waits for, without being read meanwhile.
pub(crate) struct Waiting {
    pub(crate) what: Awaited,
    /// Tells the answer from one that came too late for what was awaited before.
    pub(crate) ticket: u32,
    /// Bytes that came behind it.
    pub(crate) stash: Vec<u8>,
}

pub(crate) enum Awaited {
    /// Whether a connect is accepted.
    Connect {
        /// The 101 response, sent if the application agrees.
        response: Vec<u8>,
        /// Where a driver waits for the answer.
        answer: Option<Answer>,
    },
    /// Whether a join is; the rest is what its answer needs.
    Join {
        topic: Box<str>,
        join_ref: OwnedRef,
        message: OwnedRef,
        /// The channel that the join has ended.
        replaced: Option<Box<Replaced>>,
    },
    /// What a message of so many bytes says, too long to be read in one turn.
    Message(usize),
}

impl Passing {
    /// Heap bytes, for the shard's budget.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Head { bytes, .. } => bytes.capacity(),
            Self::Waiting(Waiting { what, stash, .. }) => {
                let more = match what {
                    Awaited::Connect { response, .. } => response.capacity(),
                    Awaited::Join { topic, .. } => topic.len(),
                    Awaited::Message(bytes) => *bytes,
                };
                stash.capacity() + more
            }
        }
    }
}

impl Conn {
    pub(crate) fn new(phase: Phase, now: u32) -> Self {
        Self {
            decoder: Decoder::new(),
            passing: None,
            socket: None,
            last_heard: now,
            memberships: NO_MEMBERSHIP,
            channels: 0,
            mount: 0,
            born: (now / AGE_UNIT_TICKS) as u16,
            wire: Wire::V1,
            phase,
            driver: NOBODY,
        }
    }

    /// Ticks since it came, in steps of [`AGE_UNIT_TICKS`]; and whether it is that or more.
    pub(crate) fn age_ticks(&self, now: u32) -> (u32, bool) {
        let units = ((now / AGE_UNIT_TICKS) as u16).wrapping_sub(self.born);
        (u32::from(units) * AGE_UNIT_TICKS, units >= AGE_UNITS_MAX)
    }

    /// Keeps an age that would wrap at its limit; to be called now and then.
    pub(crate) fn keep_age(&mut self, now: u32) {
        let now = (now / AGE_UNIT_TICKS) as u16;
        if now.wrapping_sub(self.born) > AGE_UNITS_MAX {
            self.born = now.wrapping_sub(AGE_UNITS_MAX);
        }
    }

    /// What it waits for, if it does.
    pub(crate) fn awaited(&self) -> Option<&Awaited> {
        match self.passing.as_deref() {
            Some(Passing::Waiting(waiting)) => Some(&waiting.what),
            Some(Passing::Head { .. }) | None => None,
        }
    }

    /// Whether it is a socket: upgraded, and not yet closing.
    pub(crate) fn is_upgraded(&self) -> bool {
        match self.phase {
            Phase::Open => true,
            Phase::Pending => !matches!(self.awaited(), None | Some(Awaited::Connect { .. })),
            Phase::Head | Phase::Full | Phase::Closing | Phase::Ending => false,
        }
    }

    /// Heap bytes of what it has received but not handled.
    pub(crate) fn inbound_bytes(&self) -> usize {
        self.decoder.buffered() + self.passing.as_ref().map_or(0, |passing| passing.bytes())
    }
}

/// A join on its way through the application, with what its reply will need.
pub(crate) struct Joining<'a> {
    pub(crate) topic: &'a str,
    pub(crate) join_ref: OwnedRef,
    pub(crate) message: OwnedRef,
    pub(crate) replaced: Option<Box<Replaced>>,
}

/// The channel that a second join of its topic has ended: its `phx_close`, and what it pushed while
/// it terminated, follow the reply to the new join (PROTOCOL §5).
pub(crate) struct Replaced {
    pub(crate) speaker: Speaker,
    pub(crate) pushes: Vec<Effect>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_grows_and_stays_at_its_limit() {
        let began = 4_000_000_000;
        let mut conn = Conn::new(Phase::Open, began);
        assert_eq!(conn.age_ticks(began + 1000), (1000, false));
        let mut now = began;
        // Three weeks of sweeps.
        for _ in 0..200_000 {
            now = now.wrapping_add(91);
            conn.keep_age(now);
        }
        let (ticks, is_more) = conn.age_ticks(now);
        assert!(is_more);
        assert_eq!(ticks, u32::from(AGE_UNITS_MAX) * AGE_UNIT_TICKS);
    }
}

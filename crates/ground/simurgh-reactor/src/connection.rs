//! Tokens of all polled sources, and why connections end.

use std::io;

use mio::Token;
use simurgh_data::Key;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The handler closed or aborted it, or the shard stopped.
    Local,
    /// The peer closed its sending half.
    PeerEof,
    /// The connection broke: reset, timed out, unreachable. With TLS `InvalidData` is a record that
    /// is not valid.
    Reset(io::ErrorKind),
    /// The peer ended TLS with this alert (RFC 8446 §6.2).
    Alert(u8),
    /// It was never established: refused, timed out, unreachable, or reset at once. Only for
    /// connections of [`crate::Io::connect`] and [`crate::Io::end_local`].
    Unconnected(io::ErrorKind),
    /// The peer read too slowly and was cut ([`crate::Handler::slow`]).
    Slow,
}

/// The poll token of a connection: the whole key, so that a late event does not find another.
pub(crate) fn token(key: Key) -> Token {
    Token(key.slot as usize | (key.generation as usize) << 32)
}

pub(crate) fn key_of(token: Token) -> Key {
    Key { slot: token.0 as u32, generation: (token.0 >> 32) as u32 }
}

const _: () = assert!(size_of::<usize>() == 8, "a token holds a whole key");

/// The slot in tokens of sources that are not connections; no connection has it.
pub(crate) const SPECIAL: u32 = u32::MAX;
pub(crate) const WAKER: u32 = 0;
pub(crate) const HAND_OFF: u32 = 1;
pub(crate) const TIMER: u32 = 2;
pub(crate) const TUN: u32 = 3;
pub(crate) const LISTENER: u32 = 4;

#[derive(Clone, Copy)]
pub(crate) enum Special {
    Waker,
    HandOff,
    #[cfg(target_os = "linux")]
    Timer,
    Tun,
    Listener(u16),
}

impl Special {
    pub(crate) fn token(self) -> Token {
        let generation = match self {
            Self::Waker => WAKER,
            Self::HandOff => HAND_OFF,
            #[cfg(target_os = "linux")]
            Self::Timer => TIMER,
            Self::Tun => TUN,
            Self::Listener(index) => LISTENER + u32::from(index),
        };
        token(Key { slot: SPECIAL, generation })
    }
}

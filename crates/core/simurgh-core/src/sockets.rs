//! The interface of a core to its sockets.

use simurgh_channel::Broadcast;
use simurgh_data::{Key, Now, Run, Shared};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::ws::CloseCode;

use crate::socket::Socket;
use simurgh_data::prelude::*;

/// Why a core returns a connection without a session to its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbandonReason {
    /// It has timed out.
    Late,
    /// The server drains.
    Drain,
}

/// Output to peers, and changes of their connections. None of these methods calls back into the
/// core; a transport does such work when the core has returned.
///
/// An unknown key is never an error: peers may disconnect at any time.
pub trait Sockets {
    /// The time of this turn.
    fn now(&self) -> Now;

    /// A fresh reading of the same clock, nanoseconds: slices of work end by it.
    fn clock_ns(&self) -> u64;

    /// The record of a socket.
    fn socket(&self, key: Key) -> Option<&Socket>;

    /// The same, to be changed.
    fn socket_mut(&mut self, key: Key) -> Option<&mut Socket>;

    /// How many sockets there are.
    fn count(&self) -> usize;

    /// Shows `visit` the records of the next `records` places from `cursor` on, and collects the
    /// keys for which it returns `true`. The cursor is 0 again after the last.
    fn sweep(
        &mut self,
        cursor: &mut u32,
        records: usize,
        visit: impl FnMut(Key, &mut Socket) -> bool,
        found: &mut Vec<Key>,
    );

    /// Whose socket it is, as a hash of its user or its address that is the same on all shards; 0
    /// if that is not known.
    fn client(&mut self, _key: Key) -> u64 {
        0
    }

    /// Bytes the peer has not taken yet, without those of this turn.
    fn queued(&self, key: Key) -> usize;

    /// Whether the peer has sent bytes that were not read yet.
    fn has_input(&self, key: Key) -> bool;

    /// Whether the peer has closed its sending half.
    fn peer_has_shut(&self, key: Key) -> bool;

    /// Wraps bytes that are sent to many.
    fn share(&self, bytes: impl AsRef<[u8]> + 'static) -> Shared;

    /// Compresses the messages of a topic in whole frames, as far as its channel allows that and it
    /// makes them shorter.
    fn compress(&mut self, _topic: &str, _frames: &mut Vec<u8>) {}

    /// Appends to the output of this turn; `false`, and `write` is not called, if nothing can be
    /// sent.
    fn send_with(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) -> bool;

    /// Appends frames, by reference, to the output of this turn.
    fn send_later(&mut self, key: Key, run: Run);

    /// Sends frames now, behind everything that waits. `whole` is the same bytes in one piece, or
    /// empty. Returns whether output waits for the client now, as far as that is known.
    fn send_run(&mut self, key: Key, run: &Run, whole: &[u8]) -> bool;

    /// The same if the record decides what is sent: bytes in one piece, and their run. `None`, and
    /// nothing is done, if the socket is gone or nothing is chosen.
    fn send_chosen<'r, R: FnOnce() -> Run>(
        &mut self,
        key: Key,
        choose: impl FnOnce(&Socket) -> Option<(&'r [u8], R)>,
    ) -> Option<bool>;

    /// Passes a message to a socket that takes values.
    fn deliver(&mut self, key: Key, message: &ServerMessage<'_>);

    /// Passes broadcasts to a socket of this transport that takes values. Returns how many.
    fn deliver_broadcasts<'a>(
        &mut self,
        key: Key,
        transport: u8,
        broadcasts: impl Iterator<Item = &'a Arc<Broadcast>>,
    ) -> u64;

    /// Notifies a socket that takes values of its close.
    fn deliver_close(&mut self, key: Key, code: Option<CloseCode>);

    /// Stops reading from the peer, until [`release`](Self::release).
    fn hold(&mut self, key: Key);

    /// Reads again, also what arrived meanwhile.
    fn release(&mut self, key: Key);

    /// Closes the connection once all output is written.
    fn close(&mut self, key: Key);

    /// Shuts the connection for writing once all output is written.
    fn shutdown_write(&mut self, key: Key);

    /// Resets the connection; no more output is written.
    fn abort(&mut self, key: Key);

    /// Returns a connection without session to the transport.
    fn abandon(&mut self, key: Key, why: AbandonReason);

    /// Accepts no new connections from here on.
    fn stop_listening(&mut self);

    /// Ends the shard.
    fn stop(&mut self);
}

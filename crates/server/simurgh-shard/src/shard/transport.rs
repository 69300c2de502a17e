//! The sockets' side of a shard's core: connections of the reactor, with or without a network.

use std::sync::Arc;

use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{AbandonReason, Broadcast, Compress, Socket, Sockets};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::ws::{CloseCode, Deflater};
use simurgh_reactor::{Key, Now, Run, Shared};
use simurgh_socket::address_key;

use super::Io;
use super::driven::Driven;
use super::peers::{CountedPeers, half};
use crate::server::Server;

/// The sockets that a core uses during a call.
pub(crate) struct Transport<'a> {
    pub(super) server: &'a Server,
    pub(super) io: &'a mut Io,
    /// None until there is a driver.
    pub(super) driven: &'a mut Option<Box<Driven>>,
    pub(super) counted_peers: &'a Option<Box<CountedPeers>>,
    pub(super) deflater: &'a mut Option<Box<Deflater>>,
    pub(super) metrics: &'a ShardMetrics,
    /// Work to be done when the core has returned.
    pub(super) later: &'a mut Vec<Later>,
}

/// Work on a connection that needs the core again.
pub(super) enum Later {
    /// Bytes after something that was awaited are to be handled now.
    Resume(Key),
    /// The core gives up a connection without a session.
    Abandon(Key, AbandonReason),
}

impl Sockets for Transport<'_> {
    fn now(&self) -> Now {
        self.io.now()
    }

    fn clock_ns(&self) -> u64 {
        self.io.clock_ns()
    }

    #[inline]
    fn socket(&self, key: Key) -> Option<&Socket> {
        self.io.conn_ref(key).map(|conn| &conn.socket)
    }

    #[inline]
    fn socket_mut(&mut self, key: Key) -> Option<&mut Socket> {
        self.io.conn(key).map(|conn| &mut conn.socket)
    }

    fn count(&self) -> usize {
        self.io.len()
    }

    fn sweep(
        &mut self,
        cursor: &mut u32,
        records: usize,
        mut visit: impl FnMut(Key, &mut Socket) -> bool,
        found: &mut Vec<Key>,
    ) {
        self.io.sweep(cursor, records, |key, conn| visit(key, &mut conn.socket), found);
    }

    fn client(&mut self, key: Key) -> u64 {
        let hasher = &self.server.client_hasher;
        let noted = self.counted_peers.as_ref().and_then(|counted| counted.source(key));
        let peer = || Some(address_key(self.io.peer_addr(key).ok()?.ip()));
        let address = noted.or_else(|| Some(half(hasher, peer()?)));
        let id = self.socket(key).and_then(|socket| socket.state()?.id.as_deref());
        let user = id.map(|id| half(hasher, id)).or(address);
        u64::from(user.unwrap_or(0)) << 32 | u64::from(address.unwrap_or(0))
    }

    #[inline]
    fn queued(&self, key: Key) -> usize {
        self.io.queued(key)
    }

    fn has_input(&self, key: Key) -> bool {
        self.io.has_input(key)
    }

    fn peer_has_shut(&self, key: Key) -> bool {
        self.io.peer_has_shut(key)
    }

    fn share(&self, bytes: impl AsRef<[u8]> + 'static) -> Shared {
        self.io.share(bytes)
    }

    #[cold]
    fn compress(&mut self, topic: &str, frames: &mut Vec<u8>) {
        let user_sockets = self.server.user_sockets.iter();
        let least = user_sockets.filter_map(|it| it.parts().channels.compress(topic)).min();
        let Some(compress @ (Compress::Text | Compress::All)) = least else { return };
        let deflater = self.deflater.get_or_insert_default();
        let done = deflater.compress(frames, compress == Compress::All);
        self.metrics.deflated_messages.add(done.messages);
        self.metrics.deflated_in_bytes.add(done.before);
        self.metrics.deflated_out_bytes.add(done.after);
    }

    #[inline]
    fn send_with(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.io.send_with(key, write)
    }

    #[inline]
    fn send_later(&mut self, key: Key, run: Run) {
        self.io.send_run_later(key, run);
    }

    #[inline]
    fn send_run(&mut self, key: Key, run: &Run, whole: &[u8]) -> bool {
        self.io.send_run(key, run, whole)
    }

    #[inline]
    fn send_chosen<'r, R: FnOnce() -> Run>(
        &mut self,
        key: Key,
        choose: impl FnOnce(&Socket) -> Option<(&'r [u8], R)>,
    ) -> Option<bool> {
        self.io.send_chosen(key, |conn| choose(&conn.socket))
    }

    fn deliver(&mut self, key: Key, message: &ServerMessage<'_>) {
        let driver = self.socket(key).map(|socket| socket.transport);
        if let (Some(driver), Some(driven)) = (driver, self.driven.as_deref_mut()) {
            driven.deliver(driver, key, message);
        }
    }

    #[inline]
    fn deliver_broadcasts<'a>(
        &mut self,
        key: Key,
        transport: u8,
        broadcasts: impl Iterator<Item = &'a Arc<Broadcast>>,
    ) -> u64 {
        let Some(driven) = self.driven.as_deref_mut() else { return 0 };
        driven.deliver_broadcasts(transport, key, broadcasts)
    }

    fn deliver_close(&mut self, key: Key, code: Option<CloseCode>) {
        let driver = self.socket(key).map(|socket| socket.transport);
        if let (Some(driver), Some(driven)) = (driver, self.driven.as_deref_mut()) {
            driven.deliver_close(driver, key, code);
        }
    }

    fn hold(&mut self, key: Key) {
        self.io.hold(key);
    }

    fn release(&mut self, key: Key) {
        self.io.release(key);
        if self.io.conn_ref(key).is_some_and(|conn| conn.passing.is_some()) {
            self.later.push(Later::Resume(key));
        }
    }

    fn close(&mut self, key: Key) {
        self.io.close(key);
    }

    fn shutdown_write(&mut self, key: Key) {
        self.io.shutdown_write(key);
    }

    fn abort(&mut self, key: Key) {
        self.io.abort(key);
    }

    fn abandon(&mut self, key: Key, why: AbandonReason) {
        self.later.push(Later::Abandon(key, why));
    }

    fn stop_listening(&mut self) {
        self.io.stop_listening();
    }

    fn stop(&mut self) {
        self.io.stop();
    }
}

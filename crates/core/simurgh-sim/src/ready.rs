//! Long messages, read away from their shard: what is made of them there, and how they come back.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};

use simurgh_core::{Context, Kind, Node, Phase, PrepareFn, Prepared, Received, guarded};
use simurgh_proto::message::{Message, Payload, events};
use simurgh_proto::serializer::Serializer;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::Key;
use simurgh_sim_kit::delivery::Request;
use simurgh_sim_kit::peer::{ClientMessage, Content};

use crate::model::{Input, PayloadInfo, code_bit};
use crate::shared::Shared;
use crate::simulation::NodeSimulation;

/// What was made of a message: of an event its payload as it came, and an answer, to be used in
/// the very bytes that were made.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: u32,
    pub(crate) word: u32,
    pub(crate) payload: Option<Payload<'static>>,
    pub(crate) answer: Option<(u32, Payload<'static>)>,
    shared: Arc<Shared>,
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.shared.ready.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Reading {
    conn: u32,
    shard: usize,
    key: Key,
    ticket: u32,
    serializer: Serializer,
    sent: ClientMessage,
}

/// How many there are that were not dropped.
pub(crate) type Count = AtomicI64;

/// What prepares the long messages of a route.
pub(crate) fn prepare(shared: &Arc<Shared>) -> PrepareFn {
    let shared = Arc::downgrade(shared);
    Arc::new(move |message| match Weak::upgrade(&shared) {
        Some(shared) => Box::new(ready(&shared, message)) as Prepared,
        None => Box::new(()),
    })
}

fn ready(shared: &Arc<Shared>, message: &mut Message<'static>) -> Ready {
    let mut model = shared.model();
    let (id, word) = model.given(&message.payload);
    // The application's, and may panic like all that is.
    let panics = word % 64 == 1 && shared.profile.panics > 0;
    let topic = model.topics.number(&message.topic).unwrap_or_default();
    let pad = message.payload.len() / 2;
    let answer = model.payload(PayloadInfo::plain(topic, 0), word, pad);
    drop(model);
    if panics {
        crate::app::give_up();
    }
    // What stands in its place is not to be longer than it was.
    let is_taken = message.event != events::JOIN && message.payload.len() >= Payload::NULL.len();
    let payload = is_taken.then(|| std::mem::replace(&mut message.payload, Payload::NULL));
    shared.ready.fetch_add(1, Ordering::Relaxed);
    Ready { id, word, payload, answer: Some(answer), shared: Arc::clone(shared) }
}

/// What was made of the message in hand, if it was prepared; `payload` is what the core passes.
pub(crate) fn taken(
    shared: &Shared,
    ctx: &mut Context<'_>,
    payload: Option<&Payload<'_>>,
) -> Option<Ready> {
    let ready: Option<Ready> = ctx.take_prepared();
    let mut model = shared.model();
    // Other callbacks than that of the message have nothing in hand.
    let due = if payload.is_some() { model.prepared.take() } else { None };
    let found = ready.as_ref().map(|it| it.id);
    model.counts.prepared += u64::from(found.is_some());
    // The payload of an event was taken where it was read.
    let is_empty = payload.is_some_and(|it| it.json() == Some("null"));
    let is_whole = ready.as_ref().is_none_or(|it| it.payload.is_some() == is_empty);
    if due != found || !is_whole {
        model.fail("prepared", format!("{found:?} is in hand, not {due:?} ({payload:?})"));
    }
    ready
}

impl NodeSimulation {
    /// Has a long text read away from its shard, which does not read its socket meanwhile.
    pub(crate) fn read_elsewhere(&mut self, shard: usize, key: Key, sent: ClientMessage) {
        let Some(server) = self.servers.get_mut(shard) else { return };
        let tick = simurgh_reactor::Now::from_ns(server.turn_ns(self.clock_ns)).tick;
        self.tickets += 1;
        let ticket = self.tickets;
        let Some(peer) = server.net.peer_mut(key) else { return };
        let Some(serializer) = peer.socket.wire().serializer() else { return };
        peer.socket.enter(Phase::Waiting, tick);
        (peer.is_held, peer.reading) = (true, ticket);
        let conn = peer.conn;
        self.readings.push_back(Reading { conn, shard, key, ticket, serializer, sent });
        let mut model = self.shared.model();
        model.counts.read_elsewhere += 1;
        model.conns[conn as usize].waits.is_reading = true;
    }

    /// A long text has been read: it is handed in, if somebody still waits for it.
    pub(crate) fn was_read(&mut self, which: usize) -> bool {
        let which = which.checked_rem(self.readings.len()).unwrap_or(0);
        let Some(Reading { conn, shard, key, ticket, serializer, sent }) =
            self.readings.remove(which)
        else {
            return false;
        };
        let (Content::Request(asked), Ok(text)) = (sent.content, String::from_utf8(sent.bytes))
        else {
            return true;
        };
        self.tell(|| format!("a long message of #{conn} has been read"));
        let message = serializer.decode_owned(text).ok();
        let size = message.as_ref().map(crate::client::size).unwrap_or_default();
        let received = message.and_then(|it| self.prepared(it));
        let net = self.servers.get_mut(shard).map(|it| &mut it.net);
        let peer = net.and_then(|it| it.peer_mut(key));
        // What came in before the socket was closed is dropped.
        let waits = peer.is_some_and(|peer| {
            let is_it = peer.reading == ticket && peer.socket.phase() == Phase::Waiting;
            peer.reading = 0;
            is_it
        });
        if !waits {
            return true;
        }
        self.shared.model().conns[conn as usize].waits.is_reading = false;
        match received {
            Some((received, id)) => {
                self.step(shard, Input::Other, 1, |core, net, shared| {
                    core.resume(net, key);
                    let mut model = shared.model();
                    let asked =
                        Request { join_ref: crate::client::join_ref(&received.message), ..asked };
                    model.message(conn, asked, size);
                    model.prepared = id;
                    drop(model);
                    core.message(net, key, received);
                });
                self.feed(shard, key);
            }
            None => {
                if let Some(it) = self.shared.model().conn_mut(conn) {
                    it.codes |= code_bit(CloseCode::INTERNAL.0);
                    it.is_cut = true;
                }
                self.step(shard, Input::Other, 1, |core, net, _| {
                    core.resume(net, key);
                    core.fail(net, key, CloseCode::INTERNAL);
                });
            }
        }
        true
    }

    /// What is made of a message, with its number if anything is; none if that panics.
    fn prepared(&self, mut message: Message<'static>) -> Option<(Received<'static>, Option<u32>)> {
        let user_socket = self.node.user_socket(crate::node::CHANNELS)?;
        let Kind::Channels(_) = &user_socket.kind else { return None };
        let route = user_socket.route(&message.topic);
        let Some(prepare) = route.and_then(|it| it.prepare.as_ref()) else {
            return Some((message.into(), None));
        };
        let bytes = message.payload.len();
        let prepared = guarded(|| prepare(&mut message))?;
        let taken_bytes = bytes.saturating_sub(message.payload.len());
        let id = prepared.downcast_ref::<Ready>().map(|it| it.id);
        Some((Received { message, prepared: Some(prepared), taken_bytes }, id))
    }
}

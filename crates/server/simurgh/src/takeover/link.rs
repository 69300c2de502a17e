//! The two threads of the link between processes: one writes what shards post, one reads.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::sync::{Arc, mpsc};

use simurgh_core::{
    Cluster as _, FromEngine, HistoryMail, HistoryRequest, KeepRequest, KeptFor, KeptItem,
    Mailboxes as _, NotKept, OtherProcess as _, Publisher as _, StoredAt, ToCluster,
};
use simurgh_shard::server::Server;
use simurgh_shard::takeover::{ProcessLink, ToOther};

use super::Stream;
use super::wire::{self, Head, Message};
use crate::pubsub::carry_out;

/// Starts a thread of the process's own table.
pub(super) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(256 << 10).spawn(work).map(drop)
}

/// Writes what is posted to a link, on a thread of its own.
pub(super) fn start_writing(
    stream: Stream,
    link: &Arc<ProcessLink>,
    waiting: mpsc::Receiver<ToOther>,
) -> io::Result<()> {
    let link = Arc::clone(link);
    start("simurgh-link", move || {
        for what in waiting {
            link.taken(&what);
            if let ToOther::End(written) = &what {
                // The other process then ends the link.
                let _ = stream.shutdown(Shutdown::Write);
                let _ = written.send(());
                return;
            }
            if let Err(error) = wire::write_all(&stream, &what) {
                return tracing::debug!(%error, "the other process has ended");
            }
        }
    })
}

/// Reads frames of the other process until the link ends; returns why. `own` handles those that
/// only one side receives, and returns all others.
pub(super) fn read_all(
    stream: &Stream,
    server: &Arc<Server>,
    link: &Arc<ProcessLink>,
    mut own: impl FnMut(Head) -> Option<Head>,
) -> io::Error {
    let mut stream = BufReader::new(stream);
    loop {
        let handled = wire::read(&mut stream).and_then(|(head, body)| {
            own(head).map_or(Ok(()), |head| handle(server, link, head, body))
        });
        if let Err(error) = handled {
            return error;
        }
    }
}

/// Handles a frame of the other process.
///
/// # Errors
/// The frame is malformed, or out of place.
fn handle(
    server: &Arc<Server>,
    link: &Arc<ProcessLink>,
    head: Head,
    body: Vec<u8>,
) -> io::Result<()> {
    match head {
        Head::Broadcast(message) => server.broadcast_here(Arc::new(broadcast(message, body)?)),
        Head::Store { number, sender, id, message } => {
            store(server, link, (number, sender, id), broadcast(message, body)?);
        }
        Head::Forget { number, topic } => forget(server, link, number, topic.into()),
        Head::Kept { position, number, sender, message } => {
            let mut broadcast = broadcast(message, body)?;
            if !server.keeps(broadcast.topic()) {
                server.broadcast_here(Arc::new(broadcast));
                return Ok(());
            }
            let (seq, index) = wire::parts(&wire::position(&position)?);
            broadcast.except = number.and_then(|number| link.take_excepted(number));
            let topic: Box<str> = broadcast.topic().into();
            let item = KeptItem { seq, index, at_ms: 0, mine: number, sender, broadcast };
            server.post_kept(&topic, FromEngine::Next(item));
        }
        Head::Answer { number, position, is_duplicate } => {
            link.take_excepted(number);
            let position = position.as_deref().map(wire::position).transpose()?;
            let stored = position.map(|position| stored_at(&position, is_duplicate));
            server.post_stored(number, stored.ok_or(NotKept::LocalOnly));
        }
        Head::Purged { number, topic, position } => {
            let position = wire::position(&position)?;
            let (seq, index) = wire::parts(&position);
            server.post_kept(&topic, FromEngine::Purged { seq, index });
            server.post_stored(number, Ok(stored_at(&position, false)));
        }
        Head::Order => {
            let (order, of) = (serde_json::from_slice(&body)?, Arc::clone(server));
            server.spawn(async move {
                let _ = carry_out(&of, order).await;
            });
        }
        other => return Err(wire::unexpected(&other)),
    }
    Ok(())
}

fn broadcast(message: Message, body: Vec<u8>) -> io::Result<simurgh_core::Broadcast> {
    message.broadcast(body).ok_or_else(|| io::Error::other("a payload is no UTF-8"))
}

fn stored_at(position: &simurgh_core::Position, is_duplicate: bool) -> StoredAt {
    let (seq, index) = wire::parts(position);
    StoredAt { epoch: position.epoch.get().into(), seq, index, is_duplicate }
}

/// Keeps a broadcast of the earlier process. If this one does not keep the topic, it is delivered
/// in both, once.
fn store(
    server: &Arc<Server>,
    link: &Arc<ProcessLink>,
    (number, sender, id): (u64, u64, Option<String>),
    broadcast: simurgh_core::Broadcast,
) {
    if !server.keeps(broadcast.topic()) {
        let broadcast = Arc::new(broadcast);
        server.broadcast_here(Arc::clone(&broadcast));
        link.send(ToCluster::Broadcast(broadcast));
        return link.answer(number, Err(NotKept::LocalOnly));
    }
    let (home, weight) = (server.home(broadcast.topic()), broadcast.weight());
    let (id, kept_for) = (id.map(Into::into), KeptFor::Predecessor(number));
    let keep = KeepRequest { broadcast, charge: None, sender, client: 0, id, kept_for };
    let mail = simurgh_core::Mail::History(HistoryMail::Keep(Box::new(keep)));
    server.post_weighed(home, weight, mail);
}

fn forget(server: &Server, link: &Arc<ProcessLink>, number: u64, topic: Box<str>) {
    let (link, of) = (Arc::clone(link), topic.clone());
    server.request_history(HistoryRequest::Forget(
        topic,
        Box::new(move |purged| {
            if let Ok(position) = purged {
                link.post(ToOther::Purged(of, number, position));
            }
        }),
    ));
}

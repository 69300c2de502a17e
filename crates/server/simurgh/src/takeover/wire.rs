//! Frames between processes: the lengths of head and body, the head as JSON, the body.

use std::io::{self, Read as _};

use serde::{Deserialize, Serialize};
use simurgh_core::{
    Broadcast, HandedOverNumbers, KeptAt, NotKept, Place, Position, StoreRequest, ToCluster,
};
use simurgh_proto::message::Payload;
use simurgh_shard::takeover::ToOther;

use super::Stream;

/// Changes when an earlier process would misunderstand a later one.
pub(super) const VERSION: u32 = 1;
const HEAD_BYTES_MAX: usize = 1 << 20;
const BODY_BYTES_MAX: usize = 1 << 30;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Head {
    /// A process wants to take over.
    TakeOver {
        version: u32,
        is_node: bool,
    },
    /// The answer: so many listening sockets follow.
    Offer {
        sockets: usize,
        secret: String,
    },
    /// The later process is about to listen. The earlier one answers with all until `Numbers`.
    State,
    /// Lines of the list of blocks, as in `state_dir`.
    Blocks,
    /// Lines of cached answers, as in `state_dir`.
    Grants,
    /// The next part of the saved histories.
    History,
    Numbers {
        epoch: u32,
        last: u64,
        forgotten: u64,
    },
    /// The later process listens.
    Ready,
    /// The earlier process drains.
    Draining,
    /// An operator wants a new process to take over.
    Restart,
    /// It has, and has this process id.
    Restarted(u32),
    Refused(String),
    Broadcast(Message),
    Store {
        number: u64,
        sender: u64,
        id: Option<String>,
        message: Message,
    },
    Forget {
        number: u64,
        topic: String,
    },
    Kept {
        position: String,
        number: Option<u64>,
        sender: u64,
        message: Message,
    },
    Answer {
        number: u64,
        position: Option<String>,
        is_duplicate: bool,
    },
    Purged {
        number: u64,
        topic: String,
        position: String,
    },
    Order,
}

/// A broadcast; the body is its payload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Message {
    topic: String,
    event: String,
    is_binary: bool,
}

impl Message {
    fn of(broadcast: &Broadcast) -> Self {
        let (topic, event) = (broadcast.topic().to_owned(), broadcast.event().to_owned());
        Self { topic, event, is_binary: broadcast.payload().json().is_none() }
    }

    /// `None` if the payload is no text.
    pub(super) fn broadcast(self, body: Vec<u8>) -> Option<Broadcast> {
        let payload = match self.is_binary {
            true => Payload::from_bytes(body),
            false => Payload::from_json(String::from_utf8(body).ok()?),
        };
        Some(Broadcast::new(self.topic, self.event, payload))
    }
}

impl From<HandedOverNumbers> for Head {
    fn from(numbers: HandedOverNumbers) -> Self {
        let HandedOverNumbers { epoch, last, forgotten } = numbers;
        Self::Numbers { epoch, last, forgotten }
    }
}

/// Writes a frame. Blocks.
pub(super) fn write(mut to: impl io::Write, head: &Head, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let lengths = [head.len(), body.len()].map(|len| u32::try_from(len).unwrap_or(u32::MAX));
    for length in lengths {
        to.write_all(&length.to_le_bytes())?;
    }
    to.write_all(&head)?;
    to.write_all(body)?;
    to.flush()
}

pub(super) fn unexpected(head: &Head) -> io::Error {
    io::Error::other(format!("unexpected: {head:?}"))
}

/// Reads a frame. Blocks.
///
/// # Errors
/// The stream has ended, or the frame is of another version.
pub(super) fn read(mut from: impl io::Read) -> io::Result<(Head, Vec<u8>)> {
    let mut lengths = [0; 8];
    from.read_exact(&mut lengths)?;
    let [a, b, c, d, rest @ ..] = lengths;
    let (head, body) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(rest));
    let head = read_bytes(&mut from, head as usize, HEAD_BYTES_MAX)?;
    let body = read_bytes(&mut from, body as usize, BODY_BYTES_MAX)?;
    Ok((serde_json::from_slice(&head)?, body))
}

fn read_bytes(from: &mut impl io::Read, count: usize, most: usize) -> io::Result<Vec<u8>> {
    if count > most {
        return Err(io::Error::other("a frame is too long"));
    }
    // Memory follows what arrives, not what is announced.
    let mut bytes = Vec::new();
    from.take(count as u64).read_to_end(&mut bytes)?;
    match bytes.len() == count {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes to the other process until this one ends, or the other one has.
pub(super) fn write_all(stream: &Stream, what: &ToOther) -> io::Result<()> {
    let text = |position: &Position| position.to_string();
    let (head, body): (Head, &[u8]) = match what {
        ToOther::Core(ToCluster::Broadcast(broadcast)) => {
            (Head::Broadcast(Message::of(broadcast)), broadcast.payload().data())
        }
        ToOther::Core(ToCluster::Store(request)) => {
            (store(request), request.broadcast.payload().data())
        }
        ToOther::Core(ToCluster::Forget(topic, number)) => {
            (Head::Forget { number: *number, topic: topic.to_string() }, &[])
        }
        ToOther::Core(_) | ToOther::End(_) => return Ok(()),
        ToOther::Kept(broadcast, number) => {
            let Some(mark) = &broadcast.kept else { return Ok(()) };
            let (position, message) = (text(&mark.position), Message::of(broadcast));
            let head = Head::Kept { position, number: *number, sender: mark.sender, message };
            (head, broadcast.payload().data())
        }
        ToOther::Answer(number, outcome) => (answer(*number, outcome), &[]),
        ToOther::Purged(topic, number, position) => {
            let (topic, position) = (topic.to_string(), text(position));
            (Head::Purged { number: *number, topic, position }, &[])
        }
        ToOther::Order(order) => (Head::Order, order),
        ToOther::Ready => (Head::Ready, &[]),
        ToOther::Draining => (Head::Draining, &[]),
    };
    write(io::BufWriter::new(stream), &head, body)
}

fn store(request: &StoreRequest) -> Head {
    let StoreRequest { number, broadcast, sender, id, .. } = request;
    let (id, message) = (id.as_deref().map(str::to_owned), Message::of(broadcast));
    Head::Store { number: *number, sender: *sender, id, message }
}

fn answer(number: u64, outcome: &Result<KeptAt, NotKept>) -> Head {
    let kept = outcome.as_ref().ok();
    let position = kept.map(|kept| kept.position.to_string());
    Head::Answer { number, position, is_duplicate: kept.is_some_and(|kept| kept.is_duplicate) }
}

/// A position that this program has written.
pub(super) fn position(text: &str) -> io::Result<Position> {
    Position::parse(text).ok_or_else(|| io::Error::other("a position is malformed"))
}

pub(super) fn parts(position: &Position) -> (u64, u16) {
    let Place { seq, item } = position.place;
    (seq, item)
}

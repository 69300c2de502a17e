//! Calls from one node to another, and their answers: a call has a number at its caller, and bodies
//! of any bytes each way.
//!
//! ```text
//! call, return   u64 number; u16 service, or status; u32 bytes of the whole; u32 where these
//!                begin in it; then bytes
//! hang up        u64 number
//! ```
//! A body of more than [`CALL_PIECE_BYTES`] is sent in pieces, which arrive in order or not at all,
//! as all messages between two nodes.
//!
//! At most once, both ways: the caller decides how long to wait, and then hangs up. A service is
//! never called twice for one call; it may have an effect that the caller never learns of.

use alloc::collections::BTreeMap;

use crate::envelope::{Draft, EncodeError, EnvelopeError, Kind};
use crate::node_id::NodeId;
use crate::wire::Reader;
use simurgh_data::prelude::*;

#[cfg(test)]
mod tests;

/// The most bytes of a call's body, and of its answer's.
pub const CALL_BYTES_MAX: usize = 16 << 20;
/// The bytes of a body in one envelope.
pub const CALL_PIECE_BYTES: usize = 512 << 10;
/// The most calls of a node that wait for their answers.
pub const CALLS_MAX: usize = 1 << 17;
/// The most bytes of incomplete bodies, of all nodes; the oldest call is dropped first.
const UNFINISHED_BYTES_MAX: usize = 64 << 20;
/// The most calls of others that are incomplete.
const UNFINISHED_MAX: usize = 1024;

/// The number of a call at its caller, unique among the caller's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallNumber(pub u64);

/// Ends a call and returns its node, if it was waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Why the call was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node is unknown, or gone.
    #[error("this node does not exist")]
    NoSuchNode,
    /// More than [`CALL_BYTES_MAX`].
    #[error("{0} bytes exceed the maximum of {CALL_BYTES_MAX} for another node")]
    TooLarge(usize),
    /// Too many calls wait, or too much waits to be sent.
    #[error("too much waits for other nodes: try again later")]
    Busy,
}

/// A piece of a call or of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The number of the call at its caller.
    pub number: u64,
    /// The service that is called, or the status of the answer.
    pub head: u16,
    whole: usize,
    at: usize,
    bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, EnvelopeError> {
        let (number, head) = (reader.u64()?, reader.u16()?);
        let (whole, at) = (reader.u32()? as usize, reader.u32()? as usize);
        let bytes = reader.bytes(reader.left().len())?;
        let end = at.saturating_add(bytes.len());
        let is_empty = bytes.is_empty() && whole > 0;
        if whole > CALL_BYTES_MAX || end > whole || is_empty {
            return Err(EnvelopeError::Malformed("a piece that is no part of its whole"));
        }
        Ok(Self { number, head, whole, at, bytes })
    }

    /// The envelope of a call or a return.
    ///
    /// # Errors
    /// It is larger than an envelope may be.
    pub fn draft(&self, kind: Kind, origin: NodeId) -> Result<Draft, EncodeError> {
        let Self { number, head, whole, at, bytes } = self;
        let mut payload = Vec::with_capacity(18 + bytes.len());
        payload.extend_from_slice(&number.to_le_bytes());
        payload.extend_from_slice(&head.to_le_bytes());
        payload.extend_from_slice(&(*whole as u32).to_le_bytes());
        payload.extend_from_slice(&(*at as u32).to_le_bytes());
        payload.extend_from_slice(bytes);
        Draft::with_payload(kind, origin, "", Some(&payload))
    }
}

pub(crate) fn call_drafts(
    kind: Kind,
    origin: NodeId,
    (number, head): (u64, u16),
    body: &[u8],
) -> Result<Vec<Draft>, EncodeError> {
    let count = body.len().div_ceil(CALL_PIECE_BYTES).max(1);
    let pieces = (0..count).map(|at| at * CALL_PIECE_BYTES).map(|at| {
        let end = body.len().min(at + CALL_PIECE_BYTES);
        let bytes = body.get(at..end).unwrap_or_default();
        Piece { number, head, whole: body.len(), at, bytes }.draft(kind, origin)
    });
    pieces.collect()
}

#[derive(Debug, Default)]
struct Body {
    head: u16,
    whole: usize,
    bytes: Vec<u8>,
    /// The longest answer that the caller accepts; `None`: any.
    bytes_max: Option<usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Put {
    Unfinished,
    Whole,
    Broken,
}

impl Body {
    fn put(&mut self, piece: &Piece<'_>) -> Put {
        if piece.at == 0 && self.bytes.is_empty() {
            (self.head, self.whole) = (piece.head, piece.whole);
        }
        let follows = piece.at == self.bytes.len();
        let is_too_long = self.bytes_max.is_some_and(|most| piece.whole > most);
        if !follows || is_too_long || (piece.head, piece.whole) != (self.head, self.whole) {
            return Put::Broken;
        }
        self.bytes.extend_from_slice(piece.bytes);
        match self.bytes.len() == self.whole {
            true => Put::Whole,
            false => Put::Unfinished,
        }
    }
}

/// The calls of a node to others, and the incomplete calls of others.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    waiting: BTreeMap<u64, (NodeId, Body)>,
    unfinished: VecDeque<(NodeId, u64, Body)>,
    bytes: usize,
}

impl Calls {
    pub(crate) fn start(&mut self, number: CallNumber, node: NodeId) -> Result<(), CallError> {
        if self.waiting.len() >= CALLS_MAX {
            return Err(CallError::Busy);
        }
        self.waiting.insert(number.0, (node, Body::default()));
        Ok(())
    }

    pub(crate) fn bound(&mut self, number: CallNumber, bytes_max: usize) {
        if let Some((_, body)) = self.waiting.get_mut(&number.0) {
            body.bytes_max = Some(bytes_max);
        }
    }

    /// Ends a call. Returns its node, if it was waiting.
    pub(crate) fn end(&mut self, number: CallNumber) -> Option<NodeId> {
        let (node, body) = self.waiting.remove(&number.0)?;
        self.bytes = self.bytes.saturating_sub(body.bytes.len());
        Some(node)
    }

    /// Adds a piece of an answer. Returns the answer when it is complete.
    pub(crate) fn answered(&mut self, from: NodeId, piece: &Piece<'_>) -> Option<Answered> {
        let number = CallNumber(piece.number);
        let (_, body) = self.waiting.get_mut(&piece.number).filter(|it| it.0 == from)?;
        let before = body.bytes.len();
        let put = body.put(piece);
        self.bytes += body.bytes.len() - before;
        let is_too_much = self.bytes > UNFINISHED_BYTES_MAX;
        match put {
            Put::Unfinished if !is_too_much => None,
            Put::Whole => {
                let body = core::mem::take(body);
                self.bytes = self.bytes.saturating_sub(body.bytes.len());
                self.waiting.remove(&piece.number);
                Some((number, Some(Answer { status: body.head, body: body.bytes })))
            }
            Put::Unfinished | Put::Broken => {
                self.end(number);
                Some((number, None))
            }
        }
    }

    /// Adds a piece of another node's call. Returns service and body when it is complete.
    pub(crate) fn called(&mut self, from: NodeId, piece: &Piece<'_>) -> Option<(u16, Vec<u8>)> {
        let is_it = |it: &(NodeId, u64, Body)| (it.0, it.1) == (from, piece.number);
        let mut body = match self.unfinished.iter().position(is_it) {
            Some(at) => self.unfinished.remove(at)?.2,
            None => Body::default(),
        };
        self.bytes = self.bytes.saturating_sub(body.bytes.len());
        match body.put(piece) {
            Put::Whole => return Some((body.head, body.bytes)),
            Put::Broken => return None,
            Put::Unfinished => {}
        }
        self.bytes += body.bytes.len();
        self.unfinished.push_back((from, piece.number, body));
        while self.bytes > UNFINISHED_BYTES_MAX || self.unfinished.len() > UNFINISHED_MAX {
            let Some((.., oldest)) = self.unfinished.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.bytes.len());
        }
        None
    }

    /// Ends the calls of a node that is gone, and those to it, which are returned.
    pub(crate) fn gone(&mut self, node: NodeId) -> Vec<CallNumber> {
        self.unfinished.retain(|it| it.0 != node);
        let to = self.waiting.iter().filter(|(_, it)| it.0 == node);
        let ended: Vec<_> = to.map(|(number, _)| CallNumber(*number)).collect();
        ended.iter().for_each(|it| drop(self.waiting.remove(&it.0)));
        let own = self.waiting.values().map(|it| it.1.bytes.len());
        self.bytes = own.chain(self.unfinished.iter().map(|it| it.2.bytes.len())).sum();
        ended
    }
}

/// The answer to a call; `None` if it gets no answer.
pub(crate) type Answered = (CallNumber, Option<Answer>);

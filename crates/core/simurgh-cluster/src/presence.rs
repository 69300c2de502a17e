//! Changes and snapshots of presences as envelopes.
//!
//! A [`Delta`] or a [`Snapshot`] is encoded as a whole, which is cut anywhere into parts of
//! [`PART_BYTES`]: a crowd that joins at once makes a delta that no envelope could hold. Each part
//! is an envelope on the topic; [`PresenceParts`] puts them together.
//!
//! ```text
//! part       u16 which, from 0; u16 of how many; u32 CRC-32 of the whole; bytes of the whole
//! delta      u64 from, u64 to; u32 count, entries; u32 count, refs that are gone
//! snapshot   u64 version; u32 count, entries
//! entry      u8 flags: 1 replaces a ref, 2 has something beside its key's metas; ref; [ref];
//!            u32 length, key; u32 length, meta; [u32 length, extra]
//! ref        12 bytes, not all of them 0
//! ```
//! The checksum also distinguishes parts of different wholes: two answers of a node may have one
//! version, with their entries in another order.

mod parts;
#[cfg(test)]
mod tests;

use simurgh_presence::{Delta, Extra, Meta, Owner, PhxRef, Shared, Snapshot};

use crate::envelope::{Draft, ENVELOPE_BYTES_MAX, EncodeError, Envelope, EnvelopeError, Kind};
use crate::node_id::NodeId;
use crate::subject::TOPIC_BYTES_MAX;
use crate::wire::{self, Reader};
use simurgh_data::prelude::*;

pub use parts::{PresenceParts, UNFINISHED_MAX};

/// The bytes of a whole in one envelope.
pub const PART_BYTES: usize = 256 << 10;
/// The most parts of a whole: 256 MiB.
pub const PARTS_MAX: u16 = 1024;

/// The least bytes of an entry: a flag, a ref, two lengths and `{}`.
const ENTRY_BYTES_LEAST: usize = 1 + REF_BYTES + 4 + 4 + 2;
const REF_BYTES: usize = 12;
const REPLACES: u8 = 1;
const HAS_EXTRA: u8 = 2;
/// How far envelopes that request states are filled: one more topic of any length fits behind that.
const ASKS_BYTES: usize = PART_BYTES;
const _: () = assert!(ASKS_BYTES + 2 * (TOPIC_BYTES_MAX + 100) < ENVELOPE_BYTES_MAX);
const _: () = assert!(PART_BYTES + 2 * (TOPIC_BYTES_MAX + 100) < ENVELOPE_BYTES_MAX);

/// A message of another node about its presences in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresenceUpdate {
    /// The changes.
    Delta(Delta),
    /// All presences.
    Snapshot(Snapshot),
}

/// An envelope's part of a [`PresenceUpdate`], in most cases the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    is_snapshot: bool,
    origin: NodeId,
    topic: &'a str,
    /// Below `parts`.
    part: u16,
    /// 1 to [`PARTS_MAX`].
    parts: u16,
    checksum: u32,
    bytes: &'a [u8],
}

impl<'a> Part<'a> {
    pub(crate) fn of(envelope: &Envelope<'a>) -> Result<Self, EnvelopeError> {
        let mut payload = Reader::new(envelope.payload());
        let (part, parts, checksum) = (payload.u16()?, payload.u16()?, payload.u32()?);
        if part >= parts || parts > PARTS_MAX {
            return Err(EnvelopeError::Malformed("a part of presences has a wrong number"));
        }
        Ok(Self {
            is_snapshot: envelope.header.kind == Kind::State,
            origin: envelope.header.origin,
            topic: envelope.topic,
            part,
            parts,
            checksum,
            bytes: payload.left(),
        })
    }

    /// Reads the bytes of all parts.
    fn decode(&self, whole: &[u8]) -> Result<PresenceUpdate, EnvelopeError> {
        if crc32fast::hash(whole) != self.checksum {
            return Err(EnvelopeError::Malformed("presences do not match their checksum"));
        }
        let (owner, mut reader) = (Owner(self.origin.0), Reader::new(whole));
        let update = match self.is_snapshot {
            true => PresenceUpdate::Snapshot(snapshot(owner, &mut reader)?),
            false => PresenceUpdate::Delta(delta(owner, &mut reader)?),
        };
        match reader.left().len() {
            0 => Ok(update),
            left => Err(EnvelopeError::Trailing(left)),
        }
    }
}

/// The envelopes of a delta of this node's presences in a topic, for all nodes with members there.
///
/// # Errors
/// The topic is too long, or there are more parts than [`PARTS_MAX`].
pub fn delta_drafts(topic: &str, delta: &Delta) -> Result<Vec<Draft>, EncodeError> {
    let mut whole = Vec::with_capacity(64 + 128 * delta.joins.len() + 12 * delta.leaves.len());
    whole.extend_from_slice(&delta.from.to_le_bytes());
    whole.extend_from_slice(&delta.to.to_le_bytes());
    put_entries(&mut whole, &delta.joins)?;
    put_count(&mut whole, delta.leaves.len())?;
    for phx_ref in &delta.leaves {
        whole.extend_from_slice(&phx_ref.to_bytes());
    }
    drafts(Kind::Presence, delta.owner, topic, &whole)
}

/// The envelopes of a snapshot of this node's presences in a topic, for the node that asked.
///
/// # Errors
/// As [`delta_drafts`].
pub fn state_drafts(topic: &str, snapshot: &Snapshot) -> Result<Vec<Draft>, EncodeError> {
    let mut whole = Vec::with_capacity(64 + 128 * snapshot.entries.len());
    whole.extend_from_slice(&snapshot.version.to_le_bytes());
    put_entries(&mut whole, &snapshot.entries)?;
    drafts(Kind::State, snapshot.owner, topic, &whole)
}

/// The envelopes that request the presences of topics, as few as possible.
///
/// # Errors
/// A topic is too long.
pub fn ask_drafts<'t>(
    origin: NodeId,
    topics: impl IntoIterator<Item = &'t str>,
) -> Result<Vec<Draft>, EncodeError> {
    let draft = |payload: &[u8]| Draft::with_payload(Kind::AskState, origin, "", Some(payload));
    let (mut drafts, mut payload, mut count) = (Vec::new(), vec![0; 2], 0_u16);
    for topic in topics {
        if payload.len() >= ASKS_BYTES || count == u16::MAX {
            drafts.push(draft(&payload)?);
            payload.truncate(2);
            count = 0;
        }
        if !wire::put_text16(&mut payload, topic) {
            return Err(EncodeError::Topic(topic.len()));
        }
        count += 1;
        if let Some(place) = payload.first_chunk_mut() {
            *place = count.to_le_bytes();
        }
    }
    if count > 0 {
        drafts.push(draft(&payload)?);
    }
    Ok(drafts)
}

pub(crate) fn asked<'a>(payload: &mut Reader<'a>) -> Result<Vec<&'a str>, EnvelopeError> {
    let count = usize::from(payload.u16()?);
    if count * 2 > payload.left().len() {
        return Err(EnvelopeError::Cut);
    }
    let topics = (0..count).map(|_| payload.text16());
    topics.collect()
}

fn drafts(kind: Kind, owner: Owner, topic: &str, whole: &[u8]) -> Result<Vec<Draft>, EncodeError> {
    let parts = u16::try_from(whole.len().div_ceil(PART_BYTES)).ok();
    let parts = parts.filter(|parts| *parts <= PARTS_MAX);
    let parts = parts.ok_or(EncodeError::TooLarge(whole.len()))?;
    let checksum = crc32fast::hash(whole);
    let draft = |(part, bytes): (u16, &[u8])| {
        let mut payload = Vec::with_capacity(8 + bytes.len());
        payload.extend_from_slice(&part.to_le_bytes());
        payload.extend_from_slice(&parts.to_le_bytes());
        payload.extend_from_slice(&checksum.to_le_bytes());
        payload.extend_from_slice(bytes);
        Draft::with_payload(kind, NodeId(owner.0), topic, Some(&payload))
    };
    (0..parts).zip(whole.chunks(PART_BYTES)).map(draft).collect()
}

fn put_count(out: &mut Vec<u8>, count: usize) -> Result<(), EncodeError> {
    let count = u32::try_from(count).map_err(|_| EncodeError::TooLarge(count))?;
    out.extend_from_slice(&count.to_le_bytes());
    Ok(())
}

fn put_entries(out: &mut Vec<u8>, entries: &[Shared]) -> Result<(), EncodeError> {
    put_count(out, entries.len())?;
    for Shared { key, phx_ref, phx_ref_prev, meta, extra } in entries {
        let replaces = if phx_ref_prev.is_some() { REPLACES } else { 0 };
        out.push(replaces | if extra.is_some() { HAS_EXTRA } else { 0 });
        out.extend_from_slice(&phx_ref.to_bytes());
        if let Some(prev) = phx_ref_prev {
            out.extend_from_slice(&prev.to_bytes());
        }
        let extra = extra.as_ref().map(Extra::as_str);
        for text in [&**key, meta.as_str()].into_iter().chain(extra) {
            if !wire::put_bytes32(out, text.as_bytes()) {
                return Err(EncodeError::TooLarge(text.len()));
            }
        }
    }
    Ok(())
}

fn delta(owner: Owner, reader: &mut Reader<'_>) -> Result<Delta, EnvelopeError> {
    let (from, to) = (reader.u64()?, reader.u64()?);
    if from > to {
        return Err(EnvelopeError::Malformed("a delta goes back"));
    }
    let joins = entries(reader)?;
    let count = count(reader, REF_BYTES)?;
    let leaves = (0..count).map(|_| phx_ref(reader)).collect::<Result<_, _>>()?;
    Ok(Delta { owner, from, to, joins, leaves })
}

fn snapshot(owner: Owner, reader: &mut Reader<'_>) -> Result<Snapshot, EnvelopeError> {
    Ok(Snapshot { owner, version: reader.u64()?, entries: entries(reader)? })
}

fn entries(reader: &mut Reader<'_>) -> Result<Vec<Shared>, EnvelopeError> {
    let count = count(reader, ENTRY_BYTES_LEAST)?;
    (0..count).map(|_| entry(reader)).collect()
}

fn entry(reader: &mut Reader<'_>) -> Result<Shared, EnvelopeError> {
    let flags = reader.u8()?;
    if flags & !(REPLACES | HAS_EXTRA) != 0 {
        return Err(EnvelopeError::Malformed("an entry has flags that do not exist"));
    }
    let own = phx_ref(reader)?;
    let phx_ref_prev = if flags & REPLACES != 0 { Some(phx_ref(reader)?) } else { None };
    let key = wire::text(reader.bytes32()?)?.into();
    let meta = Meta::parse(reader.bytes32()?).map_err(EnvelopeError::Meta)?;
    let extra = match flags & HAS_EXTRA {
        0 => None,
        _ => Some(Extra::parse(reader.bytes32()?).map_err(EnvelopeError::Meta)?),
    };
    Ok(Shared { key, phx_ref: own, phx_ref_prev, meta, extra })
}

/// The number of entries of at least so many bytes that follow, checked against the bytes that are
/// left.
fn count(reader: &mut Reader<'_>, bytes_least: usize) -> Result<usize, EnvelopeError> {
    let count = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
    if count > reader.left().len() / bytes_least {
        return Err(EnvelopeError::Cut);
    }
    Ok(count)
}

/// A ref. Zeros mean none in tables, so they are refused.
fn phx_ref(reader: &mut Reader<'_>) -> Result<PhxRef, EnvelopeError> {
    let bytes: [u8; REF_BYTES] = reader.array()?;
    if bytes == [0; REF_BYTES] {
        return Err(EnvelopeError::Malformed("a ref must not be zero"));
    }
    Ok(PhxRef::from_bytes(bytes))
}

//! Topics as bytes, for a planned restart: written at its end, read at the next start, all or
//! nothing.
//!
//! ```text
//! magic, version, for each topic: 1, name, epoch, marks, entries, ids; 0, topics, checksum
//! ```
//! Numbers are of variable length (LEB128), texts and values have their length before them. The
//! checksum is the CRC-32 of all before it, so that a file that was cut or has rotted is refused
//! before anything of it is believed.
use alloc::vec::Vec;
use core::fmt;

use crc32fast::Hasher;

use crate::ids::Ids;
use crate::position::{Epoch, Place};
use crate::reason::Reason;
use crate::ring::{Marks, Ring};
use crate::topic::KeptTopic;

/// What a save begins with.
const MAGIC: &[u8; 8] = b"simurgh\n";
/// The form that is written here, and read.
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

/// Places that a save may have: no topic comes so far, and from there on they could not grow.
const SEQ_MAX: u64 = u64::MAX / 2;

/// Writes topics down, one after the other.
///
/// What it appends to the given buffer may be taken away between two calls, so that no more than a
/// topic lies there at once.
#[derive(Debug, Default)]
pub struct Saver {
    checksum: Hasher,
    topics: u64,
    begun: bool,
}

impl Saver {
    /// Nothing is written yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a topic. `encode` appends a value; its length is noted beside it.
    pub fn topic<T>(
        &mut self,
        out: &mut Vec<u8>,
        name: &str,
        topic: &KeptTopic<T>,
        mut encode: impl FnMut(&T, &mut Vec<u8>),
    ) {
        let start = self.begin(out);
        let ring = topic.ring();
        let marks = ring.marks();
        put(out, 1);
        put_bytes(out, name.as_bytes());
        put(out, u64::from(ring.epoch().get()));
        put_place(out, marks.head);
        put_place(out, marks.floor);
        put_bytes(out, marks.reason.as_str().as_bytes());
        put_place(out, marks.purged);
        put(out, ring.len() as u64);
        let mut value = Vec::new();
        for entry in ring.entries(0..ring.len()) {
            put_place(out, entry.place);
            put(out, entry.at_ms);
            put(out, entry.bytes);
            value.clear();
            encode(entry.value, &mut value);
            put_bytes(out, &value);
        }
        put(out, topic.ids().len() as u64);
        for (id, place, at_ms) in topic.ids().iter() {
            put_bytes(out, id.as_bytes());
            put_place(out, place);
            put(out, at_ms);
        }
        self.topics += 1;
        self.checksum.update(out.get(start..).unwrap_or_default());
    }

    /// Appends the end, without which nothing of it can be read.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        let start = self.begin(out);
        put(out, 0);
        put(out, self.topics);
        self.checksum.update(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&self.checksum.finalize().to_le_bytes());
    }

    /// Says where what follows begins, with the head if that is not written yet.
    fn begin(&mut self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        if !core::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(MAGIC);
            out.push(VERSION);
        }
        start
    }
}

/// Why bytes are no save that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaveError {
    /// They begin as something else.
    Foreign,
    /// A save of another version.
    Version(u8),
    /// The end of the head, or of the checksum, is missing.
    Cut,
    /// The checksum is not theirs: bytes are missing or have changed.
    Checksum,
    /// They are as they were written, but by nobody who keeps to the form.
    Malformed {
        /// The byte where that was seen.
        at: usize,
    },
    /// A value could not be read by the caller.
    Value {
        /// The byte where it begins.
        at: usize,
    },
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaveError::Foreign => f.write_str("not a save of history"),
            SaveError::Version(version) => {
                write!(f, "a save of version {version}, here it is {VERSION}")
            }
            SaveError::Cut => f.write_str("the save was cut"),
            SaveError::Checksum => f.write_str("the save was cut or changed: wrong checksum"),
            SaveError::Malformed { at } => write!(f, "the save makes no sense at byte {at}"),
            SaveError::Value { at } => write!(f, "the value at byte {at} cannot be read"),
        }
    }
}

impl core::error::Error for SaveError {}

/// The topics of a save with their names: all, or an error. `seed` as in [`Ids::new`]; `decode`
/// reads a value, `None` if it is none. What is too old is still there: sweep it.
///
/// No memory is taken for what the bytes only announce.
///
/// # Errors
/// Bytes that are no save, or not a whole one, or have values that `decode` cannot read.
pub fn saved<T>(
    bytes: &[u8],
    seed: u64,
    mut decode: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<(&str, KeptTopic<T>)>, SaveError> {
    let body = checked(bytes)?;
    let mut reader = Reader { bytes: body, at: MAGIC.len() + 1 };
    let mut topics = Vec::new();
    loop {
        match reader.number()? {
            0 => break,
            1 => topics.push(reader.topic(seed, &mut decode)?),
            _ => return Err(reader.malformed()),
        }
    }
    if reader.number()? != topics.len() as u64 || reader.at != body.len() {
        return Err(reader.malformed());
    }
    Ok(topics)
}

/// All before the checksum, once that is right.
fn checked(bytes: &[u8]) -> Result<&[u8], SaveError> {
    if !bytes.starts_with(MAGIC) {
        // Of a file that was cut early, this is all there is to say.
        let is_cut = MAGIC.starts_with(bytes);
        return Err(if is_cut { SaveError::Cut } else { SaveError::Foreign });
    }
    match bytes.get(MAGIC.len()) {
        Some(&VERSION) => {}
        Some(&other) => return Err(SaveError::Version(other)),
        None => return Err(SaveError::Cut),
    }
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(SaveError::Cut)?;
    if body.len() <= MAGIC.len() {
        return Err(SaveError::Cut);
    }
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return Err(SaveError::Checksum);
    }
    Ok(body)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn topic<T>(
        &mut self,
        seed: u64,
        decode: &mut impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<(&'a str, KeptTopic<T>), SaveError> {
        let name = self.text()?;
        let epoch = u32::try_from(self.number()?).ok().and_then(Epoch::new);
        let epoch = epoch.ok_or(self.malformed())?;
        let (head, floor) = (self.place()?, self.place()?);
        let reason = Reason::parse(self.text()?).ok_or(self.malformed())?;
        let purged = self.place()?;
        if floor > head || purged > floor {
            return Err(self.malformed());
        }
        let mut ring = Ring::restored(epoch, &Marks { head, floor, reason, purged });
        for _ in 0..self.number()? {
            let (place, at_ms) = (self.place()?, self.number()?);
            let counted = usize::try_from(self.number()?).map_err(|_| self.malformed())?;
            let at = self.at;
            let value = decode(self.bytes()?).ok_or(SaveError::Value { at })?;
            if place > head || !ring.push(place, at_ms, counted, value) {
                return Err(self.malformed());
            }
        }
        ring.advance(head);
        let mut ids = Ids::new(seed);
        for _ in 0..self.number()? {
            let (id, place, at_ms) = (self.text()?, self.place()?, self.number()?);
            ids.remember(id, place, at_ms);
        }
        Ok((name, KeptTopic::of(ring, ids)))
    }

    fn number(&mut self) -> Result<u64, SaveError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes.get(self.at).copied().ok_or(self.malformed())?;
            let bits = u64::from(byte & 0x7f);
            // Of the tenth byte one bit is left.
            if bits << shift >> shift != bits {
                return Err(self.malformed());
            }
            number |= bits << shift;
            self.at += 1;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.malformed())
    }

    fn place(&mut self) -> Result<Place, SaveError> {
        let seq = self.number()?;
        let item = u16::try_from(self.number()?).map_err(|_| self.malformed())?;
        if seq > SEQ_MAX {
            return Err(self.malformed());
        }
        Ok(Place { seq, item })
    }

    fn bytes(&mut self) -> Result<&'a [u8], SaveError> {
        let len = usize::try_from(self.number()?).map_err(|_| self.malformed())?;
        let end = self.at.checked_add(len).ok_or(self.malformed())?;
        let bytes = self.bytes.get(self.at..end).ok_or(self.malformed())?;
        self.at = end;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, SaveError> {
        str::from_utf8(self.bytes()?).map_err(|_| self.malformed())
    }

    fn malformed(&self) -> SaveError {
        SaveError::Malformed { at: self.at }
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_place(out: &mut Vec<u8>, place: Place) {
    put(out, place.seq);
    put(out, u64::from(place.item));
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

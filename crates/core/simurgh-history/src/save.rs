//! Topics as bytes, for a planned restart: written at the end, read at the start, all or nothing.
//!
//! ```text
//! magic, version, for each topic: 1, name, epoch, marks, entries, ids; 0, topics, checksum
//! ```
//! Numbers are of variable length (LEB128); texts and values follow their length. The checksum is
//! the CRC-32 of all before it, so that a truncated or damaged file is refused before any of it is
//! used.
use alloc::vec::Vec;

use crc32fast::Hasher;
use thiserror::Error;

use crate::ids::Ids;
use crate::position::{Epoch, Place};
use crate::reason::GapReason;
use crate::ring::{Marks, Ring};
use crate::topic::KeptTopic;

const MAGIC: &[u8; 8] = b"simurgh\n";
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

/// Higher numbers are malformed: no topic reaches them, and they could not grow.
const SEQ_MAX: u64 = u64::MAX / 2;

/// Writes topics down, one after the other.
///
/// The caller may empty the buffer between two calls, so that it has at most one topic.
#[derive(Debug, Default)]
pub struct Saver {
    checksum: Hasher,
    topics: u64,
    begun: bool,
}

impl Saver {
    /// A saver that has written nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a topic. `encode` appends a value, whose length is written before it.
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

    /// Returns where the record begins, after the head of the file if that is new.
    fn begin(&mut self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        if !core::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(MAGIC);
            out.push(VERSION);
        }
        start
    }
}

/// Why a save cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The bytes begin as another format.
    #[error("not a file of saved histories")]
    Foreign,
    /// A save of another version.
    #[error("the file has version {0}; this server supports version {VERSION}")]
    Version(u8),
    /// The end of the head, or of the checksum, is missing.
    #[error("the file is incomplete")]
    Cut,
    /// The checksum is wrong: bytes are missing or have changed.
    #[error("the file is incomplete or was changed: wrong checksum")]
    Checksum,
    /// The checksum is right, but the content does not follow the format.
    #[error("the file is invalid at byte {at}")]
    Malformed {
        /// The byte where that was found.
        at: usize,
    },
    /// A value could not be read by the caller.
    #[error("the value at byte {at} cannot be read")]
    Value {
        /// The byte where the value begins.
        at: usize,
    },
}

/// The topics of a save with their names: all, or an error. `seed` as in [`Ids::new`]; `decode`
/// reads a value, `None` if it cannot. Values that are too old are still included: sweep them.
///
/// Lengths that the bytes only announce are not allocated.
///
/// # Errors
/// If the bytes are not a whole save, or have values that `decode` cannot read.
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

/// All before the checksum, if that is right.
fn checked(bytes: &[u8]) -> Result<&[u8], SaveError> {
    if !bytes.starts_with(MAGIC) {
        // For a file that was cut early this is all that is known.
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
        let reason = GapReason::parse(self.text()?).ok_or(self.malformed())?;
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
            // Only one bit of the tenth byte is left.
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

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use alloc::vec;

    use super::*;
    use crate::ring::Limits;

    fn encode(text: &String, out: &mut Vec<u8>) {
        out.extend_from_slice(text.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<String> {
        String::from_utf8(bytes.to_vec()).ok()
    }

    fn topics() -> [(&'static str, KeptTopic<String>); 3] {
        let limits = Limits { count: 2, bytes: 1_000, age_ms: 1_000 };
        let mut room = KeptTopic::new(Epoch::from_seed(1 << 30), 7);
        room.store("first".into(), 5, None, 1_795_000_000_000, &limits);
        room.purge();
        for (text, bytes) in [("a", 1), ("", 300), ("é", 2)] {
            room.store(text.into(), bytes, Some("id"), 1_795_000_000_001, &limits);
            room.store(text.into(), bytes, None, 1_795_000_000_001, &limits);
        }
        [
            ("room:é", room),
            ("", KeptTopic::new(Epoch::from_seed(2), 7)),
            ("purged", {
                let mut topic = KeptTopic::new(Epoch::from_seed(3), 7);
                topic.store("gone".into(), 4, None, 5, &limits);
                topic.purge();
                topic
            }),
        ]
    }

    fn save() -> Vec<u8> {
        let (mut saver, mut out) = (Saver::new(), vec![]);
        for (name, topic) in &topics() {
            saver.topic(&mut out, name, topic, encode);
        }
        saver.finish(&mut out);
        out
    }

    fn error(bytes: &[u8]) -> SaveError {
        saved(bytes, 7, decode).map(|topics| topics.len()).unwrap_err()
    }

    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut out = [MAGIC, [VERSION].as_slice(), body].concat();
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }

    #[test]
    fn saved_topics_are_read_back() {
        let bytes = save();
        let read = saved(&bytes, 9, decode).unwrap();
        assert_eq!(read.len(), 3);
        for ((name, topic), (expected_name, expected)) in read.iter().zip(&topics()) {
            assert_eq!(name, expected_name);
            let (ring, expected_ring) = (topic.ring(), expected.ring());
            assert_eq!(
                (ring.marks(), ring.epoch()),
                (expected_ring.marks(), expected_ring.epoch())
            );
            let entries = ring.entries(0..ring.len());
            assert!(entries.eq(expected_ring.entries(0..expected_ring.len())), "{name}");
            assert!(topic.ids().iter().eq(expected.ids().iter()), "{name}");
        }
        let [(_, room), _, (_, purged)] = &read[..] else { panic!("three topics") };
        assert_eq!((room.ring().len(), room.ids().len()), (2, 1));
        assert_eq!(room.ring().has_all_after(Place::ZERO), Err(GapReason::Purged));
        assert_eq!(purged.ring().head(), Place::new(1));
    }

    #[test]
    fn topics_saved_one_by_one_equal_a_whole_save() {
        let (mut saver, mut whole, mut out) = (Saver::new(), vec![], vec![]);
        for (name, topic) in &topics() {
            saver.topic(&mut out, name, topic, encode);
            whole.append(&mut out);
        }
        saver.finish(&mut out);
        whole.append(&mut out);
        assert_eq!(whole, save());
        // After other bytes in the buffer.
        let (saver, mut out) = (Saver::new(), vec![1, 2, 3]);
        saver.finish(&mut out);
        assert!(saved(&out[3..], 7, decode).unwrap().is_empty());
    }

    #[test]
    fn save_truncated_anywhere_is_rejected() {
        let bytes = save();
        for len in 0..bytes.len() {
            let expected = if len < 13 { SaveError::Cut } else { SaveError::Checksum };
            assert_eq!(error(&bytes[..len]), expected, "{len}");
        }
        let longer = [bytes.as_slice(), b"\0"].concat();
        assert_eq!(error(&longer), SaveError::Checksum);
    }

    #[test]
    fn any_changed_byte_of_a_save_is_detected() {
        let bytes = save();
        for at in 0..bytes.len() {
            for change in 1..=255 {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let expected = match at {
                    0..8 => SaveError::Foreign,
                    8 => SaveError::Version(changed[8]),
                    _ => SaveError::Checksum,
                };
                assert_eq!(error(&changed), expected, "byte {at} ^ {change}");
            }
        }
    }

    #[test]
    fn save_with_impossible_content_is_rejected() {
        let topic = |rest: &[u8]| [&[1, 1, b't', 7], rest, &[0, 1]].concat();
        // Head 5, floor 3, expired, never purged.
        let marks = [5, 0, 3, 0, 7, b'e', b'x', b'p', b'i', b'r', b'e', b'd', 0, 0];
        let with = |rest: &[u8]| sealed(&topic(&[&marks, rest].concat()));
        let of_marks = |at: usize, byte: u8| {
            let mut marks = marks;
            marks[at] = byte;
            sealed(&topic(&[&marks[..], &[0, 0]].concat()))
        };
        assert_eq!(saved(&with(&[0, 0]), 7, decode).unwrap().len(), 1);
        assert_eq!(saved(&with(&[1, 5, 0, 9, 1, 1, b'x', 0]), 7, decode).unwrap().len(), 1);
        assert!(saved(&of_marks(0, 3), 7, decode).is_ok(), "the head is the floor");
        assert!(saved(&of_marks(12, 3), 7, decode).is_ok(), "the floor was purged");
        let bad_value = |bytes: &[u8]| bytes.is_empty().then(String::new);
        let value = with(&[1, 5, 0, 9, 1, 1, b'x', 0]);
        let read = saved(&value, 7, bad_value).map(|topics| topics.len());
        assert!(matches!(read, Err(SaveError::Value { .. })), "{read:?}");
        for (what, bytes) in [
            ("no end", sealed(&[])),
            ("no count", sealed(&[0])),
            ("wrong count", sealed(&[0, 1])),
            ("more behind the end", sealed(&[0, 0, 0])),
            ("another mark", sealed(&[2])),
            ("floor above the head", of_marks(0, 2)),
            ("purged above the floor", of_marks(12, 4)),
            ("no reason", of_marks(5, b'E')),
            ("an entry at the floor", with(&[1, 3, 0, 9, 1, 1, b'x', 0])),
            ("an entry above the head", with(&[1, 6, 0, 9, 1, 1, b'x', 0])),
            ("two in one place", with(&[2, 5, 0, 9, 1, 0, 5, 0, 9, 1, 0, 0])),
            ("a longer value than there is", with(&[1, 5, 0, 9, 1, 99])),
            ("far more entries", with(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 5])),
            (
                "a longer number than 64 bits",
                with(&[255, 255, 255, 255, 255, 255, 255, 255, 255, 2]),
            ),
            ("a number without end", with(&[128; 12])),
            ("an item of 17 bits", with(&[1, 5, 255, 255, 7, 9, 1, 1, b'x', 0])),
            ("a name that is no text", sealed(&[1, 1, 0xff, 7])),
            ("no such epoch", sealed(&[1, 0, 255, 255, 255, 255, 15])),
        ] {
            assert!(matches!(error(&bytes), SaveError::Malformed { .. }), "{what}");
        }
        let of_head = |seq| {
            let mut rest = vec![];
            put(&mut rest, seq);
            rest.extend_from_slice(&[marks.get(1..).unwrap(), &[0, 0]].concat());
            saved(&sealed(&topic(&rest)), 7, decode).map(|topics| topics.len())
        };
        assert_eq!(of_head(SEQ_MAX), Ok(1));
        assert!(matches!(of_head(SEQ_MAX + 1), Err(SaveError::Malformed { .. })));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (error, text) in [
            (SaveError::Foreign, "not a file of saved histories"),
            (SaveError::Version(2), "the file has version 2; this server supports version 1"),
            (SaveError::Cut, "the file is incomplete"),
            (SaveError::Checksum, "the file is incomplete or was changed: wrong checksum"),
            (SaveError::Malformed { at: 9 }, "the file is invalid at byte 9"),
            (SaveError::Value { at: 9 }, "the value at byte 9 cannot be read"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}

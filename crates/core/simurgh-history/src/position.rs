//! Positions of messages in the order of a topic, as clients get and send them.
use alloc::vec::Vec;
use core::fmt;

/// Letters and digits of an epoch after its first letter.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const TAIL: usize = 5;
const TAILS: u32 = 36u32.pow(TAIL as u32);

/// Identifies one life of a topic's numbers. Positions of different epochs cannot be compared:
/// history was lost or restarted in between.
///
/// Six characters on the wire, the first a letter, so that a position is never mistaken for the
/// number that the ref of a message usually is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// How many epochs there are.
    pub const COUNT: u32 = 26 * TAILS;

    /// The epoch of a random number, or of one that is not given twice.
    pub const fn from_seed(seed: u64) -> Self {
        Epoch((seed % Self::COUNT as u64) as u32)
    }

    /// The epoch with this number.
    pub const fn new(number: u32) -> Option<Self> {
        if number < Self::COUNT { Some(Epoch(number)) } else { None }
    }

    /// A number less than [`COUNT`](Self::COUNT).
    pub const fn get(self) -> u32 {
        self.0
    }

    fn chars(self) -> [u8; 1 + TAIL] {
        let mut chars = [b'a' + (self.0 / TAILS) as u8; 1 + TAIL];
        let mut rest = self.0 % TAILS;
        for char in chars.iter_mut().skip(1).rev() {
            *char = DIGITS.get((rest % 36) as usize).copied().unwrap_or(b'0');
            rest /= 36;
        }
        chars
    }

    fn from_chars(chars: &[u8; 1 + TAIL]) -> Option<Self> {
        let [first @ b'a'..=b'z', tail @ ..] = chars else { return None };
        let mut number = u32::from(first - b'a');
        for char in tail {
            let digit = match char {
                b'0'..=b'9' => char - b'0',
                b'a'..=b'z' => char - b'a' + 10,
                _ => return None,
            };
            number = number * 36 + u32::from(digit);
        }
        Some(Epoch(number))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(str::from_utf8(&self.chars()).unwrap_or_default())
    }
}

/// A place in the order of one topic, within an epoch. Places grow, with or without holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The number of what was stored at once: from 1, so that 0 is before everything.
    pub seq: u64,
    /// The index among several that were stored at once, from 0 to [`ITEM_MAX`](Self::ITEM_MAX).
    pub item: u16,
}

impl Place {
    /// Before everything.
    pub const ZERO: Place = Place { seq: 0, item: 0 };

    /// With more, a position could be longer than [`Position::CHARS_MAX`].
    pub const ITEM_MAX: u16 = 9_999;

    /// The place of a message that was stored alone.
    pub const fn new(seq: u64) -> Self {
        Place { seq, item: 0 }
    }
}

/// A place and its epoch: the ref of a kept message, and the last that a client has received.
///
/// ```
/// use simurgh_history::{Epoch, Place, Position};
///
/// let position = Position { epoch: Epoch::from_seed(617_391_360), place: Place::new(60) };
/// assert_eq!(position.to_string(), "k7ku80.60");
/// assert_eq!(Position::parse("k7ku80.60"), Some(position));
/// assert_eq!(Position::parse("k7ku80.060"), None);
///
/// let place = Place { seq: 60, item: 3 };
/// assert_eq!(Position { place, ..position }.to_string(), "k7ku80.60-3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// The epoch of the topic's numbers.
    pub epoch: Epoch,
    /// Within the epoch.
    pub place: Place,
}

impl Position {
    /// Characters of the longest position.
    pub const CHARS_MAX: usize = 32;

    /// Reads what [`Display`](fmt::Display) writes, and no other spelling of the same numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() > Self::CHARS_MAX {
            return None;
        }
        let (epoch, rest) = bytes.split_first_chunk()?;
        let epoch = Epoch::from_chars(epoch)?;
        let rest = rest.strip_prefix(b".")?;
        let dash = rest.iter().position(|&byte| byte == b'-');
        let (seq, item) = match dash.and_then(|at| rest.split_at_checked(at)) {
            None => (number(rest)?, 0),
            Some((seq, item)) => {
                let item = number(item.strip_prefix(b"-")?)?;
                let item = u16::try_from(item).ok()?;
                if item == 0 || item > Place::ITEM_MAX {
                    return None;
                }
                (number(seq)?, item)
            }
        };
        Some(Position { epoch, place: Place { seq, item } })
    }

    /// Appends it as [`Display`](fmt::Display) writes it. Nothing in it needs an escape in JSON.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.chars());
        out.push(b'.');
        out.extend_from_slice(digits(self.place.seq, &mut [0; 20]));
        if self.place.item > 0 {
            out.push(b'-');
            out.extend_from_slice(digits(u64::from(self.place.item), &mut [0; 20]));
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { seq, item } = self.place;
        write!(f, "{}.{seq}", self.epoch)?;
        if item > 0 { write!(f, "-{item}") } else { Ok(()) }
    }
}

/// A number in decimal, without the formatting machinery: each kept message has a position.
pub(crate) fn digits(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut start = buffer.len();
    for place in buffer.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        start -= 1;
        if number == 0 {
            break;
        }
    }
    buffer.get(start..).unwrap_or_default()
}

/// A number without leading zeros.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || (digits.len() > 1 && digits.starts_with(b"0")) {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| byte - b'0')?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn position(epoch: u32, seq: u64, item: u16) -> Position {
        Position { epoch: Epoch::new(epoch).unwrap(), place: Place { seq, item } }
    }

    #[test]
    fn epoch_text_is_a_letter_and_five_characters() {
        for (number, text) in [
            (0, "a00000"),
            (35, "a0000z"),
            (36, "a00010"),
            (TAILS - 1, "azzzzz"),
            (TAILS, "b00000"),
            (Epoch::COUNT - 1, "zzzzzz"),
        ] {
            let epoch = Epoch::new(number).unwrap();
            assert_eq!(epoch.to_string(), text);
            assert_eq!(epoch.get(), number);
            let chars = text.as_bytes().first_chunk().unwrap();
            assert_eq!(Epoch::from_chars(chars), Some(epoch));
        }
        assert_eq!(Epoch::new(Epoch::COUNT), None);
        assert_eq!(Epoch::from_seed(u64::from(Epoch::COUNT)).get(), 0);
        assert_eq!(Epoch::from_seed(u64::from(Epoch::COUNT) - 1).get(), Epoch::COUNT - 1);
        let all: std::collections::HashSet<_> = (0..100_000).map(Epoch::from_seed).collect();
        assert_eq!(all.len(), 100_000, "near seeds are different epochs");
    }

    #[test]
    fn positions_are_formatted_and_parsed() {
        for (given, text) in [
            (position(0, 0, 0), "a00000.0"),
            (position(1, 9, 1), "a00001.9-1"),
            (position(1, 10, 10), "a00001.10-10"),
            (position(0, u64::MAX, 0), "a00000.18446744073709551615"),
            (position(0, u64::MAX, Place::ITEM_MAX), "a00000.18446744073709551615-9999"),
        ] {
            assert_eq!(given.to_string(), text);
            assert_eq!(Position::parse(text), Some(given));
            assert!(text.len() <= Position::CHARS_MAX);
            let mut out = alloc::vec![b'"'];
            given.encode(&mut out);
            assert_eq!(out.strip_prefix(b"\"").unwrap(), text.as_bytes());
        }
        assert_eq!(position(0, u64::MAX, 9_999).to_string().len(), Position::CHARS_MAX);
    }

    #[test]
    fn only_the_canonical_position_text_is_parsed() {
        for text in [
            "",
            ".",
            "a",
            "a0000",
            "a00000",
            "a00000.",
            "a00000.-1",
            "a0000.1",
            "000000.1",
            "A00000.1",
            "a0000A.1",
            "a0000!.1",
            "a00000,1",
            "a000000.1",
            "a00000.01",
            "a00000.00",
            "a00000.+1",
            "a00000.-0",
            "a00000.1-",
            "a00000.1-0",
            "a00000.1-01",
            "a00000.1-+1",
            "a00000.1-1-1",
            "a00000.1-10000",
            "a00000.1-65536",
            "a00000.18446744073709551616",
            "a00000.1 ",
            " a00000.1",
            "a00000.1x",
            "a00000.1\0",
            "`00000.1",
            "{00000.1",
            "a0000/.1",
            "a0000:.1",
            "a0000`.1",
            "a0000{.1",
            "a00000./",
            "a00000.:",
            "é0000.1",
            "a00000.000000000000000000000000000000000001",
        ] {
            assert_eq!(Position::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn places_are_ordered_by_number_and_item() {
        let place = |seq, item| Place { seq, item };
        let ordered = [Place::ZERO, place(0, 1), Place::new(1), place(1, 1), place(2, 0)];
        assert!(ordered.is_sorted_by(|a, b| a < b));
    }
}

//! The sender's stamp in a message, from which receivers compute the delay.
//!
//! 44 ASCII characters that any JSON encoder leaves unchanged, at fixed positions, so that a
//! receiver finds them without parsing:
//!
//! ```text
//! @sim RRRRRRRR PPPPPPPP SSSSSSSS TTTTTTTTTTTTTTTT     (without the blanks)
//!      run      sender   number   time, ns
//! ```
//!
//! All numbers are hexadecimal. The time is that of the run's clock: the controller's, in
//! nanoseconds since the run was prepared; other hosts add their offset to it.
//!
//! Where single messages are followed, `#` and 8 more digits give its number among those of its
//! sender at its topic, from 1.

use memchr::memmem::Finder;

/// Length of a stamp without its index.
pub const STAMP_BYTES: usize = 44;
const MARK: &[u8] = b"@sim";
const INDEX: u8 = b'#';

/// The content of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The run, so that stamps of other runs are not counted.
    pub run: u32,
    /// The sender: the worker's number.
    pub sender: u32,
    /// The sender's message number.
    pub number: u32,
    /// The time, by the run's clock.
    pub at_ns: u64,
    /// Its number among those of its sender at its topic, from 1; 0: not counted.
    pub index: u32,
}

impl Stamp {
    /// Appends the stamp.
    pub fn write(self, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        out.extend_from_slice(MARK);
        let mut hex = |value: u64, digits: u32| {
            for digit in (0..digits).rev() {
                out.push(DIGITS[(value >> (4 * digit)) as usize & 15]);
            }
        };
        hex(u64::from(self.run), 8);
        hex(u64::from(self.sender), 8);
        hex(u64::from(self.number), 8);
        hex(self.at_ns, 16);
        if self.index != 0 {
            out.push(INDEX);
            let digit = |at: u32| DIGITS[(self.index >> (4 * at)) as usize & 15];
            out.extend((0..8).rev().map(digit));
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let digits = bytes.get(..STAMP_BYTES)?.strip_prefix(MARK)?;
        let (run, digits) = hex(digits, 8)?;
        let (sender, digits) = hex(digits, 8)?;
        let (number, digits) = hex(digits, 8)?;
        let (at_ns, _) = hex(digits, 16)?;
        let index = bytes.get(STAMP_BYTES..)?.strip_prefix(&[INDEX]);
        let index = index.and_then(|digits| hex(digits, 8)).map_or(0, |(index, _)| index as u32);
        let [run, sender, number] = [run, sender, number].map(|number| number as u32);
        Some(Self { run, sender, number, at_ns, index })
    }
}

/// The value of the first `digits` digits, and the rest.
fn hex(bytes: &[u8], digits: usize) -> Option<(u64, &[u8])> {
    let (spelt, rest) = bytes.split_at_checked(digits)?;
    let mut value = 0;
    for byte in spelt {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(digit);
    }
    Some((value, rest))
}

/// Finds stamps; remembers the position of the last one, since all frames of a run look alike.
#[derive(Debug)]
pub struct Stamps {
    run: u32,
    finder: Finder<'static>,
    last_at: usize,
}

impl Stamps {
    /// A finder of the stamps of `run`.
    pub fn new(run: u32) -> Self {
        Self { run, finder: Finder::new(MARK), last_at: 0 }
    }

    /// The first stamp of this run in `message`.
    #[inline]
    pub fn find(&mut self, message: &[u8]) -> Option<Stamp> {
        let here = message.get(self.last_at..).and_then(Stamp::read);
        if let Some(stamp) = here.filter(|stamp| stamp.run == self.run) {
            return Some(stamp);
        }
        self.search(message)
    }

    fn search(&mut self, message: &[u8]) -> Option<Stamp> {
        let run = self.run;
        let found = self.finder.find_iter(message).find_map(|at| {
            let stamp = message.get(at..).and_then(Stamp::read)?;
            (stamp.run == run).then_some((at, stamp))
        });
        let (at, stamp) = found?;
        self.last_at = at;
        Some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp =
        Stamp { run: 0xfeed_0001, sender: 3, number: 77, at_ns: 1 << 50, index: 0 };

    fn written(stamp: Stamp) -> Vec<u8> {
        let mut out = Vec::new();
        stamp.write(&mut out);
        out
    }

    #[test]
    fn stamp_is_found_at_any_offset() {
        let text = written(STAMP);
        assert_eq!(text.len(), STAMP_BYTES);
        let mut stamps = Stamps::new(STAMP.run);
        for before in [0, 7, 7, 30, 2] {
            let mut message = vec![b'@'; before];
            message.extend_from_slice(&text);
            message.extend_from_slice(b"\"}]");
            assert_eq!(stamps.find(&message), Some(STAMP), "after {before} bytes");
        }
    }

    #[test]
    fn optional_stamp_index_is_parsed() {
        for index in [1, 0xabc_def0, u32::MAX] {
            let stamp = Stamp { index, ..STAMP };
            let mut text = written(stamp);
            assert_eq!(text.len(), STAMP_BYTES + 9);
            text.extend_from_slice(b"\"}]");
            let mut stamps = Stamps::new(STAMP.run);
            assert_eq!(stamps.find(&text), Some(stamp));
            text[STAMP_BYTES + 8] = b'x';
            assert_eq!(stamps.find(&text), Some(STAMP), "a torn index is none");
        }
    }

    #[test]
    fn stamps_of_other_runs_and_torn_stamps_are_ignored() {
        let mut stamps = Stamps::new(1);
        let text = written(STAMP);
        assert_eq!(stamps.find(&text), None);
        let mut stamps = Stamps::new(STAMP.run);
        assert_eq!(stamps.find(&text[..STAMP_BYTES - 1]), None);
        let mut torn = text.clone();
        torn[20] = b'x';
        assert_eq!(stamps.find(&torn), None);
        torn.extend_from_slice(&text);
        assert_eq!(stamps.find(&torn), Some(STAMP));
    }
}

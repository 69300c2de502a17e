//! Owners of entries, and the refs of their states.
use core::fmt;
use core::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thiserror::Error;

const BYTES: usize = 12;
const CHARS: usize = 16;
/// Refs of a [`PhxRefs`] in one microsecond: three bytes.
const COUNTERS: u32 = 1 << 24;

/// The id of a node, random at each start. It owns all entries of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

/// The ref of one state of one entry, `phx_ref`, new after each update; clients compare only it.
///
/// Shown as 16 characters of base64url: six bytes of time in microseconds, three of the node's id,
/// three of a counter.
///
/// ```
/// use simurgh_presence::PhxRef;
///
/// let it: PhxRef = "AAAAAAAqAAAHAAAB".parse().unwrap();
/// assert_eq!(it.to_bytes(), [0, 0, 0, 0, 0, 42, 0, 0, 7, 0, 0, 1]);
/// assert_eq!(it.to_string(), "AAAAAAAqAAAHAAAB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhxRef([u8; BYTES]);

impl PhxRef {
    /// Stands for no ref; [`PhxRefs`] never makes it.
    pub(crate) const NONE: PhxRef = PhxRef([0; BYTES]);

    /// The ref of [`to_bytes`](Self::to_bytes), from this node or another.
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        PhxRef(bytes)
    }

    /// The form that nodes send to each other.
    pub const fn to_bytes(self) -> [u8; BYTES] {
        self.0
    }

    pub(crate) fn some(self) -> Option<PhxRef> {
        (self != PhxRef::NONE).then_some(self)
    }

    pub(crate) fn chars(self) -> [u8; CHARS] {
        let mut chars = [b'A'; CHARS];
        // It fits: four characters for each three bytes.
        let _ = URL_SAFE_NO_PAD.encode_slice(self.0, &mut chars);
        chars
    }
}

impl fmt::Display for PhxRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.chars()).unwrap_or_default())
    }
}

impl fmt::Debug for PhxRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not 16 characters of base64url.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a phx_ref must have 16 characters of base64url")]
pub struct NotAPhxRef;

impl FromStr for PhxRef {
    type Err = NotAPhxRef;

    fn from_str(text: &str) -> Result<Self, NotAPhxRef> {
        let mut bytes = [0; BYTES];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut bytes) {
            Ok(BYTES) => Ok(PhxRef(bytes)),
            _ => Err(NotAPhxRef),
        }
    }
}

/// Makes refs for the entries of one node, never the same twice, whatever the clock does. One is
/// enough for all topics of a thread. Two of the same node may make the same ref, which matters
/// only if they serve the same topic.
///
/// ```
/// use simurgh_presence::{Owner, PhxRefs};
///
/// let mut refs = PhxRefs::new(Owner(7));
/// let (first, second) = (refs.next(42), refs.next(42));
/// assert_eq!(first.to_string(), "AAAAAAAqAAAHAAAA");
/// assert_ne!(first, second);
/// assert!(refs.next(41) > second, "a clock that goes back is not followed");
/// ```
#[derive(Debug)]
pub struct PhxRefs {
    node: [u8; 3],
    last_us: u64,
    counter: u32,
}

impl PhxRefs {
    /// For the entries of `node`, whose last three bytes are in the refs.
    pub const fn new(node: Owner) -> Self {
        let [.., a, b, c] = node.0.to_be_bytes();
        PhxRefs { node: [a, b, c], last_us: 0, counter: COUNTERS }
    }

    /// The next ref, at `now_us` microseconds since 1970. The time in it wraps after 2^48 µs (nine
    /// years), and runs ahead of the clock after 16 million refs in one microsecond.
    pub fn next(&mut self, now_us: u64) -> PhxRef {
        if now_us > self.last_us {
            (self.last_us, self.counter) = (now_us, 0);
        } else if self.counter == COUNTERS {
            (self.last_us, self.counter) = (self.last_us.wrapping_add(1), 0);
        }
        let [_, _, t0, t1, t2, t3, t4, t5] = self.last_us.to_be_bytes();
        let [_, c0, c1, c2] = self.counter.to_be_bytes();
        let [n0, n1, n2] = self.node;
        self.counter += 1;
        PhxRef([t0, t1, t2, t3, t4, t5, n0, n1, n2, c0, c1, c2])
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn refs_stay_unique_when_the_clock_stops_or_goes_back() {
        let mut refs = PhxRefs::new(Owner(0));
        let mut last = PhxRef::NONE;
        for now in [0, 0, 5, 5, 4, 0, 6, u64::from(COUNTERS), 1] {
            let next = refs.next(now);
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        // As after sixteen million within one microsecond.
        refs.counter = COUNTERS - 2;
        for _ in 0..5 {
            let next = refs.next(0);
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }

    #[test]
    fn phx_ref_text_is_parsed_back() {
        let it = PhxRef([0xff, 0xef, 0xbe, 0, 1, 2, 3, 4, 5, 6, 7, 255]);
        assert_eq!(it.to_string(), "_---AAECAwQFBgf_");
        assert_eq!(it.to_string().parse(), Ok(it));
        for wrong in
            ["", "AAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAA=", "++++++++++++++++"]
        {
            assert_eq!(wrong.parse::<PhxRef>(), Err(NotAPhxRef), "{wrong}");
        }
    }
}

//! What the users of this host have said, stream by stream: who hears it can tell by that what it
//! should have heard.
//!
//! Written by those who push stamps; read when a user hears a stream for the first time, and when
//! it ends. Times are those of the workers' clock, which all workers of a host share.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::tracker::Range;

/// A stream's number on this host.
pub(super) type StreamId = u32;

/// Messages whose times are kept, 8 bytes each and a bit; later ones are not numbered.
const MESSAGES_MAX: usize = 8 << 20;
/// Messages of which a word says whether they were heard.
const BITS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct SentMessages {
    hasher: RandomState,
    book: RwLock<Book>,
}

#[derive(Debug, Default)]
pub(super) struct Book {
    ids: HashMap<(u64, u32), StreamId>,
    of_topic: HashMap<u64, Vec<StreamId>>,
    streams: Vec<Stream>,
    messages: usize,
}

/// What one user says to one topic.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) sender: u32,
    /// When each was said; empty for users of other hosts.
    said_ns: Vec<u64>,
    /// Those that the server has not confirmed, where it was to.
    in_doubt: BTreeMap<u32, Doubt>,
    /// A bit for each that some user of this host got.
    heard: Vec<AtomicU64>,
}

/// What is known of a message that was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The reply may still come.
    Open,
    /// The server did not want it, or will not say.
    Unconfirmed,
}

impl SentMessages {
    /// What stands for a topic.
    pub(super) fn topic(&self, topic: &str) -> u64 {
        self.hasher.hash_one(topic)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Book> {
        self.book.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A user says something: which stream, and which message of it; `None` when there are too
    /// many.
    pub(super) fn say(&self, topic: u64, sender: u32, now_ns: u64) -> Option<(StreamId, u32)> {
        let mut book = self.book.write().unwrap_or_else(PoisonError::into_inner);
        if book.messages >= MESSAGES_MAX {
            return None;
        }
        let id = book.stream(topic, sender);
        let stream = book.streams.get_mut(id as usize)?;
        stream.said_ns.push(now_ns);
        if stream.said_ns.len() > stream.heard.len() * BITS {
            stream.heard.push(AtomicU64::new(0));
        }
        let n = u32::try_from(stream.said_ns.len()).ok()?;
        book.messages += 1;
        Some((id, n))
    }

    /// The server is to confirm this one: until then nobody has to get it, unless somebody has.
    pub(super) fn doubt(&self, id: StreamId, n: u32) {
        let mut book = self.book.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = book.streams.get_mut(id as usize) {
            stream.in_doubt.insert(n, Doubt::Open);
        }
    }

    /// The server has it.
    pub(super) fn confirmed(&self, id: StreamId, n: u32) {
        let mut book = self.book.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = book.streams.get_mut(id as usize) {
            stream.in_doubt.remove(&n);
        }
    }

    /// The server may not have got this one, or did not want it. Whether somebody has got it all
    /// the same; if somebody does later, [`heard`](Self::heard) says so.
    pub(super) fn unconfirmed(&self, id: StreamId, n: u32) -> bool {
        let mut book = self.book.write().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = book.streams.get_mut(id as usize) else { return false };
        stream.in_doubt.insert(n, Doubt::Unconfirmed);
        stream.is_heard(n)
    }

    /// Somebody has got it. Whether that is the first, of one that is known not to be confirmed.
    pub(super) fn heard(&self, id: StreamId, n: u32) -> bool {
        let book = self.read();
        let Some(stream) = book.get(id) else { return false };
        // Whoever writes has the book alone, so no order but that of the lock is needed.
        let Some((word, bit)) = stream.heard_bit(n) else { return false };
        let is_first = word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        is_first && stream.in_doubt.get(&n) == Some(&Doubt::Unconfirmed)
    }

    /// The stream of a sender that was heard.
    pub(super) fn stream(&self, topic: u64, sender: u32) -> StreamId {
        if let Some(id) = self.read().ids.get(&(topic, sender)) {
            return *id;
        }
        self.book.write().unwrap_or_else(PoisonError::into_inner).stream(topic, sender)
    }
}

impl Book {
    fn stream(&mut self, topic: u64, sender: u32) -> StreamId {
        let Self { ids, of_topic, streams, .. } = self;
        *ids.entry((topic, sender)).or_insert_with(|| {
            let id = StreamId::try_from(streams.len()).unwrap_or(StreamId::MAX);
            of_topic.entry(topic).or_default().push(id);
            let (said_ns, in_doubt, heard) = (Vec::new(), BTreeMap::new(), Vec::new());
            streams.push(Stream { sender, said_ns, in_doubt, heard });
            id
        })
    }

    /// All streams of a topic.
    pub(super) fn at(&self, topic: u64) -> impl Iterator<Item = (StreamId, &Stream)> {
        let ids = self.of_topic.get(&topic).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.streams.get(*id as usize)?)))
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Stream> {
        self.streams.get(id as usize)
    }
}

impl Stream {
    /// Whether its sender is a user of this host, so that all it says is known here.
    pub(super) fn is_known(&self) -> bool {
        !self.said_ns.is_empty()
    }

    /// The first message that was not said before a time.
    pub(super) fn first_from(&self, at_ns: u64) -> u32 {
        let before = self.said_ns.partition_point(|said_ns| *said_ns < at_ns);
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The word and the bit that say whether a message was heard; none for users of other hosts.
    fn heard_bit(&self, n: u32) -> Option<(&AtomicU64, u64)> {
        let at = n.checked_sub(1)? as usize;
        Some((self.heard.get(at / BITS)?, 1 << (at % BITS)))
    }

    fn is_heard(&self, n: u32) -> bool {
        self.heard_bit(n).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// How many of these nobody has to hear: they were not confirmed, and nobody has.
    pub(super) fn excused_in(&self, range: Range) -> u64 {
        if range.len() == 0 {
            return 0;
        }
        let in_doubt = self.in_doubt.range(range.first..range.end);
        in_doubt.filter(|(n, _)| !self.is_heard(**n)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_by_sender_and_topic() {
        let ledger = SentMessages::default();
        let (a, b) = (ledger.topic("a"), ledger.topic("b"));
        let said = [(a, 1, 10), (b, 1, 20), (a, 2, 30), (a, 1, 40)];
        let said = said.map(|(topic, sender, at_ns)| ledger.say(topic, sender, at_ns).unwrap());
        assert_eq!(said.map(|(_, n)| n), [1, 1, 1, 2]);
        assert_eq!(said[0].0, said[3].0);
        assert_eq!(ledger.stream(a, 1), said[0].0);
        let heard_only = ledger.stream(a, 77);
        let book = ledger.read();
        let senders: Vec<_> = book.at(a).map(|(_, stream)| stream.sender).collect();
        assert_eq!(senders, [1, 2, 77]);
        assert!(!book.get(heard_only).unwrap().is_known());
        let stream = book.get(said[0].0).unwrap();
        let firsts = [0, 10, 11, 40, 41].map(|at_ns| stream.first_from(at_ns));
        assert_eq!(firsts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn what_was_not_confirmed_is_excused_unless_somebody_got_it() {
        let ledger = SentMessages::default();
        let a = ledger.topic("a");
        let ids: Vec<_> = (0..70).filter_map(|at_ns| ledger.say(a, 1, at_ns)).collect();
        let id = ids[0].0;
        let excused = |first, end| ledger.read().get(id).unwrap().excused_in(Range { first, end });
        [2, 4, 6, 70].into_iter().for_each(|n| ledger.doubt(id, n));
        assert!(!ledger.unconfirmed(id, 2) && !ledger.unconfirmed(id, 4));
        assert_eq!([excused(1, 6), excused(2, 4), excused(3, 4), excused(4, 4)], [2, 1, 0, 0]);
        // The answer may still come.
        assert_eq!(excused(6, 71), 2);
        ledger.confirmed(id, 6);
        assert_eq!(excused(6, 71), 1);
        // Told once, whether it is heard before or after it is known not to be confirmed.
        assert_eq!([4, 4, 70, 3].map(|n| ledger.heard(id, n)), [true, false, false, false]);
        assert!(ledger.unconfirmed(id, 70));
        assert_eq!(excused(1, 71), 1, "2");
        assert!(!ledger.heard(id, 71) && !ledger.heard(id, 0), "nobody has said them");
    }
}

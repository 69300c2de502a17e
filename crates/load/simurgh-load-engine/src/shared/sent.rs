//! The messages that users of this host have sent, so that receivers know what is missing.
//!
//! Written by users who push stamps; read when a user gets a stream's first message, and when the
//! stream ends. Times are of the workers' clock, which all workers of a host share.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::tracker::Range;

pub(crate) type StreamId = u32;

/// Messages whose times are kept, about 8 bytes each; later ones are not numbered.
const MESSAGES_MAX: usize = 8 << 20;
/// Messages per word of the arrival bits.
const BITS: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct SentMessages {
    hasher: RandomState,
    streams: RwLock<Streams>,
}

#[derive(Debug, Default)]
pub(crate) struct Streams {
    ids: HashMap<(u64, u32), StreamId>,
    of_topic: HashMap<u64, Vec<StreamId>>,
    all: Vec<Stream>,
    messages: usize,
}

/// The messages of one user to one topic.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) sender: u32,
    /// When each was sent; empty for users of other hosts.
    sent_ns: Vec<u64>,
    /// Messages whose confirmation is expected and has not come.
    in_doubt: BTreeMap<u32, Doubt>,
    /// One bit for each message that a user of this host got.
    arrived: Vec<AtomicU64>,
}

/// The state of an unconfirmed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    Open,
    Unconfirmed,
}

impl SentMessages {
    pub(crate) fn topic(&self, topic: &str) -> u64 {
        self.hasher.hash_one(topic)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Streams> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a user's message: its stream, and its number there; `None` when there are too many.
    pub(crate) fn number(&self, topic: u64, sender: u32, now_ns: u64) -> Option<(StreamId, u32)> {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        if streams.messages >= MESSAGES_MAX {
            return None;
        }
        let id = streams.stream(topic, sender);
        let stream = streams.all.get_mut(id as usize)?;
        stream.sent_ns.push(now_ns);
        if stream.sent_ns.len() > stream.arrived.len() * BITS {
            stream.arrived.push(AtomicU64::new(0));
        }
        let n = u32::try_from(stream.sent_ns.len()).ok()?;
        streams.messages += 1;
        Some((id, n))
    }

    /// The server will confirm this message: until then it is not expected, unless a user got it.
    pub(crate) fn doubt(&self, id: StreamId, n: u32) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.all.get_mut(id as usize) {
            stream.in_doubt.insert(n, Doubt::Open);
        }
    }

    pub(crate) fn confirmed(&self, id: StreamId, n: u32) {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.all.get_mut(id as usize) {
            stream.in_doubt.remove(&n);
        }
    }

    /// The server may not have got this message, or refused it. Returns whether a user got it
    /// anyway; if one does later, [`arrived`](Self::arrived) returns that.
    pub(crate) fn unconfirmed(&self, id: StreamId, n: u32) -> bool {
        let mut streams = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = streams.all.get_mut(id as usize) else { return false };
        stream.in_doubt.insert(n, Doubt::Unconfirmed);
        stream.has_arrived(n)
    }

    /// A user got this message. Returns whether it is the first to get an unconfirmed one.
    pub(crate) fn arrived(&self, id: StreamId, n: u32) -> bool {
        let streams = self.read();
        let Some(stream) = streams.get(id) else { return false };
        // Writers hold the lock alone, so no stronger ordering is needed.
        let Some((word, bit)) = stream.arrived_bit(n) else { return false };
        let is_first = word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        is_first && stream.in_doubt.get(&n) == Some(&Doubt::Unconfirmed)
    }

    pub(crate) fn stream(&self, topic: u64, sender: u32) -> StreamId {
        if let Some(id) = self.read().ids.get(&(topic, sender)) {
            return *id;
        }
        self.streams.write().unwrap_or_else(PoisonError::into_inner).stream(topic, sender)
    }
}

impl Streams {
    fn stream(&mut self, topic: u64, sender: u32) -> StreamId {
        let Self { ids, of_topic, all, .. } = self;
        *ids.entry((topic, sender)).or_insert_with(|| {
            let id = StreamId::try_from(all.len()).unwrap_or(StreamId::MAX);
            of_topic.entry(topic).or_default().push(id);
            let (sent_ns, in_doubt, arrived) = (Vec::new(), BTreeMap::new(), Vec::new());
            all.push(Stream { sender, sent_ns, in_doubt, arrived });
            id
        })
    }

    pub(crate) fn at(&self, topic: u64) -> impl Iterator<Item = (StreamId, &Stream)> {
        let ids = self.of_topic.get(&topic).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.all.get(*id as usize)?)))
    }

    pub(crate) fn get(&self, id: StreamId) -> Option<&Stream> {
        self.all.get(id as usize)
    }
}

impl Stream {
    /// Whether its sender is a user of this host, so that all its messages are known here.
    pub(crate) fn is_known(&self) -> bool {
        !self.sent_ns.is_empty()
    }

    /// The first message that was not sent before a time.
    pub(crate) fn first_from(&self, at_ns: u64) -> u32 {
        let before = self.sent_ns.partition_point(|sent_ns| *sent_ns < at_ns);
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The word and the bit for a message's arrival; none for users of other hosts.
    fn arrived_bit(&self, n: u32) -> Option<(&AtomicU64, u64)> {
        let at = n.checked_sub(1)? as usize;
        Some((self.arrived.get(at / BITS)?, 1 << (at % BITS)))
    }

    fn has_arrived(&self, n: u32) -> bool {
        self.arrived_bit(n).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// How many of these are not expected: they were not confirmed, and no user got them.
    pub(crate) fn excused_in(&self, range: Range) -> u64 {
        if range.len() == 0 {
            return 0;
        }
        let in_doubt = self.in_doubt.range(range.first..range.end);
        in_doubt.filter(|(n, _)| !self.has_arrived(**n)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_by_sender_and_topic() {
        let sent = SentMessages::default();
        let (a, b) = (sent.topic("a"), sent.topic("b"));
        let sent_messages = [(a, 1, 10), (b, 1, 20), (a, 2, 30), (a, 1, 40)];
        let sent_messages =
            sent_messages.map(|(topic, sender, at_ns)| sent.number(topic, sender, at_ns).unwrap());
        assert_eq!(sent_messages.map(|(_, n)| n), [1, 1, 1, 2]);
        assert_eq!(sent_messages[0].0, sent_messages[3].0);
        assert_eq!(sent.stream(a, 1), sent_messages[0].0);
        let other_host = sent.stream(a, 77);
        let streams = sent.read();
        let senders: Vec<_> = streams.at(a).map(|(_, stream)| stream.sender).collect();
        assert_eq!(senders, [1, 2, 77]);
        assert!(!streams.get(other_host).unwrap().is_known());
        let stream = streams.get(sent_messages[0].0).unwrap();
        let firsts = [0, 10, 11, 40, 41].map(|at_ns| stream.first_from(at_ns));
        assert_eq!(firsts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn unconfirmed_message_is_excused_unless_a_user_received_it() {
        let sent = SentMessages::default();
        let a = sent.topic("a");
        let ids: Vec<_> = (0..70).filter_map(|at_ns| sent.number(a, 1, at_ns)).collect();
        let id = ids[0].0;
        let excused = |first, end| sent.read().get(id).unwrap().excused_in(Range { first, end });
        [2, 4, 6, 70].into_iter().for_each(|n| sent.doubt(id, n));
        assert!(!sent.unconfirmed(id, 2) && !sent.unconfirmed(id, 4));
        assert_eq!([excused(1, 6), excused(2, 4), excused(3, 4), excused(4, 4)], [2, 1, 0, 0]);
        // The answer may still come.
        assert_eq!(excused(6, 71), 2);
        sent.confirmed(id, 6);
        assert_eq!(excused(6, 71), 1);
        // Returned once, whether it arrives before or after it is known not to be confirmed.
        assert_eq!([4, 4, 70, 3].map(|n| sent.arrived(id, n)), [true, false, false, false]);
        assert!(sent.unconfirmed(id, 70));
        assert_eq!(excused(1, 71), 1, "2");
        assert!(!sent.arrived(id, 71) && !sent.arrived(id, 0), "nobody has sent them");
    }
}

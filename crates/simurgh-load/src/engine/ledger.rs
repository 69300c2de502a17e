//! What the users of this host have said, stream by stream: who hears it can tell by that what it
//! should have heard.
//!
//! Written by those who push stamps; read when a user hears a stream for the first time, and when
//! it ends. Times are those of the workers' clock, which all workers of a host share.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::heard::Range;

/// A stream's number on this host.
pub(super) type StreamId = u32;

/// Messages whose times are kept, 8 bytes each; later ones are not numbered.
const MESSAGES_MAX: usize = 8 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
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
    unconfirmed: BTreeSet<u32>,
}

impl Ledger {
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
        let n = u32::try_from(stream.said_ns.len()).ok()?;
        book.messages += 1;
        Some((id, n))
    }

    /// The server may not have got this one, or did not want it: nobody has to hear it.
    pub(super) fn unconfirmed(&self, id: StreamId, n: u32) {
        let mut book = self.book.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = book.streams.get_mut(id as usize) {
            stream.unconfirmed.insert(n);
        }
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
            let (said_ns, unconfirmed) = (Vec::new(), BTreeSet::new());
            streams.push(Stream { sender, said_ns, unconfirmed });
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

    /// How many of these nobody has to hear.
    pub(super) fn unconfirmed_in(&self, range: Range) -> u64 {
        match range.len() {
            0 => 0,
            _ => self.unconfirmed.range(range.first..range.end).count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_by_sender_and_topic() {
        let ledger = Ledger::default();
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
    fn what_was_not_confirmed_is_known() {
        let ledger = Ledger::default();
        let a = ledger.topic("a");
        let ids: Vec<_> = (0..5).filter_map(|at_ns| ledger.say(a, 1, at_ns)).collect();
        ledger.unconfirmed(ids[1].0, 2);
        ledger.unconfirmed(ids[1].0, 4);
        let book = ledger.read();
        let within = |first, end| book.get(ids[0].0).unwrap().unconfirmed_in(Range { first, end });
        assert_eq!([within(1, 6), within(2, 4), within(3, 4), within(4, 4)], [2, 1, 0, 0]);
    }
}

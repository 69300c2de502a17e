//! The messages that the nodes under test publish, and their topics.

use bytes::{BufMut, Bytes, BytesMut};
use simurgh_cluster::{Bucket, Interest, NodeId, Prefix, Received, Space, Wanted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TestMessage<'a> {
    pub(super) origin: NodeId,
    pub(super) n: u64,
    pub(super) topic: &'a str,
    pub(super) payload: &'a str,
}

impl<'a> TestMessage<'a> {
    /// Encodes it like a broadcast: version and kind, origin, number, topic; then the payload.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(22 + self.topic.len() + self.payload.len());
        bytes.put_slice(&[1, 1, 0, 0]);
        bytes.put_u64_le(self.origin.0);
        bytes.put_u64_le(self.n);
        bytes.put_u16_le(self.topic.len() as u16);
        bytes.put_slice(self.topic.as_bytes());
        bytes.put_slice(self.payload.as_bytes());
        bytes.freeze()
    }

    #[track_caller]
    pub(super) fn read(received: &'a Received) -> Self {
        let read = Self::parse(&received.envelope);
        assert!(read.is_some(), "not an envelope of this test: {received:?}");
        read.unwrap_or(Self { origin: NodeId(0), n: 0, topic: "", payload: "" })
    }

    /// Publisher and number of a message that was not stored: it may come again only if marked.
    pub(super) fn number(received: &'a Received) -> Option<(NodeId, u64)> {
        let parsed = Self::parse(&received.envelope).filter(|_| received.stored.is_none());
        parsed.map(|it| (it.origin, it.n))
    }

    /// Whether it is marked as sent again.
    pub(super) fn is_marked(received: &Received) -> bool {
        received.envelope.get(2).is_some_and(|flags| flags & 1 == 1)
    }

    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let number = |bytes: &'a [u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        let (head, rest) = bytes.split_at_checked(22)?;
        let topic_bytes = u16::from_le_bytes(head.get(20..)?.try_into().ok()?);
        let (topic, payload) = rest.split_at_checked(usize::from(topic_bytes))?;
        Some(Self {
            origin: NodeId(number(head.get(4..12)?)?),
            n: number(head.get(12..20)?)?,
            topic: str::from_utf8(topic).ok()?,
            payload: str::from_utf8(payload).ok()?,
        })
    }
}

#[track_caller]
pub(super) fn prefix(text: &str) -> Prefix {
    match Prefix::new(text) {
        Ok(prefix) => prefix,
        Err(error) => unreachable!("{error}"),
    }
}

pub(super) fn exact(topic: &str) -> Interest {
    Interest::Exact(Space::Broadcast, topic.into())
}

pub(super) fn whole(topic: &str) -> Interest {
    Interest::Whole(Space::Broadcast, Bucket::of(topic))
}

pub(super) const fn yes(interest: Interest) -> (Interest, Wanted) {
    (interest, Wanted::Yes)
}

pub(super) const fn no(interest: Interest) -> (Interest, Wanted) {
    (interest, Wanted::No)
}

/// This many topics of one bucket.
pub(super) fn mates(count: usize) -> Vec<String> {
    let bucket = Bucket::of("rooms:0");
    let rooms = (0u32..).map(|it| format!("rooms:{it}"));
    rooms.filter(|it| Bucket::of(it) == bucket).take(count).collect()
}

/// Numbers without duplicates: each above all before it.
pub(super) fn once(numbers: &[u64]) -> Vec<u64> {
    let mut highest = 0;
    let is_new = |n: &u64| {
        let is_new = *n > highest;
        highest = highest.max(*n);
        is_new
    };
    numbers.iter().copied().filter(is_new).collect()
}

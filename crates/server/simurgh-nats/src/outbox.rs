//! Published envelopes that the broker has not confirmed.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use simurgh_cluster::adapter::{IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX};
use simurgh_cluster::{QueueFull, Subject, resent};

use crate::interests::PingNumber;
use crate::wire;

/// The envelopes in the order of publishing, until a PING that was sent after them is answered.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    pub(crate) resent: u64,
}

#[derive(Debug)]
struct Waiting {
    subject: Subject,
    envelope: Bytes,
    /// The next PING after it on this link; none if it was not sent on this link.
    ping: Option<PingNumber>,
    /// An earlier link may have delivered it.
    may_be_there: bool,
}

impl Outbox {
    /// Adds an envelope, and sends it at once if there is a link: `link` has the number of the next
    /// PING, and the output.
    ///
    /// # Errors
    /// Too much is in flight.
    pub(crate) fn publish(
        &mut self,
        subject: &Subject,
        envelope: Bytes,
        link: Option<(PingNumber, &mut BytesMut)>,
    ) -> Result<(), QueueFull> {
        let is_too_much =
            self.bytes + envelope.len() > IN_FLIGHT_BYTES_MAX && !self.waiting.is_empty();
        if self.waiting.len() >= IN_FLIGHT_MAX || is_too_much {
            return Err(QueueFull);
        }
        self.bytes += envelope.len();
        let ping = link.map(|(ping, out)| {
            wire::put_publish(out, subject.as_str(), &envelope);
            ping
        });
        let subject = subject.clone();
        self.waiting.push_back(Waiting { subject, envelope, ping, may_be_there: false });
        Ok(())
    }

    /// Sends all envelopes on a new link, whose next PING has this number.
    pub(crate) fn link(&mut self, ping: PingNumber, out: &mut BytesMut) {
        for waiting in &mut self.waiting {
            waiting.ping = Some(ping);
            if waiting.may_be_there {
                waiting.envelope = resent(std::mem::take(&mut waiting.envelope));
                self.resent += 1;
            }
            wire::put_publish(out, waiting.subject.as_str(), &waiting.envelope);
        }
    }

    pub(crate) fn unlink(&mut self) {
        for waiting in &mut self.waiting {
            waiting.may_be_there |= waiting.ping.take().is_some();
        }
    }

    pub(crate) fn pong(&mut self, ping: PingNumber) {
        while let Some(first) = self.waiting.front() {
            if first.ping.is_none_or(|of| of > ping) {
                break;
            }
            self.bytes -= first.envelope.len();
            self.waiting.pop_front();
        }
    }

    /// Whether there is enough room to report it after a [`QueueFull`].
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() <= IN_FLIGHT_MAX / 2 && self.bytes <= IN_FLIGHT_BYTES_MAX / 2
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simurgh_cluster::{Prefix, Space};

    use super::*;

    fn subject() -> Subject {
        Prefix::new("p").unwrap().topic(Space::Broadcast, "t")
    }

    fn envelope(n: u64) -> Bytes {
        let mut bytes = vec![1, 1, 0, 0];
        bytes.extend_from_slice(&7_u64.to_le_bytes());
        bytes.extend_from_slice(&n.to_le_bytes());
        bytes.into()
    }

    /// The numbers in the output, and whether each is marked.
    fn written(out: &mut BytesMut) -> Vec<(u64, bool)> {
        let mut found = Vec::new();
        let all = out.split();
        let mut rest = &all[..];
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let payload = &rest[end + 1..end + 21];
            let n = u64::from_le_bytes(payload[12..].try_into().unwrap());
            found.push((n, payload[2] & 1 == 1));
            rest = &rest[end + 23..];
        }
        found
    }

    #[test]
    fn outbox_is_bounded_and_accepts_again_at_half() {
        let mut outbox = Outbox::default();
        let mut out = BytesMut::new();
        for n in 0..IN_FLIGHT_MAX as u64 {
            let ping = 1 + n / 256;
            outbox.publish(&subject(), envelope(n), Some((ping, &mut out))).unwrap();
        }
        assert_eq!(outbox.publish(&subject(), envelope(0), None), Err(QueueFull));
        outbox.pong(1);
        assert!(!outbox.has_room());
        outbox.pong(2);
        assert!(outbox.has_room());
        outbox.pong(3);
        assert_eq!(outbox.len(), 256);
    }

    #[test]
    fn bytes_are_bounded_but_one_envelope_is_always_accepted() {
        let mut outbox = Outbox::default();
        let large = Bytes::from(vec![0; IN_FLIGHT_BYTES_MAX + 1]);
        outbox.publish(&subject(), large, None).unwrap();
        assert_eq!(outbox.publish(&subject(), envelope(1), None), Err(QueueFull));
    }

    #[test]
    fn envelopes_that_a_link_may_have_sent_are_marked() {
        let mut outbox = Outbox::default();
        let mut out = BytesMut::new();
        outbox.publish(&subject(), envelope(1), Some((1, &mut out))).unwrap();
        outbox.publish(&subject(), envelope(2), Some((2, &mut out))).unwrap();
        outbox.pong(1);
        outbox.unlink();
        outbox.publish(&subject(), envelope(3), None).unwrap();
        out.clear();
        outbox.link(3, &mut out);
        outbox.publish(&subject(), envelope(4), Some((3, &mut out))).unwrap();
        assert_eq!(written(&mut out), [(2, true), (3, false), (4, false)]);
        assert_eq!(outbox.resent, 1);
        outbox.pong(3);
        assert_eq!(outbox.len(), 0);
    }

    proptest! {
        /// Links break at any point: nothing is lost or reordered, and only envelopes that a link
        /// had are marked.
        #[test]
        fn everything_arrives_in_order(steps in prop::collection::vec(0..5_u8, 1..200)) {
            let (mut outbox, mut out) = (Outbox::default(), BytesMut::new());
            let (mut ping, mut linked, mut n) = (1, false, 0);
            // The numbers that the engine has, and the part of `out` that it has read.
            let (mut arrived, mut on_link): (Vec<u64>, Vec<(u64, bool)>) = (vec![], vec![]);
            for step in steps.into_iter().chain([3, 4]) {
                match step {
                    0 | 1 => {
                        n += 1;
                        let link = linked.then_some((ping, &mut out));
                        outbox.publish(&subject(), envelope(n), link).unwrap();
                    }
                    2 => {
                        // Half of the bytes in flight arrive, the rest is lost.
                        on_link.extend(written(&mut out));
                        let half = on_link.len() / 2;
                        arrived.extend(on_link.drain(..).take(half).map(|it| it.0));
                        (linked, ping) = (false, ping + 1);
                        outbox.unlink();
                    }
                    3 if !linked => {
                        linked = true;
                        outbox.link(ping, &mut out);
                    }
                    4 if linked => {
                        on_link.extend(written(&mut out));
                        arrived.extend(on_link.drain(..).map(|it| it.0));
                        outbox.pong(ping);
                        ping += 1;
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(outbox.len(), 0);
            // As a receiver that drops duplicates sees them.
            let mut seen = Vec::new();
            for it in arrived {
                if seen.last().is_none_or(|last| it > *last) {
                    prop_assert_eq!(it, seen.last().map_or(1, |last| last + 1));
                    seen.push(it);
                }
            }
            prop_assert_eq!(seen.len() as u64, n);
        }
    }
}

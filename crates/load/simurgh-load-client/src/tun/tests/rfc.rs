//! Cases of RFC 9293, RFC 5961 and RFC 6298, one segment after the other.

use std::net::SocketAddrV4;

use proptest::prelude::*;
use simurgh_reactor::Key;

use super::super::segment::{self, ACK, Ends, FIN, PSH, RST, SYN, Segment};
use super::super::stack::{Link, Stack};
use super::super::tcp::{End, Received, Tcp, WINDOW};
use super::network;

/// Our first sequence number, and the peer's. Both wrap soon.
const OURS: u32 = u32::MAX - 1;
const PEERS: u32 = u32::MAX - 4;
const RTO_MS: u32 = 1000;

fn sent(tcp: &mut Tcp, now_ms: u32) -> Vec<(Segment, Vec<u8>)> {
    let mut sent = Vec::new();
    tcp.transmit(now_ms, |segment, payload| sent.push((*segment, payload.to_vec())));
    sent
}

fn flags(sent: &[(Segment, Vec<u8>)]) -> Vec<u8> {
    sent.iter().map(|(segment, _)| segment.flags).collect()
}

/// A segment of the peer, by the bytes of either side so far.
fn peer(said: u32, heard: u32, flags: u8) -> Segment {
    let (seq, ack) = (PEERS.wrapping_add(1 + said), OURS.wrapping_add(1 + heard));
    Segment { seq, ack, flags, window: 1000, mss: None }
}

/// An established connection. The peer takes segments of 100 bytes, and has a window of 1000.
fn open() -> Tcp {
    let mut tcp = Tcp::new(OURS, 0);
    let syn = sent(&mut tcp, 0);
    assert_eq!(flags(&syn), [SYN]);
    assert_eq!((syn[0].0.seq, syn[0].0.mss), (OURS, Some(16_344)));
    let answer = Segment { seq: PEERS, mss: Some(100), ..peer(0, 0, SYN | ACK) };
    let received = tcp.receive(7, &answer, 0);
    assert!(received.is_connected && received.rtt_ms == Some(7), "{received:?}");
    let ack = sent(&mut tcp, 7);
    assert_eq!(flags(&ack), [ACK]);
    assert_eq!((ack[0].0.seq, ack[0].0.ack), (OURS.wrapping_add(1), PEERS.wrapping_add(1)));
    assert_eq!(tcp.deadline_ms(RTO_MS), None);
    tcp
}

fn nothing() -> Received {
    Received::default()
}

#[test]
fn syn_sent_takes_only_an_acknowledgement_of_its_syn() {
    let mut tcp = Tcp::new(OURS, 0);
    sent(&mut tcp, 0);
    let wrong = tcp.receive(0, &peer(0, 1, SYN | ACK), 0);
    assert!(wrong.is_refused && !wrong.is_connected);
    assert_eq!(flags(&sent(&mut tcp, 0)), [SYN], "at once, behind the reset");
    assert!(tcp.receive(0, &peer(0, 1, ACK), 0).is_refused);
    assert_eq!(sent(&mut tcp, 0), [], "only once");
    assert_eq!(tcp.receive(0, &peer(0, 1, RST | ACK), 0), nothing(), "of another connection");
    assert_eq!(tcp.receive(0, &peer(0, 0, RST), 0), nothing(), "without an acknowledgement");
    assert_eq!(tcp.receive(0, &peer(0, 0, RST | ACK), 0).end, Some(End::Refused));
    assert!(tcp.is_done());
    assert_eq!(tcp.receive(0, &peer(0, 0, SYN | ACK), 0), nothing());
}

#[test]
fn bytes_count_once_and_gaps_are_asked_for_again() {
    let mut tcp = open();
    assert_eq!(tcp.receive(8, &peer(0, 0, ACK | PSH), 10).data, 0..10);
    assert_eq!(tcp.receive(8, &peer(4, 0, ACK), 10).data, 6..10, "of which 6 are known");
    let ack = sent(&mut tcp, 8);
    assert_eq!((ack.len(), ack[0].0.ack), (1, PEERS.wrapping_add(1 + 14)), "one for both");
    for (said, bytes) in [(0, 14), (20, 5), (14 + 70_000, 5)] {
        assert_eq!(tcp.receive(8, &peer(said, 0, ACK), bytes).data, 0..0, "{said}");
        assert_eq!(flags(&sent(&mut tcp, 8)), [ACK], "{said}");
    }
    assert_eq!(tcp.receive(8, &peer(14, 0, ACK), 0), nothing());
    assert_eq!(sent(&mut tcp, 8), [], "an acknowledgement gets no answer");
}

#[test]
fn window_shrinks_by_what_the_user_does_not_read() {
    let mut tcp = open();
    assert_eq!(tcp.receive(8, &peer(0, 0, ACK), 60_000).data, 0..60_000);
    tcp.hold(&[7; 60_000]);
    assert_eq!(sent(&mut tcp, 8)[0].0.window, WINDOW - 60_000);
    assert_eq!(tcp.receive(8, &peer(60_000, 0, ACK), 9000).data, 0..5535, "what has room");
    tcp.hold(&[7; 5535]);
    assert_eq!(sent(&mut tcp, 8)[0].0.window, 0);
    // A probe gets an answer, and its acknowledgement counts.
    tcp.send(b"x");
    sent(&mut tcp, 8);
    assert_eq!(tcp.receive(8, &peer(65_535, 1, ACK), 1).data, 0..0);
    assert_eq!(tcp.deadline_ms(RTO_MS), None);
    assert_eq!(flags(&sent(&mut tcp, 8)), [ACK]);
    assert_eq!(tcp.take_held().len(), 65_535);
    assert_eq!(sent(&mut tcp, 8)[0].0.window, WINDOW);
}

#[test]
fn reset_must_have_exactly_the_expected_number() {
    let mut tcp = open();
    tcp.receive(8, &peer(0, 0, ACK), 10);
    sent(&mut tcp, 8);
    assert_eq!(tcp.receive(8, &peer(9, 0, RST), 0), nothing());
    assert_eq!(sent(&mut tcp, 8), [], "before the window");
    assert_eq!(tcp.receive(8, &peer(11, 0, RST), 0), nothing());
    assert_eq!(flags(&sent(&mut tcp, 8)), [ACK], "RFC 5961 §3.2");
    assert_eq!(tcp.receive(8, &peer(3, 0, SYN), 0), nothing());
    assert_eq!(flags(&sent(&mut tcp, 8)), [ACK], "RFC 5961 §4.2");
    assert_eq!(tcp.receive(8, &peer(10, 0, RST), 0).end, Some(End::Reset));
    assert!(tcp.is_done() && sent(&mut tcp, 8).is_empty());
}

#[test]
fn acknowledgement_of_what_was_never_sent_is_refused() {
    let mut tcp = open();
    tcp.send(b"hello");
    sent(&mut tcp, 8);
    assert_eq!(tcp.receive(9, &peer(0, 6, ACK), 3), nothing());
    let ack = sent(&mut tcp, 9);
    assert_eq!((flags(&ack), ack[0].0.ack), (vec![ACK], PEERS.wrapping_add(1)));
    assert_eq!(tcp.receive(9, &peer(0, 5, ACK), 0).rtt_ms, Some(1));
    assert_eq!(tcp.deadline_ms(RTO_MS), None);
}

#[test]
fn output_stays_within_the_window_and_the_largest_segment() {
    let mut tcp = open();
    assert_eq!(tcp.send(&[7; 1250]), 1250);
    let first = sent(&mut tcp, 8);
    assert_eq!(first.iter().map(|(_, payload)| payload.len()).collect::<Vec<_>>(), [100; 10]);
    assert!(first.iter().all(|(segment, _)| segment.flags == ACK), "more follows");
    tcp.receive(9, &peer(0, 900, ACK), 0);
    let second = sent(&mut tcp, 9);
    let shown: Vec<_> = second.iter().map(|(it, payload)| (it.flags, payload.len())).collect();
    assert_eq!(shown, [(ACK, 100), (ACK, 100), (ACK | PSH, 50)]);
}

#[test]
fn timeouts_double_and_repeat_all_until_they_give_up() {
    let mut tcp = open();
    tcp.send(&[7; 250]);
    sent(&mut tcp, 8);
    let mut now_ms = 8;
    for wait_ms in [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
        now_ms += wait_ms;
        assert_eq!(tcp.deadline_ms(RTO_MS), Some(now_ms));
        assert_eq!(tcp.timeout(now_ms), None);
        assert_eq!(sent(&mut tcp, now_ms).len(), 3);
    }
    // Karn's algorithm: nobody knows which one was acknowledged.
    assert_eq!(tcp.receive(now_ms, &peer(0, 100, ACK), 0).rtt_ms, None);
    assert_eq!(tcp.deadline_ms(RTO_MS), Some(now_ms + 1000), "(5.3)");
    for _ in 0..8 {
        assert_eq!(tcp.timeout(now_ms), None);
        assert_eq!(sent(&mut tcp, now_ms).len(), 2);
    }
    assert_eq!(tcp.timeout(now_ms), Some(End::TimedOut(true)));
    assert!(tcp.is_done());
}

#[test]
fn closed_window_is_asked_again_and_again_until_it_opens() {
    let mut tcp = open();
    tcp.send(b"hello");
    sent(&mut tcp, 8);
    let closed = |heard| Segment { window: 0, ..peer(0, heard, ACK) };
    tcp.receive(9, &closed(2), 0);
    assert_eq!(sent(&mut tcp, 9), []);
    for _ in 0..50 {
        assert!(tcp.deadline_ms(RTO_MS).is_some());
        assert_eq!(tcp.timeout(9), None);
        assert_eq!(sent(&mut tcp, 9)[0].1, b"l");
        assert_eq!(tcp.receive(9, &closed(2), 0), nothing());
    }
    tcp.receive(9, &peer(0, 2, ACK), 0);
    assert_eq!(sent(&mut tcp, 9)[0].1, b"llo");
}

#[test]
fn peer_closes_first() {
    let mut tcp = open();
    let received = tcp.receive(8, &peer(0, 0, ACK | FIN), 4);
    assert_eq!((received.data, received.end), (0..4, Some(End::Closed)));
    assert_eq!(sent(&mut tcp, 8)[0].0.ack, PEERS.wrapping_add(1 + 5));
    assert_eq!(tcp.receive(8, &peer(0, 0, ACK | FIN), 4), nothing());
    assert_eq!(flags(&sent(&mut tcp, 8)), [ACK], "its acknowledgement was lost");
    tcp.send(b"bye");
    tcp.close();
    assert_eq!(flags(&sent(&mut tcp, 9)), [ACK | PSH | FIN]);
    assert!(!tcp.is_done());
    assert_eq!(tcp.receive(9, &peer(5, 3, ACK), 0).end, None);
    assert!(!tcp.is_done(), "only of the bytes");
    tcp.receive(9, &peer(5, 4, ACK), 0);
    assert!(tcp.is_done());
}

#[test]
fn user_closes_first() {
    let mut tcp = open();
    tcp.close();
    assert_eq!(flags(&sent(&mut tcp, 9)), [ACK | PSH | FIN]);
    assert_eq!(tcp.timeout(1009), None);
    assert_eq!(flags(&sent(&mut tcp, 1009)), [ACK | PSH | FIN], "again");
    tcp.receive(1010, &peer(0, 1, ACK), 0);
    assert_eq!(tcp.deadline_ms(RTO_MS), Some(1010 + 60_000), "FIN-WAIT-2");
    tcp.receive(1011, &peer(0, 1, ACK | FIN), 0);
    assert!(!tcp.is_done());
    assert_eq!(flags(&sent(&mut tcp, 1011)), [ACK]);
    assert!(tcp.is_done());

    let mut orphan = open();
    orphan.close();
    sent(&mut orphan, 9);
    orphan.receive(9, &peer(0, 1, ACK), 0);
    assert_eq!(orphan.timeout(60_009), None);
    assert!(orphan.is_done(), "the peer never closes");

    let mut deaf = open();
    deaf.close();
    sent(&mut deaf, 9);
    assert!(deaf.receive(9, &peer(0, 1, ACK), 1).is_refused, "as Linux does");
    assert!(deaf.is_done());

    let mut early = Tcp::new(OURS, 0);
    sent(&mut early, 0);
    early.close();
    assert!(early.is_done());
}

const KEY: Key = Key { slot: 3, generation: 1 };

#[derive(Default)]
struct Sent(Vec<Vec<u8>>);

impl Link for Sent {
    fn send(&mut self, packet: &[u8]) {
        self.0.push(packet.to_vec());
    }
}

impl Sent {
    fn only(&mut self) -> (Ends, Segment) {
        let mut packet = self.0.pop().unwrap();
        assert!(self.0.is_empty());
        // To read it as the peer does.
        let (ends, segment, _) = segment::parse(&mut packet).unwrap();
        (Ends { local: ends.remote, remote: ends.local }, segment)
    }
}

fn server() -> SocketAddrV4 {
    "10.200.0.1:4000".parse().unwrap()
}

#[test]
fn segment_of_no_connection_is_answered_by_a_reset() {
    let (mut stack, mut link) = (Stack::new(&network(), 0), Sent::default());
    for local in ["10.200.0.2:1024", "10.200.0.2:80", "10.200.0.0:1024", "10.210.0.0:1024"] {
        let ends = Ends { local: local.parse().unwrap(), remote: server() };
        let from = Ends { local: ends.remote, remote: ends.local };
        for (segment, answer) in [
            (peer(0, 5, ACK), Some((peer(0, 5, ACK).ack, RST, 0))),
            (peer(0, 0, SYN), Some((0, RST | ACK, peer(0, 0, SYN).seq.wrapping_add(4)))),
            (peer(0, 0, RST), None),
        ] {
            let mut packet = Vec::new();
            segment::write(&mut packet, from, &segment, b"abc");
            assert_eq!(stack.receive(&mut link, 0, &mut packet), None);
            let Some(answer) = answer else { break };
            let (to, reset) = link.only();
            assert_eq!(to, ends);
            assert_eq!((reset.seq, reset.flags, reset.ack), answer);
        }
        assert!(link.0.is_empty());
    }
}

#[test]
fn connections_have_their_own_ends_and_reuse_them_with_later_numbers() {
    let (mut stack, mut link) = (Stack::new(&network(), OURS), Sent::default());
    let place = stack.connect(&mut link, 0, server(), KEY).unwrap();
    let (ends, first) = link.only();
    assert_eq!(ends.local, "10.200.0.2:1024".parse().unwrap());
    for _ in 1..64_512 {
        stack.connect(&mut link, 0, server(), KEY).unwrap();
    }
    link.0.clear();
    stack.connect(&mut link, 0, server(), KEY).unwrap();
    assert_eq!(link.only().0.local, "10.200.0.3:1024".parse().unwrap());
    stack.close(&mut link, 0, (place, KEY));
    stack.close(&mut link, 0, (place, KEY));
    let again = stack.connect(&mut link, 0, server(), KEY).unwrap();
    let (same, second) = link.only();
    assert_eq!((again, same), (place, ends));
    assert!((second.seq.wrapping_sub(first.seq) as i32) > 0);
    // The user of the connection before is gone: its key means nothing.
    let old = Key { generation: 0, ..KEY };
    stack.abort(&mut link, (again, old));
    assert_eq!(stack.send(&mut link, 0, (again, old), b"x"), 0);
    assert!(!stack.is_empty());
    stack.abort_all(&mut link);
    assert!(stack.is_empty() && link.0.is_empty(), "no peer knows them");
}

proptest! {
    #[test]
    fn any_packet_is_read_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        segment::parse(&mut bytes);
        if let Some(first) = bytes.first_mut() {
            *first = 0x45;
        }
        segment::parse(&mut bytes);
    }

    #[test]
    fn written_segment_is_read_back_and_one_wrong_bit_is_noticed(
        seq: u32, ack: u32, flags in 0..32_u8, window: u16, mss: Option<u16>,
        payload in prop::collection::vec(any::<u8>(), 0..40), bit: usize
    ) {
        let segment = Segment { seq, ack, flags, window, mss };
        let ends = Ends { local: server(), remote: "10.200.3.2:1029".parse().unwrap() };
        let mut packet = Vec::new();
        segment::write(&mut packet, ends, &segment, &payload);
        let (found, read, bytes) = segment::parse(&mut packet).unwrap();
        prop_assert_eq!((found.local, found.remote), (ends.remote, ends.local));
        prop_assert_eq!((read, &*bytes), (segment, payload.as_slice()));
        let bit = bit % (packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(segment::parse(&mut packet).is_none());
    }
}

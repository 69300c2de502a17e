//! A stranger publishes on the subjects of a cluster, without effect on its nodes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::client::Client;
use super::room::{ROOM, Room};
use crate::support::engine::Engine;
use crate::support::engine::until;
use crate::support::node::Node;

struct Stranger {
    out: TcpStream,
    into: BufReader<TcpStream>,
}

impl Stranger {
    fn connects(engine: &Engine) -> Self {
        let out = TcpStream::connect(engine.address()).unwrap();
        out.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut stranger = Self { into: BufReader::new(out.try_clone().unwrap()), out };
        stranger.out.write_all(b"CONNECT {\"verbose\":false,\"echo\":false}\r\n").unwrap();
        stranger.settles();
        stranger
    }

    /// Returns the messages received after the engine has processed everything sent.
    fn settles(&mut self) -> Vec<(String, Vec<u8>)> {
        self.out.write_all(b"PING\r\n").unwrap();
        let mut received = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.into.read_line(&mut line).unwrap() > 0, "the engine ended the link");
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words[..] {
                ["PONG"] => return received,
                ["PING"] => self.out.write_all(b"PONG\r\n").unwrap(),
                ["MSG", subject, _, bytes] => {
                    let mut payload = vec![0; bytes.parse::<usize>().unwrap() + 2];
                    self.into.read_exact(&mut payload).unwrap();
                    payload.truncate(payload.len() - 2);
                    received.push((subject.to_owned(), payload));
                }
                _ => assert!(!line.starts_with("-ERR"), "{line}"),
            }
        }
    }

    fn pushes(&mut self, subject: &str, payload: &[u8]) {
        write!(self.out, "PUB {subject} {}\r\n", payload.len()).unwrap();
        self.out.write_all(payload).unwrap();
        self.out.write_all(b"\r\n").unwrap();
    }

    fn receives(&mut self, kind: u8) -> (String, Vec<u8>) {
        until(&format!("an envelope of kind {kind}"), || {
            self.settles().into_iter().find(|(_, envelope)| envelope[1] == kind)
        })
    }
}

/// A broadcast as the documentation of simurgh-cluster describes it.
fn broadcast(origin: u64, n: u64, event: &str, payload: &[u8]) -> Vec<u8> {
    let mut envelope = vec![1, 1, 0, 0];
    envelope.extend(origin.to_le_bytes());
    envelope.extend(n.to_le_bytes());
    envelope.extend((ROOM.len() as u16).to_le_bytes());
    envelope.extend(ROOM.as_bytes());
    envelope.extend(1_u16.to_le_bytes());
    envelope.extend([0, event.len() as u8]);
    envelope.extend(event.as_bytes());
    envelope.extend((payload.len() as u32).to_le_bytes());
    envelope.extend(payload);
    envelope
}

/// Subjects of each kind that a node publishes on, each with one of its envelopes.
fn captured(stranger: &mut Stranger, room: &Room, node: &Node) -> Vec<(String, Vec<u8>)> {
    room.members[0][0].pushes(ROOM);
    let broadcast = stranger.receives(1);
    drop(Client::joins("visitor", node, &[ROOM]));
    let presence = stranger.receives(2);
    let beat = stranger.receives(5);
    room.is_whole();
    // Only the visitor may leave.
    for member in room.all() {
        until("the visitor has left", || {
            let left = member.of(ROOM, |it| std::mem::take(&mut it.left));
            (left.len() == 1).then_some(())
        });
    }
    vec![broadcast, presence, beat]
}

fn no_envelopes(captured: &[(String, Vec<u8>)]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (subject, envelope) in captured {
        let cuts = (0..envelope.len()).map(|end| envelope[..end].to_vec());
        let with = |at: usize, byte: u8| {
            let mut other = envelope.clone();
            other[at] = byte;
            other
        };
        let versions = (0..=255).filter(|it| *it != 1).map(|version| with(0, version));
        let kinds = [0, 13].into_iter().chain(15..=255).map(|kind| with(1, kind));
        let longer = [[&envelope[..], &[0]].concat()];
        let zeros = [vec![0; 900_000]];
        let strange = cuts.chain(versions).chain(kinds).chain(longer).chain(zeros);
        all.extend(strange.map(|it| (subject.clone(), it)));
    }
    let subject = &captured[0].0;
    let stranger = 0x5742_4e47_5245;
    for event in ["phx_reply", "phx_close", "phx_error", "phx_join", "simurgh:gap"] {
        all.push((subject.clone(), broadcast(stranger, 1, event, b"{}")));
    }
    let no_json: [&[u8]; 6] = [b"", b"{", b"\xff\xfe", b"{\"a\":1}}", b"[1,]", b"{}\n[null]"];
    for payload in no_json {
        all.push((subject.clone(), broadcast(stranger, 1, "say", payload)));
    }
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    all.push((subject.clone(), broadcast(stranger, 1, "say", deep.as_bytes())));
    all
}

#[test]
#[ignore = "needs nats-server"]
fn foreign_envelopes_are_counted_and_have_no_effect() {
    let engine = Engine::start("");
    let nodes = Node::three(&engine.address());
    let room = Room::of(&nodes, 2);
    let mut stranger = Stranger::connects(&engine);
    stranger.out.write_all(b"SUB faults.> 1\r\n").unwrap();
    let captured = captured(&mut stranger, &room, &nodes[0]);
    stranger.out.write_all(b"UNSUB 1\r\n").unwrap();
    stranger.settles();
    let received = |room: &Room| -> u64 {
        room.all().map(|to| to.of(ROOM, |it| it.received.values().sum::<u64>())).sum()
    };
    until("what was captured is heard", || (received(&room) % 6 == 0).then_some(()));
    let before = received(&room);
    assert!(before > 0);
    let strange = no_envelopes(&captured);
    for (subject, envelope) in &strange {
        stranger.pushes(subject, envelope);
    }
    stranger.settles();
    for node in &nodes {
        until(&format!("{} has counted them", node.name), || {
            let counted = node.metric("simurgh_cluster_received_refused_total");
            assert!(counted <= strange.len() as u64, "{counted}");
            (counted == strange.len() as u64).then_some(())
        });
    }
    // Nodes ignore envelopes in their own name; the other nodes have received this one before.
    let (subject, own) = &captured[0];
    stranger.pushes(subject, own);
    stranger.settles();
    let own_series = "simurgh_cluster_received_refused_total{reason=\"own\"}";
    until("the node knows its own", || (nodes[0].metric(own_series) == 1).then_some(()));
    assert_eq!(received(&room), before, "members heard a stranger");
    room.has_healed(&nodes);
    room.nobody_left();
    for node in &nodes {
        assert_eq!(node.metric("simurgh_cluster_reconnects_total"), 0);
        assert_eq!(node.metric("simurgh_cluster_lost_total"), 0);
    }
    for client in room.all() {
        assert_eq!(client.received().connections, 1, "{} was cut off", client.name);
    }
}

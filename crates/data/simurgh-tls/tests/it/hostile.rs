//! Hostile sequences behind a correct handshake, against our record layer and against stock rustls:
//! both read the same data, and end in the same way but for the cases that are listed.

use std::sync::Arc;

use rustls::Error;
use simurgh_tls::{End, rustls};

use crate::support::attacker::{Attacker, Secrets};
use crate::support::config::{Configs, SUITES};
use crate::support::{Peer, SIDES, Side, established};

enum Step {
    Seal(u8, Vec<u8>),
    Pad(u8, Vec<u8>, usize),
    Raw(Vec<u8>),
    NextKey,
}
use Step::{NextKey, Pad, Raw, Seal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Open,
    Closed,
    Alert,
    Failed,
}

/// What became of a sequence: the data, and the ending.
type Outcome = (Vec<u8>, Ending);

/// Where rustls goes on and we do not: RFC 8446 §5.1 forbids an empty handshake record.
const STRICTER: &[&str] = &["empty handshake record"];

fn data() -> Step {
    Seal(23, b"data".to_vec())
}

fn key_update(request: u8) -> Step {
    Seal(22, vec![24, 0, 0, 1, request])
}

/// A correct ticket: lifetime, age, nonce, ticket, extensions (RFC 8446 §4.6.1).
fn ticket() -> Vec<u8> {
    let body = [&[0, 0, 1, 0][..], &[1, 2, 3, 4], &[1, 7], &[0, 3, 9, 9, 9], &[0, 0]].concat();
    [&[4, 0, 0, body.len() as u8][..], &body].concat()
}

fn records() -> Vec<(&'static str, Vec<Step>)> {
    let zeros = |header: &[u8], bytes| Raw([header, &vec![0; bytes]].concat());
    vec![
        ("data", vec![data()]),
        ("empty data", vec![Seal(23, vec![]), data()]),
        ("32 empty", (0..32).map(|_| Seal(23, vec![])).chain([data()]).collect()),
        ("33 empty", (0..33).map(|_| Seal(23, vec![])).chain([data()]).collect()),
        ("longest", vec![Seal(23, vec![1; 16_384]), data()]),
        ("too long by 1", vec![Seal(23, vec![1; 16_385]), data()]),
        ("too long by 216", vec![Seal(23, vec![1; 16_600])]),
        ("no type", vec![Pad(0, vec![], 0)]),
        ("only zeros", vec![Pad(0, vec![0; 50], 0)]),
        ("padded", vec![Pad(23, vec![1; 10], 100), data()]),
        ("padded to the end", vec![Pad(23, vec![1; 10], 16_374), data()]),
        ("padded too long", vec![Pad(23, vec![1; 10], 16_380), data()]),
        ("plain change cipher spec", vec![Raw(vec![20, 3, 3, 0, 1, 1]), data()]),
        ("sealed change cipher spec", vec![Seal(20, vec![1]), data()]),
        ("plain alert", vec![Raw(vec![21, 3, 3, 0, 2, 1, 0]), data()]),
        ("plain fatal alert", vec![Raw(vec![21, 3, 3, 0, 2, 2, 40])]),
        ("plain key update", vec![Raw(vec![22, 3, 3, 0, 5, 24, 0, 0, 1, 0])]),
        ("type 24", vec![Seal(24, vec![1, 2, 3]), data()]),
        ("type 99", vec![Seal(99, vec![1]), data()]),
        ("type 255", vec![Seal(255, vec![1])]),
        ("version 3.1", vec![zeros(&[23, 3, 1, 0, 20], 20)]),
        ("version 9.9", vec![zeros(&[23, 9, 9, 0, 20], 20)]),
        ("length 0", vec![zeros(&[23, 3, 3, 0, 0], 0)]),
        ("length 1", vec![zeros(&[23, 3, 3, 0, 1], 1)]),
        ("length 16", vec![zeros(&[23, 3, 3, 0, 16], 16)]),
        ("length 17", vec![zeros(&[23, 3, 3, 0, 17], 17)]),
        ("length 65535", vec![zeros(&[23, 3, 3, 255, 255], 0)]),
        ("length 18433", vec![zeros(&[23, 3, 3, 0x48, 1], 0)]),
        ("header type 0", vec![zeros(&[0, 3, 3, 0, 20], 20)]),
        ("plain HTTP", vec![Raw(b"GET / HTTP/1.1\r\n\r\n".to_vec())]),
        ("forged", vec![data(), zeros(&[23, 3, 3, 0, 40], 40), data()]),
    ]
}

fn alerts() -> Vec<(&'static str, Vec<Step>)> {
    let alert = |level, number| Seal(21, vec![level, number]);
    vec![
        ("close_notify", vec![data(), alert(1, 0), data()]),
        ("close_notify, fatal", vec![alert(2, 0), data()]),
        ("close_notify twice", vec![alert(1, 0), alert(1, 0)]),
        ("alert of 0 bytes", vec![Seal(21, vec![]), data()]),
        ("alert of 1 byte", vec![Seal(21, vec![1]), data()]),
        ("alert of 3 bytes", vec![Seal(21, vec![1, 0, 0]), data()]),
        ("two alerts", vec![Seal(21, vec![1, 90, 1, 0]), data()]),
        ("user_canceled", vec![alert(1, 90), data()]),
        ("4 user_canceled", (0..4).map(|_| alert(1, 90)).chain([data()]).collect()),
        ("40 user_canceled", (0..40).map(|_| alert(1, 90)).collect()),
        ("warning 100", vec![alert(1, 100), data()]),
        ("fatal 40", vec![data(), alert(2, 40), data()]),
        ("unknown alert", vec![alert(2, 222), data()]),
        ("level 7", vec![alert(7, 40), data()]),
    ]
}

fn messages() -> Vec<(&'static str, Vec<Step>)> {
    let message = |bytes: &[u8]| Seal(22, bytes.to_vec());
    let updates = [24, 0, 0, 1, 0, 24, 0, 0, 1, 0];
    vec![
        ("empty handshake record", vec![message(&[]), data()]),
        ("client hello", vec![message(&[1, 0, 0, 2, 3, 3]), data()]),
        ("server hello", vec![message(&[2, 0, 0, 2, 3, 3]), data()]),
        ("certificate", vec![message(&[11, 0, 0, 4, 0, 0, 0, 0]), data()]),
        ("certificate request", vec![message(&[13, 0, 0, 3, 0, 0, 0]), data()]),
        ("finished", vec![message(&[20, 0, 0, 0]), data()]),
        ("end of early data", vec![message(&[5, 0, 0, 0]), data()]),
        ("hello request", vec![message(&[0, 0, 0, 0]), data()]),
        ("message 77", vec![message(&[77, 0, 0, 0]), data()]),
        ("empty ticket", vec![message(&[4, 0, 0, 0]), data()]),
        ("ticket", vec![message(&ticket()), data()]),
        ("ticket in parts", vec![message(&ticket()[..3]), message(&ticket()[3..]), data()]),
        ("two tickets", vec![message(&[ticket(), ticket()].concat()), data()]),
        ("data in a ticket", vec![message(&ticket()[..9]), data(), message(&ticket()[9..])]),
        ("message of 16 MiB", vec![message(&[4, 255, 255, 255, 0]), data()]),
        ("part of a header", vec![message(&[24, 0]), data()]),
        ("key update 0", vec![data(), key_update(0), NextKey, data()]),
        ("key update 1", vec![data(), key_update(1), NextKey, data()]),
        ("key update 2", vec![key_update(2), NextKey, data()]),
        ("long key update", vec![message(&[24, 0, 0, 2, 0, 0]), NextKey, data()]),
        ("short key update", vec![message(&[24, 0, 0, 0]), NextKey, data()]),
        ("two key updates", vec![message(&updates), NextKey, data()]),
        ("old key", vec![key_update(0), data()]),
        ("new key too early", vec![NextKey, data()]),
        ("one byte behind", vec![message(&updates[..6]), NextKey, data()]),
        (
            "key update in parts",
            vec![message(&updates[..3]), message(&updates[3..5]), NextKey, data()],
        ),
        ("data in a key update", vec![message(&updates[..3]), data(), message(&updates[3..5])]),
        ("alert in a key update", vec![message(&updates[..3]), Seal(21, vec![1, 0])]),
        ("padded key update", vec![Pad(22, vec![24, 0, 0, 1, 0], 9), NextKey, data()]),
        (
            "32 key updates",
            (0..32).flat_map(|_| [key_update(0), NextKey]).chain([data()]).collect(),
        ),
        (
            "33 key updates",
            (0..33).flat_map(|_| [key_update(0), NextKey]).chain([data()]).collect(),
        ),
        ("40 with data", (0..40).flat_map(|_| [key_update(1), NextKey, data()]).collect()),
    ]
}

/// The bytes of a sequence.
fn wire(steps: &[Step], attacker: &mut Attacker) -> Vec<Vec<u8>> {
    let mut wire = Vec::new();
    for step in steps {
        match step {
            Seal(kind, content) => wire.push(attacker.seal(*kind, content, 0)),
            Pad(kind, content, padding) => wire.push(attacker.seal(*kind, content, *padding)),
            Raw(bytes) => wire.push(bytes.clone()),
            NextKey => attacker.next_key(),
        }
    }
    wire
}

/// The attacker in place of a peer that has done its handshake.
fn attacker(side: Side, peer: Peer, secrets: &Secrets) -> Attacker {
    let (number, _) = peer.0.dangerous_extract_secrets().unwrap().tx;
    let secret = match side {
        Side::Server => secrets.client(),
        Side::Client => secrets.server(),
    };
    Attacker { secret, number }
}

/// Our `side` against the sequence, in pieces.
fn ours(side: Side, configs: &Configs, secrets: &Secrets, steps: &[Step], piece: usize) -> Outcome {
    let (mut ours, peer) = established(side, configs);
    let (mut all, mut ending) = (Vec::new(), Ending::Open);
    for bytes in wire(steps, &mut attacker(side, peer, secrets)) {
        let (data, end, _) = ours.receive_by(piece, &bytes);
        all.extend(data);
        ending = match end {
            None => continue,
            Some(End::Closed) => Ending::Closed,
            Some(End::Alert(_)) => Ending::Alert,
            Some(End::Failed(_)) => Ending::Failed,
        };
        break;
    }
    (all, ending)
}

/// Stock rustls in place of our side.
fn stock(side: Side, configs: &Configs, secrets: &Secrets, steps: &[Step]) -> Outcome {
    let (mut peer, mut target) = match side {
        Side::Server => (Peer::client(&configs.client), Peer::server(&configs.server)),
        Side::Client => (Peer::server(&configs.server), Peer::client(&configs.client)),
    };
    for _ in 0..4 {
        target.receive(&peer.output()).unwrap();
        peer.receive(&target.output()).unwrap();
    }
    let mut all = Vec::new();
    for bytes in wire(steps, &mut attacker(side, peer, secrets)) {
        match target.receive(&bytes) {
            Ok(data) => all.extend(data),
            Err(Error::AlertReceived(_)) => return (all, Ending::Alert),
            Err(_) => return (all, Ending::Failed),
        }
        if target.has_received_close() {
            return (all, Ending::Closed);
        }
    }
    (all, Ending::Open)
}

/// Whether our side ends as stock rustls does, however the sequence is cut.
fn compare(side: Side, configs: &Configs, secrets: &Secrets, title: &str, steps: &[Step]) {
    let theirs = stock(side, configs, secrets, steps);
    let expected = match STRICTER.contains(&title) {
        true => (Vec::new(), Ending::Failed),
        false => theirs,
    };
    for piece in [usize::MAX, 1] {
        let ours = ours(side, configs, secrets, steps, piece);
        let short = |(data, ending): &Outcome| format!("{} B, {ending:?}", data.len());
        let (is, should_be) = (short(&ours), short(&expected));
        assert!(ours == expected, "{side:?}, {title}, by {piece}: {is}, not {should_be}");
    }
}

#[test]
fn hostile_sequences_end_as_with_rustls() {
    let mut count = 0;
    for side in SIDES {
        let mut configs = Configs::of(SUITES[0]);
        let secrets = Secrets::new();
        let server = Arc::get_mut(&mut configs.server).unwrap();
        // Tickets would count as records without data.
        server.send_tls13_tickets = 0;
        // The peer's rustls logs to the attacker.
        let log = match side {
            Side::Server => &mut Arc::get_mut(&mut configs.client).unwrap().key_log,
            Side::Client => &mut server.key_log,
        };
        *log = Arc::clone(&secrets) as _;
        for (title, steps) in [records(), alerts(), messages()].iter().flatten() {
            compare(side, &configs, &secrets, title, steps);
            count += 1;
        }
    }
    assert!(count >= 100, "{count}");
}

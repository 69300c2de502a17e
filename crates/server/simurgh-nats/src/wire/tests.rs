//! The protocol of NATS, well-formed and malformed.

use proptest::prelude::*;

use super::*;

#[path = "../../../../../fuzz/src/corpus.rs"]
mod corpus;

#[test]
fn fuzz_corpus_of_the_wire_passes() {
    corpus::run("nats_wire", fuzz::run);
}

fn all(bytes: &[u8], step: usize) -> Result<Vec<Op>, Malformed> {
    let mut decoder = Decoder::default();
    let mut ops = Vec::new();
    for part in bytes.chunks(step.max(1)) {
        decoder.buffer.extend_from_slice(part);
        while let Some(op) = decoder.next()? {
            ops.push(op);
        }
    }
    Ok(ops)
}

fn messages(bytes: &[u8], step: usize) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
    let of = |op| match op {
        Op::Message(it) => Some((it.sid, it.subject().to_vec(), it.into_payload().to_vec())),
        _ => None,
    };
    all(bytes, step).unwrap().into_iter().filter_map(of).collect()
}

#[test]
fn messages_are_decoded_in_pieces_of_any_size() {
    let input = b"INFO {\"a\":1} \r\nPING\r\n+OK\r\nMSG p.b.0.1c.a 7 3\r\nx\r\n\r\nPONG\r\n\
        HMSG p.b 8 r.e 12 14\r\nNATS/1.0\r\n\r\nhi\r\n\
        -ERR 'Stale Connection'\r\nMSG a 9 b 0\r\n\r\n";
    let expected = all(input, input.len()).unwrap();
    assert_eq!(expected.len(), 7);
    assert_eq!(expected[0], Op::Info(Bytes::from_static(b"{\"a\":1} ")));
    assert_eq!(expected[1], Op::Ping);
    assert_eq!(expected[3], Op::Pong);
    assert_eq!(expected[5], Op::Error("Stale Connection".into()));
    for step in 1..input.len() {
        assert_eq!(all(input, step).unwrap(), expected, "in steps of {step}");
    }
    let found = messages(input, 3);
    assert_eq!(found[0], (7, b"p.b.0.1c.a".to_vec(), b"x\r\n".to_vec()));
    assert_eq!(found[1], (8, b"p.b".to_vec(), b"hi".to_vec()));
    assert_eq!(found[2], (9, b"a".to_vec(), vec![]));
}

#[test]
fn headers_are_found_by_name() {
    let input =
        b"HMSG s 1 56 58\r\nNATS/1.0\r\nNats-Sequence: 42\r\nNats-Last-Sequence:  7 \r\n\r\nhi\r\n";
    let ops = all(input, 60).unwrap();
    let Op::Message(message) = &ops[0] else { panic!("{ops:?}") };
    assert_eq!(message.stored(), Some(Number { seq: 42, prev: 7 }));
    assert_eq!(message.header("Nats-Sequence"), Some("42"));
    assert_eq!(message.header("Nats-Last-Sequence"), Some("7"));
    assert_eq!(message.header("Nats"), None);
    assert_eq!(message.payload(), b"hi");
}

fn with_headers(headers: &str) -> Message {
    let (some, all) = (headers.len(), headers.len() + 2);
    let input = format!("HMSG s 1 {some} {all}\r\n{headers}hi\r\n");
    match all_of_one(&input) {
        Op::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

fn all_of_one(input: &str) -> Op {
    all(input.as_bytes(), input.len()).unwrap().remove(0)
}

#[test]
fn headers_of_the_broker_count_and_published_ones_do_not() {
    let message = with_headers(
        "NATS/1.0\r\nNats-Sequence: 7\r\nNats-Msg-Id: x\r\nNats-Sequence: 42\r\n\
         Nats-Time-Stamp: 1970-01-01T00:00:01.5Z\r\nNats-Last-Sequence: 41\r\n\r\n",
    );
    assert_eq!(message.stored_at(), Some((Number { seq: 42, prev: 41 }, 1_500)));
    assert_eq!(message.header("Nats-Sequence"), Some("42"));
    let without_time = with_headers("NATS/1.0\r\nNats-Sequence: 3\r\n\r\n");
    assert_eq!(without_time.stored_at(), Some((Number { seq: 3, prev: 0 }, 0)));
    assert_eq!(with_headers("NATS/1.0\r\nNats-Sequence: x\r\n\r\n").stored_at(), None);
}

#[test]
fn a_status_stands_in_place_of_a_message() {
    let status = |headers: &str| with_headers(headers).status();
    assert_eq!(status("NATS/1.0 503\r\n\r\n"), Some(503));
    assert_eq!(status("NATS/1.0 404 Message Not Found\r\n\r\n"), Some(404));
    for none in ["NATS/1.0\r\n\r\n", "NATS/1.0 \r\n\r\n", "NATS/1.0 x04\r\n\r\n", "Status 404\r\n"]
    {
        assert_eq!(status(none), None, "{none:?}");
    }
    let pending = with_headers("NATS/1.0 204 EOB\r\nNats-Num-Pending: 12\r\n\r\n");
    assert_eq!(pending.numbered("Nats-Num-Pending"), Some(12));
    assert_eq!(pending.numbered("Nats-Last-Sequence"), None);
}

#[test]
fn requests_and_headers_follow_the_protocol() {
    let mut out = BytesMut::new();
    put_request(&mut out, "$JS.API.X", "_INBOX_p.1", b"{}");
    put_with_headers(&mut out, "p.h.a", "_INBOX_p.2", &[("A", "b"), ("Nats-TTL", "9")], b"hi");
    let text = "PUB $JS.API.X _INBOX_p.1 2\r\n{}\r\n\
        HPUB p.h.a _INBOX_p.2 31 33\r\nNATS/1.0\r\nA: b\r\nNats-TTL: 9\r\n\r\nhi\r\n";
    assert_eq!(str::from_utf8(&out).unwrap(), text);
}

#[test]
fn message_above_the_limit_is_skipped_without_a_buffer() {
    let bytes = MESSAGE_BYTES_MAX + 1;
    let mut decoder = Decoder::default();
    decoder.buffer.extend_from_slice(format!("MSG a 5 {bytes}\r\n").as_bytes());
    assert_eq!(decoder.next(), Ok(Some(Op::TooLarge(5))));
    let mut left = bytes;
    while left > 0 {
        assert_eq!(decoder.next(), Ok(None));
        assert!(decoder.buffer.is_empty());
        let part = left.min(60_000);
        decoder.buffer.extend_from_slice(&vec![b'\n'; part]);
        left -= part;
    }
    decoder.buffer.extend_from_slice(b"\r\nPING\r\n");
    assert_eq!(decoder.next(), Ok(Some(Op::Ping)));
    assert_eq!(decoder.next(), Ok(None));
}

#[test]
fn line_without_an_end_is_an_error() {
    let mut decoder = Decoder::default();
    decoder.buffer.extend_from_slice(&vec![b'x'; LINE_BYTES_MAX - 1]);
    assert_eq!(decoder.next(), Ok(None));
    decoder.buffer.extend_from_slice(b"x");
    assert_eq!(decoder.next(), Err(Malformed::Line));
}

#[test]
fn malformed_line_is_reported() {
    for line in [
        "MSG\r\n",
        "MSG \r\n",
        "MSG a\r\n",
        "MSG a 1\r\n",
        "MSG a b 1\r\nx\r\n",
        "MSG a 1 -1\r\n",
        "MSG a 1 b c 1\r\nx\r\n",
        "HMSG a 1 1\r\nx\r\n",
        "HMSG a 1 2 1\r\nx\r\n",
        "MSG a 1 99999999999\r\n",
        "MSG a 9999999999999999999 1\r\nx\r\n",
        "MSG a 1 1\r\nxyz",
        "HMSG a 1 r 1 1 1\r\nx\r\n",
    ] {
        assert!(all(line.as_bytes(), 100).is_err(), "{line:?}");
    }
    assert_eq!(all(b"HELLO\r\n", 9), Err(Malformed::Operation));
}

#[test]
fn commands_to_a_server_follow_the_protocol() {
    let mut out = BytesMut::new();
    put_subscribe(&mut out, "p.b.0.1c.*", 17);
    put_unsubscribe(&mut out, u64::MAX);
    put_publish(&mut out, "p.n", b"a\r\n");
    put_publish(&mut out, "p.n", b"");
    let text = "SUB p.b.0.1c.* 17\r\nUNSUB 18446744073709551615\r\n\
        PUB p.n 3\r\na\r\n\r\nPUB p.n 0\r\n\r\n";
    assert_eq!(str::from_utf8(&out).unwrap(), text);
}

proptest! {
    #[test]
    fn written_messages_can_be_read(
        sent in prop::collection::vec(
            ("[a-z.]{1,40}", 0..1_000_000_u64, prop::collection::vec(any::<u8>(), 0..300)),
            0..20,
        ),
        step in 1..200_usize,
    ) {
        let mut input = Vec::new();
        for (subject, sid, payload) in &sent {
            let head = format!("MSG {subject} {sid} {}\r\n", payload.len());
            input.extend_from_slice(head.as_bytes());
            input.extend_from_slice(payload);
            input.extend_from_slice(b"\r\n");
        }
        let expected: Vec<_> =
            sent.into_iter().map(|(subject, sid, it)| (sid, subject.into_bytes(), it)).collect();
        prop_assert_eq!(messages(&input, step), expected);
    }

    #[test]
    fn a_flipped_byte_does_no_harm(place in 0..110_usize, to in any::<u8>(), step in any::<u8>()) {
        let mut input = b" MSG p.b.0.1c.a 7 3\r\nabc\r\nHMSG p.b 8 r 12 14\r\nNATS/1.0\r\n\r\nhi\
            \r\nINFO {\"a\":1}\r\nPING\r\nMSG q 9 5\r\nabcde\r\n-ERR 'x'\r\nPONG\r\n".to_vec();
        let last = input.len() - 1;
        input[1 + place % last] = to;
        input[0] = step;
        fuzz::run(&input);
    }
}

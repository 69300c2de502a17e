//! Golden bytes: the examples of RFC 6455 §5.7, and for each rule of §5 bytes that break it.
use simurgh_proto::ws::handshake::accept_key;
use simurgh_proto::ws::{
    CloseCode, CloseFrame, Event, FrameError, FrameLimits, OpCode, Role, encode, encode_close,
};

use crate::common::{RawFrame, Seen, decode};

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

fn server(stream: &[u8]) -> Seen {
    decode(Role::Server, FrameLimits::default(), stream, &[])
}

fn client(stream: &[u8]) -> Seen {
    decode(Role::Client, FrameLimits::default(), stream, &[])
}

fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    RawFrame { first, mask: Some(KEY), payload: payload.to_vec() }.write(&mut out);
    out
}

fn text(text: &'static str) -> Event<'static> {
    Event::Text(text.into())
}

fn encoded(opcode: OpCode, payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
    let mut out = Vec::new();
    encode(opcode, payload, mask, &mut out);
    out
}

#[test]
fn rfc_6455_examples_are_decoded() {
    let hello = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    assert_eq!(client(&hello), (vec![text("Hello")], None));
    let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(server(&masked), (vec![text("Hello")], None));
    let parts = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    assert_eq!(client(&parts), (vec![text("Hello")], None));
    let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    assert_eq!(client(&ping), (vec![Event::Ping(b"Hello".as_slice().into())], None));
    let pong = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(server(&pong), (vec![Event::Pong(b"Hello".as_slice().into())], None));
    let mut long = vec![0x82, 0x7e, 0x01, 0x00];
    long.extend([5; 256]);
    assert_eq!(client(&long), (vec![Event::Binary(vec![5; 256].into())], None));
    let mut longer = vec![0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0];
    longer.extend(vec![6; 65_536]);
    assert_eq!(client(&longer), (vec![Event::Binary(vec![6; 65_536].into())], None));
}

#[test]
fn rfc_6455_examples_are_encoded() {
    assert_eq!(encoded(OpCode::Text, b"Hello", None), b"\x81\x05Hello");
    assert_eq!(
        encoded(OpCode::Text, b"Hello", Some(KEY)),
        [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]
    );
    assert_eq!(encoded(OpCode::Ping, b"Hello", None), b"\x89\x05Hello");
    assert_eq!(
        encoded(OpCode::Pong, b"Hello", Some(KEY)),
        [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]
    );
    assert_eq!(encoded(OpCode::Binary, &[5; 256], None)[..4], [0x82, 0x7e, 0x01, 0x00]);
    let longer = encoded(OpCode::Binary, &[6; 65_536], None);
    assert_eq!(longer[..10], [0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]);
    let mut close = Vec::new();
    encode_close(CloseCode::RESTART, "later", None, &mut close);
    assert_eq!(close, b"\x88\x07\x03\xf4later");
}

#[test]
fn lengths_use_their_shortest_form() {
    for (len, head) in [
        (0, &[0x82, 0][..]),
        (125, &[0x82, 125]),
        (126, &[0x82, 126, 0, 126]),
        (65_535, &[0x82, 126, 0xff, 0xff]),
        (65_536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        let frame = encoded(OpCode::Binary, &vec![1; len], None);
        assert_eq!((&frame[..head.len()], frame.len()), (head, head.len() + len));
    }
}

#[test]
fn protocol_violations_are_rejected_with_their_close_code() {
    let too_long_ping = masked(0x89, &[0; 126]);
    let fragmented_ping = masked(0x09, b"");
    let interleaved = [masked(0x01, b"a"), masked(0x81, b"b")].concat();
    let after_the_end = [masked(0x81, b"a"), masked(0x80, b"b")].concat();
    let cases: [(&[u8], FrameError, u16); 23] = [
        (&masked(0xc1, b""), FrameError::ReservedBits, 1002),
        (&masked(0xa1, b""), FrameError::ReservedBits, 1002),
        (&masked(0x91, b""), FrameError::ReservedBits, 1002),
        (&masked(0x83, b""), FrameError::ReservedOpCode(3), 1002),
        (&masked(0x87, b""), FrameError::ReservedOpCode(7), 1002),
        (&masked(0x8b, b""), FrameError::ReservedOpCode(11), 1002),
        (&masked(0x8f, b""), FrameError::ReservedOpCode(15), 1002),
        (&[0x81, 0x05], FrameError::Unmasked, 1002),
        (&too_long_ping, FrameError::ControlTooLong, 1002),
        (&fragmented_ping, FrameError::ControlFragmented, 1002),
        (&masked(0x08, b""), FrameError::ControlFragmented, 1002),
        (&masked(0x80, b"a"), FrameError::UnexpectedContinuation, 1002),
        (&masked(0x00, b"a"), FrameError::UnexpectedContinuation, 1002),
        (&after_the_end, FrameError::UnexpectedContinuation, 1002),
        (&interleaved, FrameError::ContinuationExpected, 1002),
        (&[0x82, 0xfe, 0, 125], FrameError::LengthNotMinimal, 1002),
        (&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], FrameError::LengthNotMinimal, 1002),
        (&[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0], FrameError::LengthTopBit, 1002),
        (&masked(0x88, b"\x03"), FrameError::CloseTooShort, 1002),
        (&masked(0x88, &[0x03, 0xed]), FrameError::CloseCode(CloseCode(1005)), 1002),
        (&masked(0x88, b"\x03\xe8\xff"), FrameError::InvalidUtf8, 1007),
        (&masked(0x81, b"\xed\xa0\x80"), FrameError::InvalidUtf8, 1007),
        (&[0x82, 0xff, 0, 0, 0, 0, 0, 0x98, 0x96, 0x81], FrameError::FrameTooBig, 1009),
    ];
    for (stream, error, code) in cases {
        let (_, seen) = server(stream);
        assert_eq!(seen, Some(error), "{stream:x?}");
        assert_eq!(error.close_code(), CloseCode(code));
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(client(&masked(0x81, b"")), (vec![], Some(FrameError::Masked)));
}

#[test]
fn oversized_message_is_rejected_by_its_head() {
    let limits = FrameLimits { frame_bytes_max: 8, message_bytes_max: 10 };
    let seen = |stream: &[u8]| decode(Role::Server, limits, stream, &[]);
    let just = [masked(0x02, b"12345678"), masked(0x80, b"90")].concat();
    assert_eq!(seen(&just), (vec![Event::Binary(b"1234567890".as_slice().into())], None));
    let over = [masked(0x02, b"12345678"), vec![0x80, 0x83]].concat();
    assert_eq!(seen(&over), (vec![], Some(FrameError::MessageTooBig)));
    assert_eq!(FrameError::MessageTooBig.close_code(), CloseCode::TOO_BIG);
    assert_eq!(seen(&[0x82, 0x89]), (vec![], Some(FrameError::FrameTooBig)));
    let ping = [masked(0x02, b"12345678"), masked(0x89, &[7; 125])].concat();
    assert_eq!(seen(&ping), (vec![Event::Ping(vec![7; 125].into())], None), "not of the message");
}

#[test]
fn close_frame_is_empty_or_has_a_code_and_reason() {
    assert_eq!(server(&masked(0x88, b"")), (vec![Event::Close(None)], None));
    let (events, error) = server(&masked(0x88, b"\x03\xe8heartbeat timeout"));
    let frame = CloseFrame { code: CloseCode::NORMAL, reason: "heartbeat timeout".into() };
    assert_eq!((events, error), (vec![Event::Close(Some(frame))], None));
}

#[test]
fn accept_key_matches_the_rfc_6455_example() {
    assert_eq!(&accept_key("dGhlIHNhbXBsZSBub25jZQ=="), b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

//! The bytes that both sides exchange: WebSocket frames and the few measured Channels messages.
//!
//! Written apart from `simurgh-proto` on purpose: a benchmark that verifies deliveries with the
//! codec under test would not see that codec's mistakes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// Payload bytes of the broadcast that every delivery figure is about.
pub const BROADCAST_LEN: usize = 64;
/// How every broadcast of the benchmark begins (serializer V2, null refs: PROTOCOL §3).
pub const BROADCAST_HEAD: &[u8] =
    b"[null,null,\"rooms:lobby\",\"new:msg\",{\"user\":\"b\",\"body\":\"";
/// Digits of the running number that makes each broadcast verifiable.
pub const SEQ_DIGITS: usize = 6;
const BROADCAST_TAIL: &[u8] = b"\"}]";

/// Payload of the join every client sends first.
pub const JOIN: &[u8] = b"[\"1\",\"1\",\"rooms:lobby\",\"phx_join\",{\"user\":\"b\"}]";
/// Payload of the answer to [`JOIN`].
pub const JOIN_REPLY: &[u8] =
    b"[\"1\",\"1\",\"rooms:lobby\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]";
/// Payload of a heartbeat, the nearest thing to an echo that Channels have.
pub const HEARTBEAT: &[u8] = b"[null,\"0\",\"phoenix\",\"heartbeat\",{}]";
/// Payload of the answer to [`HEARTBEAT`].
pub const HEARTBEAT_REPLY: &[u8] =
    b"[null,\"0\",\"phoenix\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]";

/// The masking key of every frame the client sends. A fixed key is as good as a random one here.
pub const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
/// Bytes in front of the payload of a short masked frame.
pub const MASKED_HEADER: usize = 6;

/// The key of every upgrade request of the benchmark (RFC 6455 §1.3) …
pub const UPGRADE_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// … and the accept value that belongs to it.
pub const UPGRADE_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Text opcode.
pub const TEXT: u8 = 1;
/// Binary opcode.
pub const BINARY: u8 = 2;
/// Close opcode.
pub const CLOSE: u8 = 8;

/// The running number as the six digits in a message.
pub fn digits(seq: u32) -> [u8; SEQ_DIGITS] {
    let mut out = [b'0'; SEQ_DIGITS];
    let mut rest = seq;
    for digit in out.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    out
}

/// The number that these bytes spell, if all of them are digits.
pub fn numeral(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0_u32, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Payload of the push that publishes broadcast `seq`.
pub fn push(seq: u32) -> Vec<u8> {
    let number = digits(seq);
    [
        b"[\"1\",\"".as_slice(),
        &number,
        b"\",\"rooms:lobby\",\"new:msg\",{\"user\":\"b\",\"body\":\"",
        &number,
        BROADCAST_TAIL,
    ]
    .concat()
}

/// Payload of broadcast `seq`, 64 bytes; only the floor sends it.
pub fn broadcast(seq: u32) -> Vec<u8> {
    [BROADCAST_HEAD, &digits(seq), BROADCAST_TAIL].concat()
}

/// Appends one masked frame.
pub fn masked(opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
    masked_header(opcode, payload.len(), out);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// One masked text frame.
pub fn text(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 14);
    masked(TEXT, payload, &mut out);
    out
}

/// Appends the frame header for `length` masked bytes of payload.
pub fn masked_header(opcode: u8, length: usize, out: &mut Vec<u8>) {
    header(opcode, 0x80, length, out);
    out.extend_from_slice(&MASK);
}

/// First byte and length (RFC 6455 §5.2); `mask` is the bit for a mask that follows.
fn header(opcode: u8, mask: u8, length: usize, out: &mut Vec<u8>) {
    out.push(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => out.push(mask | short),
        (_, Ok(middling)) => {
            out.push(mask | 126);
            out.extend_from_slice(&middling.to_be_bytes());
        }
        _ => {
            out.push(mask | 127);
            out.extend_from_slice(&u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
}

/// Bytes of the unmasked header at the front of `buf`, and of its payload; `None`: more are needed.
pub fn lengths(buf: &[u8]) -> Option<(usize, usize)> {
    let (&[_, second], rest) = buf.split_first_chunk::<2>()?;
    Some(match second & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(*rest.first_chunk::<2>()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(*rest.first_chunk::<8>()?)).ok()?),
        short => (2, usize::from(short)),
    })
}

/// One unmasked text frame, as servers send it.
pub fn plain(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 4);
    plain_parts(&[payload], &mut out);
    out
}

/// Bytes of such a frame with a payload of this length.
pub fn plain_len(payload: usize) -> usize {
    match payload {
        0..126 => payload + 2,
        126..65_536 => payload + 4,
        _ => payload + 10,
    }
}

/// Writes one unmasked text frame, from parts, into a buffer that may be used again.
pub fn plain_parts(parts: &[&[u8]], out: &mut Vec<u8>) {
    out.clear();
    header(TEXT, 0, parts.iter().map(|part| part.len()).sum(), out);
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// The upgrade request for `path` (with query); `extra` holds further header lines, each with CRLF.
pub fn upgrade_request(path: &str, host: &str, extra: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {UPGRADE_KEY}\r\nSec-WebSocket-Version: 13\r\n{extra}\r\n"
    )
    .into_bytes()
}

/// The answer to an upgrade with that key.
pub fn switching(key: &str) -> Vec<u8> {
    let accept = accept_value(key);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
    .into_bytes()
}

/// RFC 6455 §4.2.2: base64 of the SHA-1 of the key and a fixed text.
fn accept_value(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(Sha1::digest(text.as_bytes()))
}

/// One frame of a server at the front of a buffer.
#[derive(Debug, PartialEq)]
pub struct Frame<'a> {
    /// FIN bit: benchmark servers are expected not to fragment.
    pub fin: bool,
    /// Opcode (RFC 6455 §5.2).
    pub opcode: u8,
    /// The payload, which servers do not mask.
    pub payload: &'a [u8],
    /// Bytes of the whole frame.
    pub len: usize,
}

impl Frame<'_> {
    /// The code of a close frame.
    pub fn close_code(&self) -> u16 {
        self.payload.first_chunk::<2>().map_or(1005, |code| u16::from_be_bytes(*code))
    }
}

/// The first frame of `buf`; `None` while it is not whole.
pub fn frame(buf: &[u8]) -> Option<Frame<'_>> {
    let (header, length) = lengths(buf)?;
    let first = buf.first()?;
    let len = header + length;
    let payload = buf.get(header..len)?;
    Some(Frame { fin: first & 0x80 != 0, opcode: first & 0x0f, payload, len })
}

/// The benchmark's view of a server's message.
#[derive(Debug, PartialEq)]
pub enum Kind {
    /// The measured broadcast, whole and of the right length, with its running number.
    Broadcast(u32),
    /// A `phx_reply`, and whether its status is `ok`.
    Reply(bool),
    /// Any other event (announcements, presence …), to be counted by name.
    Event(String),
    /// `new:msg` of another form or length than the benchmark's, or not a Channels message.
    Odd,
}

/// Sorts one text payload: the measured broadcast without parsing JSON, all else with it.
pub fn classify(payload: &[u8]) -> Kind {
    if payload.len() == BROADCAST_LEN
        && let Some(rest) = payload.strip_prefix(BROADCAST_HEAD)
        && let Some(number) = rest.strip_suffix(BROADCAST_TAIL)
    {
        return numeral(number).map_or(Kind::Odd, Kind::Broadcast);
    }
    if payload == JOIN_REPLY || payload == HEARTBEAT_REPLY {
        return Kind::Reply(true);
    }
    classify_slowly(payload).unwrap_or(Kind::Odd)
}

/// V2 arrays and V1 objects alike.
fn classify_slowly(payload: &[u8]) -> Option<Kind> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    let (event, body) = match value.as_array() {
        Some(fields) => (fields.get(3)?, fields.get(4)?),
        None => (value.get("event")?, value.get("payload")?),
    };
    Some(match event.as_str()? {
        "phx_reply" => Kind::Reply(body.get("status").is_some_and(|status| status == "ok")),
        "new:msg" => Kind::Odd,
        other => Kind::Event(other.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_has_the_declared_length() {
        assert_eq!(broadcast(7).len(), BROADCAST_LEN);
        for reply in [JOIN_REPLY, HEARTBEAT_REPLY] {
            assert!(reply.len() < 126);
            assert_eq!(classify(reply), Kind::Reply(true));
        }
    }

    #[test]
    fn only_the_exact_broadcast_is_classified_as_one() {
        assert_eq!(classify(&broadcast(42)), Kind::Broadcast(42));
        let mut odd = broadcast(42);
        odd[56] = b'x';
        assert_eq!(classify(&odd), Kind::Odd);
        let spaced =
            b"[null, null,\"rooms:lobby\",\"new:msg\",{\"user\":\"b\",\"body\":\"000042\"}]";
        assert_eq!(classify(spaced), Kind::Odd);
        let entered = b"[null,null,\"rooms:lobby\",\"user:entered\",{\"user\":\"b\"}]";
        assert_eq!(classify(entered), Kind::Event("user:entered".to_owned()));
        let refused =
            b"{\"topic\":\"t\",\"event\":\"phx_reply\",\"payload\":{\"status\":\"error\"}}";
        assert_eq!(classify(refused), Kind::Reply(false));
        assert_eq!(classify(b"hello"), Kind::Odd);
    }

    #[test]
    fn upgrade_response_has_the_accept_value_of_its_key() {
        assert_eq!(accept_value(UPGRADE_KEY), UPGRADE_ACCEPT);
        let answer = String::from_utf8(switching(UPGRADE_KEY)).unwrap();
        assert!(answer.ends_with(&format!(" {UPGRADE_ACCEPT}\r\n\r\n")), "{answer}");
    }

    #[test]
    fn frames_are_found_only_when_complete() {
        let one = plain(&broadcast(1));
        for cut in 0..one.len() {
            assert_eq!(frame(&one[..cut]), None);
        }
        let found = frame(&one).unwrap();
        assert_eq!((found.fin, found.opcode, found.len), (true, TEXT, 66));
        let long = plain(&[7; 256]);
        assert_eq!(long[..4], [0x81, 126, 1, 0]);
        assert_eq!(frame(&long).unwrap().payload, &[7; 256]);
        assert_eq!(frame(&long[..200]), None);
        assert_eq!(frame(&[0x82, 127, 0, 0, 0, 0, 0, 0, 0, 1, 9]).unwrap().payload, &[9]);
    }
}

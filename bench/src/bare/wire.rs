//! The subset of HTTP, WebSocket and Channels (V2) that `simurgh load` and `simurgh road` send.
//! Quotes and commas are expected at their usual places, and no name is escaped.

use anyhow::{Result, ensure};
use serde::Deserialize;

use simurgh_bench_kit::frames;
use simurgh_bench_kit::net::head_length;

/// Payload bytes of a frame; with its header and the byte before it, it fits in a datagram.
pub(crate) const PAYLOAD_MAX: usize = 65_000;
/// Bytes of a request, head and body.
const REQUEST_MAX: usize = 128 * 1024;

#[derive(Debug, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) opcode: u8,
    pub(crate) payload: &'a [u8],
    pub(crate) len: usize,
}

/// The first frame of `input`, unmasked in place; `None` while it is not whole.
pub(crate) fn frame(input: &mut [u8]) -> Result<Option<Frame<'_>>> {
    let Some(&[first, second]) = input.first_chunk::<2>() else { return Ok(None) };
    ensure!(first & 0x80 != 0 && second & 0x80 != 0, "a frame in parts, or unmasked");
    ensure!(second & 0x7f != 127, "a frame of more than 64 kB");
    let Some((header, length)) = frames::lengths(input) else { return Ok(None) };
    let header = header + frames::MASK.len();
    let len = header + length;
    let Some((head, payload)) = input.get_mut(..len).and_then(|it| it.split_at_mut_checked(header))
    else {
        return Ok(None);
    };
    if let Some(mask) = head.last_chunk::<4>() {
        for four in payload.chunks_mut(4) {
            for (byte, key) in four.iter_mut().zip(mask) {
                *byte ^= key;
            }
        }
    }
    Ok(Some(Frame { opcode: first & 0x0f, payload, len }))
}

/// A message of a client: an array of five.
#[derive(Debug, PartialEq)]
pub(crate) struct Message<'a> {
    /// As in the message: in quotes, or `null`.
    pub(crate) join_ref: &'a [u8],
    pub(crate) reference: &'a [u8],
    /// Without quotes.
    pub(crate) topic: &'a [u8],
    pub(crate) event: &'a [u8],
    /// JSON, not parsed.
    pub(crate) body: &'a [u8],
}

/// The message in a payload; `None` if it is not written as `simurgh load` does.
pub(crate) fn message(payload: &[u8]) -> Option<Message<'_>> {
    let rest = payload.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let (join_ref, rest) = field(rest)?;
    let (reference, rest) = field(rest)?;
    let (topic, rest) = field(rest)?;
    let (event, body) = field(rest)?;
    let (topic, event) = (unquoted(topic)?, unquoted(event)?);
    Some(Message { join_ref, reference, topic, event, body })
}

/// A string in quotes or a bare word, and the rest after the comma.
fn field(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = match input {
        [b'"', text @ ..] => 2 + text.iter().position(|byte| *byte == b'"')?,
        _ => input.iter().position(|byte| *byte == b',')?,
    };
    let (field, rest) = input.split_at_checked(end)?;
    Some((field, rest.strip_prefix(b",")?))
}

fn unquoted(field: &[u8]) -> Option<&[u8]> {
    field.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

pub(crate) fn reply(message: &Message<'_>, out: &mut Vec<u8>) {
    let Message { join_ref, reference, topic, .. } = *message;
    let ok = b"\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]";
    frames::plain_parts(&[b"[", join_ref, b",", reference, b",\"", topic, ok], out);
}

pub(crate) fn broadcast(topic: &[u8], event: &[u8], body: &[u8]) -> Result<Vec<u8>> {
    let parts: [&[u8]; 7] = [b"[null,null,\"", topic, b"\",\"", event, b"\",", body, b"]"];
    let length: usize = parts.iter().map(|part| part.len()).sum();
    ensure!(length <= PAYLOAD_MAX, "a message of {length} bytes; {PAYLOAD_MAX} go in a datagram");
    let mut out = Vec::with_capacity(length + 4);
    frames::plain_parts(&parts, &mut out);
    Ok(out)
}

#[derive(Debug, PartialEq)]
pub(crate) enum Request<'a> {
    Upgrade(&'a str),
    Metrics,
    Arrivals,
    Broadcast(Post),
    Other,
}

/// A client's order to send a frame of this size, head included, to `count` clients after the
/// `first` ones.
#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) event: String,
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// A frame of this size with an event.
pub(crate) fn frame_of(event: &str, bytes: usize) -> Vec<u8> {
    let mut payload = format!("[null,null,\"rooms:crowd\",\"{event}\",").into_bytes();
    let header = match bytes {
        0..=127 => 2,
        128..=65_539 => 4,
        _ => 10,
    };
    payload.resize(bytes.saturating_sub(header), b'x');
    frames::plain(&payload)
}

#[derive(Debug, Deserialize, PartialEq)]
pub(crate) struct Post {
    pub(crate) topic: String,
    pub(crate) event: String,
    pub(crate) payload: serde_json::Value,
}

/// The first request of `input` and its bytes; `None` while it is not whole.
pub(crate) fn request<'a>(input: &'a [u8]) -> Result<Option<(Request<'a>, usize)>> {
    let Some((head, rest)) = head_length(input).and_then(|length| input.split_at_checked(length))
    else {
        ensure!(input.len() <= REQUEST_MAX, "a request without an end");
        return Ok(None);
    };
    let text = std::str::from_utf8(head)?;
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let header = |name: &str| {
        let value = |line: &'a str| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        };
        lines.clone().find_map(value)
    };
    if let Some(key) = header("sec-websocket-key") {
        return Ok(Some((Request::Upgrade(key), head.len())));
    }
    let length = header("content-length").map_or(Ok(0), str::parse::<usize>)?;
    ensure!(length <= REQUEST_MAX, "a body of {length} bytes");
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let request = match first.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["GET", "/metrics", _] => Request::Metrics,
        ["GET", "/arrivals", _] => Request::Arrivals,
        ["POST", "/api/broadcast", _] => Request::Broadcast(serde_json::from_slice(body)?),
        _ => Request::Other,
    };
    Ok(Some((request, head.len() + length)))
}

/// An answer after which the connection ends.
pub(crate) fn answer(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_reply_has_the_ref_of_its_request() {
        let heartbeat = message(b"[null,\"4711\",\"phoenix\",\"heartbeat\",{}]").unwrap();
        assert_eq!((heartbeat.join_ref, heartbeat.reference), (&b"null"[..], &b"\"4711\""[..]));
        let mut out = b"what was there".to_vec();
        reply(&heartbeat, &mut out);
        let text = b"[null,\"4711\",\"phoenix\",\"phx_reply\",{\"status\":\"ok\",\"response\":{}}]";
        assert_eq!(out, frames::plain(text));
        let usual = message(frames::HEARTBEAT).unwrap();
        reply(&usual, &mut out);
        assert_eq!(out, frames::plain(frames::HEARTBEAT_REPLY));
    }

    #[test]
    fn joins_and_pushes_are_parsed() {
        let join = message(frames::JOIN).unwrap();
        assert_eq!((join.topic, join.event), (&b"rooms:lobby"[..], &b"phx_join"[..]));
        let mut out = Vec::new();
        reply(&join, &mut out);
        assert_eq!(out, frames::plain(frames::JOIN_REPLY));
        let pushed = frames::push(42);
        let push = message(&pushed).unwrap();
        assert_eq!(push.reference, b"\"000042\"");
        let frame = broadcast(push.topic, push.event, push.body).unwrap();
        assert_eq!(frame, frames::plain(&frames::broadcast(42)));
        for bad in ["", "[]", "{}", "[null,\"1\",\"t\",{}]", "[\"1\",\"2\",\"t\",null,{}]"] {
            assert_eq!(message(bad.as_bytes()), None, "{bad}");
        }
        assert!(super::broadcast(b"t", b"e", &[b'x'; PAYLOAD_MAX]).is_err());
    }

    #[test]
    fn frames_are_unmasked_when_complete() {
        for length in [0, 3, 125, 126, 10_000, 65_535] {
            let payload: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            let mut bytes = Vec::new();
            frames::masked(frames::BINARY, &payload, &mut bytes);
            let whole = bytes.len();
            for cut in [0, 1, 2, 3, 5, 7, whole - 1] {
                assert_eq!(frame(&mut bytes[..cut.min(whole - 1)]).unwrap(), None, "{length}");
            }
            bytes.push(b'?');
            let found = frame(&mut bytes).unwrap().unwrap();
            let expected = Frame { opcode: frames::BINARY, payload: &payload, len: whole };
            assert_eq!(found, expected);
        }
        assert!(frame(&mut [0x81, 5, 0, 0]).is_err());
        assert!(frame(&mut [0x01, 0x85, 0, 0]).is_err());
        assert!(frame(&mut [0x81, 0xff, 0, 0]).is_err());
    }

    #[test]
    fn requests_are_classified_when_complete() {
        let upgrade = frames::upgrade_request("/socket/websocket?vsn=2.0.0", "here", "");
        for cut in 0..upgrade.len() {
            assert_eq!(request(&upgrade[..cut]).unwrap(), None);
        }
        let found = request(&upgrade).unwrap();
        assert_eq!(found, Some((Request::Upgrade(frames::UPGRADE_KEY), upgrade.len())));
        let metrics = b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(request(metrics).unwrap(), Some((Request::Metrics, metrics.len())));
        let body = b"{\"topic\":\"rooms:road\",\"event\":\"e\",\"payload\":{\"body\":\"go\"}}";
        let head =
            format!("POST /api/broadcast HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
        let bytes = [head.as_bytes(), body].concat();
        assert_eq!(request(&bytes[..bytes.len() - 1]).unwrap(), None);
        let Some((Request::Broadcast(post), length)) = request(&bytes).unwrap() else {
            panic!("no broadcast")
        };
        assert_eq!((post.topic.as_str(), post.event.as_str()), ("rooms:road", "e"));
        assert_eq!((post.payload.to_string().as_str(), length), ("{\"body\":\"go\"}", bytes.len()));
        let other = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(request(other).unwrap(), Some((Request::Other, other.len())));
        assert!(request(&[b'x'; REQUEST_MAX + 1]).is_err());
    }
}

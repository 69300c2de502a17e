//! The client's side of the NATS protocol, without I/O: bytes in, operations out.
//!
//! <https://docs.nats.io/reference/reference-protocols/nats-protocol>

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use simurgh_cluster::adapter::Number;

use crate::timestamp;

/// The longest line: an INFO that lists some hundred servers.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The largest accepted message, headers included: an envelope has at most 1 MB. A larger one is
/// skipped without being buffered.
pub(crate) const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// An operation of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// `INFO`, with its JSON.
    Info(Bytes),
    /// `MSG` or `HMSG`.
    Message(Message),
    /// A skipped message that was too large, with the number of its subscription.
    TooLarge(u64),
    Ping,
    Pong,
    /// `-ERR`, without its quotes.
    Error(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) sid: u64,
    whole: Bytes,
    subject: Range<usize>,
    headers: Range<usize>,
    payload: Range<usize>,
}

impl Message {
    pub(crate) fn subject(&self) -> &[u8] {
        &self.whole[self.subject.clone()]
    }

    /// The value of the last header with exactly this name: the broker appends its headers after
    /// the publisher's.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields().filter(|(it, _)| *it == name.as_bytes()).last()?;
        str::from_utf8(value).ok()
    }

    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.whole[self.headers.clone()].split(|it| *it == b'\n');
        lines.filter_map(|line| {
            let (name, value) = line.split_at_checked(memchr(b':', line)?)?;
            Some((name, value.get(1..)?.trim_ascii()))
        })
    }

    /// The three-digit status in place of a message, such as 503 if there is no responder.
    pub(crate) fn status(&self) -> Option<u16> {
        let rest = self.whole[self.headers.clone()].strip_prefix(b"NATS/1.0 ")?;
        u16::try_from(number(rest.get(..3)?)?).ok()
    }

    pub(crate) fn numbered(&self, name: &str) -> Option<u64> {
        number(self.header(name)?.as_bytes())
    }

    /// The payload, without a copy.
    pub(crate) fn into_payload(mut self) -> Bytes {
        self.whole.truncate(self.payload.end);
        self.whole.advance(self.payload.start);
        self.whole
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.whole[self.payload.clone()]
    }

    /// Its numbers, if a stream republished it.
    pub(crate) fn stored(&self) -> Option<Number> {
        self.stored_at().map(|(number, _)| number)
    }

    /// Its numbers and the time at which it was stored in milliseconds since 1970, or 0, if a
    /// stream republished it or it was fetched.
    pub(crate) fn stored_at(&self) -> Option<(Number, u64)> {
        if self.headers.is_empty() {
            return None;
        }
        let (mut seq, mut prev, mut at_ms) = (None, 0, 0);
        for (name, value) in self.fields() {
            match name {
                b"Nats-Sequence" => seq = number(value),
                b"Nats-Last-Sequence" => prev = number(value).unwrap_or(0),
                b"Nats-Time-Stamp" => at_ms = timestamp::unix_ms(value).unwrap_or(0),
                _ => {}
            }
        }
        Some((Number { seq: seq?, prev }, at_ms))
    }
}

/// Why bytes do not follow the protocol of NATS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a line from the server is too long")]
    Line,
    #[error("the server sent an unknown operation")]
    Operation,
    #[error("the header of a message cannot be read")]
    Message,
}

#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// Bytes that are not decoded yet.
    pub(crate) buffer: BytesMut,
    /// Remaining bytes of a message that is too large.
    left_to_skip: usize,
}

impl Decoder {
    /// The next operation; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are malformed, so the rest cannot be decoded.
    pub(crate) fn next(&mut self) -> Result<Option<Op>, Malformed> {
        loop {
            if self.left_to_skip > 0 {
                let there = self.left_to_skip.min(self.buffer.len());
                self.buffer.advance(there);
                self.left_to_skip -= there;
                if self.left_to_skip > 0 {
                    return Ok(None);
                }
            }
            let searched = &self.buffer[..self.buffer.len().min(LINE_BYTES_MAX)];
            let Some(end) = memchr(b'\n', searched) else {
                return if searched.len() < LINE_BYTES_MAX {
                    Ok(None)
                } else {
                    Err(Malformed::Line)
                };
            };
            let line = searched[..end].strip_suffix(b"\r").unwrap_or(&searched[..end]);
            if let [b'M', b'S', b'G', b' ', ..] | [b'H', b'M', b'S', b'G', b' ', ..] = line {
                return self.message(end + 1);
            }
            let op = control(line)?;
            self.buffer.advance(end + 1);
            if op.is_some() {
                return Ok(op);
            }
        }
    }

    /// A message whose line has this length.
    fn message(&mut self, line_bytes: usize) -> Result<Option<Op>, Malformed> {
        let Head { sid, subject, header_bytes, bytes } =
            Head::read(&self.buffer[..line_bytes]).ok_or(Malformed::Message)?;
        let whole_bytes = line_bytes + bytes + 2;
        if bytes > MESSAGE_BYTES_MAX {
            self.left_to_skip = whole_bytes;
            return Ok(Some(Op::TooLarge(sid)));
        }
        if self.buffer.len() < whole_bytes {
            self.buffer.reserve(whole_bytes - self.buffer.len());
            return Ok(None);
        }
        if &self.buffer[whole_bytes - 2..whole_bytes] != b"\r\n" {
            return Err(Malformed::Message);
        }
        let whole = self.buffer.split_to(whole_bytes).freeze();
        let payload = line_bytes + header_bytes..line_bytes + bytes;
        let headers = line_bytes..payload.start;
        Ok(Some(Op::Message(Message { sid, whole, subject, headers, payload })))
    }
}

/// An operation of one line; `None` for an ignored one.
fn control(line: &[u8]) -> Result<Option<Op>, Malformed> {
    Ok(Some(match line {
        b"PING" => Op::Ping,
        b"PONG" => Op::Pong,
        b"+OK" => return Ok(None),
        [b'I', b'N', b'F', b'O', b' ', json @ ..] => Op::Info(Bytes::copy_from_slice(json)),
        [b'-', b'E', b'R', b'R', rest @ ..] => {
            let text = String::from_utf8_lossy(rest);
            Op::Error(text.trim().trim_matches('\'').into())
        }
        _ => return Err(Malformed::Operation),
    }))
}

/// The line of a message: `MSG <subject> <sid> [reply] <bytes>`, or
/// `HMSG <subject> <sid> [reply] <header bytes> <bytes>`.
struct Head {
    sid: u64,
    subject: Range<usize>,
    header_bytes: usize,
    bytes: usize,
}

impl Head {
    fn read(line: &[u8]) -> Option<Self> {
        const FIELDS_MAX: usize = 6;
        let mut fields: [&[u8]; FIELDS_MAX] = [&[]; FIELDS_MAX];
        let mut count = 0;
        let text = line.strip_suffix(b"\n")?;
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        for field in text.split(|it| matches!(it, b' ' | b'\t')).filter(|it| !it.is_empty()) {
            *fields.get_mut(count)? = field;
            count += 1;
        }
        let (sid, header_bytes, bytes) = match (fields, count) {
            ([b"MSG", _, sid, bytes, ..], 4) | ([b"MSG", _, sid, _, bytes, ..], 5) => {
                (sid, 0, number(bytes)?)
            }
            ([b"HMSG", _, sid, headers, bytes, ..], 5)
            | ([b"HMSG", _, sid, _, headers, bytes], 6) => (sid, number(headers)?, number(bytes)?),
            _ => return None,
        };
        // The server's own largest is 64 MB.
        if header_bytes > bytes || bytes > 1 << 30 {
            return None;
        }
        // The name of the operation, blanks, the subject.
        let start = line.iter().position(|it| matches!(it, b' ' | b'\t'))?;
        let start = start + line[start..].iter().position(|it| !matches!(it, b' ' | b'\t'))?;
        let subject = start..start + fields[1].len();
        Some(Self {
            sid: number(sid)?,
            subject,
            header_bytes: usize::try_from(header_bytes).ok()?,
            bytes: usize::try_from(bytes).ok()?,
        })
    }
}

/// A number of at most 18 digits.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |sum: u64, digit| {
        digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

pub(crate) fn put_subscribe(out: &mut BytesMut, filter: &str, sid: u64) {
    out.extend_from_slice(b"SUB ");
    out.extend_from_slice(filter.as_bytes());
    out.extend_from_slice(b" ");
    put_number(out, sid);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn put_unsubscribe(out: &mut BytesMut, sid: u64) {
    out.extend_from_slice(b"UNSUB ");
    put_number(out, sid);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn put_publish(out: &mut BytesMut, subject: &str, payload: &[u8]) {
    out.reserve(subject.len() + payload.len() + 32);
    out.extend_from_slice(b"PUB ");
    out.extend_from_slice(subject.as_bytes());
    put_payload(out, payload);
}

/// Appends `PUB` of a request, with the subject for its answer.
pub(crate) fn put_request(out: &mut BytesMut, subject: &str, reply: &str, payload: &[u8]) {
    for part in ["PUB ", subject, " ", reply] {
        out.extend_from_slice(part.as_bytes());
    }
    put_payload(out, payload);
}

#[inline]
fn put_payload(out: &mut BytesMut, payload: &[u8]) {
    out.extend_from_slice(b" ");
    put_number(out, payload.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Appends `HPUB`, with the subject for its answer. Names and values of headers must not have line
/// breaks.
pub(crate) fn put_with_headers(
    out: &mut BytesMut,
    subject: &str,
    reply: &str,
    headers: &[(&str, &str)],
    payload: &[u8],
) {
    const BEGINNING: &[u8] = b"NATS/1.0\r\n";
    let lines = headers.iter().map(|(name, value)| name.len() + value.len() + 4);
    let bytes = BEGINNING.len() + lines.sum::<usize>() + 2;
    out.reserve(subject.len() + reply.len() + bytes + payload.len() + 64);
    for part in ["HPUB ", subject, " ", reply, " "] {
        out.extend_from_slice(part.as_bytes());
    }
    put_number(out, bytes as u64);
    out.extend_from_slice(b" ");
    put_number(out, (bytes + payload.len()) as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(BEGINNING);
    for (name, value) in headers {
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

fn put_number(out: &mut BytesMut, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(any(test, feature = "fuzz"))]
#[allow(clippy::expect_used, clippy::panic, reason = "what does not hold ends the run")]
#[allow(unreachable_pub, reason = "public with the feature alone")]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

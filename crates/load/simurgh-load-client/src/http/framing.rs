//! Where a response's body ends (RFC 9112 §6.3), and the decoder of chunked bodies (§7.1).

use super::response::{Head, ResponseError};

const EXTENSION_BYTES_MAX: u16 = 4 << 10;
const TRAILER_BYTES_MAX: u16 = 16 << 10;

/// How much of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// This many bytes; 0: the response is over.
    Length(u64),
    Chunked(Chunk),
    UntilClose,
}

/// The state of a chunked body's decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// A chunk's size; whether a digit has been seen.
    Size(u64, bool),
    /// The ignored rest of the size line; its length so far.
    Extension(u64, u16),
    SizeEnd(u64),
    /// This many bytes of data, never 0.
    Data(u64),
    /// The line end after the data; whether its first half has been seen.
    DataEnd(bool),
    /// A trailer; its bytes so far, and the state of its line.
    Trailer(u16, Line),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Empty,
    Return,
    Text,
}

/// How the body after `head` is delimited, and whether the connection can be used again after it.
pub(super) fn of(head: &Head<'_>, to_head: bool) -> Result<(Framing, bool), ResponseError> {
    let mut keep_alive = !head.version_1_0;
    for token in head.values("connection").flat_map(tokens) {
        match token {
            token if token.eq_ignore_ascii_case(b"close") => keep_alive = false,
            token if token.eq_ignore_ascii_case(b"keep-alive") => keep_alive = true,
            _ => {}
        }
    }
    if to_head || matches!(head.status, 204 | 304) {
        return Ok((Framing::Length(0), keep_alive));
    }
    let length = content_length(head)?;
    if let Some(last) = head.values("transfer-encoding").flat_map(tokens).last() {
        // Both lengths at once is an attack or a broken proxy: later bytes cannot be trusted.
        let is_clear = length.is_none() && !head.version_1_0;
        return Ok(match last.eq_ignore_ascii_case(b"chunked") {
            true => (Framing::Chunked(Chunk::Size(0, false)), keep_alive && is_clear),
            false => (Framing::UntilClose, false),
        });
    }
    Ok(match length {
        Some(length) => (Framing::Length(length), keep_alive),
        None => (Framing::UntilClose, false),
    })
}

/// The value of `Content-Length`; several must be equal.
fn content_length(head: &Head<'_>) -> Result<Option<u64>, ResponseError> {
    let mut length = None;
    for value in head.values("content-length").flat_map(tokens) {
        // `parse` alone would accept `+5`.
        let digits = value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let number = number.filter(|_| digits).ok_or(ResponseError::Framing)?;
        if length.is_some_and(|before: u64| before != number) {
            return Err(ResponseError::Framing);
        }
        length = Some(number);
    }
    Ok(length)
}

/// The elements of a list in a header's value; empty ones are left out.
pub(super) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

impl Chunk {
    /// Consumes bytes from the front of `bytes` up to and including the next data, which it
    /// returns. `None`: the body is over, or more bytes are needed.
    pub(super) fn next<'b>(
        &mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<&'b [u8]>, ResponseError> {
        loop {
            match self {
                Chunk::Done => return Ok(None),
                Chunk::Data(left) => {
                    let wanted = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    let (data, rest) = bytes.split_at(wanted);
                    if data.is_empty() {
                        return Ok(None);
                    }
                    *bytes = rest;
                    *left -= data.len() as u64;
                    if *left == 0 {
                        *self = Chunk::DataEnd(false);
                    }
                    return Ok(Some(data));
                }
                _ => {
                    let Some((byte, rest)) = bytes.split_first() else { return Ok(None) };
                    *bytes = rest;
                    *self = self.step(*byte).ok_or(ResponseError::Framing)?;
                }
            }
        }
    }

    /// The state after a byte that is not data. Bare line feeds count as line ends.
    fn step(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Chunk::Size(size, seen), byte) => match (char::from(byte).to_digit(16), byte) {
                (Some(digit), _) => {
                    Chunk::Size(size.checked_mul(16)?.checked_add(u64::from(digit))?, true)
                }
                _ if !seen => return None,
                (None, b'\r') => Chunk::SizeEnd(size),
                (None, b'\n') => Chunk::after_size(size),
                (None, b';' | b' ' | b'\t') => Chunk::Extension(size, 0),
                _ => return None,
            },
            (Chunk::Extension(size, _), b'\n') => Chunk::after_size(size),
            (Chunk::Extension(size, bytes), _) if bytes < EXTENSION_BYTES_MAX => {
                Chunk::Extension(size, bytes + 1)
            }
            (Chunk::SizeEnd(size), b'\n') => Chunk::after_size(size),
            (Chunk::DataEnd(false), b'\r') => Chunk::DataEnd(true),
            (Chunk::DataEnd(_), b'\n') => Chunk::Size(0, false),
            (Chunk::Trailer(_, Line::Empty | Line::Return), b'\n') => Chunk::Done,
            (Chunk::Trailer(bytes, line), byte) if bytes < TRAILER_BYTES_MAX => {
                let line = match (line, byte) {
                    (_, b'\n') => Line::Empty,
                    (Line::Empty, b'\r') => Line::Return,
                    _ => Line::Text,
                };
                Chunk::Trailer(bytes + 1, line)
            }
            _ => return None,
        })
    }

    fn after_size(size: u64) -> Self {
        if size == 0 { Chunk::Trailer(0, Line::Empty) } else { Chunk::Data(size) }
    }
}

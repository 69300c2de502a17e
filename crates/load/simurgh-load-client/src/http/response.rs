//! Reads responses from bytes as they come.

use std::io::Read;
use std::mem::MaybeUninit;

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use super::framing::{self, Chunk, Framing};

const HEADERS_MAX: usize = 128;

/// Bounds of what a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one head, 32 KiB by default.
    pub head_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head_bytes_max: 32 << 10 }
    }
}

/// The parser of one answer.
///
/// A pull parser over bytes that the caller owns: call [`Response::next`] until it returns
/// [`Event::More`] (come back with further bytes) or [`Event::Done`] (what is left in `bytes` is
/// not this answer's). Only a head that comes in pieces is copied. Heads of 1xx are passed over.
#[derive(Debug)]
pub struct Response {
    /// The beginning of a head, or one that came in pieces until the next call.
    partial: Vec<u8>,
    limits: Limits,
    status: u16,
    keep_alive: bool,
    to_head: bool,
    in_head: bool,
    framing: Framing,
    head_bytes: u64,
    body_bytes: u64,
}

/// The next event of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// All bytes are used: more are needed.
    More,
    /// The head, once.
    Head(Head<'a>),
    /// A piece of the body, never empty, without the marks of chunks.
    Body(&'a [u8]),
    /// The answer is complete; each further call returns the same.
    Done(Done),
}

/// A whole answer, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// For example 200.
    pub status: u16,
    /// The connection can be used again.
    pub keep_alive: bool,
    /// Bytes of its head, and of those of 1xx before it.
    pub head_bytes: u64,
    /// Bytes of its body.
    pub body_bytes: u64,
}

/// Status line and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// For example 200.
    pub status: u16,
    /// HTTP/1.0 rather than 1.1.
    pub version_1_0: bool,
    /// All of it, with the empty line at its end.
    pub bytes: &'a [u8],
}

impl<'a> Head<'a> {
    /// The values of all headers of this name, blanks around them left out.
    pub fn values<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        header_values(self.bytes, name)
    }
}

/// Names and values of the header lines in a head's bytes. A folded value (RFC 9112 §5.2) still has
/// its line breaks.
pub fn header_lines(mut head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = std::iter::from_fn(move || {
        let goes_on = |at: &usize| matches!(head.get(at + 1), Some(b' ' | b'\t'));
        let end = memchr::memchr_iter(b'\n', head).find(|at| !goes_on(at));
        let (line, rest) = head.split_at(end.map_or(head.len(), |at| at + 1));
        head = rest;
        (!line.is_empty()).then(|| line.trim_ascii())
    });
    // The status line is the first that is not empty; it may hold a colon itself.
    let lines = lines.skip_while(|line| line.is_empty()).skip(1);
    lines.filter_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = line.split_at(colon);
        Some((name, value.get(1..)?.trim_ascii()))
    })
}

/// The values of all headers of this name in a head's bytes, blanks around them left out.
pub fn header_values<'a, 'n>(
    head: &'a [u8],
    name: &'n str,
) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
    header_lines(head)
        .filter(move |(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, value)| value)
}

/// Why an answer cannot be read, always by server or network. The connection is unusable then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// The head is not one of HTTP/1.x.
    #[error("the answer is not HTTP/1.x")]
    NotHttp,
    /// The head is longer than [`Limits::head_bytes_max`], or has over 128 headers.
    #[error("the answer's head is too large")]
    HeadTooLarge,
    /// `Content-Length` or a chunk's size is not a number, or several contradict each other.
    #[error("the length of the answer is ambiguous")]
    Framing,
    /// 101 to a request without an upgrade.
    #[error("the server switched protocols without a request")]
    Switched,
    /// The connection ended before anything was answered: on one that was used before, this is
    /// the server's right, and the request may be sent again on another.
    #[error("the server closed the connection without an answer")]
    NoAnswer,
    /// The connection ended within the answer.
    #[error("the server closed the connection within its answer")]
    Cut,
}

impl Response {
    /// A parser of the next answer; `to_head` if the request's method was `HEAD`.
    #[must_use]
    pub fn new(to_head: bool, limits: Limits) -> Self {
        Self {
            partial: Vec::new(),
            limits,
            status: 0,
            keep_alive: false,
            to_head,
            in_head: true,
            framing: Framing::UntilClose,
            head_bytes: 0,
            body_bytes: 0,
        }
    }

    /// Takes bytes from the front of `bytes`, as many as belong to the next event.
    ///
    /// # Errors
    /// See [`ResponseError`]; no further call makes sense then.
    pub fn next<'s, 'b: 's>(
        &'s mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Event<'s>, ResponseError> {
        if self.in_head {
            return self.next_head(bytes);
        }
        if !self.partial.is_empty() {
            self.partial = Vec::new();
        }
        let data = match &mut self.framing {
            Framing::Chunked(chunk) => chunk.next(bytes)?.unwrap_or_default(),
            Framing::Length(left) => {
                let wanted = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                let (data, rest) = bytes.split_at(wanted);
                *bytes = rest;
                *left -= data.len() as u64;
                data
            }
            Framing::UntilClose => std::mem::take(bytes),
        };
        self.body_bytes += data.len() as u64;
        Ok(match data {
            [_, ..] => Event::Body(data),
            [] if self.is_over() => Event::Done(self.done()),
            [] => Event::More,
        })
    }

    /// The connection has ended: the answer, if this completes it. The error is
    /// [`ResponseError::NoAnswer`] or [`ResponseError::Cut`].
    pub fn end(&self) -> Result<Done, ResponseError> {
        match self.framing {
            _ if self.in_head && self.partial.is_empty() && self.head_bytes == 0 => {
                Err(ResponseError::NoAnswer)
            }
            _ if self.in_head => Err(ResponseError::Cut),
            _ if self.is_over() => Ok(self.done()),
            Framing::UntilClose => Ok(self.done()),
            _ => Err(ResponseError::Cut),
        }
    }

    /// Whether any byte of the answer has come.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.head_bytes > 0 || !self.partial.is_empty()
    }

    fn next_head<'s, 'b: 's>(
        &'s mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Event<'s>, ResponseError> {
        loop {
            if bytes.is_empty() {
                return Ok(Event::More);
            }
            let before = self.partial.len();
            let parsed = if before == 0 {
                parse_head(bytes, self.limits)?
            } else {
                // Only bytes up to the limit are parsed, so no more are copied.
                let room = (self.limits.head_bytes_max as usize).saturating_sub(before);
                self.partial.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
                parse_head(&self.partial, self.limits)?
            };
            let Some(parsed) = parsed else {
                if before == 0 {
                    self.partial.extend_from_slice(bytes);
                }
                *bytes = &[];
                return Ok(Event::More);
            };
            let (now, rest) = bytes.split_at((parsed.bytes - before).min(bytes.len()));
            *bytes = rest;
            self.partial.truncate(parsed.bytes);
            self.head_bytes += parsed.bytes as u64;
            match parsed.status {
                101 => return Err(ResponseError::Switched),
                100..=199 => self.partial = Vec::new(),
                _ => return self.begin_body(now, parsed),
            }
        }
    }

    fn begin_body<'s>(
        &'s mut self,
        now: &'s [u8],
        Parsed { status, version_1_0, .. }: Parsed,
    ) -> Result<Event<'s>, ResponseError> {
        let bytes = if self.partial.is_empty() { now } else { &self.partial };
        let head = Head { status, version_1_0, bytes };
        (self.framing, self.keep_alive) = framing::of(&head, self.to_head)?;
        (self.status, self.in_head) = (status, false);
        Ok(Event::Head(head))
    }

    fn is_over(&self) -> bool {
        matches!(self.framing, Framing::Length(0) | Framing::Chunked(Chunk::Done))
    }

    fn done(&self) -> Done {
        let Self { status, keep_alive, head_bytes, body_bytes, .. } = *self;
        Done { status, keep_alive, head_bytes, body_bytes }
    }
}

#[derive(Clone, Copy)]
struct Parsed {
    status: u16,
    version_1_0: bool,
    bytes: usize,
}

/// The head at the front of `bytes`; `None` when it is not all there.
fn parse_head(bytes: &[u8], limits: Limits) -> Result<Option<Parsed>, ResponseError> {
    let bytes_max = limits.head_bytes_max as usize;
    let within = bytes.get(..bytes_max).unwrap_or(bytes);
    let mut slots = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut []);
    // Folded lines are still sent (RFC 9112 §5.2).
    let parsed = httparse::ParserConfig::default()
        .allow_obsolete_multiline_headers_in_responses(true)
        .parse_response_with_uninit_headers(&mut head, within, &mut slots)
        .map_err(|error| match error {
            httparse::Error::TooManyHeaders => ResponseError::HeadTooLarge,
            _ => ResponseError::NotHttp,
        })?;
    let httparse::Status::Complete(head_bytes) = parsed else {
        let is_full = bytes.len() >= bytes_max;
        return if is_full { Err(ResponseError::HeadTooLarge) } else { Ok(None) };
    };
    let status = head.code.filter(|code| *code >= 100).ok_or(ResponseError::NotHttp)?;
    Ok(Some(Parsed { status, version_1_0: head.version == Some(0), bytes: head_bytes }))
}

/// An answer's bytes, for captures, checks and dumps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    bytes: Vec<u8>,
    head_bytes: usize,
    body_bytes_max: usize,
    is_cut: bool,
}

impl Kept {
    /// Keeps the head and up to this number of bytes of the body.
    #[must_use]
    pub fn new(body_bytes_max: usize) -> Self {
        Self { body_bytes_max, ..Self::default() }
    }

    /// Keeps what an event brings.
    pub fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Head(head) => {
                self.bytes.extend_from_slice(head.bytes);
                self.head_bytes = self.bytes.len();
            }
            Event::Body(data) => {
                let room = self.body_bytes_max.saturating_sub(self.bytes.len() - self.head_bytes);
                self.is_cut |= room < data.len();
                self.bytes.extend_from_slice(data.get(..room).unwrap_or(data));
            }
            Event::More | Event::Done(_) => {}
        }
    }

    /// Decompresses the body, as far as its kept part and the bound go. A body that is compressed
    /// in another way than gzip and deflate is left alone, and counts as cut.
    pub fn decompress(&mut self) {
        let (head, body) = self.bytes.split_at(self.head_bytes.min(self.bytes.len()));
        let encodings = header_values(head, "content-encoding");
        let tokens = encodings.flat_map(framing::tokens);
        let encodings: Vec<&[u8]> = tokens.filter(|token| *token != b"identity").collect();
        let (&[encoding], [first, ..]) = (encodings.as_slice(), body) else {
            self.is_cut |= !encodings.is_empty() && !body.is_empty();
            return;
        };
        let is = |name: &str| encoding.eq_ignore_ascii_case(name.as_bytes());
        let mut reader: Box<dyn Read + '_> = if is("gzip") || is("x-gzip") {
            Box::new(MultiGzDecoder::new(body))
        } else if !is("deflate") {
            self.is_cut = true;
            return;
        } else if first & 15 == 8 {
            Box::new(ZlibDecoder::new(body))
        } else {
            // Without a zlib header, as some servers send it.
            Box::new(DeflateDecoder::new(body))
        };
        let mut plain = Vec::new();
        let bytes_max = self.body_bytes_max as u64;
        // What was read before an error is kept.
        let is_whole = (&mut reader).take(bytes_max + 1).read_to_end(&mut plain).is_ok();
        drop(reader);
        self.is_cut |= !is_whole || plain.len() > self.body_bytes_max;
        plain.truncate(self.body_bytes_max);
        self.bytes.truncate(self.head_bytes);
        self.bytes.append(&mut plain);
    }

    /// Head and body as they came, and the head's length in bytes.
    #[must_use]
    pub fn whole(&self) -> (&[u8], usize) {
        (&self.bytes, self.head_bytes)
    }

    /// Whether the kept part is not the whole body.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

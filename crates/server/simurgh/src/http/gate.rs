//! The gate between a socket and hyper passes one request at a time, with a complete, unambiguous
//! head.
//!
//! hyper repairs heads that two parsers may read differently: it drops a `Content-Length` after a
//! `Transfer-Encoding`, joins equal `Content-Length`s, and accepts lines that end in LF only. A
//! proxy in front may not, and then the two see different requests in the same bytes (request
//! smuggling). So every head is parsed here first, by the parser that shards use for the first head
//! of a connection. A refused head is replaced by a request of our own, which the service answers
//! with the refusal, in order after all earlier answers.

#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use simurgh_proto::ws::handshake::{Framing, Request};
use simurgh_shard::config::HttpConfig;
use simurgh_shard::connections::{Wait, Watch};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Passed to hyper in place of a refused head.
const REFUSED: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
/// How much is read at a time while a head is incomplete.
const STEP_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// A head, which has to be checked first.
    Head,
    /// This many more bytes of a request.
    Bytes(u64),
    /// Everything: the last request has a chunked body.
    Rest,
    /// This many more bytes of [`REFUSED`].
    Refusal(usize),
}

/// A stream that shows one request at a time.
#[derive(Debug)]
pub(super) struct Gate {
    stream: TcpStream,
    watch: Arc<Watch>,
    limits: HttpConfig,
    /// Bytes read from the socket; those from `at` on have not passed yet.
    ahead: Vec<u8>,
    at: usize,
    /// Whether `ahead` has unchecked bytes of a head.
    is_unjudged: bool,
    pass: Pass,
    unread: Unread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    Unknown,
    Bytes,
    /// The client has shut its side.
    End,
}

impl Gate {
    /// `ahead`: bytes that were already read from the stream.
    pub(super) fn new(
        stream: TcpStream,
        ahead: Vec<u8>,
        watch: Arc<Watch>,
        limits: HttpConfig,
    ) -> Self {
        let is_unjudged = !ahead.is_empty();
        let unread = Unread::Unknown;
        Self { stream, watch, limits, ahead, at: 0, is_unjudged, pass: Pass::Head, unread }
    }

    /// Whether all bytes that have come were of whole requests.
    pub(super) fn is_between_requests(&self) -> bool {
        self.pass == Pass::Head && self.at >= self.ahead.len()
    }

    pub(super) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        let Self { stream, mut ahead, at, .. } = self;
        ahead.drain(..at.min(ahead.len()));
        (stream, ahead)
    }

    /// Returns whether the head at the front of `bytes` is complete.
    fn judge(&mut self, bytes: &[u8]) -> Result<bool, u16> {
        let limits = self.limits.head_limits();
        let parsed = Request::parse(bytes, &limits).map_err(|error| error.status())?;
        let Some((request, head_bytes)) = parsed else { return Ok(false) };
        let framing = request.framing().map_err(|error| error.status())?;
        self.pass = match framing {
            Framing::Length(body) if body > self.limits.body_bytes_max => return Err(413),
            Framing::Length(body) => Pass::Bytes((head_bytes as u64).saturating_add(body)),
            Framing::Chunked => Pass::Rest,
        };
        self.watch.head_came(framing == Framing::Chunked);
        Ok(true)
    }

    fn refuse(&mut self, status: u16) {
        self.watch.refuse(status);
        self.forget_ahead();
        self.pass = Pass::Refusal(REFUSED.len());
    }

    /// Checks the bytes read ahead, if there are more than at the last check.
    fn judge_ahead(&mut self) {
        let ahead = std::mem::take(&mut self.ahead);
        let judged = self.judge(ahead.get(self.at..).unwrap_or_default());
        self.ahead = ahead;
        self.is_unjudged = false;
        if let Err(status) = judged {
            self.refuse(status);
        }
    }

    /// Nothing was read ahead: reads straight into hyper's buffer, since nearly always one whole
    /// request comes at once.
    fn poll_fresh(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) else {
            self.watch.wait_for(if self.pass == Pass::Head { Wait::Request } else { Wait::Body });
            return Poll::Pending;
        };
        read?;
        self.unread = Unread::Unknown;
        let came = buffer.filled().get(before..).unwrap_or_default();
        if self.pass == Pass::Head {
            if let Err(status) = self.judge(came) {
                buffer.set_filled(before);
                self.refuse(status);
                return Poll::Ready(Ok(()));
            }
        } else {
            self.watch.body_came(came.len());
        }
        let passing = self.passing(came.len());
        if passing < came.len() {
            self.ahead.extend_from_slice(came.get(passing..).unwrap_or_default());
            self.is_unjudged = self.pass != Pass::Head;
            buffer.set_filled(before + passing);
        }
        self.passed(passing);
        Poll::Ready(Ok(()))
    }

    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut scratch = [0; STEP_BYTES];
        let mut step = ReadBuf::new(&mut scratch);
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, &mut step) else {
            self.watch.wait_for(Wait::Head);
            return Poll::Pending;
        };
        read?;
        self.unread = Unread::Unknown;
        let came = step.filled();
        self.ahead.extend_from_slice(came);
        // A head ends with a line; checking it again for each byte of a slow client would take
        // quadratic time.
        let is_full = self.ahead.len() - self.at >= self.limits.head_bytes_max;
        self.is_unjudged = is_full || came.contains(&b'\n');
        Poll::Ready(Ok(!came.is_empty()))
    }

    fn pass_ahead(&mut self, buffer: &mut ReadBuf<'_>) {
        let ahead = self.ahead.get(self.at..).unwrap_or_default();
        let passing = self.passing(ahead.len()).min(buffer.remaining());
        buffer.put_slice(ahead.get(..passing).unwrap_or_default());
        self.at += passing;
        self.passed(passing);
        if self.at >= self.ahead.len() {
            self.forget_ahead();
        }
        self.is_unjudged = self.pass == Pass::Head && self.at < self.ahead.len();
    }

    /// How many of these bytes may pass now.
    fn passing(&self, bytes: usize) -> usize {
        match self.pass {
            Pass::Bytes(left) => bytes.min(usize::try_from(left).unwrap_or(usize::MAX)),
            Pass::Rest => bytes,
            Pass::Head | Pass::Refusal(_) => 0,
        }
    }

    fn passed(&mut self, bytes: usize) {
        if let Pass::Bytes(left) = self.pass {
            let left = left.saturating_sub(bytes as u64);
            self.pass = if left == 0 { Pass::Head } else { Pass::Bytes(left) };
        }
    }

    fn note_written(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(taken) => self.watch.wrote(Some(*taken.as_ref().unwrap_or(&0))),
            Poll::Pending => self.watch.wrote(None),
        }
    }

    /// Checks whether the client is still there, since no read happens while an answer is prepared.
    /// A client that has only shut its side waits for its answer; whether it has also left shows
    /// only when something is written to it, so that wait has a limit.
    fn look_for_client(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.watch.is_answering() {
            return Ok(());
        }
        if self.unread == Unread::Unknown {
            let mut byte = [0];
            let peeked = self.stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
            let Poll::Ready(bytes) = peeked else { return Ok(()) };
            self.unread = if bytes? == 0 { Unread::End } else { Unread::Bytes };
        }
        if self.unread == Unread::End {
            self.watch.wait_for(Wait::Sign);
        }
        Ok(())
    }

    fn forget_ahead(&mut self) {
        (self.ahead, self.at) = (Vec::new(), 0);
        self.is_unjudged = false;
    }
}

impl AsyncRead for Gate {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        loop {
            if let Some(status) = this.watch.given_up().filter(|_| this.pass == Pass::Head) {
                this.refuse(status);
            }
            if let Pass::Refusal(left) = this.pass {
                // Nothing follows: the connection ends with its answer.
                let text = REFUSED.get(REFUSED.len() - left..).unwrap_or_default();
                let count = text.len().min(buffer.remaining());
                buffer.put_slice(text.get(..count).unwrap_or_default());
                this.pass = Pass::Refusal(left - count);
                return if count == 0 { Poll::Pending } else { Poll::Ready(Ok(())) };
            }
            if this.at >= this.ahead.len() {
                ready!(this.poll_fresh(context, buffer))?;
                // Nothing read, kept or refused: the end of the stream.
                let is_end = this.ahead.is_empty() && !matches!(this.pass, Pass::Refusal(_));
                if buffer.filled().len() > before || is_end {
                    return Poll::Ready(Ok(()));
                }
            } else if this.pass != Pass::Head {
                this.pass_ahead(buffer);
                return Poll::Ready(Ok(()));
            } else if this.is_unjudged {
                this.judge_ahead();
            } else if !ready!(this.poll_head(context))? {
                this.forget_ahead();
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Gate {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_written(&written);
        written
    }

    // Without it hyper copies each body, and the copy would not count as held.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note_written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes after each step of its work.
        self.look_for_client(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! The connection of a waiting long poll, without parser and buffers, which would cost 10 kB.
#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::longpoll::{HEADERS, Waiting};

pub(super) struct WaitingPoll {
    pub(super) waiting: Box<Waiting>,
    pub(super) number: u64,
    /// The client wants no further request on it.
    pub(super) closes: bool,
}

/// Waits for the body of a poll's answer. A client that has shut its side is answered at once,
/// without messages: it may have left, and they would be lost.
pub(super) async fn wait(stream: &TcpStream, waiting: &mut Waiting) -> Vec<u8> {
    let left = pin!(poll_fn(|context| {
        let mut byte = [0];
        match stream.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            // Bytes after the poll belong to the next request.
            Poll::Ready(Ok(1..)) | Poll::Pending => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
        }
    }));
    waiting.answer(left).await
}

/// Writes the answer; the client has to accept some of it within `time`, again and again.
pub(super) async fn write(
    stream: &mut TcpStream,
    body: &[u8],
    closes: bool,
    time: Duration,
) -> io::Result<()> {
    let mut bytes = head(body.len(), closes);
    bytes.extend_from_slice(body);
    let mut rest = &*bytes;
    while !rest.is_empty() {
        let written = tokio::time::timeout(time, stream.write(rest)).await;
        let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = rest.get(written..).unwrap_or_default();
    }
    Ok(())
}

fn head(body_bytes: usize, closes: bool) -> Vec<u8> {
    let mut head = String::with_capacity(256 + body_bytes);
    head.push_str("HTTP/1.1 200 OK\r\n");
    for (name, value) in HEADERS {
        for part in [name, ": ", value, "\r\n"] {
            head.push_str(part);
        }
    }
    if closes {
        head.push_str("connection: close\r\n");
    }
    let date = httpdate::fmt_http_date(SystemTime::now());
    head.push_str(&format!("content-length: {body_bytes}\r\ndate: {date}\r\n\r\n"));
    head.into_bytes()
}

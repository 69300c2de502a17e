//! A connection whose long poll waits: without parser and buffers, which would cost it 10 kB.
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

/// A poll, and how its connection goes on.
pub(super) struct WaitingPoll {
    pub(super) waiting: Box<Waiting>,
    /// Which request of its connection it is.
    pub(super) number: u64,
    /// The client wants no other request on it.
    pub(super) closes: bool,
}

/// Waits for what the poll is told; the body of its answer. A client that has shut its side is
/// answered at once: nobody can tell whether it is still there, so nothing is given away.
pub(super) async fn wait(stream: &TcpStream, waiting: &mut Waiting) -> Vec<u8> {
    let left = pin!(poll_fn(|context| {
        let mut byte = [0];
        match stream.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            // What comes behind the poll is its successor's.
            Poll::Ready(Ok(1..)) | Poll::Pending => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
        }
    }));
    waiting.answer(left).await
}

/// Writes the answer, which a client has to take within `time` bit by bit.
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

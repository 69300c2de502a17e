//! The connection of a waiting long poll, without parser and buffers, which would cost 10 kB.
#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use simurgh_shard::config::HttpConfig;
use simurgh_shard::connections::{HeldBytes, Watch};
use tokio::io::{AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

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

/// Writes the answer with this body; the client has to accept some of it within `write_timeout`,
/// again and again, and all of it at the least rate. It is cut off if its memory is wanted: `held`
/// counts it until it is written.
pub(super) async fn write(
    stream: &mut TcpStream,
    mut bytes: Vec<u8>,
    closes: bool,
    watch: &Watch,
    held: HeldBytes,
    limits: &HttpConfig,
) -> io::Result<()> {
    let head = head(bytes.len(), closes);
    bytes.splice(0..0, head);
    held.add(bytes.len());
    let seconds = bytes.len() as u64 / limits.body_rate_min.max(1);
    let whole = limits.write_timeout.saturating_add(Duration::from_secs(seconds));
    let write_all = async {
        let mut rest = &*bytes;
        while !rest.is_empty() {
            let taken = poll_fn(|context| {
                watch.is_watched_by(context);
                if watch.is_cut_off() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Pin::new(&mut *stream).poll_write(context, rest)
            });
            let taken = timeout(limits.write_timeout, taken).await??;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(())
    };
    timeout(whole, write_all).await?
}

fn head(body_bytes: usize, closes: bool) -> Vec<u8> {
    let mut head = String::with_capacity(256);
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

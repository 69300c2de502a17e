//! What a request to `hello_page` costs the server: `simurgh-instructions-page NAME`. This is a
//! separate program, since it uses the page's allocator.
//!
//! A whole server answers one client over loopback that waits for each answer. The count includes
//! everything that the connection's task does when it is woken, from the `recv` to the `send`: the
//! gate, hyper, the router, session and page. It excludes the turn of the event loop, which a busy
//! server makes for many connections at once, and the kernel.

#![allow(
    clippy::disallowed_types,
    reason = "a client that is not measured, in the main descriptor table"
)]

mod item;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use simurgh::Endpoint;

use crate::item::{Item, give_up};

/// Like `hello_page`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A task of the HTTP side that is woken: the connection's, again and again. tokio calls this by
/// pointer, so no build inlines it.
const TASK: &[&str] = &["tokio::runtime::task::raw::poll*"];

const ITEMS: &[Item] = &[
    Item { name: "page-first-visit", times: 1000, inside: TASK, run: first_visits },
    Item { name: "page-next-visit", times: 1000, inside: TASK, run: next_visits },
];

/// Long, because callgrind makes a second of a few dozen milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 16 << 10;

fn main() -> ExitCode {
    item::run(ITEMS.iter())
}

/// Like `wrk`: each answer sets a new session.
fn first_visits(times: u32) {
    ask(times, "").unwrap_or_else(|error| give_up(&error));
}

/// Like a returning browser: its session is read, and none is set.
fn next_visits(times: u32) {
    let headers = "user-agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) \
                   Gecko/20100101 Firefox/140.0\r\n\
                   accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
                   accept-language: en-GB,en;q=0.5\r\n\
                   accept-encoding: gzip, deflate, br, zstd\r\n";
    ask(times, headers).unwrap_or_else(|error| give_up(&error));
}

/// Requests the page again and again on one connection, with further `headers` for a session.
fn ask(times: u32, headers: &str) -> io::Result<()> {
    let server = Endpoint::builder().http(hello_page::router()).configure(|config| {
        config.shards = 1;
        config.http.threads = 1;
    });
    let server = server.listen("127.0.0.1:0").start().map_err(io::Error::other)?;
    let address = server.addresses().first().copied().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    let plain = format!("GET / HTTP/1.1\r\nHost: {address}\r\n");
    // The shard reads the head of the first request, so one more is sent than is counted.
    let first = exchange(&mut stream, &format!("{plain}\r\n"))?;
    let request = match headers {
        "" => plain,
        headers => format!("{plain}{headers}cookie: theme=dark; {}\r\n", cookie(&first)?),
    } + "\r\n";
    for _ in 0..times {
        let answer = exchange(&mut stream, &request)?;
        let sets_session = header(&answer, "set-cookie").is_some();
        if sets_session != headers.is_empty() {
            return Err(io::Error::other(format!("a session too many, or none: {answer}")));
        }
    }
    Ok(())
}

/// Sends a request and reads its whole answer; returns the head.
fn exchange(stream: &mut TcpStream, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
    let mut part = [0; ANSWER_BYTES_MAX];
    while answer.len() < ANSWER_BYTES_MAX {
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend(part.iter().take(count));
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).into_owned();
        let length = header(&head, "content-length").and_then(|text| text.parse::<usize>().ok());
        if !head.starts_with("HTTP/1.1 200 ") || length.is_none() {
            return Err(io::Error::other(head));
        }
        if length.is_some_and(|length| answer.len() >= end + 4 + length) {
            return Ok(head);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn cookie(head: &str) -> io::Result<&str> {
    let pair = header(head, "set-cookie").and_then(|cookie| cookie.split(';').next());
    pair.ok_or_else(|| io::Error::other(format!("no session was set: {head}")))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(other, _)| *other == name).map(|(_, value)| value).next()
}

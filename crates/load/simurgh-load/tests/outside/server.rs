//! Test servers, with a thread for each connection, that do what a test needs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::disallowed_types, reason = "these sockets never meet a shard's table")]

use std::io::{ErrorKind as Io, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A server whose connections are each served by a thread.
pub struct Server {
    pub addr: SocketAddr,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<Weak<TcpStream>>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    pub fn new(serve: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), serve)
    }

    /// On a given port, which another server may have used.
    pub fn at(addr: SocketAddr, serve: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        let began = Instant::now();
        let listener = loop {
            match TcpListener::bind(addr) {
                Ok(listener) => break listener,
                Err(error) if began.elapsed() > Duration::from_secs(10) => {
                    panic!("{addr}: {error}")
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        };
        let addr = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (accepted, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let serve = Arc::new(serve);
        let acceptor = {
            let (stop, accepted, open) = (stop.clone(), accepted.clone(), open.clone());
            thread::spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    // No read waits for ever, whatever the client does.
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let stream = Arc::new(stream);
                    lock(&open).push(Arc::downgrade(&stream));
                    let number = accepted.fetch_add(1, SeqCst);
                    let serve = Arc::clone(&serve);
                    thread::spawn(move || {
                        serve(Peer { stream, number, key: String::new(), path: String::new() })
                    });
                }
            })
        };
        Self { addr, stop, accepted, open, acceptor: Some(acceptor) }
    }

    pub fn accepted(&self) -> u64 {
        self.accepted.load(SeqCst)
    }

    /// As if the process were killed: it stops listening, and all connections end.
    pub fn kill(mut self) -> SocketAddr {
        self.end();
        self.addr
    }

    fn end(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.addr);
        acceptor.join().unwrap();
        for stream in lock(&self.open).drain(..).filter_map(|stream| stream.upgrade()) {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Peer {
    pub stream: Arc<TcpStream>,
    pub number: u64,
    pub key: String,
    pub path: String,
}

/// A frame from the client, unmasked.
#[derive(Debug, PartialEq)]
pub struct Got {
    pub opcode: u8,
    pub payload: Vec<u8>,
}

impl Peer {
    /// A head up to its blank line; `None` at the end of the stream.
    pub fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match (&*self.stream).read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return None,
            }
        }
        let head = String::from_utf8(head).unwrap();
        self.path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        for line in head.lines() {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("sec-websocket-key")
            {
                value.trim().clone_into(&mut self.key);
            }
        }
        Some(head)
    }

    /// The answer that accepts the upgrade.
    pub fn switch(&self) -> String {
        let accept = simurgh_proto::ws::handshake::accept_key(&self.key);
        let accept = String::from_utf8(accept.as_ref().to_vec()).unwrap();
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
    }

    /// Upgrades; `false` if the client has closed.
    pub fn upgrade(&mut self) -> bool {
        self.head().is_some() && self.send(self.switch().as_bytes())
    }

    /// Sends bytes; `false` if the client has closed.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        (&*self.stream).write_all(bytes.as_ref()).is_ok()
    }

    pub fn text(&mut self, text: &str) -> bool {
        self.send(frame(1, text))
    }

    /// The next frame; `None` at the end of the stream.
    pub fn frame(&mut self) -> Option<Got> {
        let mut two = [0; 2];
        (&*self.stream).read_exact(&mut two).ok()?;
        let mut length = u64::from(two[1] & 0x7f);
        if length >= 126 {
            let mut more = [0; 8];
            let bytes = if length == 126 { 2 } else { 8 };
            (&*self.stream).read_exact(&mut more[8 - bytes..]).ok()?;
            length = u64::from_be_bytes(more);
        }
        assert_eq!(two[1] & 0x80, 0x80, "a client has to mask");
        let mut mask = [0; 4];
        (&*self.stream).read_exact(&mut mask).ok()?;
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        (&*self.stream).read_exact(&mut payload).ok()?;
        payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        Some(Got { opcode: two[0] & 0x0f, payload })
    }

    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&*self.stream, Some(Duration::ZERO)).unwrap();
    }

    pub fn no_more(&self) {
        // The client may have closed.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn drain(&mut self) {
        let mut buffer = [0; 4096];
        loop {
            match (&*self.stream).read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Upgrades, and gives `each` the frames until it returns `false`; answers the client's close.
    pub fn messages(&mut self, mut each: impl FnMut(&mut Self, Got) -> bool) {
        if !self.upgrade() {
            return;
        }
        while let Some(got) = self.frame() {
            if got.opcode == 8 {
                self.send(close(1000));
                return;
            }
            if !each(self, got) {
                return;
            }
        }
    }

    /// Serves Channels V2, and answers each message with `ok` unless `look` returns `false`, which
    /// ends the connection.
    pub fn channels(&mut self, mut look: impl FnMut(&mut Self, &Value) -> bool) {
        self.messages(|peer, got| {
            let message: Value = serde_json::from_slice(&got.payload).unwrap();
            let goes_on = look(peer, &message);
            if goes_on {
                let answer = json!({"status": "ok", "response": {}});
                let reply = json!([message[0], message[1], message[2], "phx_reply", answer]);
                peer.text(&reply.to_string());
            }
            goes_on
        });
    }

    /// Echoes text frames and closes until the client has closed.
    pub fn echo(&mut self) {
        while let Some(Got { opcode, payload }) = self.frame() {
            if matches!(opcode, 1 | 2 | 8) && !self.send(frame(opcode, payload)) {
                return;
            }
            if opcode == 8 {
                return;
            }
        }
    }
}

/// A whole frame of a server.
pub fn frame(opcode: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    raw_frame(0x80 | opcode, payload.as_ref().len() as u64, payload.as_ref())
}

/// A frame with any first byte and any length field.
pub fn raw_frame(first: u8, length: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match length {
        0..=125 => out.push(length as u8),
        126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

pub fn close(code: u16) -> Vec<u8> {
    frame(8, code.to_be_bytes())
}

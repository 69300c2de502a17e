//! Raw bytes over a TCP socket, and all responses until the server closes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType};
use serde_json::Value;
use simurgh::Endpoint;

use super::WAIT_MAX;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let named = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim()).next()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A request with a body, for localhost unless the headers name another host.
pub fn request(line: &str, headers: &str, body: &str) -> String {
    let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
    format!("{line} HTTP/1.1\r\n{host}{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// The answer to a request on a connection of its own.
pub fn ask(address: SocketAddr, line: &str, headers: &str, body: &str) -> Answer {
    Raw::connect(address).send(request(line, headers, body)).answer()
}

/// JSON of the server's own pages, for this machine.
#[track_caller]
pub fn get(endpoint: &Endpoint, path: &str) -> Value {
    let answer = ask(endpoint.addresses()[0], &format!("GET {path}"), "", "");
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    answer.json()
}

/// Repeats `get` until the answer is the wanted one.
#[track_caller]
pub fn wait_for(endpoint: &Endpoint, path: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
    let until = Instant::now() + WAIT_MAX;
    loop {
        let answer = get(endpoint, path);
        if wanted(&answer) {
            return answer;
        }
        assert!(Instant::now() < until, "{path} stays at {answer:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A client that sends what no library would.
pub struct Raw {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Raw {
    pub fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).unwrap())
    }

    /// From a loopback address.
    pub fn connect_from(source: &str, address: SocketAddr) -> Self {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let source = SocketAddr::new(source.parse().unwrap(), 0);
        rustix::net::bind(&socket, &source).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Self::of(socket.into())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Sends as long as the server accepts it; it may already have closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    pub fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes with a reset.
    pub fn reset(self) {
        set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    pub fn answer(&mut self) -> Answer {
        self.next(true).expect("the server closed without an answer")
    }

    pub fn answer_to_head(&mut self) -> Answer {
        self.next(false).expect("the server closed without an answer")
    }

    pub fn until_the_end(&mut self) -> Vec<Answer> {
        let mut all = Vec::new();
        while let Some(answer) = self.next(true) {
            all.push(answer);
        }
        all
    }

    /// The next response, if one comes before the server closes or resets.
    pub fn answer_or_end(&mut self) -> Option<Answer> {
        self.next(true)
    }

    /// Whether the server closes, or resets, without another byte.
    pub fn is_closed_within(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => return false,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(_) => {}
            }
        }
    }

    /// Whether something can be read, or the server has closed, without waiting.
    pub fn has_answer(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    pub fn count_until_the_end(&mut self) -> usize {
        let mut all = std::mem::take(&mut self.received).len();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return all,
                Ok(count) => all += count,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn next(&mut self, has_body: bool) -> Option<Answer> {
        let head_bytes = loop {
            match self.received.windows(4).position(|at| at == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None if self.fill() == 0 => {
                    let rest = String::from_utf8_lossy(&self.received);
                    assert!(rest.is_empty(), "half an answer: {rest:?}");
                    return None;
                }
                None => {}
            }
        };
        let head: Vec<u8> = self.received.drain(..head_bytes).collect();
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect(&head);
        let mut answer = Answer { status, head, body: Vec::new() };
        if !has_body || status == 304 {
            return Some(answer);
        }
        if answer.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk() {
                answer.body.extend(chunk);
            }
            return Some(answer);
        }
        let length: usize = answer.header("content-length").map_or(0, |it| it.parse().unwrap());
        answer.body = self.take(length);
        Some(answer)
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = loop {
            match self.received.windows(2).position(|at| at == b"\r\n") {
                Some(at) => break self.take(at + 2),
                None => assert!(self.fill() > 0, "half a chunk"),
            }
        };
        let size = usize::from_str_radix(str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = self.take(size + 2);
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        while self.received.len() < bytes {
            assert!(self.fill() > 0, "closed in the middle of an answer");
        }
        self.received.drain(..bytes).collect()
    }

    fn fill(&mut self) -> usize {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                count
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}; received {:?}", String::from_utf8_lossy(&self.received)),
        }
    }
}

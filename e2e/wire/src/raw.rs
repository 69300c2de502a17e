//! Bytes on a TCP connection: HTTP heads and WebSocket frames as wrong as a test wants them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::Value;

use crate::{WAIT, shortened};

/// WebSocket opcodes.
pub mod opcode {
    /// The rest of a message.
    pub const CONTINUATION: u8 = 0;
    /// UTF-8 text.
    pub const TEXT: u8 = 1;
    /// Any bytes.
    pub const BINARY: u8 = 2;
    /// The end.
    pub const CLOSE: u8 = 8;
    /// To be answered by a pong.
    pub const PING: u8 = 9;
    /// Answers a ping.
    pub const PONG: u8 = 10;
}

/// A frame to be sent; every bit can be set. [`frame`] makes a proper one.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Last frame of its message.
    pub fin: bool,
    /// The three reserved bits, `0b100` being RSV1.
    pub rsv: u8,
    /// See [`opcode`].
    pub opcode: u8,
    /// Whether the payload is masked, as a client has to do.
    pub masked: bool,
    /// The length to declare, when it is not the payload's own.
    pub declared: Option<u64>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// A proper whole frame of a client.
pub fn frame(opcode: u8, payload: impl AsRef<[u8]>) -> Frame {
    let payload = payload.as_ref().to_vec();
    Frame { fin: true, rsv: 0, opcode, masked: true, declared: None, payload }
}

impl Frame {
    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
        let length = self.declared.unwrap_or(self.payload.len() as u64);
        let mask_bit = u8::from(self.masked) << 7;
        let mut out = vec![u8::from(self.fin) << 7 | self.rsv << 4 | self.opcode];
        match length {
            0..=125 => out.push(mask_bit | length as u8),
            126..=0xffff => {
                out.push(mask_bit | 126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                out.push(mask_bit | 127);
                out.extend_from_slice(&length.to_be_bytes());
            }
        }
        if self.masked {
            out.extend_from_slice(&KEY);
            out.extend(self.payload.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
        } else {
            out.extend_from_slice(&self.payload);
        }
        out
    }

    /// The code of a close frame; 1005 when it has none.
    ///
    /// # Panics
    /// When this is not a close frame.
    #[track_caller]
    pub fn close_code(&self) -> u16 {
        assert_eq!(self.opcode, opcode::CLOSE, "no close frame: {self:?}");
        match self.payload[..] {
            [high, low, ..] => u16::from_be_bytes([high, low]),
            _ => 1005,
        }
    }
}

/// The head of an HTTP request, to be bent.
#[derive(Debug, Clone)]
pub struct Head {
    /// Method, target and version.
    pub line: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// A request with nothing but its Host.
    pub fn new(method: &str, target: &str) -> Head {
        let headers = vec![("host".to_owned(), "127.0.0.1".to_owned())];
        Head { line: format!("{method} {target} HTTP/1.1"), headers }
    }

    /// A proper WebSocket upgrade.
    pub fn upgrade(target: &str) -> Head {
        Head::new("GET", target)
            .set("connection", "Upgrade")
            .set("upgrade", "websocket")
            .set("sec-websocket-version", "13")
            .set("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    }

    /// Sets or replaces a header.
    pub fn set(mut self, name: &str, value: &str) -> Head {
        self = self.without(name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes a header away.
    pub fn without(mut self, name: &str) -> Head {
        self.headers.retain(|(n, _)| n != name);
        self
    }

    /// Replaces method, target and version.
    pub fn line(mut self, line: &str) -> Head {
        self.line = line.to_owned();
        self
    }

    /// The head as sent, the empty line included.
    pub fn text(&self) -> String {
        let mut text = format!("{}\r\n", self.line);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text + "\r\n"
    }
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, transfer coding taken off.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    ///
    /// # Panics
    /// When it is none.
    #[track_caller]
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("a body of text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A TCP connection with what has been read ahead.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The server has accepted permessage-deflate: frames may have RSV1.
    has_deflate: bool,
}

impl Raw {
    /// Connects; sends and receives nothing.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Raw {
        let stream = TcpStream::connect_timeout(&addr, WAIT)
            .unwrap_or_else(|error| panic!("connect to {addr}: {error}"));
        Raw::over(stream)
    }

    /// Connects from a loopback address.
    pub fn connect_from(source: &str, addr: SocketAddr) -> Raw {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let source = SocketAddr::new(source.parse().expect("an address"), 0);
        bind(&socket, &source).expect("a port of this address");
        connect(&socket, &addr).expect("a listener");
        Raw::over(socket.into())
    }

    /// Takes over a connection.
    pub fn over(stream: TcpStream) -> Raw {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_write_timeout(Some(WAIT)).expect("a write time limit");
        Raw { stream, buffer: Vec::new(), has_deflate: false }
    }

    /// The connection below.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Connects and upgrades `path`.
    ///
    /// # Panics
    /// When the answer is not 101.
    #[track_caller]
    pub fn websocket(server: SocketAddr, path: &str) -> Raw {
        let mut raw = Raw::connect(server);
        let response = raw.request(&Head::upgrade(path));
        assert_eq!(response.status, 101, "upgrade of {path}: {response:?}");
        raw
    }

    /// Sends a head without a body and reads the answer.
    #[track_caller]
    pub fn request(&mut self, head: &Head) -> Response {
        self.send(head.text().as_bytes());
        self.answer()
    }

    /// Sends bytes.
    ///
    /// # Panics
    /// When they cannot be written within [`WAIT`].
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Raw {
        self.stream.write_all(bytes.as_ref()).expect("bytes can be sent");
        self
    }

    /// Sends bytes to a peer that may have closed; whether it took all.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a frame.
    #[track_caller]
    pub fn send_frame(&mut self, frame: &Frame) {
        self.send(frame.bytes());
    }

    /// Reads one HTTP answer, its body included.
    ///
    /// # Panics
    /// When none comes within [`WAIT`], or something else does.
    #[track_caller]
    pub fn answer(&mut self) -> Response {
        self.answer_or_end().expect("the connection ended without an answer")
    }

    /// The answer to a `HEAD` or an upgrade, without a body.
    #[track_caller]
    pub fn answer_to_head(&mut self) -> Response {
        self.next_answer(false).expect("the connection ended without an answer")
    }

    /// The next answer, if one comes before the end.
    #[track_caller]
    pub fn answer_or_end(&mut self) -> Option<Response> {
        self.next_answer(true)
    }

    /// All answers until the connection ends.
    #[track_caller]
    pub fn until_the_end(&mut self) -> Vec<Response> {
        std::iter::from_fn(|| self.answer_or_end()).collect()
    }

    #[track_caller]
    fn next_answer(&mut self, has_body: bool) -> Option<Response> {
        let deadline = Instant::now() + WAIT;
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.read_some("an HTTP answer", deadline) {
                assert!(self.buffer.is_empty(), "half an answer: {:?}", self.shown());
                return None;
            }
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let line = lines.next().unwrap_or_default().strip_prefix("HTTP/1.").unwrap_or_default();
        let status = line.get(2..5).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no HTTP answer: {}", shortened(&head)));
        let headers = lines
            .filter_map(|l| l.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut response = Response { status, headers, body: Vec::new() };
        self.has_deflate = response.header("sec-websocket-extensions").is_some();
        if has_body && status >= 200 && status != 204 && status != 304 {
            response.body = self.body(&response, deadline);
        }
        Some(response)
    }

    /// Whether something can be read, or the connection has ended, without waiting.
    pub fn has_answer(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("non-blocking");
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("blocking");
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Whether the connection ends, by FIN or reset, without another byte.
    pub fn is_closed_within(&mut self, time: Duration) -> bool {
        !self.is_silent_for(time) && matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    /// The number of bytes until the connection ends.
    pub fn count_until_the_end(&mut self) -> usize {
        let (mut count, deadline) = (0, Instant::now() + WAIT);
        loop {
            count += std::mem::take(&mut self.buffer).len();
            if !self.read_some("the end of the connection", deadline) {
                return count;
            }
        }
    }

    /// The next frame of the server.
    ///
    /// # Panics
    /// When none comes within [`WAIT`], or one that no server may send (masked, reserved bits).
    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        match self.next_frame(Instant::now() + WAIT) {
            Some(frame) => frame,
            None => panic!("awaited a frame, but the connection ended"),
        }
    }

    /// The next frame, or nothing when the connection ends instead.
    ///
    /// # Panics
    /// When neither happens before `deadline`.
    #[track_caller]
    pub fn next_frame(&mut self, deadline: Instant) -> Option<Frame> {
        loop {
            if let Some((frame, length)) = whole_frame(&self.buffer) {
                let allowed = if self.has_deflate { 0b100 } else { 0 };
                assert_eq!(frame.rsv & !allowed, 0, "reserved bits without an extension");
                self.buffer.drain(..length);
                return Some(frame);
            }
            if !self.read_some("a frame", deadline) {
                return None;
            }
        }
    }

    /// Asserts that the next frame is a close, answers it, asserts that the server then ends the
    /// connection, and gives the code.
    ///
    /// # Panics
    /// When anything else comes.
    #[track_caller]
    pub fn expect_close(&mut self) -> u16 {
        let close = self.frame();
        let code = close.close_code();
        // The server may have ended the connection already; then this fails, and may.
        self.try_send(frame(opcode::CLOSE, &close.payload).bytes());
        self.expect_end();
        code
    }

    /// Asserts that the connection ends and nothing more comes before.
    ///
    /// # Panics
    /// When it stays open or bytes come.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let deadline = Instant::now() + WAIT;
        while self.read_some("the end of the connection", deadline) {}
        assert!(self.buffer.is_empty(), "bytes before the end: {:?}", self.shown());
    }

    /// Reads and forgets until the connection ends; how long that took.
    ///
    /// # Panics
    /// When it stays open for [`WAIT`].
    #[track_caller]
    pub fn drain(&mut self) -> Duration {
        let start = Instant::now();
        while self.read_some("the end of the connection", start + WAIT) {
            self.buffer.clear();
        }
        start.elapsed()
    }

    /// Whether the connection is still open and silent after `time`.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).expect("a read time limit");
        let mut byte = [0];
        let timed_out = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        matches!(self.stream.peek(&mut byte), Err(error) if timed_out(error.kind()))
    }

    /// Ends the connection with a reset instead of a FIN: what a vanished peer leaves behind.
    pub fn reset(self) {
        set_socket_linger(&self.stream, Some(Duration::ZERO)).expect("SO_LINGER 0");
        drop(self.stream);
    }

    /// Sends FIN and goes on reading.
    pub fn finish(&mut self) {
        // It fails only when the server has closed.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn body(&mut self, response: &Response, deadline: Instant) -> Vec<u8> {
        if let Some(length) = response.header("content-length") {
            let length: usize = length.parse().expect("content-length is a number");
            while self.buffer.len() < length {
                self.need_more("the body of an HTTP answer", deadline);
            }
            return self.buffer.drain(..length).collect();
        }
        if response.header("transfer-encoding") == Some("chunked") {
            return self.chunks(deadline);
        }
        while self.read_some("the body of an HTTP answer", deadline) {}
        std::mem::take(&mut self.buffer)
    }

    fn chunks(&mut self, deadline: Instant) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let at = loop {
                if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                    break at;
                }
                self.need_more("a chunk of an HTTP answer", deadline);
            };
            let line = String::from_utf8_lossy(&self.buffer[..at]).into_owned();
            let size = usize::from_str_radix(line.trim(), 16).expect("a chunk size");
            while self.buffer.len() < at + 2 + size + 2 {
                self.need_more("a chunk of an HTTP answer", deadline);
            }
            body.extend_from_slice(&self.buffer[at + 2..at + 2 + size]);
            self.buffer.drain(..at + 2 + size + 2);
            if size == 0 {
                return body;
            }
        }
    }

    #[track_caller]
    fn need_more(&mut self, awaited: &str, deadline: Instant) {
        if !self.read_some(awaited, deadline) {
            panic!("awaited {awaited}, but the connection ended after: {:?}", self.shown());
        }
    }

    /// Reads what is there; false at the end of the connection, be it FIN or reset.
    #[track_caller]
    fn read_some(&mut self, awaited: &str, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut chunk = [0; 64 * 1024];
        self.stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .expect("a read time limit");
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                true
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    panic!("awaited {awaited} in vain; unread so far: {:?}", self.shown())
                }
                ErrorKind::Interrupted => true,
                _ => false,
            },
        }
    }

    fn shown(&self) -> String {
        shortened(&String::from_utf8_lossy(&self.buffer))
    }
}

/// The first frame of `buffer` and its length, when it is there whole.
#[track_caller]
fn whole_frame(buffer: &[u8]) -> Option<(Frame, usize)> {
    let (&first, &second) = (buffer.first()?, buffer.get(1)?);
    let (start, length) = match second & 0x7f {
        126 => (4, u64::from(u16::from_be_bytes(buffer.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(buffer.get(2..10)?.try_into().ok()?)),
        short => (2, u64::from(short)),
    };
    assert_eq!(second & 0x80, 0, "a server may not mask its frames");
    let end = start + usize::try_from(length).expect("a length that fits memory");
    let payload = buffer.get(start..end)?.to_vec();
    let (fin, opcode) = (first & 0x80 != 0, first & 0x0f);
    let rsv = first >> 4 & 7;
    Some((Frame { fin, rsv, opcode, masked: false, declared: None, payload }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_three_length_forms_round_trip() {
        for length in [0, 1, 125, 126, 65_535, 65_536] {
            let mut sent = frame(opcode::BINARY, vec![7; length]);
            sent.masked = false;
            let bytes = sent.bytes();
            let (got, used) = whole_frame(&bytes).expect("a whole frame");
            assert_eq!((got.opcode, got.payload.len(), used), (2, length, bytes.len()));
            assert!(whole_frame(&bytes[..bytes.len() - 1]).is_none());
        }
    }

    #[test]
    fn masking_follows_the_rfc_example() {
        let bytes = frame(opcode::TEXT, "Hello").bytes();
        // RFC 6455 §5.7, "a single-frame masked text message".
        assert_eq!(bytes, [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
    }
}

//! The same streams and handshakes through tungstenite: both must accept and refuse the same.
//!
//! Known differences, kept out of the comparison: we refuse lengths that are not in their shortest
//! form (RFC 6455 §5.2), tungstenite accepts them; we accept close code 1014 (it is in the
//! registry), tungstenite does not.
use std::io::{self, Cursor, Read, Write};

use proptest::prelude::*;
use simurgh_proto::ws::handshake::{
    ClientRequest, HeadLimits, Request, check_response, check_upgrade, client_key, negotiate,
    write_accept,
};
use simurgh_proto::ws::{CloseCode, CloseFrame, Event, FrameLimits, Role};
use tungstenite::protocol::{self, WebSocket, WebSocketConfig};
use tungstenite::{Error, Message, error::ProtocolError};

use crate::common::{RawFrame, decode};
use crate::frames::frames;

/// A connection whose input is complete; our output is kept.
struct Recorded {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Recorded {
    fn new(input: Vec<u8>) -> Self {
        Self { input: Cursor::new(input), output: Vec::new() }
    }
}

impl Read for Recorded {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.input.read(buf)
    }
}

impl Write for Recorded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.output.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Messages up to the first close or error, and whether the stream was refused.
type Verdict = (Vec<Event<'static>>, bool);

fn theirs(role: Role, limits: FrameLimits, stream: Vec<u8>) -> Verdict {
    let config = WebSocketConfig::default()
        .max_frame_size(Some(limits.frame_bytes_max))
        .max_message_size(Some(limits.message_bytes_max));
    let role = match role {
        Role::Server => protocol::Role::Server,
        Role::Client => protocol::Role::Client,
    };
    let mut socket = WebSocket::from_raw_socket(Recorded::new(stream), role, Some(config));
    let mut events = Vec::new();
    loop {
        events.push(match socket.read() {
            Ok(Message::Text(text)) => Event::Text(text.to_string().into()),
            Ok(Message::Binary(bytes)) => Event::Binary(bytes.to_vec().into()),
            Ok(Message::Ping(bytes)) => Event::Ping(bytes.to_vec().into()),
            Ok(Message::Pong(bytes)) => Event::Pong(bytes.to_vec().into()),
            Ok(Message::Close(Some(frame))) => {
                // The reason that tungstenite gives for a code that must not be sent.
                if frame.reason.as_str() == "Protocol violation" {
                    return (events, true);
                }
                let reason = frame.reason.to_string().into();
                Event::Close(Some(CloseFrame { code: CloseCode(frame.code.into()), reason }))
            }
            Ok(Message::Close(None)) => Event::Close(None),
            Ok(Message::Frame(_)) => panic!("never read"),
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
                return (events, false);
            }
            Err(_) => return (events, true),
        });
        if matches!(events.last(), Some(Event::Close(_))) {
            return (events, false);
        }
    }
}

fn ours(role: Role, limits: FrameLimits, stream: &[u8], cuts: &[usize]) -> Verdict {
    let (mut events, error) = decode(role, limits, stream, cuts);
    if let Some(close) = events.iter().position(|event| matches!(event, Event::Close(_))) {
        events.truncate(close + 1);
        return (events, false);
    }
    (events, error.is_some())
}

fn cases() -> impl Strategy<Value = (Role, Vec<RawFrame>)> {
    let roles = prop_oneof![Just(Role::Server), Just(Role::Client)];
    roles.prop_flat_map(|role| (Just(role), frames(role)))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn simurgh_and_tungstenite_accept_and_reject_the_same_streams(
        (role, frames) in cases(),
        small in any::<bool>(),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let known = |frame: &RawFrame| {
            frame.first & 0x0f == 8 && frame.payload.starts_with(&1014_u16.to_be_bytes())
        };
        prop_assume!(!frames.iter().any(known));
        let limits = if small {
            FrameLimits { frame_bytes_max: 130, message_bytes_max: 300 }
        } else {
            FrameLimits::default()
        };
        let mut stream = Vec::new();
        for frame in &frames {
            frame.write(&mut stream);
        }
        prop_assert_eq!(ours(role, limits, &stream, &cuts), theirs(role, limits, stream));
    }
}

#[test]
fn tungstenite_server_and_simurgh_client_complete_a_handshake() {
    let key = client_key([7; 16]);
    let mut request = Vec::new();
    ClientRequest {
        host: "localhost:4000",
        target: "/socket/websocket?vsn=2.0.0",
        origin: None,
        subprotocols: &[],
        key: &key,
        deflate: true,
        headers: &[("x-more", "1")],
    }
    .write(&mut request);
    let socket = tungstenite::accept(Recorded::new(request)).unwrap();
    let answer = &socket.get_ref().output;
    let (response, head_bytes) = check_response(answer, &key, &[], true).unwrap().unwrap();
    assert_eq!((response.status, head_bytes), (101, answer.len()));
}

/// A peer that answers a request with our server's handshake, followed by one frame.
struct OurServer {
    request: Vec<u8>,
    answer: Option<Cursor<Vec<u8>>>,
}

impl Read for OurServer {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let request = &self.request;
        let answer = self.answer.get_or_insert_with(|| {
            let parsed = Request::parse(request, &HeadLimits::default()).unwrap();
            let (request, _) = parsed.expect("a whole request");
            let upgrade = check_upgrade(&request).unwrap();
            let negotiated = negotiate(&request, &[], true).unwrap();
            assert_eq!(negotiated.token.as_deref(), Some("123"));
            let mut out = Vec::new();
            write_accept(&upgrade, negotiated.subprotocol, None, &mut out);
            out.extend_from_slice(b"\x81\x05Hello");
            Cursor::new(out)
        });
        answer.read(buf)
    }
}

impl Write for OurServer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.request.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn tungstenite_client_and_simurgh_server_complete_a_handshake() {
    use tungstenite::client::IntoClientRequest as _;
    let mut request = "ws://localhost:4000/socket/websocket".into_client_request().unwrap();
    let offered = "phoenix, base64url.bearer.phx.MTIz";
    request.headers_mut().insert("Sec-WebSocket-Protocol", offered.parse().unwrap());
    let stream = OurServer { request: Vec::new(), answer: None };
    let (mut socket, response) = tungstenite::client(request, stream).unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "phoenix");
    assert_eq!(socket.read().unwrap(), Message::text("Hello"));
}

//! The messages of this benchmark, and whether received ones equal the sent ones.
//!
//! Each message has its publisher and its number; its body repeats one byte. So a reader that knows
//! the length of a body can compare every message with the sent one without keeping it.

use std::net::SocketAddrV4;

use simurgh_bench_kit::clients::Script;
use simurgh_bench_kit::frames::{self, SEQ_DIGITS, numeral};

/// The body's byte, as often as it is compared at once.
const FILLING: [u8; 4096] = [b'x'; 4096];
/// Publishers, and the messages of each, are numbered below this.
pub(super) const NUMBERS_END: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Serializer {
    /// Objects.
    V1,
    /// Arrays.
    V2,
}

impl Serializer {
    pub(super) const ALL: [Self; 2] = [Self::V1, Self::V2];
}

/// The published events: those of `SETTINGS` in `server.rs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    /// As in the chat: to all, and the body once more in the answer.
    Chat,
    /// To all; the answer is empty.
    Say,
    /// To no member; the answer is empty.
    Hush,
}

impl Event {
    const fn name(self) -> &'static str {
        match self {
            Self::Chat => "new:msg",
            Self::Say => "say",
            Self::Hush => "hush",
        }
    }
}

/// A topic for clients of one serializer, and the one event that is published there.
pub(super) struct Room {
    pub(super) server: SocketAddrV4,
    pub(super) script: Script,
    /// The payload of the answer to the join.
    pub(super) joined: Vec<u8>,
    push: Template,
    broadcast: Template,
    answer: Template,
}

#[derive(Debug, PartialEq)]
pub(super) enum Message {
    /// A broadcast, equal to the byte.
    Broadcast {
        from: u32,
        number: u32,
        body: usize,
    },
    Answered {
        number: u32,
        /// Bytes of the body in the answer.
        body: usize,
    },
    Heartbeat,
    Refused,
    Odd,
}

impl Room {
    /// A room with the topic `rooms:` and `name`.
    pub(super) fn new(
        server: SocketAddrV4,
        serializer: Serializer,
        name: &str,
        event: Event,
    ) -> Self {
        let topic = format!("rooms:{name}");
        let event = event.name();
        let (query, push, broadcast, joined) = match serializer {
            Serializer::V1 => (
                "",
                r##"{"topic":"TOPIC","event":"EVENT","ref":"#","payload":@}"##,
                r##"{"topic":"TOPIC","event":"EVENT","payload":@,"ref":null}"##,
                concat!(
                    r##"{"topic":"TOPIC","event":"phx_reply","##,
                    r##""payload":{"status":"ok","response":{}},"ref":"000000"}"##
                ),
            ),
            Serializer::V2 => (
                "?vsn=2.0.0",
                r##"["1","#","TOPIC","EVENT",@]"##,
                r##"[null,null,"TOPIC","EVENT",@]"##,
                r##"["1","000000","TOPIC","phx_reply",{"status":"ok","response":{}}]"##,
            ),
        };
        let template = |text: &str, event: &str| {
            Template::new(&text.replace("TOPIC", &topic).replace("EVENT", event))
        };
        let join = frames::text(&template(push, "phx_join").text(0, b"{}"));
        let path = format!("/socket/websocket{query}");
        let upgrade = frames::upgrade_request(&path, &server.to_string(), "");
        // Members that speak V1 read no answers after that of their join.
        let answer = r##"["1","#","TOPIC","phx_reply",{"status":"ok","response":@}]"##;
        Self {
            server,
            script: Script { upgrade, join },
            joined: joined.replace("TOPIC", &topic).into_bytes(),
            push: template(push, event),
            broadcast: template(broadcast, event),
            answer: template(answer, ""),
        }
    }

    /// Appends the frame of publisher `from`'s push `number`, with a body of `body` bytes.
    pub(super) fn push(&self, from: u32, number: u32, body: usize, out: &mut Vec<u8>) {
        let filling = vec![b'x'; body];
        let (from, ours) = (frames::digits(from), frames::digits(number));
        let payload: [&[u8]; 7] =
            [FROM.as_bytes(), &from, NUMBER.as_bytes(), &ours, BODY.as_bytes(), &filling, b"\"}"];
        let mut text = Vec::with_capacity(body + 200);
        self.push.write(number, &payload, &mut text);
        frames::masked(frames::TEXT, &text, out);
    }

    pub(super) fn push_text(&self, number: u32, payload: &str) -> Vec<u8> {
        frames::text(&self.push.text(number, payload.as_bytes()))
    }

    /// The broadcast of a push with this payload.
    pub(super) fn broadcast_text(&self, payload: &str) -> Vec<u8> {
        self.broadcast.text(0, payload.as_bytes())
    }

    pub(super) fn answer_text(&self, number: u32, response: &str) -> Vec<u8> {
        self.answer.text(number, response.as_bytes())
    }

    pub(super) fn read(&self, text: &[u8]) -> Message {
        if let Some((_, payload)) = self.broadcast.read(text) {
            return broadcast(payload).unwrap_or(Message::Odd);
        }
        if let Some((number, response)) = self.answer.read(text) {
            let body = match response {
                b"{}" => Some(0),
                _ => response
                    .strip_prefix(b"{\"msg\":\"")
                    .and_then(|rest| filled(rest.strip_suffix(b"\"}")?)),
            };
            return body.map_or(Message::Odd, |body| Message::Answered { number, body });
        }
        match frames::classify(text) {
            frames::Kind::Reply(true) if text == frames::HEARTBEAT_REPLY => Message::Heartbeat,
            frames::Kind::Reply(false) => Message::Refused,
            _ => Message::Odd,
        }
    }
}

const FROM: &str = "{\"from\":\"";
const NUMBER: &str = "\",\"number\":\"";
const BODY: &str = "\",\"body\":\"";

fn broadcast(payload: &[u8]) -> Option<Message> {
    let rest = payload.strip_prefix(FROM.as_bytes())?;
    let (from, rest) = rest.split_first_chunk::<SEQ_DIGITS>()?;
    let rest = rest.strip_prefix(NUMBER.as_bytes())?;
    let (number, rest) = rest.split_first_chunk::<SEQ_DIGITS>()?;
    let body = filled(rest.strip_prefix(BODY.as_bytes())?.strip_suffix(b"\"}")?)?;
    Some(Message::Broadcast { from: numeral(from)?, number: numeral(number)?, body })
}

/// The length of a body that has only the filling.
fn filled(body: &[u8]) -> Option<usize> {
    let is_filled = body.chunks(FILLING.len()).all(|chunk| FILLING.starts_with(chunk));
    is_filled.then_some(body.len())
}

/// A message with a place for its content (`@`), and before that perhaps one for a number (`#`).
struct Template {
    before: Vec<u8>,
    /// Between the number and the content.
    between: Option<Vec<u8>>,
    after: Vec<u8>,
}

impl Template {
    fn new(text: &str) -> Self {
        let (left, after) = text.split_once('@').unwrap_or((text, ""));
        let (before, between) = match left.split_once('#') {
            Some((before, between)) => (before, Some(between.into())),
            None => (left, None),
        };
        Self { before: before.into(), between, after: after.into() }
    }

    fn write(&self, number: u32, content: &[&[u8]], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.before);
        if let Some(between) = &self.between {
            out.extend_from_slice(&frames::digits(number));
            out.extend_from_slice(between);
        }
        content.iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(&self.after);
    }

    fn text(&self, number: u32, content: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        self.write(number, &[content], &mut text);
        text
    }

    /// Number and content of a text that was written from this template.
    fn read<'a>(&self, text: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let inner = text.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        let Some(between) = &self.between else { return Some((0, inner)) };
        let (digits, rest) = inner.split_first_chunk::<SEQ_DIGITS>()?;
        Some((numeral(digits)?, rest.strip_prefix(&**between)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(serializer: Serializer, event: Event) -> Room {
        Room::new("127.77.0.1:9".parse().unwrap(), serializer, "a", event)
    }

    #[test]
    fn only_exact_broadcasts_are_parsed() {
        for serializer in Serializer::ALL {
            let room = room(serializer, Event::Say);
            let payload = r#"{"from":"000003","number":"000009","body":"xxxxx"}"#;
            let text = room.broadcast_text(payload);
            assert_eq!(room.read(&text), Message::Broadcast { from: 3, number: 9, body: 5 });
            // Each byte changed and each byte left out must show.
            for at in 0..text.len() {
                let mut changed = text.clone();
                changed[at] ^= 1;
                let found = room.read(&changed);
                let is_digit = text[at].is_ascii_digit();
                assert!(found == Message::Odd || is_digit, "{at}: {found:?}");
                assert_ne!(found, Message::Broadcast { from: 3, number: 9, body: 5 }, "{at}");
                let mut shorter = text.clone();
                shorter.remove(at);
                assert_ne!(room.read(&shorter), Message::Broadcast { from: 3, number: 9, body: 5 });
            }
        }
    }

    #[test]
    fn replies_are_classified() {
        let room = room(Serializer::V2, Event::Chat);
        let answer = |response: &str| room.read(&room.answer_text(41, response));
        assert_eq!(answer("{}"), Message::Answered { number: 41, body: 0 });
        assert_eq!(answer("{\"msg\":\"xxx\"}"), Message::Answered { number: 41, body: 3 });
        assert_eq!(answer("{\"msg\":\"xyx\"}"), Message::Odd);
        assert_eq!(room.read(frames::HEARTBEAT_REPLY), Message::Heartbeat);
        assert_eq!(room.read(b"hello"), Message::Odd);
        let refused = br#"["1","2","rooms:a","phx_reply",{"status":"error","response":{}}]"#;
        assert_eq!(room.read(refused), Message::Refused);
    }
}

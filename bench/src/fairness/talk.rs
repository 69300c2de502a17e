//! What is said in the rooms of this benchmark, and whether what comes back is just that.
//!
//! Each message bears who said it and its number; its body is one byte again and again. So a reader
//! that knows how long a body must be can hold every message against what was sent, to the byte,
//! without keeping it.

use std::net::SocketAddrV4;

use simurgh_bench_kit::fleet::Script;
use simurgh_bench_kit::frames::{self, SEQ_DIGITS};

/// The byte that bodies consist of, as often as it is compared at once.
const FILLING: [u8; 4096] = [b'x'; 4096];
/// Publishers, and messages of each, are numbered below this.
pub(super) const NUMBERS_END: u32 = 1_000_000;

/// A serializer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wire {
    /// Objects.
    V1,
    /// Arrays.
    V2,
}

impl Wire {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::V1, Self::V2];
}

/// What is said: the events of `SETTINGS` in `server.rs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    /// As in the chat: to all, and the body once more in the answer.
    Chat,
    /// To all; the answer is empty.
    Say,
    /// To nobody; the answer is empty.
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

/// A topic as clients of one serializer see it, and the one thing that is said there.
pub(super) struct Room {
    /// Where it is.
    pub(super) server: SocketAddrV4,
    /// How to get in.
    pub(super) script: Script,
    /// The payload of the answer to the join.
    pub(super) joined: Vec<u8>,
    push: Template,
    said: Template,
    answer: Template,
}

/// What a message of the server is.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// What somebody said, to the byte.
    Said {
        /// Who.
        from: u32,
        /// Its number among what they said.
        number: u32,
        /// Bytes of its body.
        body: usize,
    },
    /// The answer to what this client said.
    Answered {
        /// The number of that.
        number: u32,
        /// Bytes of the body that comes back with it.
        body: usize,
    },
    /// The answer to a heartbeat.
    Beat,
    /// An answer that says no.
    Refused,
    /// Anything else.
    Odd,
}

impl Room {
    /// A room whose topic is `rooms:` and `name`.
    pub(super) fn new(server: SocketAddrV4, wire: Wire, name: &str, event: Event) -> Self {
        let topic = format!("rooms:{name}");
        let said = event.name();
        let (query, push, broadcast, answer) = match wire {
            Wire::V1 => (
                "",
                r##"{"topic":"TOPIC","event":"EVENT","payload":@,"ref":"#"}"##,
                r##"{"topic":"TOPIC","event":"EVENT","payload":@,"ref":null}"##,
                concat!(
                    r##"{"topic":"TOPIC","event":"phx_reply","##,
                    r##""payload":{"status":"ok","response":@},"ref":"#"}"##
                ),
            ),
            Wire::V2 => (
                "?vsn=2.0.0",
                r##"["1","#","TOPIC","EVENT",@]"##,
                r##"[null,null,"TOPIC","EVENT",@]"##,
                r##"["1","#","TOPIC","phx_reply",{"status":"ok","response":@}]"##,
            ),
        };
        let template = |text: &str, event: &str| {
            Template::new(&text.replace("TOPIC", &topic).replace("EVENT", event))
        };
        let (push_template, answer) = (template(push, said), template(answer, ""));
        let (mut text, mut join, mut joined) = (Vec::new(), Vec::new(), Vec::new());
        template(push, "phx_join").write(0, &[b"{}"], &mut text);
        frames::masked(frames::TEXT, &text, &mut join);
        answer.write(0, &[b"{}"], &mut joined);
        let path = format!("/socket/websocket{query}");
        let upgrade = frames::upgrade_request(&path, &server.to_string(), "");
        Self {
            server,
            script: Script { upgrade, join },
            joined,
            push: push_template,
            said: template(broadcast, said),
            answer,
        }
    }

    /// Appends the frame by which publisher `from` says its message `number`, with a body of so
    /// many bytes.
    pub(super) fn say(&self, from: u32, number: u32, body: usize, out: &mut Vec<u8>) {
        let filling = vec![b'x'; body];
        let (from, ours) = (frames::digits(from), frames::digits(number));
        let payload: [&[u8]; 7] =
            [FROM.as_bytes(), &from, NUMBER.as_bytes(), &ours, BODY.as_bytes(), &filling, b"\"}"];
        let mut text = Vec::with_capacity(body + 200);
        self.push.write(number, &payload, &mut text);
        frames::masked(frames::TEXT, &text, out);
    }

    /// The frame of a push with this payload.
    pub(super) fn say_text(&self, number: u32, payload: &str) -> Vec<u8> {
        let (mut text, mut frame) = (Vec::new(), Vec::new());
        self.push.write(number, &[payload.as_bytes()], &mut text);
        frames::masked(frames::TEXT, &text, &mut frame);
        frame
    }

    /// What all hear of a push with this payload.
    pub(super) fn said_text(&self, payload: &str) -> Vec<u8> {
        let mut text = Vec::new();
        self.said.write(0, &[payload.as_bytes()], &mut text);
        text
    }

    /// An answer that says yes.
    pub(super) fn answer_text(&self, number: u32, response: &str) -> Vec<u8> {
        let mut text = Vec::new();
        self.answer.write(number, &[response.as_bytes()], &mut text);
        text
    }

    /// What a text from the server is.
    pub(super) fn hear(&self, text: &[u8]) -> Heard {
        if let Some((_, payload)) = self.said.read(text) {
            return said(payload).unwrap_or(Heard::Odd);
        }
        if let Some((number, response)) = self.answer.read(text) {
            let body = match response {
                b"{}" => Some(0),
                _ => response
                    .strip_prefix(b"{\"msg\":\"")
                    .and_then(|rest| filled(rest.strip_suffix(b"\"}")?)),
            };
            return body.map_or(Heard::Odd, |body| Heard::Answered { number, body });
        }
        match frames::classify(text) {
            frames::Kind::Reply(true) if text == frames::HEARTBEAT_REPLY => Heard::Beat,
            frames::Kind::Reply(false) => Heard::Refused,
            _ => Heard::Odd,
        }
    }
}

const FROM: &str = "{\"from\":\"";
const NUMBER: &str = "\",\"number\":\"";
const BODY: &str = "\",\"body\":\"";

/// The payload of something that was said.
fn said(payload: &[u8]) -> Option<Heard> {
    let rest = payload.strip_prefix(FROM.as_bytes())?;
    let (from, rest) = rest.split_first_chunk::<SEQ_DIGITS>()?;
    let rest = rest.strip_prefix(NUMBER.as_bytes())?;
    let (number, rest) = rest.split_first_chunk::<SEQ_DIGITS>()?;
    let body = filled(rest.strip_prefix(BODY.as_bytes())?.strip_suffix(b"\"}")?)?;
    Some(Heard::Said { from: numeral(from)?, number: numeral(number)?, body })
}

/// How long a body is that holds nothing else.
fn filled(body: &[u8]) -> Option<usize> {
    let is_filled = body.chunks(FILLING.len()).all(|chunk| FILLING.starts_with(chunk));
    is_filled.then_some(body.len())
}

fn numeral(digits: &[u8; SEQ_DIGITS]) -> Option<u32> {
    digits.iter().try_fold(0, |n, digit| {
        digit.is_ascii_digit().then(|| n * 10 + u32::from(digit.wrapping_sub(b'0')))
    })
}

/// A message with a place for a number (`#`) and one for its content (`@`), or for that alone.
struct Template {
    before: Vec<u8>,
    between: Vec<u8>,
    after: Vec<u8>,
    number: Place,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    BeforeContent,
    BehindContent,
    None,
}

impl Template {
    fn new(text: &str) -> Self {
        let (left, right) = text.split_once('@').unwrap_or((text, ""));
        let (before, between, after, number) = if let Some((before, between)) = left.split_once('#')
        {
            (before, between, right, Place::BeforeContent)
        } else if let Some((between, after)) = right.split_once('#') {
            (left, between, after, Place::BehindContent)
        } else {
            (left, "", right, Place::None)
        };
        let [before, between, after] = [before, between, after].map(|text| text.as_bytes().into());
        Self { before, between, after, number }
    }

    fn write(&self, number: u32, content: &[&[u8]], out: &mut Vec<u8>) {
        let digits = frames::digits(number);
        out.extend_from_slice(&self.before);
        if self.number == Place::BeforeContent {
            out.extend_from_slice(&digits);
            out.extend_from_slice(&self.between);
        }
        content.iter().for_each(|part| out.extend_from_slice(part));
        if self.number == Place::BehindContent {
            out.extend_from_slice(&self.between);
            out.extend_from_slice(&digits);
        }
        out.extend_from_slice(&self.after);
    }

    /// Number and content of a text that was written from this.
    fn read<'a>(&self, text: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let inner = text.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        match self.number {
            Place::None => Some((0, inner)),
            Place::BeforeContent => {
                let (digits, rest) = inner.split_first_chunk::<SEQ_DIGITS>()?;
                Some((numeral(digits)?, rest.strip_prefix(&*self.between)?))
            }
            Place::BehindContent => {
                let (rest, digits) = inner.split_last_chunk::<SEQ_DIGITS>()?;
                Some((numeral(digits)?, rest.strip_suffix(&*self.between)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(wire: Wire, event: Event) -> Room {
        Room::new("127.77.0.1:9".parse().unwrap(), wire, "a", event)
    }

    #[test]
    fn messages_are_those_of_the_two_serializers() {
        let chat = room(Wire::V2, Event::Chat);
        let (frame, said) = (chat.say_text(7, "{}"), chat.said_text("{}"));
        assert_eq!(said, br#"[null,null,"rooms:a","new:msg",{}]"#);
        let mut expected = Vec::new();
        let push = br#"["1","000007","rooms:a","new:msg",{}]"#;
        frames::masked(frames::TEXT, push, &mut expected);
        assert_eq!(frame, expected);
        let said = room(Wire::V1, Event::Say).said_text("{}");
        assert_eq!(said, br#"{"topic":"rooms:a","event":"say","payload":{},"ref":null}"#);
        let joined = room(Wire::V1, Event::Say).joined;
        let payload = r#"{"status":"ok","response":{}}"#;
        let text = format!(
            r#"{{"topic":"rooms:a","event":"phx_reply","payload":{payload},"ref":"000000"}}"#
        );
        assert_eq!(String::from_utf8(joined).unwrap(), text);
    }

    #[test]
    fn what_was_said_is_heard_to_the_byte_and_nothing_else_is() {
        for wire in Wire::ALL {
            let room = room(wire, Event::Say);
            let payload = r#"{"from":"000003","number":"000009","body":"xxxxx"}"#;
            let said = room.said_text(payload);
            assert_eq!(room.hear(&said), Heard::Said { from: 3, number: 9, body: 5 });
            // Each byte changed and each byte left out must show.
            for at in 0..said.len() {
                let mut changed = said.clone();
                changed[at] ^= 1;
                let heard = room.hear(&changed);
                let is_digit = said[at].is_ascii_digit();
                assert!(heard == Heard::Odd || is_digit, "{at}: {heard:?}");
                assert_ne!(heard, Heard::Said { from: 3, number: 9, body: 5 }, "{at}");
                let mut shorter = said.clone();
                shorter.remove(at);
                assert_ne!(room.hear(&shorter), Heard::Said { from: 3, number: 9, body: 5 });
            }
        }
    }

    #[test]
    fn a_frame_says_what_is_heard() {
        let room = room(Wire::V2, Event::Say);
        let mut frame = Vec::new();
        room.say(3, 9, 70_000, &mut frame);
        let payload: Vec<u8> =
            frame[14..].iter().zip(frames::MASK.iter().cycle()).map(|(a, b)| a ^ b).collect();
        let (number, content) = room.push.read(&payload).unwrap();
        assert_eq!(number, 9);
        assert_eq!(super::said(content), Some(Heard::Said { from: 3, number: 9, body: 70_000 }));
    }

    #[test]
    fn answers_are_told_apart() {
        for wire in Wire::ALL {
            let room = room(wire, Event::Chat);
            let answer = |response: &str| room.hear(&room.answer_text(41, response));
            assert_eq!(answer("{}"), Heard::Answered { number: 41, body: 0 });
            assert_eq!(answer("{\"msg\":\"xxx\"}"), Heard::Answered { number: 41, body: 3 });
            assert_eq!(answer("{\"msg\":\"xyx\"}"), Heard::Odd);
            assert_eq!(room.hear(frames::HEARTBEAT_REPLY), Heard::Beat);
            assert_eq!(room.hear(b"hello"), Heard::Odd);
        }
        let refused = br#"["1","2","rooms:a","phx_reply",{"status":"error","response":{}}]"#;
        assert_eq!(room(Wire::V2, Event::Chat).hear(refused), Heard::Refused);
    }
}

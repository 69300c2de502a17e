//! The messages between clients and servers: topics, refs, and messages in short forms. Numbers
//! stand for topics, refs and payloads.

use simurgh_core::Wire;
use simurgh_data::Key;
use simurgh_proto::message::{Ref, events};
use simurgh_proto::serializer::ServerMessage;
use simurgh_proto::ws::Decoder;

use crate::payload;
use crate::presence::letter_of;

/// No payload, channel or connection.
pub(crate) const NONE: u32 = u32::MAX;
/// Events of broadcasts; interceptors take the first, or the first two.
pub(crate) const EVENTS: [&str; 3] = ["a", "b", "c"];
/// Ids that sockets may have.
pub(crate) const IDS: usize = 3;

/// Names of topics by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topics {
    /// All names; those of rooms come first.
    pub(crate) names: Vec<String>,
    pub(crate) rooms: usize,
    /// The topic that no channel serves, that of heartbeats, and that of plain sockets.
    pub(crate) unmatched: u8,
    pub(crate) phoenix: u8,
    pub(crate) plain: u8,
    /// A topic whose name is too long to be joined.
    pub(crate) over: Option<u8>,
}

/// Longest topic of a join or a broadcast.
pub(crate) const TOPIC_BYTES_MAX: usize = 16 << 10;
/// Longest field of a binary frame.
pub(crate) const FIELD_BYTES_MAX: usize = 255;

impl Topics {
    /// This many rooms, with short names, names about as long as a binary frame has room for, or
    /// about as long as can be joined.
    pub(crate) fn new(rooms: usize, long: u8) -> Self {
        let bytes = |n: usize| match long {
            0 => 7,
            1 => FIELD_BYTES_MAX + [1, 0, 2, 40][n % 4],
            _ => [TOPIC_BYTES_MAX, FIELD_BYTES_MAX + 1, TOPIC_BYTES_MAX - 1, 7][n % 4],
        };
        let name = |bytes: usize, n: usize| format!("rooms:{}{n}", "x".repeat(bytes - 7));
        let mut topics = Self::named((0..rooms).map(|n| name(bytes(n), n)).collect());
        topics.over = (long > 1).then_some(topics.names.len() as u8);
        topics.names.extend(topics.over.map(|_| name(TOPIC_BYTES_MAX + 1, 9)));
        topics
    }

    /// Rooms with these names.
    pub(crate) fn named(mut names: Vec<String>) -> Self {
        let rooms = names.len();
        names.extend(["other:0", "phoenix", "plain:0"].map(str::to_owned));
        names.extend((0..IDS).map(|n| format!("ids:{n}")));
        let [unmatched, phoenix, plain] = [0, 1, 2].map(|n| rooms as u8 + n);
        Self { names, rooms, unmatched, phoenix, plain, over: None }
    }

    /// Whether it can be joined, apart from its length.
    pub(crate) fn is_room(&self, topic: u8) -> bool {
        usize::from(topic) < self.rooms || self.over == Some(topic)
    }

    pub(crate) fn id(&self, n: usize) -> u8 {
        (self.rooms + 3 + n % IDS) as u8
    }

    pub(crate) fn name(&self, topic: u8) -> &str {
        self.names.get(usize::from(topic)).map_or("", |it| it)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u8> {
        self.names.iter().position(|it| it == name).map(|at| at as u8)
    }
}

/// A ref that was not made here.
const STRANGE_REF: u32 = u32::MAX - 7;
/// Numbers of each form.
const EACH: u32 = 10_000_000;
/// Forms other than a number's digits in quotes.
pub(crate) const FORMS: u32 = 5;
/// Bytes of a ref's text, with its quotes, by form; the last form has no entry.
const BYTES: [(u32, usize); 4] = [(1, 1 << 10), (2, (1 << 10) + 1), (3, 258), (4, 257)];
/// The longest ref of a join, with its quotes.
pub(crate) const BYTES_MAX: usize = 1 << 10;

pub(crate) fn in_form(number: u32, form: u32) -> u32 {
    number % EACH + form % (FORMS + 1) * EACH
}

/// The ref of a number; 0 is none.
pub(crate) fn ref_of(number: u32) -> Ref<'static> {
    if number == 0 {
        return Ref::Null;
    }
    let mut text = number.to_string();
    if is_bare(number) {
        return Ref::from_json(text);
    }
    text.extend(std::iter::repeat_n('r', field_bytes(number) - text.len()));
    Ref::from_text(&text)
}

/// The number of a ref; with `is_binary` of a binary frame, where all fields are strings.
pub(crate) fn ref_number(raw: &str, is_binary: bool) -> u32 {
    if matches!(raw, "null" | "\"\"") {
        return 0;
    }
    let inner = raw.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let (number, rest) = crate::payload::number(inner.unwrap_or(raw).as_bytes());
    let has_bytes = || inner.map(str::len) == Some(field_bytes(number));
    let is_right = match is_bare(number) {
        true => rest.is_empty() && (inner.is_none() || is_binary),
        false => has_bytes() && rest.iter().all(|it| *it == b'r'),
    };
    if is_right { number } else { STRANGE_REF }
}

/// Bytes without quotes.
pub(crate) fn field_bytes(number: u32) -> usize {
    let long = BYTES.iter().find(|(form, _)| *form == number / EACH);
    let digits = number.checked_ilog10().map_or(0, |it| it as usize + 1);
    long.map_or(digits, |(_, bytes)| bytes - 2)
}

/// Whether it is too long for a join.
pub(crate) fn is_too_long(number: u32) -> bool {
    number != 0 && !is_bare(number) && field_bytes(number) + 2 > BYTES_MAX
}

fn is_bare(number: u32) -> bool {
    number / EACH == FORMS
}

/// What a client's message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Heartbeat,
    Join,
    Leave,
    /// Any other event.
    Event,
}

/// A message of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) kind: RequestKind,
    pub(crate) topic: u8,
    /// 0 for none.
    pub(crate) join_ref: u32,
    /// 0 for none.
    pub(crate) msg_ref: u32,
    /// The number of its payload.
    pub(crate) id: u32,
}

/// The kinds of messages that a client is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryKind {
    Reply,
    /// A push or a broadcast: V1 cannot tell them apart.
    Event,
    Close,
    Error,
    /// A message without a serializer.
    Raw,
}

/// One message that a client is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) kind: DeliveryKind,
    /// The first letter of the event, or of the status.
    pub(crate) word: u8,
    /// 0 for none.
    pub(crate) join_ref: u32,
    /// 0 for none.
    pub(crate) msg_ref: u32,
    /// The number of the payload.
    pub(crate) id: u32,
}

impl Delivery {
    pub(crate) fn reply(join_ref: u32, msg_ref: u32, word: u8, id: u32) -> Self {
        Self { kind: DeliveryKind::Reply, word, join_ref, msg_ref, id }
    }

    /// A push or a broadcast.
    pub(crate) fn event(word: u8, join_ref: u32, id: u32) -> Self {
        Self { kind: DeliveryKind::Event, word, join_ref, msg_ref: 0, id }
    }

    /// A message without a serializer.
    pub(crate) fn raw(id: u32) -> Self {
        Self { kind: DeliveryKind::Raw, word: 0, join_ref: 0, msg_ref: 0, id }
    }

    /// The same message after encoding for a wire.
    pub(crate) fn on(self, wire: Wire) -> Self {
        match wire {
            Wire::V2 | Wire::V2Deflate | Wire::Values => self,
            Wire::V1 | Wire::V1Deflate => Self { join_ref: 0, ..self },
            Wire::Plain | Wire::PlainDeflate => Self::raw(self.id),
        }
    }

    /// The short form of a server's message, with its topic and the sum of its payload.
    pub(crate) fn of(topics: &Topics, message: &ServerMessage<'_>) -> (Option<u8>, Self, u32) {
        let (kind, word, refs, topic, payload) = match message {
            ServerMessage::Reply { join_ref, msg_ref, topic, status, response } => {
                (DeliveryKind::Reply, letter(status), [join_ref, msg_ref], topic, response)
            }
            ServerMessage::Event(it) => {
                let (kind, word) = match &*it.event {
                    events::CLOSE => (DeliveryKind::Close, 0),
                    events::ERROR => (DeliveryKind::Error, 0),
                    other => (DeliveryKind::Event, letter(other)),
                };
                (kind, word, [&it.join_ref, &it.msg_ref], &it.topic, &it.payload)
            }
        };
        let is_binary = payload.binary().is_some();
        let [join_ref, msg_ref] = refs.map(|it| ref_number(it.raw(), is_binary));
        let it = Self { kind, word, join_ref, msg_ref, id: payload::parse(payload).0 };
        (topics.number(topic), it, payload::sum(payload))
    }
}

/// The letter of an event or a status.
pub(crate) fn letter(word: &str) -> u8 {
    letter_of(word).unwrap_or_else(|| word.as_bytes().first().copied().unwrap_or_default())
}

/// A client's end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) slot: usize,
    pub(crate) shard: usize,
    pub(crate) key: Key,
    /// Its number among all connections.
    pub(crate) number: u32,
    pub(crate) decoder: Decoder,
    pub(crate) wire: Wire,
    /// The ref of its last message.
    pub(crate) refs: u32,
    /// How many messages with refs outside its session it has sent.
    pub(crate) odd: u32,
    /// When its long-poll session was last polled; `None` for other connections.
    pub(crate) polled_ns: Option<u64>,
}

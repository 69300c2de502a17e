//! The server's half of a socket: the kind of an incoming message, and the refs of its answer.
//! Answers are values: a serializer writes them ([`Serializer::server`]), or a transport in the
//! same process uses them directly.
//!
//! All are functions without state: the caller keeps track of joins. Of each successful join it
//! keeps the join_ref as sent (for replies, `phx_close` and [`is_stale`]), its [`push_join_ref`]
//! (for pushes), and the topic.
//!
//! [`Serializer::server`]: crate::serializer::Serializer::server
use alloc::borrow::Cow;

use crate::message::{Message, Payload, Ref, events};
use crate::serializer::ServerMessage;

/// The response to a join whose callback crashed; the socket stays open (PROTOCOL row 22).
pub const JOIN_CRASHED: Payload<'static> = reason(r#"{"reason":"join crashed"}"#);
/// The response to a join that the application has not decided in time.
pub const JOIN_TIMED_OUT: Payload<'static> = reason(r#"{"reason":"join timed out"}"#);
/// The response to a join of a socket that has the most channels it may have (PROTOCOL row 31).
pub const TOO_MANY_CHANNELS: Payload<'static> = reason(r#"{"reason":"too many channels joined"}"#);
/// The response to a join whose topic or refs are longer than a server keeps.
pub const JOIN_TOO_LONG: Payload<'static> = reason(r#"{"reason":"topic or join_ref too long"}"#);
/// The reply to a join whose payload the server would have to parse, and that is too long for it.
pub const JOIN_PAYLOAD_TOO_LONG: Payload<'static> =
    reason(r#"{"reason":"payload_too_large","limit":65536}"#);
/// The response to a join of a topic with a history whose resume params cannot be read.
pub const BAD_RESUME: Payload<'static> = reason(r#"{"reason":"bad resume"}"#);
const UNMATCHED: Payload<'static> = reason(r#"{"reason":"unmatched topic"}"#);

const fn reason(text: &'static str) -> Payload<'static> {
    Payload::Json(Cow::Borrowed(text))
}

/// What a client's message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// A heartbeat: answer with [`heartbeat`].
    Heartbeat,
    /// A join of the topic, which replaces a channel that may be there: the new join is answered
    /// first, then the old channel closed (PROTOCOL §5).
    Join,
    /// A leave of the topic: [`reply`] `ok`, then [`closed`], then the channel's last pushes.
    Leave,
    /// An event for the channel; if the topic is not joined, [`unmatched`].
    Push,
}

/// The kind of a message.
pub fn classify(message: &Message<'_>) -> MessageKind {
    if message.is_heartbeat() {
        return MessageKind::Heartbeat;
    }
    match &*message.event {
        events::JOIN => MessageKind::Join,
        events::LEAVE => MessageKind::Leave,
        _ => MessageKind::Push,
    }
}

/// Whether a leave or a push is for a channel that a newer join has replaced; then it gets no
/// answer (PROTOCOL row 42). `joined` is the join_ref with which the topic's channel was joined
/// (null if it had none). A message is for the joined channel if its join_ref is null or that
/// channel's.
pub fn is_stale(message: &Message<'_>, joined: &Ref<'_>) -> bool {
    !message.join_ref.is_null() && message.join_ref != *joined
}

/// The join_ref of a channel's pushes: its join's, else the join's ref (PROTOCOL row 27).
pub fn push_join_ref<'a>(join_ref: &'a Ref<'_>, join_msg_ref: &'a Ref<'_>) -> Ref<'a> {
    if join_ref.is_null() { join_msg_ref.borrow() } else { join_ref.borrow() }
}

/// Answers a join, a push or a leave. The reply to a join has the join_ref that it was sent with;
/// all others have that of the joined channel, which the message itself may omit. A leave of a
/// topic that is not joined is answered `ok` as well, with its own join_ref.
pub fn reply<'a>(
    join_ref: &'a Ref<'_>,
    msg_ref: &'a Ref<'_>,
    topic: &'a str,
    status: &'a str,
    response: Payload<'a>,
) -> ServerMessage<'a> {
    reply_with(join_ref.borrow(), msg_ref, topic, status, response)
}

/// Answers a heartbeat, always with a null join_ref.
pub fn heartbeat<'a>(msg_ref: &'a Ref<'_>) -> ServerMessage<'a> {
    reply_with(Ref::Null, msg_ref, events::PHOENIX_TOPIC, "ok", Payload::EMPTY_OBJECT)
}

/// Answers a join that no pattern matches, or a push on a topic that is not joined.
pub fn unmatched<'a>(msg_ref: &'a Ref<'_>, topic: &'a str) -> ServerMessage<'a> {
    reply_with(Ref::Null, msg_ref, topic, "error", UNMATCHED)
}

/// A push: an event to one channel, with that channel's [`push_join_ref`] and no ref.
pub fn push<'a>(
    join_ref: &'a Ref<'_>,
    topic: &'a str,
    event: &'a str,
    payload: Payload<'a>,
) -> ServerMessage<'a> {
    ServerMessage::Event(Message {
        join_ref: join_ref.borrow(),
        msg_ref: Ref::Null,
        topic: topic.into(),
        event: event.into(),
        payload,
    })
}

/// `phx_close`: the channel ended as intended. Both refs are the channel's join_ref.
pub fn closed<'a>(join_ref: &'a Ref<'_>, topic: &'a str) -> ServerMessage<'a> {
    ended(join_ref, topic, events::CLOSE, "{}")
}

/// `phx_error`: the channel crashed. Both refs are the channel's join_ref.
pub fn crashed<'a>(join_ref: &'a Ref<'_>, topic: &'a str) -> ServerMessage<'a> {
    ended(join_ref, topic, events::ERROR, r#"{"reason":"channel_crash"}"#)
}

fn ended<'a>(
    join_ref: &'a Ref<'_>,
    topic: &'a str,
    event: &'static str,
    payload: &'static str,
) -> ServerMessage<'a> {
    ServerMessage::Event(Message {
        join_ref: join_ref.borrow(),
        msg_ref: join_ref.borrow(),
        topic: topic.into(),
        event: event.into(),
        payload: Payload::from_json(payload),
    })
}

fn reply_with<'a>(
    join_ref: Ref<'a>,
    msg_ref: &'a Ref<'_>,
    topic: &'a str,
    status: &'a str,
    response: Payload<'a>,
) -> ServerMessage<'a> {
    ServerMessage::Reply {
        join_ref,
        msg_ref: msg_ref.borrow(),
        topic: topic.into(),
        status: status.into(),
        response,
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;
    use crate::serializer::{Frame, Kind, Serializer};

    const JOINED: Ref<'_> = Ref::Json(alloc::borrow::Cow::Borrowed("\"1\""));

    fn read(text: &str) -> Message<'_> {
        Serializer::V2.decode(Frame::Text(text)).unwrap()
    }

    fn written(serializer: Serializer, message: ServerMessage<'_>) -> String {
        let mut out = Vec::new();
        assert_eq!(serializer.server(&mut out, &message), Ok(Kind::Text));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn heartbeat_is_recognized_with_any_payload_and_refs() {
        for text in [
            r#"[null,"2","phoenix","heartbeat",{}]"#,
            r#"["",null,"phoenix","heartbeat",null]"#,
            r#"["9",2,"phoenix","heartbeat",[1]]"#,
        ] {
            assert_eq!(classify(&read(text)), MessageKind::Heartbeat, "{text}");
        }
        assert_eq!(classify(&read(r#"[null,"2","phoenix","beat",{}]"#)), MessageKind::Push);
        assert_eq!(classify(&read(r#"[null,"2","rooms","heartbeat",{}]"#)), MessageKind::Push);
        assert_eq!(classify(&read(r#"["2","2","phoenix","phx_join",{}]"#)), MessageKind::Join);
        assert_eq!(classify(&read(r#"["2","2","phoenix","phx_leave",{}]"#)), MessageKind::Leave);
    }

    #[test]
    fn leaves_and_pushes_apply_to_the_channel_they_name() {
        let is_stale = |join_ref: &str, joined: &Ref<'_>| {
            super::is_stale(&read(&alloc::format!(r#"[{join_ref},"5","t","e",{{}}]"#)), joined)
        };
        for current in ["null", "\"1\"", "\"\\u0031\""] {
            assert!(!is_stale(current, &JOINED), "{current}");
        }
        // A number differs from the string of its digits.
        for stale in ["\"0\"", "1", "\"\"", "true"] {
            assert!(is_stale(stale, &JOINED), "{stale}");
        }
        assert!(!is_stale("null", &Ref::Null));
        assert!(is_stale("\"5\"", &Ref::Null));
    }

    #[test]
    fn pushes_use_the_ref_of_a_join_without_join_ref() {
        let five = Ref::from_text("5");
        assert_eq!(push_join_ref(&Ref::Null, &five), five);
        assert_eq!(push_join_ref(&JOINED, &five), JOINED);
        assert_eq!(push_join_ref(&Ref::Null, &Ref::Null), Ref::Null);
    }

    #[test]
    fn replies_carry_the_documented_refs() {
        let (v1, v2) = (Serializer::V1, Serializer::V2);
        let (join, seven) = (&JOINED, &Ref::from_json("7"));
        let ok = r#"{"status":"ok","response":{}}"#;
        let error = |reason: &str| {
            alloc::format!(r#"{{"status":"error","response":{{"reason":"{reason}"}}}}"#)
        };
        let array = |join: &str, topic: &str, payload: &str| {
            alloc::format!(r#"[{join},7,"{topic}","phx_reply",{payload}]"#)
        };
        assert_eq!(written(v2, heartbeat(seven)), array("null", "phoenix", ok));
        assert_eq!(
            written(v1, heartbeat(seven)),
            alloc::format!(r#"{{"topic":"phoenix","event":"phx_reply","payload":{ok},"ref":7}}"#)
        );
        assert_eq!(
            written(v2, unmatched(seven, "t")),
            array("null", "t", &error("unmatched topic"))
        );
        assert_eq!(
            written(v2, reply(join, seven, "t", "error", TOO_MANY_CHANNELS)),
            array("\"1\"", "t", &error("too many channels joined"))
        );
        assert_eq!(
            written(v2, reply(join, seven, "t", "error", JOIN_CRASHED)),
            array("\"1\"", "t", &error("join crashed"))
        );
        assert_eq!(
            written(v2, reply(join, seven, "t", "ok", Payload::EMPTY_OBJECT)),
            array("\"1\"", "t", ok)
        );
    }
}

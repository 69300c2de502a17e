//! The server's half of a socket: what an inbound message asks for, and which refs the answer
//! bears.
//!
//! Both are tables of the protocol, so both are functions without state; who is joined to what is
//! the caller's to keep. For each join that succeeds it keeps three things: the join's join_ref as
//! sent (for replies, `phx_close` and [`classify`]), its [`push_join_ref`] (for pushes), and the
//! topic.
use alloc::vec::Vec;

use crate::message::{Message, Payload, Ref, events};
use crate::serializer::{EncodeError, Kind, Serializer};

/// What a client's message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inbound {
    /// A sign of life: answer with [`heartbeat`].
    Heartbeat,
    /// Join the topic, in place of the channel that may be there: the new join is answered first,
    /// then the old channel closed (PROTOCOL §5).
    Join,
    /// Leave the joined topic: reply `ok`, then close, then what the channel says while it ends.
    Leave,
    /// Leave a topic that is not joined: answer with [`leave_unjoined`].
    LeaveUnjoined,
    /// An event for the joined channel.
    Push,
    /// An event on a topic that is not joined: answer with [`unmatched`].
    Unmatched,
    /// Meant for a channel that a newer join has replaced: nothing is answered (PROTOCOL row 42).
    Stale,
}

/// Says what `message` asks for. `joined` is the join_ref that the channel of its topic was joined
/// with (null if it had none), or None if that topic is not joined.
///
/// A message is for the joined channel if its join_ref is null or that channel's.
pub fn classify(message: &Message<'_>, joined: Option<&Ref<'_>>) -> Inbound {
    if message.is_heartbeat() {
        return Inbound::Heartbeat;
    }
    let current =
        joined.map(|join_ref| message.join_ref.is_null() || message.join_ref == *join_ref);
    match (&*message.event, current) {
        (events::JOIN, _) => Inbound::Join,
        (events::LEAVE, None) => Inbound::LeaveUnjoined,
        (events::LEAVE, Some(true)) => Inbound::Leave,
        (_, None) => Inbound::Unmatched,
        (_, Some(true)) => Inbound::Push,
        (_, Some(false)) => Inbound::Stale,
    }
}

/// The join_ref that a channel's pushes bear: its join's, or the join's ref if it had none
/// (PROTOCOL row 27).
pub fn push_join_ref<'a>(join_ref: &'a Ref<'_>, join_msg_ref: &'a Ref<'_>) -> Ref<'a> {
    if join_ref.is_null() { join_msg_ref.borrow() } else { join_ref.borrow() }
}

/// Answers a join: `ok` or `error`, with both refs as the join had them.
///
/// # Errors
/// See [`Serializer::reply`].
pub fn reply_join(
    serializer: Serializer,
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    status: &str,
    response: &Payload<'_>,
) -> Result<Kind, EncodeError> {
    serializer.reply(out, join_ref, msg_ref, topic, status, response)
}

/// Answers a push: with the *channel's* join_ref, which the push itself need not have named, and
/// the push's ref. The reply to a leave is one of these.
///
/// # Errors
/// See [`Serializer::reply`].
pub fn reply_push(
    serializer: Serializer,
    out: &mut Vec<u8>,
    channel_join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    status: &str,
    response: &Payload<'_>,
) -> Result<Kind, EncodeError> {
    serializer.reply(out, channel_join_ref, msg_ref, topic, status, response)
}

/// Answers a heartbeat, with null for its join_ref whatever it was.
pub fn heartbeat(serializer: Serializer, out: &mut Vec<u8>, msg_ref: &Ref<'_>) -> Kind {
    serializer.text_reply(out, &Ref::Null, msg_ref, events::PHOENIX_TOPIC, "ok", "{}")
}

/// Answers a join that no pattern matches, or a push on a topic that is not joined.
pub fn unmatched(
    serializer: Serializer,
    out: &mut Vec<u8>,
    msg_ref: &Ref<'_>,
    topic: &str,
) -> Kind {
    refused(serializer, out, &Ref::Null, msg_ref, topic, r#"{"reason":"unmatched topic"}"#)
}

/// Answers a join of a socket that holds as many channels as it may (PROTOCOL row 31).
pub fn too_many_channels(
    serializer: Serializer,
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
) -> Kind {
    refused(serializer, out, join_ref, msg_ref, topic, r#"{"reason":"too many channels joined"}"#)
}

/// Answers a join whose callback crashed; the socket lives on (PROTOCOL row 22).
pub fn join_crashed(
    serializer: Serializer,
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
) -> Kind {
    refused(serializer, out, join_ref, msg_ref, topic, r#"{"reason":"join crashed"}"#)
}

/// Answers a leave of a joined topic; [`Serializer::close`] follows.
pub fn leave_joined(
    serializer: Serializer,
    out: &mut Vec<u8>,
    channel_join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
) -> Kind {
    serializer.text_reply(out, channel_join_ref, msg_ref, topic, "ok", "{}")
}

/// Answers a leave of a topic that is not joined: `ok` all the same, with the leave's own refs.
pub fn leave_unjoined(
    serializer: Serializer,
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
) -> Kind {
    serializer.text_reply(out, join_ref, msg_ref, topic, "ok", "{}")
}

fn refused(
    serializer: Serializer,
    out: &mut Vec<u8>,
    join_ref: &Ref<'_>,
    msg_ref: &Ref<'_>,
    topic: &str,
    reason: &str,
) -> Kind {
    serializer.text_reply(out, join_ref, msg_ref, topic, "error", reason)
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::serializer::Frame;

    const JOINED: Ref<'_> = Ref::Json(alloc::borrow::Cow::Borrowed("\"1\""));

    fn asks(text: &str, joined: Option<&Ref<'_>>) -> Inbound {
        classify(&Serializer::V2.decode(Frame::Text(text)).unwrap(), joined)
    }

    fn says(write: impl FnOnce(&mut Vec<u8>) -> Kind) -> String {
        let mut out = Vec::new();
        assert_eq!(write(&mut out), Kind::Text);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn heartbeats_are_heartbeats_whatever_they_carry() {
        for text in [
            r#"[null,"2","phoenix","heartbeat",{}]"#,
            r#"["",null,"phoenix","heartbeat",null]"#,
            r#"["9",2,"phoenix","heartbeat",[1]]"#,
        ] {
            assert_eq!(asks(text, None), Inbound::Heartbeat, "{text}");
        }
        assert_eq!(asks(r#"[null,"2","phoenix","beat",{}]"#, None), Inbound::Unmatched);
        assert_eq!(asks(r#"[null,"2","rooms","heartbeat",{}]"#, None), Inbound::Unmatched);
        assert_eq!(asks(r#"["2","2","phoenix","phx_join",{}]"#, None), Inbound::Join);
    }

    #[test]
    fn joins_are_joins_joined_or_not() {
        for joined in [None, Some(&JOINED), Some(&Ref::Null)] {
            assert_eq!(asks(r#"["2","2","t","phx_join",{}]"#, joined), Inbound::Join);
            assert_eq!(asks(r#"[null,"2","t","phx_join",{}]"#, joined), Inbound::Join);
        }
    }

    #[test]
    fn leaves_and_pushes_are_for_the_channel_they_name() {
        for (event, here, absent) in [
            ("phx_leave", Inbound::Leave, Inbound::LeaveUnjoined),
            ("new:msg", Inbound::Push, Inbound::Unmatched),
        ] {
            let asks = |join_ref: &str, joined| {
                asks(&alloc::format!(r#"[{join_ref},"5","t","{event}",{{}}]"#), joined)
            };
            for join_ref in ["null", "\"1\"", "\"0\"", "1"] {
                assert_eq!(asks(join_ref, None), absent);
            }
            assert_eq!(asks("null", Some(&JOINED)), here);
            assert_eq!(asks("\"1\"", Some(&JOINED)), here);
            assert_eq!(asks("\"\\u0031\"", Some(&JOINED)), here);
            // A number is not the string that spells it.
            for stale in ["\"0\"", "1", "\"\"", "true"] {
                assert_eq!(asks(stale, Some(&JOINED)), Inbound::Stale, "{stale}");
            }
            assert_eq!(asks("null", Some(&Ref::Null)), here);
            assert_eq!(asks("\"5\"", Some(&Ref::Null)), Inbound::Stale);
        }
    }

    #[test]
    fn pushes_of_a_join_without_join_ref_bear_its_ref() {
        let five = Ref::from_text("5");
        assert_eq!(push_join_ref(&Ref::Null, &five), five);
        assert_eq!(push_join_ref(&JOINED, &five), JOINED);
        assert_eq!(push_join_ref(&Ref::Null, &Ref::Null), Ref::Null);
    }

    #[test]
    fn answers_bear_the_refs_of_the_table() {
        let (v1, v2) = (Serializer::V1, Serializer::V2);
        let (join, seven) = (&JOINED, &Ref::from_json("7"));
        let ok = r#"{"status":"ok","response":{}}"#;
        let error = |reason: &str| {
            alloc::format!(r#"{{"status":"error","response":{{"reason":"{reason}"}}}}"#)
        };
        let array = |join: &str, topic: &str, payload: &str| {
            alloc::format!(r#"[{join},7,"{topic}","phx_reply",{payload}]"#)
        };
        assert_eq!(says(|out| heartbeat(v2, out, seven)), array("null", "phoenix", ok));
        assert_eq!(
            says(|out| heartbeat(v1, out, seven)),
            alloc::format!(r#"{{"topic":"phoenix","event":"phx_reply","payload":{ok},"ref":7}}"#)
        );
        assert_eq!(
            says(|out| unmatched(v2, out, seven, "t")),
            array("null", "t", &error("unmatched topic"))
        );
        assert_eq!(
            says(|out| too_many_channels(v2, out, join, seven, "t")),
            array("\"1\"", "t", &error("too many channels joined"))
        );
        assert_eq!(
            says(|out| join_crashed(v2, out, join, seven, "t")),
            array("\"1\"", "t", &error("join crashed"))
        );
        assert_eq!(says(|out| leave_unjoined(v2, out, join, seven, "t")), array("\"1\"", "t", ok));
        assert_eq!(says(|out| leave_joined(v2, out, join, seven, "t")), array("\"1\"", "t", ok));
        let response = &Payload::EMPTY_OBJECT;
        let joined = says(|out| reply_join(v2, out, join, seven, "t", "ok", response).unwrap());
        assert_eq!(joined, array("\"1\"", "t", ok));
        let pushed = says(|out| reply_push(v2, out, join, seven, "t", "ok", response).unwrap());
        assert_eq!(pushed, array("\"1\"", "t", ok));
    }
}

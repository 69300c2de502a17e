//! Socket.IO's protocol 5 over Engine.IO's protocol 4.
//!
//! ```text
//! 0{"sid":…}            welcome                  2 → 3          the server's ping, and its answer
//! 40/chat,{"token":…}   join of a namespace      40/chat,{…}    its reply; 44/chat,{…} refuses it
//! 42/chat,7["say",…]    push with an ack         43/chat,7[…]   the ack
//! 41/chat,              leave, without a reply   42/chat,["say",…]   a delivery
//! ```
//!
//! The namespace `/` is left out. An array as payload is the list of an event's arguments. Rooms
//! are the application's: users join and leave them by events. Binary attachments are not read.

use serde_json::value::RawValue;
use simurgh_proto::message::{Message, Ref, events};
use simurgh_proto::serializer::json::escape_into;

use super::{Received, event, put, reply};

pub(super) fn write(
    out: &mut Vec<u8>,
    message: &Message<'_>,
    payload: &str,
    awaits_reply: bool,
) -> Option<()> {
    let kind = match &*message.event {
        events::HEARTBEAT => return None,
        events::JOIN => "40",
        events::LEAVE => "41",
        _ => "42",
    };
    put(out, &[kind]);
    if message.topic != "/" {
        put(out, &[&message.topic, ","]);
    }
    match kind {
        "40" if payload != "{}" => put(out, &[payload]),
        "42" => {
            if awaits_reply {
                put(out, &[&message.msg_ref.field()]);
            }
            put(out, &["["]);
            escape_into(out, &message.event);
            let array = payload.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            match array.map_or(payload, str::trim) {
                "" => put(out, &["]"]),
                arguments => put(out, &[",", arguments, "]"]),
            }
        }
        _ => {}
    }
    Some(())
}

pub(super) fn read(text: &str) -> Option<Received<'_>> {
    let (kind, rest) = text.split_at_checked(1)?;
    match kind {
        "0" => Some(Received::Welcome(json(rest)?.into())),
        "1" => Some(Received::Error("the server closes the session".into())),
        "2" => Some(Received::Ping(Some("3"))),
        "4" => packet(rest),
        _ => Some(Received::Other),
    }
}

fn packet(text: &str) -> Option<Received<'_>> {
    let (kind, rest) = text.split_at_checked(1)?;
    let (namespace, rest) = match rest.starts_with('/') {
        true => rest.split_once(',').unwrap_or((rest, "")),
        false => ("/", rest),
    };
    let data = rest.trim_start_matches(|char: char| char.is_ascii_digit());
    let id = rest.strip_suffix(data)?;
    Some(match kind {
        "0" => reply(Ref::Null, namespace, true, if data.is_empty() { "{}" } else { json(data)? }),
        "1" => event(namespace, events::CLOSE, "{}"),
        "2" => {
            let parts: Vec<&RawValue> = serde_json::from_str(data).ok()?;
            let (name, arguments) = parts.split_first()?;
            let name: String = serde_json::from_str(name.get()).ok()?;
            match arguments {
                [one] => event(namespace, name, one.get()),
                several => event(namespace, name, serde_json::to_string(several).ok()?),
            }
        }
        "3" => reply(Ref::from_json(id), namespace, true, json(data)?),
        "4" => reply(Ref::Null, namespace, false, json(data)?),
        _ => Received::Other,
    })
}

/// The text, if it is JSON.
fn json(text: &str) -> Option<&str> {
    serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get)
}

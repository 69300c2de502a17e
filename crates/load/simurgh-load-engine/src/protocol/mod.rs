//! The protocols of other servers, as translations from and to Channels messages.
//!
//! A user's step goes through the engine as follows. Only the lines with `*` depend on the
//! protocol; topics, refs, stamps, rules, time limits, counts and reconnects are the same for all.
//!
//! ```text
//!   step `join`, `push`, `leave`, a due heartbeat
//!     user::channel     renders topic and payload; a stamp gets its number in the topic
//!     session::client   gives the message a ref, and notes the topic as joined
//! *   write             the same message as text frames of the server's protocol
//!     worker            sends it; the user waits with a timer (`UserState::AwaitRef`)
//!
//!   frame of the server
//! *   read              welcome, ping, error, or the frame as a Channels message
//!     user::messages    finds the stamp, counts the delivery for its topic, applies rules
//!     session::client   matches a reply by its ref, or by its topic if it has none
//!     user::channel     records the latency in the metric of the step; counts errors with reasons
//! ```
//!
//! A connect is complete when the server's welcome has come, which some send by themselves and
//! others after the client's [`greeting`].

mod action_cable;
mod centrifuge;
mod graphql_ws;
mod pusher;
mod socket_io;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use simurgh_load_scenario::Protocol;
use simurgh_proto::message::{Message, Payload, Ref, events};
use simurgh_proto::serializer::{ServerMessage, json};

/// The meaning of a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Received<'a> {
    /// The connection can be used; the text, JSON if possible, is for captures and checks.
    Welcome(Cow<'a, str>),
    /// The server refuses the connection, or the last message.
    Error(Cow<'a, str>),
    /// The server checks the connection. It expects this answer.
    Ping(Option<&'static str>),
    Message(ServerMessage<'a>),
    /// Nothing that the protocol needs.
    Other,
}

/// The client's first message, if the protocol has one.
pub(crate) fn greeting(protocol: Protocol, payload: &str) -> Option<String> {
    match protocol {
        Protocol::Centrifuge => Some(centrifuge::greeting(payload)),
        Protocol::GraphqlWs => Some(graphql_ws::greeting(payload)),
        Protocol::SocketIo | Protocol::Pusher | Protocol::ActionCable => None,
    }
}

/// A message of the client as the text of a frame; `None` if the protocol does not have it.
/// `awaits_reply`: the server should confirm a push.
pub(crate) fn write(
    protocol: Protocol,
    message: &Message<'_>,
    awaits_reply: bool,
) -> Option<Vec<u8>> {
    let payload = message.payload.json()?;
    let mut out = Vec::with_capacity(payload.len() + message.topic.len() + 96);
    match protocol {
        Protocol::SocketIo => socket_io::write(&mut out, message, payload, awaits_reply),
        Protocol::Pusher => pusher::write(&mut out, message, payload),
        Protocol::ActionCable => action_cable::write(&mut out, message, payload),
        Protocol::Centrifuge => centrifuge::write(&mut out, message, payload),
        Protocol::GraphqlWs => graphql_ws::write(&mut out, message, payload),
    }?;
    Some(out)
}

/// The meaning of a text frame; `None` if it is malformed. A frame of Centrifugo may have several
/// lines, each of which is read alone.
pub(crate) fn read(protocol: Protocol, text: &str) -> Option<Received<'_>> {
    match protocol {
        Protocol::SocketIo => socket_io::read(text),
        Protocol::Pusher => pusher::read(text),
        Protocol::ActionCable => action_cable::read(text),
        Protocol::Centrifuge => centrifuge::read(text),
        Protocol::GraphqlWs => graphql_ws::read(text),
    }
}

/// A reply; with a null ref it answers what the topic waits for.
fn reply<'a>(
    msg_ref: Ref<'a>,
    topic: impl Into<Cow<'a, str>>,
    is_ok: bool,
    response: impl Into<Cow<'a, str>>,
) -> Received<'a> {
    Received::Message(ServerMessage::Reply {
        join_ref: Ref::Null,
        msg_ref,
        topic: topic.into(),
        status: Cow::Borrowed(if is_ok { "ok" } else { "error" }),
        response: Payload::Json(response.into()),
    })
}

/// The reply to a heartbeat.
fn heartbeat_reply() -> Received<'static> {
    reply(Ref::Null, events::PHOENIX_TOPIC, true, "{}")
}

fn event<'a>(
    topic: impl Into<Cow<'a, str>>,
    event: impl Into<Cow<'a, str>>,
    payload: impl Into<Cow<'a, str>>,
) -> Received<'a> {
    Received::Message(ServerMessage::Event(Message {
        join_ref: Ref::Null,
        msg_ref: Ref::Null,
        topic: topic.into(),
        event: event.into(),
        payload: Payload::Json(payload.into()),
    }))
}

/// The values of some keys of the object in `text`, as JSON; `None` if it is not one object.
fn fields<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    let member = |key: &str, value: &'a str| {
        if let Some(place) = names.iter().position(|name| *name == key)
            && let Some(place) = found.get_mut(place)
        {
            *place = Some(value);
        }
    };
    json::members(text, member).ok()?;
    Some(found)
}

/// The content of a JSON string.
fn string(json: Option<&str>) -> Option<Cow<'_, str>> {
    json.and_then(json::quoted).map(json::unescape)
}

/// Appends `,` and the members of the object in `json`, if there are any; `None` if it is not an
/// object.
fn members_into(out: &mut Vec<u8>, json: &str) -> Option<()> {
    let inner = json.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    if !inner.is_empty() {
        out.push(b',');
        out.extend_from_slice(inner.as_bytes());
    }
    Some(())
}

/// Appends texts as they are.
fn put(out: &mut Vec<u8>, texts: &[&str]) {
    texts.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
}

//! GraphQL over WebSocket, `graphql-transport-ws`.
//!
//! ```text
//! {"type":"connection_init","payload":{…}}                      greeting
//! {"type":"connection_ack","payload":{…}}                       welcome
//! {"id":"a","type":"subscribe","payload":{"query":…}}           join, without a reply
//! {"id":"a","type":"next","payload":{"data":…}}                 a delivery, as the event `next`
//! {"id":"a","type":"error","payload":[…]}                       the join's refusal
//! {"id":"a","type":"complete"}                                  leave, or the subscription's end
//! {"id":"#2","type":"subscribe","payload":{"query":…}}          push; `next` or `error` answers
//! {"type":"ping"}                                 from either side, answered with a pong
//! ```
//!
//! A topic is any name, and serves as the id of its subscription; its payload is the operation. A
//! push is an operation too, usually a mutation, and its event is not sent.

use simurgh_proto::message::{Message, Ref, events};
use simurgh_proto::serializer::json::escape_into;

use super::{Received, event, fields, heartbeat_reply, put, reply, string};

/// Before the ref of a push in its id, so that no topic has the same.
const PUSH_MARK: char = '#';

pub(super) fn greeting(payload: &str) -> String {
    format!(r#"{{"type":"connection_init","payload":{payload}}}"#)
}

pub(super) fn write(out: &mut Vec<u8>, message: &Message<'_>, payload: &str) -> Option<()> {
    if message.event == events::HEARTBEAT {
        put(out, &[r#"{"type":"ping"}"#]);
        return Some(());
    }
    put(out, &[r#"{"id":"#]);
    match &*message.event {
        events::JOIN | events::LEAVE => escape_into(out, &message.topic),
        _ => escape_into(out, &format!("{PUSH_MARK}{}", message.msg_ref.field())),
    }
    match &*message.event {
        events::LEAVE => put(out, &[r#","type":"complete"}"#]),
        _ => put(out, &[r#","type":"subscribe","payload":"#, payload, "}"]),
    }
    Some(())
}

pub(super) fn read(text: &str) -> Option<Received<'_>> {
    let [kind, id, payload] = fields(text, ["type", "id", "payload"])?;
    let (kind, id) = (string(kind)?, string(id).unwrap_or_default());
    let payload = payload.unwrap_or("{}");
    let push_ref = id.strip_prefix(PUSH_MARK).map(Ref::from_text);
    Some(match (&*kind, push_ref) {
        ("connection_ack", _) => Received::Welcome(payload.into()),
        ("ping", _) => Received::Ping(Some(r#"{"type":"pong"}"#)),
        ("pong", _) => heartbeat_reply(),
        ("next", Some(push_ref)) => {
            let [errors] = fields(payload, ["errors"])?;
            reply(push_ref, "", errors.is_none(), payload)
        }
        ("error", Some(push_ref)) => reply(push_ref, "", false, payload),
        ("next", None) => event(id, "next", payload),
        ("error", None) => event(id, events::ERROR, payload),
        ("complete", None) => event(id, events::CLOSE, "{}"),
        _ => Received::Other,
    })
}

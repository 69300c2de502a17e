//! Centrifugo's JSON protocol; a frame has one message on each line.
//!
//! ```text
//! {"id":4294967295,"connect":{"token":…}}        greeting; its reply is the welcome
//! {"id":1,"subscribe":{"channel":"a"}}           join    {"id":1,"subscribe":{…}}   its reply
//! {"id":2,"publish":{"channel":"a","data":…}}    push    {"id":2,"error":{…}}       a refusal
//! {"id":3,"unsubscribe":{"channel":"a"}}         leave   {"id":3,"unsubscribe":{}}
//! {"push":{"channel":"a","pub":{"data":…}}}      a delivery, as the event `publication`
//! {}                                             the server's ping; the answer is the same
//! ```
//!
//! A channel has no events, so that of a push is not sent.

use simurgh_proto::message::{Message, Ref, events};
use simurgh_proto::serializer::json::escape_into;

use super::{Received, event, fields, members_into, put, reply, string};

/// An id that no message of a client has.
const GREETING_ID: &str = "4294967295";

pub(super) fn greeting(payload: &str) -> String {
    format!(r#"{{"id":{GREETING_ID},"connect":{payload}}}"#)
}

pub(super) fn write(out: &mut Vec<u8>, message: &Message<'_>, payload: &str) -> Option<()> {
    let command = match &*message.event {
        events::HEARTBEAT => return None,
        events::JOIN => "subscribe",
        events::LEAVE => "unsubscribe",
        _ => "publish",
    };
    put(out, &[r#"{"id":"#, &message.msg_ref.field(), r#",""#, command, r#"":{"channel":"#]);
    escape_into(out, &message.topic);
    match command {
        "publish" => put(out, &[r#","data":"#, payload]),
        _ => members_into(out, payload)?,
    }
    put(out, &["}}"]);
    Some(())
}

pub(super) fn read(text: &str) -> Option<Received<'_>> {
    let [id, error, connect, push] = fields(text, ["id", "error", "connect", "push"])?;
    Some(match (id, error, push) {
        (Some(GREETING_ID), Some(error), _) => Received::Error(error.into()),
        (Some(GREETING_ID), None, _) => Received::Welcome(connect.unwrap_or("{}").into()),
        (Some(id), error, _) => {
            reply(Ref::from_json(id), "", error.is_none(), error.unwrap_or("{}"))
        }
        (None, _, Some(push)) => return pushed(push),
        (None, None, None) => Received::Ping(Some("{}")),
        (None, Some(_), None) => Received::Other,
    })
}

fn pushed(push: &str) -> Option<Received<'_>> {
    let names = ["channel", "pub", "unsubscribe", "disconnect"];
    let [channel, publication, unsubscribe, disconnect] = fields(push, names)?;
    let channel = string(channel).unwrap_or_default();
    Some(match (publication, unsubscribe, disconnect) {
        (Some(publication), ..) => {
            let [data] = fields(publication, ["data"])?;
            event(channel, "publication", data.unwrap_or("null"))
        }
        (_, Some(reason), _) => event(channel, events::ERROR, reason),
        (.., Some(reason)) => Received::Error(reason.into()),
        _ => Received::Other,
    })
}

//! Pusher Channels, protocol 7.
//!
//! ```text
//! {"event":"pusher:connection_established","data":"{\"socket_id\":…}"}         welcome
//! {"event":"pusher:subscribe","data":{"channel":"private-a","auth":…}}        join
//! {"event":"pusher_internal:subscription_succeeded","channel":"private-a",…}  its reply
//! {"event":"pusher:subscription_error","channel":"private-a","data":{…}}      its refusal
//! {"event":"client-say","channel":"private-a","data":{…}}      push without a reply; a delivery
//! {"event":"pusher:unsubscribe","data":{"channel":"private-a"}}         leave without a reply
//! {"event":"pusher:ping","data":{}}          from either side, answered with `pusher:pong`
//! ```
//!
//! A join's payload has the members `auth` and `channel_data` of private and presence channels.

use simurgh_proto::message::{Message, Ref, events};
use simurgh_proto::serializer::json::escape_into;

use super::{Received, event, fields, heartbeat_reply, members_into, put, reply, string};

pub(super) fn write(out: &mut Vec<u8>, message: &Message<'_>, payload: &str) -> Option<()> {
    let name = match &*message.event {
        events::HEARTBEAT => {
            put(out, &[r#"{"event":"pusher:ping","data":{}}"#]);
            return Some(());
        }
        events::JOIN => "pusher:subscribe",
        events::LEAVE => "pusher:unsubscribe",
        name => {
            put(out, &[r#"{"event":"#]);
            escape_into(out, name);
            put(out, &[r#","channel":"#]);
            escape_into(out, &message.topic);
            put(out, &[r#","data":"#, payload, "}"]);
            return Some(());
        }
    };
    put(out, &[r#"{"event":""#, name, r#"","data":{"channel":"#]);
    escape_into(out, &message.topic);
    members_into(out, payload)?;
    put(out, &["}}"]);
    Some(())
}

pub(super) fn read(text: &str) -> Option<Received<'_>> {
    let [name, channel, data] = fields(text, ["event", "channel", "data"])?;
    let name = string(name)?;
    let channel = string(channel).unwrap_or_default();
    let data = data.unwrap_or("{}");
    Some(match &*name {
        // Its data is JSON within a string.
        "pusher:connection_established" => {
            Received::Welcome(string(Some(data)).unwrap_or(data.into()))
        }
        "pusher:error" => Received::Error(data.into()),
        "pusher:ping" => Received::Ping(Some(r#"{"event":"pusher:pong","data":{}}"#)),
        "pusher:pong" => heartbeat_reply(),
        "pusher_internal:subscription_succeeded" => reply(Ref::Null, channel, true, data),
        "pusher:subscription_error" | "pusher_internal:subscription_error" => {
            reply(Ref::Null, channel, false, data)
        }
        _ if channel.is_empty() => Received::Other,
        _ => event(channel, name, data),
    })
}

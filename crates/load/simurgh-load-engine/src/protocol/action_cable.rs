//! Action Cable, `actioncable-v1-json`.
//!
//! ```text
//! {"type":"welcome"}                                        welcome
//! {"command":"subscribe","identifier":"{\"channel\":…}"}    join
//! {"type":"confirm_subscription","identifier":…}            its reply; or reject_subscription
//! {"command":"message","identifier":…,"data":"{\"action\":\"say\",…}"}   push without a reply
//! {"identifier":…,"message":{…}}                            a delivery, as the event `message`
//! {"command":"unsubscribe","identifier":…}                  leave without a reply
//! {"type":"ping","message":1700000000}                      every 3 s, not answered
//! {"type":"disconnect","reason":"unauthorized",…}           an error; the server then closes
//! ```
//!
//! A topic is the identifier, such as `{"channel":"ChatChannel","room":"1"}`; the server repeats it
//! unchanged. The event of a push is the action; its payload has the other members.

use simurgh_proto::message::{Message, Ref, events};
use simurgh_proto::serializer::json::escape_into;

use super::{Received, event, fields, members_into, put, reply, string};

pub(super) fn write(out: &mut Vec<u8>, message: &Message<'_>, payload: &str) -> Option<()> {
    let command = match &*message.event {
        events::HEARTBEAT => return None,
        events::JOIN => "subscribe",
        events::LEAVE => "unsubscribe",
        _ => "message",
    };
    put(out, &[r#"{"command":""#, command, r#"","identifier":"#]);
    escape_into(out, &message.topic);
    if command == "message" {
        let mut data = br#"{"action":"#.to_vec();
        escape_into(&mut data, &message.event);
        members_into(&mut data, payload)?;
        data.push(b'}');
        put(out, &[r#","data":"#]);
        escape_into(out, str::from_utf8(&data).ok()?);
    }
    put(out, &["}"]);
    Some(())
}

pub(super) fn read(text: &str) -> Option<Received<'_>> {
    let names = ["type", "identifier", "message", "reason"];
    let [kind, identifier, message, reason] = fields(text, names)?;
    let topic = string(identifier).unwrap_or_default();
    Some(match string(kind).as_deref() {
        Some("welcome") => Received::Welcome(text.into()),
        Some("ping") => Received::Ping(None),
        Some("disconnect") => Received::Error(reason.unwrap_or("no reason").into()),
        Some("confirm_subscription") => reply(Ref::Null, topic, true, "{}"),
        Some("reject_subscription") => reply(Ref::Null, topic, false, r#""rejected""#),
        Some(_) => Received::Other,
        None => event(topic, "message", message?),
    })
}

//! A user's positions in the history of its topics, which joins send to get missed messages.
//!
//! ```text
//! join params          "simurgh": {"id": "…", "since": null | "k3f9a0.60"}
//! [null, P, …]         a message of the history: the user is at P
//! simurgh:next         the binary message that follows, which has no place for it, is at P
//! simurgh:at           nothing for this user: it is at P
//! simurgh:resumed      the reply to a join: P, and whether all that was missed follows
//! simurgh:gap          something is lost for good, and why
//! ```

use serde::Deserialize;
use simurgh_load_record::{Count, ErrorKind, Origin};
use simurgh_proto::serializer::ServerMessage;

use super::{Machine, Outputs};

const POSITION_BYTES_MAX: usize = 32;
/// Topics whose positions a user keeps.
const TOPICS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Positions {
    stands: Vec<(Box<str>, Box<str>)>,
    /// Position and topic of the binary message that comes next.
    next: Option<(Box<str>, Box<str>)>,
}

#[derive(Deserialize)]
struct Resumed<'a> {
    recovered: bool,
    #[serde(borrow, default)]
    reason: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    count: u64,
}

impl Positions {
    fn stand(&mut self, topic: &str, position: &str) {
        if let Some((_, stands)) = self.stands.iter_mut().find(|(known, _)| **known == *topic) {
            *stands = position.into();
        } else if self.stands.len() < TOPICS_MAX {
            self.stands.push((topic.into(), position.into()));
        }
    }

    /// The connection has ended, so the announced message will not come.
    pub(super) fn forget_next(&mut self) {
        self.next = None;
    }

    fn of(&self, topic: &str) -> Option<&str> {
        let found = self.stands.iter().find(|(known, _)| **known == *topic);
        found.map(|(_, position)| &**position)
    }
}

impl<O: Outputs> Machine<'_, O> {
    /// Adds the user's position to a join's payload; `false` if it is not an object.
    pub(super) fn add_position(&mut self, topic: &str, payload: &mut Vec<u8>) -> bool {
        let run = self.context.values.run;
        let (id, again) = (self.user.id, self.user.is_resuming());
        let positions = self.user.extra().positions.get_or_insert_default();
        if !again {
            // A channel that is joined anew begins now.
            positions.stands.retain(|(known, _)| **known != *topic);
        }
        let since = match positions.of(topic) {
            Some(position) => serde_json::Value::from(position),
            None => serde_json::Value::Null,
        };
        let ours = format!("\"simurgh\":{{\"id\":\"load-{run:08x}-{id:08x}\",\"since\":{since}}}");
        let theirs = payload.trim_ascii();
        let theirs = if theirs.is_empty() { b"{}" } else { theirs };
        let Some(theirs) = theirs.strip_prefix(b"{") else { return false };
        let comma = if theirs.trim_ascii_start().first() == Some(&b'}') { "" } else { "," };
        *payload = [b"{", ours.as_bytes(), comma.as_bytes(), theirs].concat();
        true
    }

    /// Notes the position of a message; `true` if it carries nothing else.
    #[inline]
    pub(super) fn position_in(&mut self, message: &ServerMessage<'_>) -> bool {
        let ServerMessage::Event(message) = message else { return false };
        let origin = self.user.origin();
        let extra = self.user.extra_mut();
        let Some(positions) = extra.and_then(|extra| extra.positions.as_mut()) else {
            return false;
        };
        let topic = &*message.topic;
        if message.payload.binary().is_some() {
            let next = positions.next.take().filter(|(known, _)| **known == *topic);
            if let Some((_, position)) = next {
                positions.stand(topic, &position);
            }
            return false;
        }
        let position = message.msg_ref.field();
        if position.len() > POSITION_BYTES_MAX {
            let text = || format!("a position of {} bytes", position.len());
            self.out.error(ErrorKind::MessageMalformed, origin, text);
            return false;
        }
        let is_position = message.msg_ref.raw().starts_with('"') && !position.is_empty();
        let event = &*message.event;
        if event == "simurgh:next" && is_position {
            positions.next = Some((topic.into(), (&*position).into()));
            return true;
        }
        if is_position {
            positions.stand(topic, &position);
        }
        match event {
            "simurgh:resumed" | "simurgh:gap" => {
                self.resumed_in(origin, topic, message.payload.json().unwrap_or_default());
                true
            }
            "simurgh:at" | "simurgh:next" => true,
            _ => false,
        }
    }

    fn resumed_in(&mut self, origin: Origin, topic: &str, payload: &str) {
        match serde_json::from_str::<Resumed<'_>>(payload) {
            Ok(Resumed { recovered, reason, count }) => {
                self.out.count(Count::ResumedMessages, count);
                let outcome = match recovered {
                    true => Count::ResumesRecovered,
                    false => Count::gap(reason.as_deref().unwrap_or_default()),
                };
                self.out.count(outcome, 1);
            }
            Err(error) => {
                let text = || format!("position of {topic} in a reply: {error}");
                self.out.error(ErrorKind::MessageMalformed, origin, text);
            }
        }
    }
}

//! Matches frames.

use memchr::memmem::Finder;
use regex::bytes::Regex;
use simurgh_proto::message::events;
use simurgh_proto::serializer::{Frame, Serializer, ServerMessage};

use super::{Expand, JsonPath, PatternCache, compile_pattern, presence, with};
use crate::{Matcher, Part, PresenceList, Template};

/// A [`Matcher`], ready for use.
#[derive(Clone, Debug)]
pub struct CompiledMatcher(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Any,
    Is(Template),
    Contains(Box<Finder<'static>>),
    ContainsTemplate(Template),
    Regex(Regex),
    /// The values in it are escaped.
    RegexTemplate(Template),
    Json(Box<Json>),
    Event {
        topic: Option<Template>,
        event: Template,
    },
    Presence {
        topic: Option<Template>,
        list: PresenceList,
        key: Template,
    },
}

#[derive(Clone, Debug)]
struct Json {
    path: JsonPath,
    /// For Channels messages in array form, if the path begins with one of their fields.
    array_path: Option<JsonPath>,
    is: Template,
}

impl CompiledMatcher {
    /// Compiles a matcher of a scenario. An error says what is wrong with it, for people.
    pub fn new(matcher: &Matcher) -> Result<Self, String> {
        Ok(Self(match matcher {
            Matcher::Any => Kind::Any,
            Matcher::Contains(template) => match template.constant() {
                Some(text) => Kind::Contains(Box::new(Finder::new(text).into_owned())),
                None => Kind::ContainsTemplate(template.clone()),
            },
            Matcher::Is(template) => Kind::Is(template.clone()),
            Matcher::Regex(template) => {
                // Any value is a literal, so one stands for all.
                let pattern = pattern_of(template, &mut |_, out| out.push(b'0'));
                let regex = compile_pattern(&String::from_utf8_lossy(&pattern))?;
                match template.constant() {
                    Some(_) => Kind::Regex(regex),
                    None => Kind::RegexTemplate(template.clone()),
                }
            }
            Matcher::Json { path, is } => {
                let path = JsonPath::new(path)?;
                let array_path = path.for_array_form();
                Kind::Json(Box::new(Json { path, array_path, is: is.clone() }))
            }
            Matcher::Event { topic, event } => {
                Kind::Event { topic: topic.clone(), event: event.clone() }
            }
            Matcher::Presence { topic, list, key } => {
                Kind::Presence { topic: topic.clone(), list: *list, key: key.clone() }
            }
        }))
    }

    /// Whether a frame matches.
    ///
    /// `message` is the frame as a Channels message, if the caller has parsed it; else it is parsed
    /// when needed, with the serializer that its form shows. A JSON path that begins with
    /// `payload`, `topic`, `event`, `ref` or `join_ref` means that field in both serializers.
    pub fn matches(
        &self,
        frame: Frame<'_>,
        message: Option<&ServerMessage<'_>>,
        patterns: &mut PatternCache,
        expand: &mut Expand<'_>,
    ) -> bool {
        let bytes = frame.as_bytes();
        match &self.0 {
            Kind::Any => true,
            Kind::Is(template) => with(template, expand, |text| text == bytes),
            Kind::Contains(finder) => finder.find(bytes).is_some(),
            Kind::ContainsTemplate(template) => {
                with(template, expand, |text| memchr::memmem::find(bytes, text).is_some())
            }
            Kind::Regex(regex) => regex.is_match(bytes),
            Kind::RegexTemplate(template) => {
                let regex = patterns.regex(&pattern_of(template, expand));
                regex.is_some_and(|regex| regex.is_match(bytes))
            }
            Kind::Json(json) => {
                with(&json.is, expand, |is| match bytes.trim_ascii_start().first() {
                    Some(b'[') => json.array_path.as_ref().unwrap_or(&json.path).finds(bytes, is),
                    _ if is_binary_message(frame) => {
                        with_message(frame, message, |message| json.finds_in(message, is))
                    }
                    _ => json.path.finds(bytes, is),
                })
            }
            Kind::Event { topic, event } => with_message(frame, message, |message| {
                let (found_topic, found_event) = topic_and_event(message);
                let mut is = |template: &Template, found: &str| {
                    with(template, expand, |text| text == found.as_bytes())
                };
                is(event, found_event) && topic.as_ref().is_none_or(|topic| is(topic, found_topic))
            }),
            Kind::Presence { topic, list, key } => with_message(frame, message, |message| {
                let ServerMessage::Event(found) = message else { return false };
                presence::event_of(*list) == found.event
                    && topic.as_ref().is_none_or(|topic| {
                        with(topic, expand, |topic| topic == found.topic.as_bytes())
                    })
                    && found.payload.json().is_some_and(|payload| {
                        with(key, expand, |key| presence::lists(*list, payload, key))
                    })
            }),
        }
    }
}

impl Json {
    /// Compares fields of a binary message, which are not JSON.
    fn finds_in(&self, message: &ServerMessage<'_>, is: &[u8]) -> bool {
        let (topic, event) = topic_and_event(message);
        let is_at =
            |names: &[&str], found: &str| self.path.is_names(names) && is == found.as_bytes();
        let status = match message {
            ServerMessage::Reply { status, .. } => is_at(&["payload", "status"], status),
            ServerMessage::Event(_) => false,
        };
        status || is_at(&["topic"], topic) || is_at(&["event"], event)
    }
}

/// A pattern with its values, in which all signs of regular expressions are escaped.
fn pattern_of(template: &Template, expand: &mut Expand<'_>) -> Vec<u8> {
    let mut pattern = Vec::new();
    for part in &template.parts {
        if let Part::Literal(literal) = part {
            pattern.extend_from_slice(literal);
            continue;
        }
        let mut value = Vec::new();
        expand(&part.clone().into(), &mut value);
        pattern.extend(regex::escape(&String::from_utf8_lossy(&value)).bytes());
    }
    pattern
}

fn topic_and_event<'m>(message: &'m ServerMessage<'_>) -> (&'m str, &'m str) {
    match message {
        ServerMessage::Reply { topic, .. } => (topic, events::REPLY),
        ServerMessage::Event(message) => (&message.topic, &message.event),
    }
}

/// A binary frame of the second serializer: its first byte is a small number, unlike JSON's.
fn is_binary_message(frame: Frame<'_>) -> bool {
    matches!(frame, Frame::Binary([0..=8, ..]))
}

fn with_message(
    frame: Frame<'_>,
    message: Option<&ServerMessage<'_>>,
    judge: impl FnOnce(&ServerMessage<'_>) -> bool,
) -> bool {
    if let Some(message) = message {
        return judge(message);
    }
    let is_object = frame.as_bytes().trim_ascii_start().starts_with(b"{");
    let serializer = if is_object { Serializer::V1 } else { Serializer::V2 };
    serializer.decode_server(frame).is_ok_and(|message| judge(&message))
}

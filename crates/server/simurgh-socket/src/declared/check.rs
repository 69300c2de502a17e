//! Compiles specs, with every check of a declared channel.

use std::fmt;

use serde_json::Value;
use simurgh_channel::{ChannelLimits, LimitPolicy, Rate, SizeLimit};
use simurgh_proto::message::events;
use simurgh_proto::topic::Pattern;

use super::presence::{self, Presence};
use super::template::Template;
use super::{
    Announce, ChannelKind, ChannelSpec, Compiled, Declared, Defaults, Event, EventSpec,
    JoinQuestion, PayloadShape, Reach, supabase,
};

/// Whether members must not broadcast an event: the protocol's own, and the one that closes every
/// socket whose id is the topic.
pub(super) fn is_reserved(event: &str) -> bool {
    events::is_reserved(event) || event == events::DISCONNECT
}

/// The highest rate of a member; a higher limit would not protect anything.
const EVENTS_PER_SECOND_MAX: u32 = 100_000;

/// Below this a user socket would refuse frames that RFC 6455 requires to be accepted (section
/// 5.5).
const MESSAGE_BYTES_LEAST: usize = 125;

/// A mistake in a list of specs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Index of the spec, from 0.
    pub channel: usize,
    /// Index of the event, from 0, if it is about one.
    pub event: Option<usize>,
    /// The key.
    pub key: &'static str,
    /// The mistake, and the allowed values.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.channel + 1)?;
        if let Some(event) = self.event {
            write!(f, ", event {}", event + 1)?;
        }
        write!(f, ", {}: {}", self.key, self.message)
    }
}

impl std::error::Error for Mistake {}

pub(super) fn compile(
    specs: &[ChannelSpec],
    defaults: Defaults,
    hooks: &[&str],
) -> Result<Vec<Compiled>, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    let mut above: Vec<Pattern> = Vec::new();
    let mut compiled = Vec::with_capacity(specs.len());
    for (channel, spec) in specs.iter().enumerate() {
        let mut found = Found { channel, event: None, hooks, mistakes: &mut mistakes };
        if let Some(pattern) = found.topic(spec, &above) {
            found.deny(spec, &pattern);
            above.push(pattern);
        }
        compiled.push(match spec.kind {
            ChannelKind::Phoenix => Compiled::Declared(Box::new(found.declared(spec, defaults))),
            ChannelKind::Supabase => Compiled::Supabase(found.supabase(spec)),
        });
    }
    if mistakes.is_empty() { Ok(compiled) } else { Err(mistakes) }
}

/// The limits of a channel without mistakes, on a user socket with this limit of messages.
pub(super) fn limits(spec: &ChannelSpec, message_bytes_max: usize) -> ChannelLimits {
    let mut limits = spec.limits;
    if let Some(count) = spec.events_per_second {
        limits.messages = Rate::per_second(count.into()).ok().map(Into::into);
    }
    // The user socket enforces the channel's limit of messages, unless another channel has a larger
    // one.
    let own = spec.message_bytes_max.filter(|own| *own < message_bytes_max);
    let policy = LimitPolicy::Reply;
    let short = spec.payload_bytes_max.or(own.filter(|_| limits.payload_bytes.is_none()));
    if let Some(bytes_max) = short {
        limits.payload_bytes = Some(SizeLimit { bytes_max, policy });
    }
    limits
}

struct Found<'m> {
    channel: usize,
    event: Option<usize>,
    /// The names of the hooks.
    hooks: &'m [&'m str],
    mistakes: &'m mut Vec<Mistake>,
}

impl Found<'_> {
    fn add(&mut self, key: &'static str, message: impl Into<String>) {
        let (channel, event) = (self.channel, self.event);
        self.mistakes.push(Mistake { channel, event, key, message: message.into() });
    }

    fn topic(&mut self, spec: &ChannelSpec, above: &[Pattern]) -> Option<Pattern> {
        if spec.topic.is_empty() {
            self.add("topic", "is missing: every channel needs a topic, such as \"rooms:*\"");
            return None;
        }
        let pattern = match Pattern::parse(&spec.topic) {
            Ok(pattern) => pattern,
            Err(error) => {
                self.add("topic", format!("{:?}: {error}", spec.topic));
                return None;
            }
        };
        if spec.topic == events::PHOENIX_TOPIC {
            self.add("topic", "\"phoenix\" is reserved for heartbeats: use another topic");
        }
        if above.contains(&pattern) {
            self.add("topic", format!("{:?} is declared twice", spec.topic));
        } else if let Some(taker) = above.iter().find(|above| covers(above, &pattern)) {
            let message = format!(
                "{:?} is never used, because \"{taker}\" above matches its topics: declare it \
                 first",
                spec.topic
            );
            self.add("topic", message);
        }
        Some(pattern)
    }

    fn deny(&mut self, spec: &ChannelSpec, topic: &Pattern) {
        for text in &spec.deny {
            match Pattern::parse(text) {
                Err(error) => self.add("deny", format!("{text:?}: {error}")),
                Ok(deny) if !covers(&deny, topic) && !covers(topic, &deny) => {
                    self.add("deny", format!("{text:?} matches no topic of \"{topic}\""));
                }
                Ok(_) => {}
            }
        }
    }

    #[cfg(feature = "token")]
    fn rules(&mut self, spec: &ChannelSpec) -> super::rules::Rules {
        super::rules::Rules::compile(spec, |key, message| self.add(key, message))
    }

    /// Payloads that all members receive must not contain the join's token.
    #[cfg(feature = "token")]
    fn join_token(
        &mut self,
        spec: &ChannelSpec,
        announce: Option<&Announce>,
        presence: Option<&Presence>,
    ) {
        let Some(field) = spec.join_token.as_deref() else { return };
        for (key, shows) in [
            ("announce_payload", announce.is_some_and(|it| it.payload.shows(field))),
            ("presence", presence.is_some_and(|it| it.shows(field))),
        ] {
            if shows {
                let why = format!(
                    "would send the token of a joining client (field {field:?}) to all members: \
                     list the fields to send"
                );
                self.add(key, why);
            }
        }
    }

    fn supabase(&mut self, spec: &ChannelSpec) -> crate::supabase::Settings {
        self.limits(spec);
        let settings = supabase::settings(spec, |key, message| self.add(key, message));
        #[cfg(feature = "token")]
        let settings = self.rules(spec).with(settings);
        settings
    }

    fn limits(&mut self, spec: &ChannelSpec) {
        self.at_least_one("payload_bytes_max", spec.payload_bytes_max);
        if spec.message_bytes_max.is_some_and(|bytes| bytes < MESSAGE_BYTES_LEAST) {
            let message =
                format!("must be at least {MESSAGE_BYTES_LEAST}, the maximum size of a ping");
            self.add("message_bytes_max", message);
        }
        if spec.events_per_second.is_some_and(|n| !(1..=EVENTS_PER_SECOND_MAX).contains(&n)) {
            let message = format!("must be 1 to {EVENTS_PER_SECOND_MAX}; remove it for no limit");
            self.add("events_per_second", message);
        }
        for (key, short_for, is_twice) in [
            (
                "events_per_second",
                "messages",
                spec.events_per_second.is_some() && spec.limits.messages.is_some(),
            ),
            (
                "payload_bytes_max",
                "payload_bytes",
                spec.payload_bytes_max.is_some() && spec.limits.payload_bytes.is_some(),
            ),
        ] {
            if is_twice {
                self.add(
                    key,
                    format!(
                        "is short for {short_for} of limits, which is also set: \
                    remove one of them"
                    ),
                );
            }
        }
    }

    fn declared(&mut self, spec: &ChannelSpec, defaults: Defaults) -> Declared {
        let join_reply = self.template("join_reply", spec.join_reply.as_ref(), Template::empty());
        let announce = self.announce(spec, defaults);
        self.limits(spec);
        self.at_least_one("members_max", spec.members_max.map(|max| max as usize));
        let presence = self.presence(spec);
        let payload_bytes = limits(spec, usize::MAX).payload_bytes;
        #[cfg(feature = "token")]
        self.join_token(spec, announce.as_ref(), presence.as_ref());
        let (events, any_event) = self.events(&spec.event, spec.payload_shape);
        let join_hook = self.hook("join_hook", spec.join_hook.as_deref());
        let declared = Declared {
            #[cfg(feature = "token")]
            rules: self.rules(spec),
            deny: spec.deny.iter().filter_map(|text| Pattern::parse(text).ok()).collect(),
            shape: spec.payload_shape,
            #[cfg(feature = "schema")]
            join_schema: self.schema(
                ("join_schema", spec.join_schema.as_ref()),
                ("join_schema_file", spec.join_schema_file.as_deref()),
            ),
            join_reply,
            announce,
            other_events: spec.other_events,
            payload_bytes_max: payload_bytes.map_or(usize::MAX, |limit| limit.bytes_max),
            members_max: spec.members_max,
            presence,
            events,
            any_event,
            join_hook,
            asks_always: spec.join_question == JoinQuestion::Always,
        };
        self.asked(spec, &declared);
        declared
    }

    /// The place of a hook among all.
    fn hook(&mut self, key: &'static str, name: Option<&str>) -> Option<usize> {
        let name = name?;
        // One that a reload has removed has no name.
        let named = self.hooks.iter().copied().enumerate().filter(|(_, own)| !own.is_empty());
        let place = named.clone().find(|(_, own)| *own == name).map(|(index, _)| index);
        if place.is_none() {
            let known = match named.map(|(_, own)| own).collect::<Vec<_>>()[..] {
                [] => "the server has no [[hook]]: add that table".to_owned(),
                ref names => format!("the hooks are {}", names.join(", ")),
            };
            self.add(key, format!("{name:?} is unknown; {known}"));
        }
        place
    }

    /// Keys that only questions about joins give a meaning.
    fn asked(&mut self, spec: &ChannelSpec, declared: &Declared) {
        if spec.join_hook.is_some() {
            #[cfg(feature = "token")]
            if spec.join_token.is_some() {
                let why = "cannot be combined with join_token: remove one of them";
                self.add("join_hook", why);
            }
            return;
        }
        if declared.asks_always {
            self.add("join_question", "has no effect without join_hook: add that");
        }
        if declared.templates().any(Template::needs_assigns) {
            let why = "uses $assigns, which only the answer to a join gives: add join_hook";
            self.add("topic", why);
        }
    }

    fn announce(&mut self, spec: &ChannelSpec, defaults: Defaults) -> Option<Announce> {
        let payload =
            self.template("announce_payload", spec.announce_payload.as_ref(), Template::payload());
        let Some(event) = &spec.announce_join else {
            for (key, is_there) in [
                ("announce_payload", spec.announce_payload.is_some()),
                ("announce_joins_up_to", spec.announce_joins_up_to.is_some()),
            ] {
                if is_there {
                    self.add(
                        key,
                        "has no effect without announce_join: add that, or remove this key",
                    );
                }
            }
            return None;
        };
        self.name("announce_join", event);
        if spec.announce_joins_up_to == Some(0) {
            self.add(
                "announce_joins_up_to",
                "must be at least 1; to announce no joins, remove announce_join",
            );
        }
        Some(Announce {
            event: event.as_str().into(),
            payload,
            members_max: spec.announce_joins_up_to.unwrap_or(defaults.announce_joins_up_to),
        })
    }

    fn presence(&mut self, spec: &ChannelSpec) -> Option<Presence> {
        let presence = Presence::compile(spec.presence.as_ref()?).unwrap_or_else(|mistakes| {
            mistakes.into_iter().for_each(|(key, why)| self.add(key, why));
            None
        })?;
        for (index, event) in spec.event.iter().enumerate() {
            if presence::EVENTS.contains(&event.name.as_str()) {
                self.event = Some(index);
                self.add("name", format!("{:?} is sent by presence: use another name", event.name));
            }
        }
        self.event = None;
        Some(presence)
    }

    fn events(&mut self, specs: &[EventSpec], shape: PayloadShape) -> (Vec<Event>, Option<Event>) {
        let (mut events, mut any_event) = (Vec::new(), None);
        for (index, spec) in specs.iter().enumerate() {
            self.event = Some(index);
            self.name("name", &spec.name);
            if specs.iter().take(index).any(|above| above.name == spec.name) {
                self.add("name", format!("{:?} is declared twice", spec.name));
            }
            let event = self.event(spec, shape);
            if spec.name == "*" {
                any_event = Some(event);
            } else {
                events.push(event);
            }
        }
        self.event = None;
        (events, any_event)
    }

    fn event(&mut self, spec: &EventSpec, shape: PayloadShape) -> Event {
        if spec.payload.is_some() && spec.broadcast == Reach::None {
            self.add("payload", "has no effect without broadcast = \"all\" or \"others\"");
        }
        if spec.status.is_some() && spec.reply.is_none() {
            self.add("status", "has no effect without a reply");
        }
        let payload = self.template("payload", spec.payload.as_ref(), Template::payload());
        let reply = spec.reply.as_ref().map(|reply| {
            let status = spec.status.as_deref().unwrap_or("ok");
            (status.into(), self.template("reply", Some(reply), Template::empty()))
        });
        let shape = spec.payload_shape.unwrap_or(shape);
        let hook = self.hook("hook", spec.hook.as_deref());
        Event {
            name: spec.name.as_str().into(),
            shape,
            #[cfg(feature = "schema")]
            schema: self.schema(
                ("schema", spec.schema.as_ref()),
                ("schema_file", spec.schema_file.as_deref()),
            ),
            reach: spec.broadcast,
            payload,
            reply,
            hook,
        }
    }

    #[cfg(feature = "schema")]
    fn schema(
        &mut self,
        inline: (&'static str, Option<&Value>),
        file: (&'static str, Option<&std::path::Path>),
    ) -> Option<super::schema::Schema> {
        super::schema::Schema::read(inline, file).unwrap_or_else(|(key, why)| {
            self.add(key, why);
            None
        })
    }

    /// A template, or the default if it is missing or wrong.
    fn template(
        &mut self,
        key: &'static str,
        value: Option<&Value>,
        otherwise: Template,
    ) -> Template {
        match value.map(Template::compile) {
            Some(Ok(template)) => template,
            Some(Err(message)) => {
                self.add(key, message);
                otherwise
            }
            None => otherwise,
        }
    }

    fn name(&mut self, key: &'static str, name: &str) {
        if name.is_empty() {
            self.add(key, "is missing: an event needs a name, such as \"new:msg\"");
        } else if is_reserved(name) {
            let why = format!(
                "{name:?} is reserved, as are all names that begin with phx_ or simurgh: and \
                 \"disconnect\""
            );
            self.add(key, why);
        } else if key == "announce_join" && name == "*" {
            self.add(key, "must be the name of one event, not \"*\"");
        }
    }

    fn at_least_one(&mut self, key: &'static str, value: Option<usize>) {
        if value == Some(0) {
            self.add(key, "must be at least 1; remove it for no limit");
        }
    }
}

fn covers(outer: &Pattern, inner: &Pattern) -> bool {
    match (outer, inner) {
        (Pattern::Prefix(outer), Pattern::Prefix(inner)) => inner.starts_with(&**outer),
        (Pattern::Literal(_), Pattern::Prefix(_)) => false,
        (outer, Pattern::Literal(topic)) => outer.matches(topic),
    }
}

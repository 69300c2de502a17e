//! Who may join and who may publish, by what the socket's token says.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use super::limit::Bucket;
use super::{ChannelSpec, Declared, Mistake, Reach, Refusal};
use crate::token::{Claims, Rule};
use crate::{Channel, Context, Outcome};

/// The rules of a channel; where there are none, all are allowed.
#[derive(Debug, Default)]
pub(super) struct Rules {
    join: Vec<Rule>,
    publish: Vec<Rule>,
}

impl Rules {
    /// Reads what a spec says; `add` hears of mistakes, with the key they are about.
    pub(super) fn compile(spec: &ChannelSpec, mut add: impl FnMut(&'static str, String)) -> Self {
        let pattern = Pattern::parse(&spec.topic).ok();
        let mut read = |key, texts: &[String]| {
            let mut rules = Vec::with_capacity(texts.len());
            for text in texts {
                match text.parse::<Rule>() {
                    Ok(rule) if pattern.as_ref().is_none_or(|it| can_meet(&rule, it)) => {
                        rules.push(rule);
                    }
                    Ok(_) => {
                        add(key, format!("{text:?} matches no topic of \"{}\"", spec.topic));
                    }
                    Err(error) => add(key, error.to_string()),
                }
            }
            rules
        };
        let (join, publish) = (read("join", &spec.join), read("publish", &spec.publish));
        Self { join, publish }
    }

    /// Those of a Supabase channel.
    pub(super) fn with(self, settings: crate::supabase::Settings) -> crate::supabase::Settings {
        crate::supabase::Settings { join: self.join, publish: self.publish, ..settings }
    }

    pub(super) fn may_join(&self, ctx: &Context<'_>) -> bool {
        allow(&self.join, ctx)
    }

    pub(super) fn are_about_publishing(&self) -> bool {
        !self.publish.is_empty()
    }
}

fn allow(rules: &[Rule], ctx: &Context<'_>) -> bool {
    let allowed = rules.is_empty()
        || ctx
            .assigns::<Claims>()
            .is_some_and(|claims| rules.iter().any(|rule| rule.allows(ctx.topic(), claims)));
    if !allowed {
        ctx.count_unauthorized();
    }
    allowed
}

/// Whether a rule speaks of any topic of the channel, as far as its text before the first claim
/// tells.
fn can_meet(rule: &Rule, pattern: &Pattern) -> bool {
    let Some(prefix) = rule.topic_prefix() else { return true };
    match pattern {
        Pattern::Prefix(topics) => topics.starts_with(prefix) || prefix.starts_with(&**topics),
        Pattern::Literal(topic) => topic.starts_with(prefix),
    }
}

/// A membership of a channel on which not everybody may publish.
pub(super) struct GuardedMember {
    declared: Arc<Declared>,
    bucket: Bucket,
}

const _: () = assert!(size_of::<GuardedMember>() <= 16);

impl GuardedMember {
    pub(super) fn new(declared: Arc<Declared>) -> Self {
        Self { declared, bucket: Bucket::default() }
    }
}

impl Channel for GuardedMember {
    fn handle_in(&mut self, ctx: &mut Context<'_>, event: &str, payload: Payload<'_>) -> Outcome {
        let declared = &self.declared;
        if declared.events_per_second.is_some()
            && let Err(refusal) = declared.take_turn(&mut self.bucket)
        {
            return Outcome::error(refusal.response());
        }
        let publishes = declared.event(event).is_some_and(|event| event.reach != Reach::None);
        if publishes && !allow(&declared.rules.publish, ctx) {
            return Outcome::error(Refusal::Because("unauthorized").response());
        }
        declared.handle(ctx, event, payload)
    }
}

/// Without tokens there is nothing that rules could speak of.
pub(super) fn none_needs_tokens(specs: &[ChannelSpec]) -> Result<(), Vec<Mistake>> {
    let mut mistakes = Vec::new();
    for (channel, spec) in specs.iter().enumerate() {
        for (key, rules) in [("join", &spec.join), ("publish", &spec.publish)] {
            if !rules.is_empty() {
                let message = "says who may by what tokens say, and no token is asked for: add \
                               the table [token]";
                mistakes.push(Mistake { channel, event: None, key, message: message.to_owned() });
            }
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// One rule, or a list of them.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or a list of texts")]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    Ok(match OneOrMore::deserialize(from)? {
        OneOrMore::One(rule) => vec![rule],
        OneOrMore::More(rules) => rules,
    })
}

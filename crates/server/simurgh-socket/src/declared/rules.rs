//! Rules on the claims of the socket's token: they decide which clients may join and publish.

use serde::{Deserialize, Deserializer};
use serde_json::json;
use simurgh_channel::{Join, PARSED_BYTES_MAX, ShardContext};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use super::template::field_of;
use super::{ChannelSpec, Mistake, Refusal};
use crate::identity;
use crate::token::{Claims, Rule, TokenPolicy};

/// The rules of a channel; without rules, all are allowed.
#[derive(Debug, Default)]
pub(super) struct Rules {
    join: Vec<Rule>,
    publish: Vec<Rule>,
    own: Option<OwnToken>,
}

#[derive(Debug)]
struct OwnToken {
    field: [Box<str>; 1],
    policy: Option<TokenPolicy>,
}

impl Rules {
    /// Compiles the rules of a spec; `add` receives mistakes with their key.
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
        let own = spec.join_token.as_deref().map(|field| {
            if field.is_empty() {
                add(
                    "join_token",
                    "is empty: set it to the name of a field of the join's payload".to_owned(),
                );
            } else if spec.join.is_empty() {
                add(
                    "join_token",
                    "has no effect without rules in join: add them, or remove this key".to_owned(),
                );
            }
            OwnToken { field: [field.into()], policy: None }
        });
        Self { join, publish, own }
    }

    /// Adds the rules to the settings of a Supabase channel.
    pub(super) fn with(self, settings: crate::supabase::Settings) -> crate::supabase::Settings {
        crate::supabase::Settings { join: self.join, publish: self.publish, ..settings }
    }

    pub(super) fn verify_by(&mut self, policy: &TokenPolicy) {
        if let Some(own) = &mut self.own {
            own.policy = Some(policy.clone());
        }
    }

    /// Decides a join by its own token, else by its socket's. `then` is called if the rules allow
    /// it, with the claims of the channel's own token.
    pub(super) fn join(
        &self,
        ctx: &mut ShardContext<'_>,
        payload: &Payload<'_>,
        then: impl FnOnce(&mut ShardContext<'_>, Option<Claims>) -> Join,
    ) -> Join {
        if self.own.is_some() && payload.len() > PARSED_BYTES_MAX {
            let response = json!({"reason": "payload_too_large", "limit": PARSED_BYTES_MAX});
            return Join::error(response);
        }
        let unauthorized = || Join::error(Refusal::Because("unauthorized").response());
        let brought = self.own.as_ref().and_then(|own| own.brought(payload));
        if let Some((policy, token)) = brought {
            return policy.join(ctx, Some(&token), |ctx, claims| {
                if allow(&self.join, ctx, Some(&claims)) {
                    return then(ctx, Some(claims));
                }
                ctx.count_unauthorized();
                unauthorized()
            });
        }
        if allow(&self.join, ctx, identity::claims(ctx)) {
            return then(ctx, None);
        }
        ctx.count_unauthorized();
        unauthorized()
    }

    /// Whether not all members may publish.
    pub(super) fn guards(&self) -> bool {
        !self.publish.is_empty()
    }

    /// Whether there are rules for joins, and one of them allows this one.
    #[cfg(feature = "hooks")]
    pub(super) fn let_in(&self, ctx: &ShardContext<'_>) -> Option<bool> {
        (!self.join.is_empty()).then(|| allow(&self.join, ctx, identity::claims(ctx)))
    }

    pub(super) fn may_publish(&self, topic: &str, claims: Option<&Claims>) -> bool {
        self.publish.is_empty() || allow_on(&self.publish, topic, claims)
    }
}

impl OwnToken {
    /// The token in a join's payload, if there is one. A value that is not a text is an invalid
    /// token.
    fn brought(&self, payload: &Payload<'_>) -> Option<(&TokenPolicy, String)> {
        let raw = field_of(payload.json()?, &self.field);
        let token = match serde_json::from_str::<Option<String>>(raw) {
            Ok(token) => token?,
            Err(_) => String::from(raw),
        };
        Some((self.policy.as_ref()?, token))
    }
}

fn allow(rules: &[Rule], ctx: &ShardContext<'_>, claims: Option<&Claims>) -> bool {
    rules.is_empty() || allow_on(rules, ctx.topic(), claims)
}

fn allow_on(rules: &[Rule], topic: &str, claims: Option<&Claims>) -> bool {
    claims.is_some_and(|claims| rules.iter().any(|rule| rule.allows(topic, claims)))
}

/// Whether a rule may match a topic of the channel, judged by its text before the first claim.
fn can_meet(rule: &Rule, pattern: &Pattern) -> bool {
    let Some(prefix) = rule.topic_prefix() else { return true };
    match pattern {
        Pattern::Prefix(topics) => topics.starts_with(prefix) || prefix.starts_with(&**topics),
        Pattern::Literal(topic) => topic.starts_with(prefix),
    }
}

/// Without tokens, rules could not be evaluated.
pub(super) fn none_needs_tokens(specs: &[ChannelSpec]) -> Result<(), Vec<Mistake>> {
    let mut mistakes = Vec::new();
    for (channel, spec) in specs.iter().enumerate() {
        for (key, is_there) in [
            ("join", !spec.join.is_empty()),
            ("publish", !spec.publish.is_empty()),
            ("join_token", spec.join_token.is_some()),
        ] {
            if is_there {
                let message = "needs tokens, but the server has no [token]: add that table, or \
                    remove this key";
                mistakes.push(Mistake { channel, event: None, key, message: message.to_owned() });
            }
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    one_or_more(from, "the list is empty: remove it to allow everybody, or write \"nobody\"")
}

/// A text, or a list of them; an `empty` one is an error.
#[doc(hidden)]
pub fn one_or_more<'de, D: Deserializer<'de>>(
    from: D,
    empty: &str,
) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text, or a list of texts")]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    match OneOrMore::deserialize(from)? {
        OneOrMore::One(text) => Ok(vec![text]),
        OneOrMore::More(texts) if texts.is_empty() => Err(serde::de::Error::custom(empty)),
        OneOrMore::More(texts) => Ok(texts),
    }
}

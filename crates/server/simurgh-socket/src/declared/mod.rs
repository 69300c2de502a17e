//! Channels without Rust: their events and replies as data.
//!
//! A [`ChannelSpec`] is read from a configuration file (`simurgh serve` reads `[[channel]]` tables
//! of `simurgh.toml`), checked by [`user_socket`], and served by one channel type for all. A
//! chat as such a table:
//!
//! ```toml
//! [[channel]]
//! topic = "rooms:*"
//! announce_join = "user:entered"
//! announce_payload = { user = "$user" }
//!
//! [[channel.event]]
//! name = "new:msg"
//! broadcast = "all"
//! reply = { msg = "$body" }
//! ```
//!
//! # Templates
//! Replies and broadcasts are any value of TOML or JSON, in which these texts are replaced:
//!
//! | text | replaced by |
//! |---|---|
//! | `$name` | the field `name` of the received payload; `null` if it is missing |
//! | `$payload` | the whole payload |
//! | `$payload.name` | as `$name`, for fields with the name of one of these |
//! | `$topic`, `$subtopic`, `$event` | the topic, its part after the first colon, the event |
//! | `$token.sub`, `$token.claims.name` | of the verified token; `null` without one |
//! | `$$…` | a text that begins with one `$` |
//!
//! Any other text that begins with `$` is a [`Mistake`]. The payload is never parsed into a tree:
//! fields are cut out of its text. In the template of a binary payload all fields are `null`; as a
//! whole template, `$payload` passes binary unchanged.
//!
//! # Shapes
//! Payloads are objects unless a channel, or one of its events, has another setting
//! ([`ChannelSpec::payload_shape`]): others, binary included, get the reply `error` with
//! `{"reason": "wrong_payload", "expected": "object", "found": "null"}` and are not passed on.
//! Publishing by HTTP is checked in the same way.
//!
//! # Cost
//! A member is one heap block of 8 bytes that points to the shared spec, and about 100 bytes more
//! while its rate is limited and used. `announce_join` and `members_max` cost one atomic addition a
//! join and a leave.

#[cfg(feature = "hooks")]
mod asked_join;
#[cfg(feature = "hooks")]
mod asking_member;
mod check;
mod history;
mod limits;
mod member;
mod presence;
#[cfg(feature = "token")]
mod rules;
#[cfg(feature = "schema")]
mod schema;
mod size;
mod supabase;
mod template;

use std::collections::BTreeSet;
#[cfg(feature = "schema")]
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use simurgh_proto::ws::FrameLimits;

pub use crate::shape::PayloadShape;
use crate::socket::{ChannelRoute, UserSocket};
pub use check::Mistake;
pub use limits::SocketLimitsSpec;
#[cfg(feature = "token")]
use member::Refusal;
use member::{Announce, Declared, Event};
#[cfg(feature = "token")]
pub use rules::one_or_more;
use simurgh_channel::{ChannelLimits, Compress, HistoryRule};
use size::limits;
pub use size::parse_bytes;
pub use supabase::{ChannelKind, hosted};
use supabase::{Compiled, complete};
use template::Template;

/// One declared channel: a pattern of topics, and its behaviour.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelSpec {
    /// The kind of channel. Default: `phoenix`, whose behaviour is set by the keys below.
    pub kind: ChannelKind,
    /// Its topics: a literal, or a prefix that ends in `*`; `realtime:*` by default for a Supabase
    /// channel, else required. The first channel that matches serves the topic.
    pub topic: String,
    /// Topics (patterns as above) whose joins are refused with `{"reason": "unauthorized"}`.
    pub deny: Vec<String>,
    /// Rules on token claims that decide which clients may join. One [`Rule`](crate::token::Rule)
    /// has to allow the join; else the server refuses it with `{"reason": "unauthorized"}`.
    /// Default: every client may join.
    #[cfg(feature = "token")]
    #[serde(deserialize_with = "rules::deserialize")]
    pub join: Vec<String>,
    /// Field of a join's payload that may hold its own token: the rules of `join` and `publish` are
    /// applied to it instead of the socket's token, and the channel ends with `phx_error` when it
    /// expires. Default: none. Costs its claims and one tokio task a channel.
    #[cfg(feature = "token")]
    pub join_token: Option<String>,
    /// Rules that decide which members may publish, as in `join`; others get `{"reason":
    /// "unauthorized"}`. Default: all members.
    #[cfg(feature = "token")]
    #[serde(deserialize_with = "rules::deserialize")]
    pub publish: Vec<String>,
    /// Name of a hook: its application decides about joins that no rule allows (docs/BACKENDS.md).
    /// Default: none.
    pub join_hook: Option<String>,
    /// Whether the hook also decides about joins that a rule allows.
    pub join_question: JoinQuestion,
    /// Template of the reply to a join, from the join's payload. Default `{}`.
    pub join_reply: Option<Value>,
    /// Event broadcast to all members, the new one included, after a join. Default: none.
    pub announce_join: Option<String>,
    /// Template of that broadcast, from the join's payload. Default `"$payload"`.
    pub announce_payload: Option<Value>,
    /// Joins are announced only up to this number of members on all shards, since n joins to one
    /// topic cost n²/2 deliveries. Default: [`Defaults::announce_joins_up_to`].
    pub announce_joins_up_to: Option<u32>,
    /// The answer to events that are not declared below. Default: an error reply.
    pub other_events: OtherEvents,
    /// The required shape of payloads of joins and events; others get
    /// `{"reason": "wrong_payload", "expected": …, "found": …}`. Default: objects.
    pub payload_shape: PayloadShape,
    /// JSON Schema of the payloads of joins; others get
    /// `{"reason": "wrong_payload", "expected": "schema", "at": …, "rule": …}`. Default: none.
    #[cfg(feature = "schema")]
    pub join_schema: Option<Value>,
    /// File with that schema.
    #[cfg(feature = "schema")]
    pub join_schema_file: Option<PathBuf>,
    /// Largest message of a client, bytes; larger ones close its socket with 1009. The channel of a
    /// message is known only after decoding, so frames are limited by the largest limit of all the
    /// user socket's channels, payloads by this one. Default: [`Defaults::message_bytes_max`].
    #[serde(deserialize_with = "size::deserialize")]
    pub message_bytes_max: Option<usize>,
    /// Largest payload of joins and events, bytes; larger ones get
    /// `{"reason": "payload_too_large"}`: short for `payload_bytes` of [`limits`](Self::limits).
    #[serde(deserialize_with = "size::deserialize")]
    pub payload_bytes_max: Option<usize>,
    /// Events a member may send each second, in bursts of up to one second's worth; more get
    /// `{"reason": "rate_limited", …}`: short for `messages` of [`limits`](Self::limits).
    pub events_per_second: Option<u32>,
    /// Rate limits of a member, and the policy above them (PROTOCOL §6.7). `messages`, `bytes` and
    /// `presence_calls` are a number per second, a text such as `"100/min"`, or a table of `rate`,
    /// `burst` and `policy` (`"reply"`, `"drop"` or `"close"`). `payload_bytes` is a size, or a
    /// table of `max` and `policy`. Default: no limits. Costs about 100 bytes for each member that
    /// has sent something lately.
    #[serde(deserialize_with = "limits::channel")]
    pub limits: ChannelLimits,
    /// Most members of a topic on all shards; further joins get `{"reason": "full"}`. Simultaneous
    /// joins on different shards may exceed it by as many as there are shards. Default: none.
    pub members_max: Option<u32>,
    /// Whether members are present in the topic (PROTOCOL §10), and how: `true`, or a table of
    /// `key` and `meta`, templates of the join's payload. A member is tracked with its join and
    /// receives the list. Its key is the socket's id, or 32 random digits, unless `key` is set: a
    /// text or a number; a member whose key is neither is not tracked. Its meta is
    /// `{"online_at": "UNIX SECONDS"}` and the fields of `meta`. A key or meta that is longer than
    /// [`PresenceConfig`](simurgh_channel::PresenceConfig) allows refuses the join. Default:
    /// `false`, which costs nothing.
    pub presence: Option<Value>,
    /// The topic's history, from which returning clients resume (docs/HISTORY.md): `true`, or a
    /// table of `count` (100), `age` (`"5m"`) and `bytes` (`"1MiB"`). The limit that is exceeded
    /// first removes the oldest messages. Default: `false`, which costs nothing.
    #[serde(deserialize_with = "history::deserialize")]
    pub history: Option<HistoryRule>,
    /// Messages of its topics that are compressed: `"off"`, `"text"` or `"all"`. Default: as on the
    /// user socket ([`UserSocket::compress`]).
    #[serde(deserialize_with = "compress")]
    pub compress: Option<Compress>,
    /// Whether joins are answered only once broadcasts of other nodes of a cluster on the topic
    /// arrive here (docs/CLUSTER.md), about a millisecond for the first member of a topic. Default:
    /// `false`: broadcasts of other nodes in that time may be missed.
    pub wait_for_interest: bool,
    /// The events members may send.
    pub event: Vec<EventSpec>,
}

fn compress<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Compress>, D::Error> {
    let text = String::deserialize(from)?;
    let unknown = |_| de::Error::unknown_variant(&text, &["off", "text", "all"]);
    text.parse().map(Some).map_err(unknown)
}

/// The behaviour of one event.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventSpec {
    /// The event's name, or `*` for every other event (names that begin with `phx_` belong to the
    /// protocol and are never accepted). Required.
    pub name: String,
    /// The required shape of its payload. Default: the channel's.
    pub payload_shape: Option<PayloadShape>,
    /// JSON Schema of its payload, as [`ChannelSpec::join_schema`].
    #[cfg(feature = "schema")]
    pub schema: Option<Value>,
    /// File with that schema.
    #[cfg(feature = "schema")]
    pub schema_file: Option<PathBuf>,
    /// The receivers of its broadcast, under the same name. Default: none.
    pub broadcast: Reach,
    /// Template of the broadcast. Default `"$payload"`: unchanged.
    pub payload: Option<Value>,
    /// Template of the reply. Default: no reply.
    pub reply: Option<Value>,
    /// Status of the reply. Default `ok`.
    pub status: Option<String>,
    /// Name of a hook: its application decides about each message (docs/BACKENDS.md). Default:
    /// none.
    pub hook: Option<String>,
}

/// The joins that a hook decides about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinQuestion {
    /// If neither a rule nor the answer to the connect allows it.
    #[default]
    Otherwise,
    /// Always.
    Always,
}

/// The receivers of an event's broadcast.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Every member of the topic, the sender included.
    All,
    /// Every member except the sender.
    Others,
    /// No member.
    #[default]
    None,
}

/// The answer to an undeclared event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherEvents {
    /// The reply `error` with `{"reason": "unknown event"}`.
    #[default]
    Error,
    /// Nothing.
    Ignore,
    /// The sender's channel ends with `phx_error`, as in Phoenix (PROTOCOL §6).
    Crash,
}

/// The defaults of all channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Members up to which joins are announced.
    pub announce_joins_up_to: u32,
    /// Largest message, bytes.
    pub message_bytes_max: usize,
    /// Largest frame, bytes; `None`: as large as a message.
    pub frame_bytes_max: Option<usize>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            announce_joins_up_to: 100,
            message_bytes_max: FrameLimits::default().message_bytes_max,
            frame_bytes_max: None,
        }
    }
}

/// A user socket with declared channels at `path`; those of [`ChannelKind::Supabase`] are also
/// needed at [`HOSTED_PATH`](crate::supabase::HOSTED_PATH): [`hosted`].
///
/// # Errors
/// All mistakes in the specs, in their order.
pub fn user_socket(
    path: &str,
    specs: &[ChannelSpec],
    defaults: Defaults,
) -> Result<UserSocket, Vec<Mistake>> {
    #[cfg(feature = "token")]
    rules::none_needs_tokens(specs)?;
    let specs = complete(specs);
    let compiled = check::compile(&specs, defaults, &[])?;
    none_needs_identity(&compiled)?;
    Ok(user_socket_of(path, &specs, defaults, compiled))
}

/// No client has claims without tokens and without a hook for connects.
fn none_needs_identity(compiled: &[Compiled]) -> Result<(), Vec<Mistake>> {
    let needing = compiled.iter().enumerate().filter(|(_, compiled)| match compiled {
        Compiled::Declared(declared) => declared.templates().any(Template::needs_token),
        Compiled::Supabase(_) => false,
    });
    let message = "uses $token, but the server has no [token]: add that table";
    let mistake =
        |(channel, _)| Mistake { channel, event: None, key: "topic", message: message.to_owned() };
    let mistakes: Vec<Mistake> = needing.map(mistake).collect();
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// Warnings about settings that are allowed but probably not intended; specs with mistakes have
/// none. They name an event that is both declared and announces joins. On a server with tokens they
/// name templates that show what a client says about itself instead of its verified identity: one
/// user could pose as another.
pub fn traps(
    specs: &[ChannelSpec],
    defaults: Defaults,
    has_tokens: bool,
    hooks: &[&str],
) -> Vec<Mistake> {
    let compiled = check::compile(&complete(specs), defaults, hooks).unwrap_or_default();
    let mut traps = Vec::new();
    for (channel, compiled) in compiled.iter().enumerate() {
        let Compiled::Declared(declared) = compiled else { continue };
        let mut trap = |key, message| {
            traps.push(Mistake { channel, event: None, key, message });
        };
        let announces = declared.announce.iter().map(|announce| &announce.event);
        let events = &declared.events;
        for name in announces.filter(|name| events.iter().any(|event| event.name == **name)) {
            let message = format!(
                "{name:?} announces joins, so clients cannot push it and the event with this \
                 name has no effect. Rename one of them."
            );
            trap("announce_join", message);
        }
        if !has_tokens {
            continue;
        }
        let key = declared.presence.iter().flat_map(presence::Presence::key_of_client);
        let events = events.iter().chain(&declared.any_event);
        // The application sees what it passes on.
        let events = events.filter(|event| event.reach != Reach::None && event.hook.is_none());
        let announced = declared.announce.iter().map(|announce| &announce.payload);
        let sent = announced.chain(events.map(|event| &event.payload));
        let whole = sent.filter(|payload| payload.is_payload()).map(|_| "$payload".to_owned());
        let claimed = declared.templates().flat_map(Template::claimed);
        let forms: BTreeSet<String> = claimed.chain(key).chain(whole).collect();
        for form in forms {
            let name = form.trim_start_matches("$payload").trim_start_matches(['$', '.']);
            let name = if name.is_empty() { "name" } else { name };
            let message = format!(
                "\"{form}\" is chosen by the client, so one user can pose as another. \
                 $token.sub and $token.claims.{name} come from the verified token."
            );
            trap("topic", message);
        }
    }
    traps
}

/// The same with tokens, whose claims `join` and `publish` of the channels may use.
///
/// # Errors
/// As [`user_socket`].
#[cfg(feature = "token")]
pub fn user_socket_with_tokens(
    path: &str,
    specs: &[ChannelSpec],
    defaults: Defaults,
    policy: crate::token::TokenPolicy,
) -> Result<UserSocket, Vec<Mistake>> {
    let specs = complete(specs);
    let mut compiled = check::compile(&specs, defaults, &[])?;
    verify_by(&policy, &mut compiled);
    Ok(user_socket_of(path, &specs, defaults, compiled).tokens(policy))
}

/// The same with hooks, and tokens if there are any. An application decides if neither a token nor
/// a rule does.
///
/// # Errors
/// As [`user_socket`].
#[cfg(feature = "hooks")]
pub fn user_socket_with_hooks(
    path: &str,
    specs: &[ChannelSpec],
    defaults: Defaults,
    tokens: Option<crate::token::TokenPolicy>,
    hooks: Arc<crate::hooks::HookSet>,
) -> Result<UserSocket, Vec<Mistake>> {
    let has_users = tokens.is_some() || hooks.asks_connect();
    if !has_users {
        rules::none_needs_tokens(specs)?;
    }
    let specs = complete(specs);
    let mut compiled = check::compile(&specs, defaults, &hooks.names())?;
    if !has_users {
        none_needs_identity(&compiled)?;
    }
    if let Some(policy) = &tokens {
        verify_by(policy, &mut compiled);
    }
    Ok(user_socket_of(path, &specs, defaults, compiled).hooks(hooks, tokens))
}

#[cfg(feature = "token")]
fn verify_by(policy: &crate::token::TokenPolicy, compiled: &mut [Compiled]) {
    for it in compiled {
        if let Compiled::Declared(declared) = it {
            declared.rules.verify_by(policy);
        }
    }
}

fn user_socket_of(
    path: &str,
    specs: &[ChannelSpec],
    defaults: Defaults,
    compiled: Vec<Compiled>,
) -> UserSocket {
    let counts = compiled.iter().any(|it| match it {
        Compiled::Declared(it) => it.announce.is_some() || it.members_max.is_some(),
        Compiled::Supabase(_) => false,
    });
    let mut user_socket = UserSocket::new(path).count_members(counts);
    let frame_limits = limits(specs, defaults);
    if let Some(limits) = frame_limits {
        user_socket = user_socket.frame_limits(limits);
    }
    let has_schema = compiled.iter().any(|it| match it {
        Compiled::Declared(it) => it.has_schema(),
        Compiled::Supabase(_) => false,
    });
    if has_schema {
        user_socket = user_socket.short_texts();
    }
    let message_bytes_max = frame_limits.map_or(usize::MAX, |it| it.message_bytes_max);
    let routes = compiled.into_iter().zip(specs);
    routes.fold(user_socket, |user_socket, (compiled, spec)| {
        let mut route = route_of(compiled, spec, message_bytes_max);
        if spec.wait_for_interest {
            route = route.wait_for_interest();
        }
        if let Some(compress) = spec.compress {
            route = route.compress(compress);
        }
        user_socket.channel(route)
    })
}

fn route_of(compiled: Compiled, spec: &ChannelSpec, message_bytes_max: usize) -> ChannelRoute {
    let declared = match compiled {
        Compiled::Declared(declared) => Arc::new(*declared),
        Compiled::Supabase(settings) => {
            return ChannelRoute::supabase(&spec.topic, settings).limits(spec.limits);
        }
    };
    let [payloads, prepares] = [&declared, &declared].map(Arc::clone);
    let route = ChannelRoute::on_shard(&spec.topic, move |ctx, payload| {
        Declared::join(&declared, ctx, &payload)
    })
    .payloads(payloads)
    .limits(check::limits(spec, message_bytes_max))
    .alike(format!("{:?} {:?}", spec.presence, spec.members_max));
    // Nothing can be prepared before an application's answer.
    let is_asked = prepares.join_hook.is_some() || prepares.asks_about_messages();
    let route = match is_asked {
        true => route,
        false => route.prepares(move |message| Box::new(prepares.prepare(message))),
    };
    match spec.history {
        Some(history) => route.history(history),
        None => route,
    }
}

#[cfg(test)]
mod tests;

//! Channels that behave like Supabase Realtime's, for its clients (PROTOCOL §11): broadcasts
//! between members, presence, tokens.
//!
//! ```
//! use simurgh::{ChannelRoute, UserSocket};
//! use simurgh::supabase::{HOSTED_PATH, Settings};
//!
//! let realtime = ChannelRoute::supabase("realtime:*", Settings::default());
//! let user_socket = UserSocket::new(HOSTED_PATH).channel(realtime);
//! # let _ = user_socket;
//! ```
//!
//! `@supabase/realtime-js` and PyPI's `realtime` connect to such a user socket. A broadcast that a
//! client sends as a binary frame is passed on as one: encoded once for all members that speak V2,
//! once for those that speak V1.
//!
//! # Private topics
//! With Supabase the policies of a database control who may read and write in a private topic; here
//! [`Settings::join`] and [`Settings::publish`] do, by the claims of tokens. A topic with rules for
//! joins is private for all: a join that does not ask for a private topic is refused. Without rules
//! it is public, and a join that asks for a private one is refused.
//!
//! # Cost
//! 56 bytes a member, in addition to its membership.

#[cfg(feature = "token")]
mod access;
mod config;
mod member;

use std::sync::Arc;
use std::time::{Duration, Instant};

use simurgh_proto::message::Payload;

use crate::ids::Ids;
#[cfg(feature = "token")]
use access::Access;
use config::JoinConfig;
use member::Member;
use simurgh_channel::{Join, JoinFn, PARSED_BYTES_MAX, Rate, ShardContext};

/// The path of Supabase's user socket, below a project's address.
pub const HOSTED_PATH: &str = "/realtime/v1";

/// The prefix of its channels' topics.
pub const TOPIC_PREFIX: &str = "realtime:";

/// The settings of its channels.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Largest payload of a broadcast, bytes. Default: only the limit of messages.
    pub payload_bytes_max: Option<usize>,
    /// Events a member may send each second; above, its channel is closed. Default, and 0: no
    /// limit.
    pub events_per_second: Option<u32>,
    /// Rules for joins, one of which has to allow it; they make the topics private.
    #[cfg(feature = "token")]
    pub join: Vec<crate::token::Rule>,
    /// Rules for broadcasts and presence, one of which has to allow it. Default: all members.
    #[cfg(feature = "token")]
    pub publish: Vec<crate::token::Rule>,
}

#[derive(Debug)]
pub(crate) struct Realtime {
    payload_bytes_max: usize,
    events: Option<Rate>,
    /// Time zero of members' buckets.
    origin: Instant,
    keys: Ids,
    #[cfg(feature = "token")]
    access: Access,
}

/// The rights of a member's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    may_publish: bool,
    /// Time until it expires, if the token is the channel's own.
    lifetime: Option<Duration>,
}

/// The reason of a refused join, as Supabase has it: a code and a sentence.
struct Refusal(&'static str, String);

impl Realtime {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            payload_bytes_max: settings.payload_bytes_max.unwrap_or(usize::MAX),
            events: settings.events_per_second.and_then(|it| Rate::per_second(it.into()).ok()),
            origin: Instant::now(),
            keys: Ids::default(),
            #[cfg(feature = "token")]
            access: Access::new(settings.join, settings.publish),
        }
    }

    /// Sets the policy of the user socket, which verifies tokens.
    #[cfg(feature = "token")]
    pub(crate) fn judged_by(mut self, policy: &Arc<crate::token::TokenPolicy>) -> Self {
        self.access.policy = Some(Arc::clone(policy));
        self
    }

    pub(crate) fn into_join(self) -> JoinFn {
        let realtime = Arc::new(self);
        Arc::new(move |ctx, payload| realtime.join(ctx, &payload))
    }

    fn join(self: &Arc<Self>, ctx: &mut ShardContext<'_>, payload: &Payload<'_>) -> Join {
        match self.admit(ctx, payload) {
            Ok((member, reply)) => Join::ok(member).reply(reply),
            Err(Refusal(code, why)) => {
                tracing::debug!(topic = ctx.topic(), code, why, "join refused");
                Join::error(serde_json::json!({"reason": format!("{code}: {why}")}))
            }
        }
    }

    fn admit(
        self: &Arc<Self>,
        ctx: &mut ShardContext<'_>,
        payload: &Payload<'_>,
    ) -> Result<(Member, Payload<'static>), Refusal> {
        if ctx.topic() == TOPIC_PREFIX {
            let why = "You must provide a topic name".to_owned();
            return Err(Refusal("TopicNameRequired", why));
        }
        if payload.len() > PARSED_BYTES_MAX {
            ctx.count_wrong_payload();
            let why = format!("a join must have at most {PARSED_BYTES_MAX} bytes");
            return Err(Refusal("InvalidJoinPayload", why));
        }
        let config = JoinConfig::read(payload).map_err(|wrong| {
            ctx.count_wrong_payload();
            Refusal("InvalidJoinPayload", format!("postgres_changes: {wrong}"))
        })?;
        #[cfg(feature = "token")]
        let pass = self.access.join(ctx, &config)?;
        #[cfg(not(feature = "token"))]
        let pass = match config.private {
            true => return Err(not_permitted(ctx)),
            false => Pass { may_publish: true, lifetime: None },
        };
        let reply = config.response();
        Ok((Member::new(Arc::clone(self), config, pass), reply))
    }
}

/// Refused by a policy, or because there is none.
fn not_permitted(ctx: &ShardContext<'_>) -> Refusal {
    ctx.count_unauthorized();
    let topic = ctx.subtopic();
    let why = format!("You do not have permissions to read from this Channel topic: {topic}");
    Refusal("Unauthorized", why)
}

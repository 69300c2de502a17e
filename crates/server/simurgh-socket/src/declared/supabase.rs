//! Declared Supabase channels: `kind = "supabase"`.

use serde::Deserialize;

use super::{ChannelSpec, OtherEvents, PayloadShape};
use crate::socket::UserSocket;
use crate::supabase::{HOSTED_PATH, Settings, TOPIC_PREFIX};

/// The default topic of such a channel.
const TOPIC: &str = "realtime:*";

/// The kind of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelKind {
    /// An application's channel, defined by its declaration.
    #[default]
    Phoenix,
    /// A Supabase channel, for Supabase's clients ([`crate::supabase`]). Its other keys are `join`,
    /// `publish`, `events_per_second`, `message_bytes_max`, `payload_bytes_max` and
    /// `wait_for_interest`.
    Supabase,
}

/// A copy of a user socket with Supabase channels at Supabase's path; none without such channels.
pub fn hosted(user_socket: &UserSocket) -> Option<UserSocket> {
    user_socket.speaks_supabase().then(|| user_socket.at(HOSTED_PATH))
}

pub(super) enum Compiled {
    Declared(Box<super::Declared>),
    Supabase(Settings),
}

pub(super) fn complete(specs: &[ChannelSpec]) -> Vec<ChannelSpec> {
    let mut specs = specs.to_vec();
    for spec in &mut specs {
        if spec.kind == ChannelKind::Supabase && spec.topic.is_empty() {
            TOPIC.clone_into(&mut spec.topic);
        }
    }
    specs
}

/// Compiles such a channel; `add` receives mistakes with their key.
#[cfg_attr(
    not(feature = "token"),
    allow(clippy::needless_update, reason = "the other settings are about tokens")
)]
pub(super) fn settings(spec: &ChannelSpec, mut add: impl FnMut(&'static str, String)) -> Settings {
    if !spec.topic.starts_with(TOPIC_PREFIX) {
        let topic = &spec.topic;
        add(
            "topic",
            format!("{topic:?}: topics of kind \"supabase\" must begin with \"realtime:\""),
        );
    }
    #[cfg(feature = "token")]
    if spec.join_token.is_some() {
        let why =
            "does not apply to kind = \"supabase\", where joins send the token as access_token";
        add("join_token", why.to_owned());
    }
    for (key, is_said) in [
        ("deny", !spec.deny.is_empty()),
        ("join_hook", spec.join_hook.is_some()),
        ("join_reply", spec.join_reply.is_some()),
        ("announce_join", spec.announce_join.is_some()),
        ("announce_payload", spec.announce_payload.is_some()),
        ("announce_joins_up_to", spec.announce_joins_up_to.is_some()),
        ("other_events", spec.other_events != OtherEvents::default()),
        ("payload_shape", spec.payload_shape != PayloadShape::default()),
        ("members_max", spec.members_max.is_some()),
        ("presence", spec.presence.is_some()),
        ("history", spec.history.is_some()),
        ("event", !spec.event.is_empty()),
    ] {
        if is_said {
            add(key, "does not apply to kind = \"supabase\", whose events are fixed".to_owned());
        }
    }
    Settings {
        payload_bytes_max: spec.payload_bytes_max.or(spec.message_bytes_max),
        events_per_second: spec.events_per_second,
        ..Settings::default()
    }
}

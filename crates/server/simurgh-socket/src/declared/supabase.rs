//! Channels that are declared as Supabase has them: `kind = "supabase"`.

use serde::Deserialize;

use super::{ChannelSpec, OtherEvents, PayloadShape};
use crate::socket::UserSocket;
use crate::supabase::{HOSTED_PATH, Settings, TOPIC_PREFIX};

/// The topics of such a channel that names none.
const TOPIC: &str = "realtime:*";

/// Whose channel it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelKind {
    /// One of the application's own, of which its declaration says what it does.
    #[default]
    Phoenix,
    /// One as Supabase Realtime has it, for its clients ([`crate::supabase`]). Of the other keys
    /// there are `join`, `publish`, `events_per_second`, `message_bytes_max`,
    /// `payload_bytes_max` and `wait_for_interest`.
    Supabase,
}

/// A user socket with Supabase's channels once more, where Supabase has it; none, if it has no such
/// channels.
pub fn hosted(user_socket: &UserSocket) -> Option<UserSocket> {
    user_socket.speaks_supabase().then(|| user_socket.at(HOSTED_PATH))
}

/// A spec that was checked, of whichever kind.
pub(super) enum Compiled {
    Declared(Box<super::Declared>),
    Supabase(Settings),
}

/// The specs with what goes without saying.
pub(super) fn complete(specs: &[ChannelSpec]) -> Vec<ChannelSpec> {
    let mut specs = specs.to_vec();
    for spec in &mut specs {
        if spec.kind == ChannelKind::Supabase && spec.topic.is_empty() {
            TOPIC.clone_into(&mut spec.topic);
        }
    }
    specs
}

/// What such a channel is served by; `add` is told of mistakes, with the key they are about.
#[cfg_attr(
    not(feature = "token"),
    allow(clippy::needless_update, reason = "the other settings are about tokens")
)]
pub(super) fn settings(spec: &ChannelSpec, mut add: impl FnMut(&'static str, String)) -> Settings {
    if !spec.topic.starts_with(TOPIC_PREFIX) {
        let topic = &spec.topic;
        add(
            "topic",
            format!("{topic:?}: the topics of kind \"supabase\" begin with \"realtime:\""),
        );
    }
    #[cfg(feature = "token")]
    if spec.join_token.is_some() {
        let why = "is not for kind = \"supabase\", whose joins bring theirs as access_token";
        add("join_token", why.to_owned());
    }
    for (key, is_said) in [
        ("deny", !spec.deny.is_empty()),
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
            add(key, "is not for kind = \"supabase\", whose events are fixed".to_owned());
        }
    }
    Settings {
        payload_bytes_max: spec.payload_bytes_max.or(spec.message_bytes_max),
        events_per_second: spec.events_per_second,
        ..Settings::default()
    }
}

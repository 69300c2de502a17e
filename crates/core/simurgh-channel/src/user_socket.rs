//! The routes of a user socket, and the settings of its sockets.

use core::time::Duration;

use simurgh_proto::message::{Message, Payload};
use simurgh_proto::topic::Pattern;

use crate::channel::JoinFn;
use crate::context::{Prepared, ShardContext};
use crate::history::HistoryRule;
use crate::limit::{ChannelLimits, Rate, SocketLimits};
use crate::outcome::Outcome;
use simurgh_data::prelude::*;

/// Prepares a message on the thread that reads it; it may take the payload.
pub type PrepareFn = Arc<dyn Fn(&mut Message<'static>) -> Prepared + Send + Sync>;

/// Handles a fresh token of the socket, in place of the channel on whose topic it arrives.
pub type RenewFn = Arc<dyn Fn(&mut ShardContext<'_>, &Payload<'_>) -> Outcome + Send + Sync>;

/// The messages that are compressed for clients that offer permessage-deflate: those of 256 bytes
/// to 64 KiB, where that makes them shorter.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Compress {
    /// None.
    #[default]
    Off,
    /// Texts.
    Text,
    /// Texts and binary messages.
    All,
}

/// The channels of a user socket, and the settings of its sockets.
#[derive(Clone, Debug)]
pub struct UserSocket {
    /// The protocol of its sockets.
    pub kind: Kind,
    /// After this time without a message a socket is closed, or never; `None`: as in
    /// [`Config::idle_timeout`](crate::Config::idle_timeout).
    pub idle_timeout: Option<Option<Duration>>,
    /// How many channels one socket may hold (PROTOCOL §5.2).
    pub channels_max: u16,
    /// Whether members are counted over all shards.
    pub count_members: bool,
    /// How much each of its sockets may send.
    pub limits: SocketLimits,
    /// The messages that are compressed; `Off`: permessage-deflate is declined.
    pub compress: Compress,
    /// In a cluster a reload changes no histories: those of the start, in place of the routes'.
    pub histories_of_start: Option<Vec<(Pattern, HistoryRule)>>,
}

/// The protocol of a user socket's sockets.
#[derive(Clone, derive_more::Debug)]
pub enum Kind {
    /// Phoenix Channels; the first route whose pattern matches takes a topic.
    #[debug("Channels({})", _0.len())]
    Channels(Vec<Route>),
    /// Plain WebSocket: one channel a connection, on this topic, without any serializer.
    #[debug("Plain({topic:?})")]
    Plain {
        /// The topic of all its sockets.
        topic: String,
        /// Joins them.
        join: JoinFn,
    },
}

/// The channel of all topics of a pattern.
#[derive(Clone, derive_more::Debug)]
pub struct Route {
    /// Its topics.
    pub pattern: Pattern,
    /// Answers their joins.
    #[debug(skip)]
    pub join: JoinFn,
    /// Prepares long messages on the thread that reads them, if the definition can.
    #[debug(skip)]
    pub prepare: Option<PrepareFn>,
    /// Handles the event `access_token`; `None`: the channel does.
    #[debug(skip)]
    pub renew: Option<RenewFn>,
    /// How much a socket may send on each of the topics.
    pub limits: ChannelLimits,
    /// How much of their broadcasts is kept; `None`: nothing.
    pub history: Option<HistoryRule>,
    /// The messages that are compressed; `None`: as on the user socket.
    pub compress: Option<Compress>,
}

impl Route {
    /// A route without limits and history.
    pub fn new(pattern: Pattern, join: JoinFn) -> Self {
        let limits = ChannelLimits::default();
        Self { pattern, join, prepare: None, renew: None, limits, history: None, compress: None }
    }
}

impl UserSocket {
    /// One of this kind with the default settings.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            idle_timeout: None,
            channels_max: 100,
            count_members: false,
            limits: SocketLimits::default(),
            compress: Compress::Off,
            histories_of_start: None,
        }
    }

    /// The messages of a topic that are compressed; `None` if none of its sockets has
    /// permessage-deflate, or the topic.
    pub fn compress(&self, topic: &str) -> Option<Compress> {
        if self.compress == Compress::Off {
            return None;
        }
        match self.is_plain_on(topic) {
            true => Some(self.compress),
            false => self.route(topic).map(|route| route.compress.unwrap_or(self.compress)),
        }
    }

    /// Whether its sockets or their channels have a limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.limits != SocketLimits::default()
            || self.routes().iter().any(|route| route.limits != ChannelLimits::default())
    }

    /// All its rate limits.
    pub fn rates(&self) -> impl Iterator<Item = Rate> {
        self.limits.rates().chain(self.routes().iter().flat_map(|route| route.limits.rates()))
    }

    fn routes(&self) -> &[Route] {
        match &self.kind {
            Kind::Channels(routes) => routes,
            Kind::Plain { .. } => &[],
        }
    }

    /// Whether the broadcasts of some topics are kept.
    #[inline]
    pub fn has_history(&self) -> bool {
        self.histories().next().is_some()
    }

    /// Whether the broadcasts of a topic are kept.
    pub fn keeps(&self, topic: &str) -> bool {
        self.histories().any(|(pattern, _)| pattern.matches(topic))
    }

    /// The patterns of topics whose broadcasts are kept, and how much.
    pub fn histories(&self) -> impl Iterator<Item = (&Pattern, HistoryRule)> {
        let of_start = self.histories_of_start.iter().flatten();
        let routes = self.routes().iter().filter(|_| self.histories_of_start.is_none());
        let own = routes.filter_map(|it| Some((&it.pattern, it.history?)));
        of_start.map(|(pattern, rule)| (pattern, *rule)).chain(own)
    }

    /// Whether members of this topic are plain sockets.
    pub fn is_plain_on(&self, topic: &str) -> bool {
        matches!(&self.kind, Kind::Plain { topic: own, .. } if own == topic)
    }

    /// The route of a topic.
    pub fn route(&self, topic: &str) -> Option<&Route> {
        match &self.kind {
            Kind::Channels(routes) => routes.iter().find(|route| route.pattern.matches(topic)),
            Kind::Plain { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Join;

    #[test]
    fn channel_overrides_the_compression_of_its_user_socket() {
        let join: JoinFn = Arc::new(|_, _| Join::error(Payload::NULL));
        let mut secret = Route::new(Pattern::parse("secret").unwrap(), Arc::clone(&join));
        secret.compress = Some(Compress::Off);
        let rooms = Route::new(Pattern::parse("rooms:*").unwrap(), Arc::clone(&join));
        let mut it = UserSocket::new(Kind::Channels(vec![secret, rooms]));
        assert_eq!(it.compress("rooms:a"), None, "it declines the extension");
        it.compress = Compress::All;
        let found = ["rooms:a", "secret", "other"].map(|topic| it.compress(topic));
        assert_eq!(found, [Some(Compress::All), Some(Compress::Off), None]);
        it.kind = Kind::Plain { topic: "chat".into(), join };
        assert_eq!(["chat", "secret"].map(|topic| it.compress(topic)), [Some(Compress::All), None]);
    }

    #[test]
    fn first_declared_matching_channel_is_used() {
        let join: JoinFn = Arc::new(|_, _| Join::error(Payload::NULL));
        let route = |pattern| Route::new(Pattern::parse(pattern).unwrap(), Arc::clone(&join));
        let routes = ["rooms:lobby", "rooms:*", "rooms:late"].map(route).into();
        let user_socket = UserSocket::new(Kind::Channels(routes));
        let found = |topic| user_socket.route(topic).map(|it| it.pattern.to_string());
        assert_eq!(found("rooms:lobby").as_deref(), Some("rooms:lobby"));
        assert_eq!(found("rooms:late").as_deref(), Some("rooms:*"));
        assert_eq!(found("users"), None);
    }
}

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
}

impl Route {
    /// A route without limits and history.
    pub fn new(pattern: Pattern, join: JoinFn) -> Self {
        let limits = ChannelLimits::default();
        Self { pattern, join, prepare: None, renew: None, limits, history: None }
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
        self.routes().iter().any(|it| it.history.is_some())
    }

    /// Whether the broadcasts of a topic are kept.
    pub fn keeps(&self, topic: &str) -> bool {
        self.routes().iter().any(|it| it.history.is_some() && it.pattern.matches(topic))
    }

    /// The patterns of topics whose broadcasts are kept, and how much.
    pub fn histories(&self) -> impl Iterator<Item = (&Pattern, HistoryRule)> {
        self.routes().iter().filter_map(|it| Some((&it.pattern, it.history?)))
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

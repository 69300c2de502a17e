//! Which topics lead to which channel, on which terms.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use simurgh_proto::message::Message;
use simurgh_proto::topic::Pattern;

use crate::channel::JoinFn;
use crate::context::Prepared;
use crate::history::rule::HistoryRule;
use crate::limit::{ChannelLimits, Rate, SocketLimits};

/// Prepares a message, of which it may take the payload, where it is read.
pub type PrepareFn = Arc<dyn Fn(&mut Message<'static>) -> Prepared + Send + Sync>;

/// The channels of a user socket, and the terms of its sockets.
#[derive(Clone, Debug)]
pub struct UserSocket {
    /// What its sockets speak of.
    pub kind: Kind,
    /// Closes a socket that said nothing for so long, or never; `None`: as the server's
    /// [`Config`](crate::Config) says.
    pub idle_timeout: Option<Option<Duration>>,
    /// How many channels one socket may hold (PROTOCOL §5.2).
    pub channels_max: u16,
    /// Whether members are counted over all shards.
    pub count_members: bool,
    /// How much each of its sockets may say.
    pub limits: SocketLimits,
}

/// What the sockets of a user socket speak of.
#[derive(Clone)]
pub enum Kind {
    /// Phoenix Channels; the first route whose pattern matches takes a topic.
    Channels(Vec<Route>),
    /// Plain WebSocket: one channel a connection, on this topic, without any serializer.
    Plain {
        /// The topic that all its sockets are on.
        topic: String,
        /// Makes their channels.
        join: JoinFn,
    },
}

/// Where a topic leads.
#[derive(Clone)]
pub struct Route {
    /// The topics that are meant.
    pub pattern: Pattern,
    /// Makes their channels.
    pub join: JoinFn,
    /// What the definition makes of a long message where that is read, if it does.
    pub prepare: Option<PrepareFn>,
    /// How much a socket may say on each of the topics.
    pub limits: ChannelLimits,
    /// How much of their broadcasts is kept, if they are.
    pub history: Option<HistoryRule>,
}

impl UserSocket {
    /// One of this kind on the usual terms.
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
    pub(crate) fn is_limited(&self) -> bool {
        self.limits != SocketLimits::default()
            || self.routes().iter().any(|route| route.limits != ChannelLimits::default())
    }

    /// All rates by which something is limited.
    pub(crate) fn rates(&self) -> impl Iterator<Item = Rate> {
        self.limits.rates().chain(self.routes().iter().flat_map(|route| route.limits.rates()))
    }

    fn routes(&self) -> &[Route] {
        match &self.kind {
            Kind::Channels(routes) => routes,
            Kind::Plain { .. } => &[],
        }
    }

    /// Whether the broadcasts of some topics are kept.
    pub fn has_history(&self) -> bool {
        self.routes().iter().any(|it| it.history.is_some())
    }

    /// Whether the broadcasts of a topic are kept.
    pub fn keeps(&self, topic: &str) -> bool {
        self.routes().iter().any(|it| it.history.is_some() && it.pattern.matches(topic))
    }

    /// What is declared of the histories of topics.
    pub fn histories(&self) -> impl Iterator<Item = (&Pattern, HistoryRule)> {
        self.routes().iter().filter_map(|it| Some((&it.pattern, it.history?)))
    }

    /// Where a topic leads.
    pub fn route(&self, topic: &str) -> Option<&Route> {
        match &self.kind {
            Kind::Channels(routes) => routes.iter().find(|route| route.pattern.matches(topic)),
            Kind::Plain { .. } => None,
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channels(routes) => f.debug_tuple("Channels").field(&routes.len()).finish(),
            Self::Plain { topic, .. } => f.debug_tuple("Plain").field(topic).finish(),
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

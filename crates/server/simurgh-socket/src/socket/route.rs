//! The channels of a user socket: which topics they have, and how they are joined.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use simurgh_channel::{
    ChannelLimits, Compress, HistoryRule as History, Join, JoinFn, Prepared, Route, ShardContext,
};
use simurgh_proto::message::{Message, Payload};
use simurgh_proto::topic::Pattern;

use crate::asynchronous::{self, IntoJoin, JoinContext, Reject};
use crate::shape::Misfit;
use crate::supabase::{Realtime, Settings};

/// The channel of all topics that match a pattern, and its settings, for
/// [`UserSocket::channel`](crate::UserSocket::channel).
///
/// ```
/// use std::time::Duration;
///
/// use simurgh::history::History;
/// use simurgh::{
///     ChannelRoute, Channel, Context, JoinContext, Outcome, Payload, Reject, UserSocket,
/// };
///
/// struct Room;
///
/// async fn join(_: JoinContext, _: Payload<'_>) -> Result<Room, Reject> {
///     Ok(Room)
/// }
///
/// impl Channel for Room {
///     async fn handle_in(
///         &mut self,
///         _: &mut Context,
///         _: &str,
///         _: Payload<'static>,
///     ) -> Result<Outcome, Reject> {
///         Err(Reject::unknown_event())
///     }
/// }
///
/// let five_minutes = History { age: Duration::from_secs(300), ..History::default() };
/// let rooms = ChannelRoute::new("rooms:*", join).history(five_minutes);
/// let user_socket = UserSocket::new("/socket").channel(rooms);
/// # let _ = user_socket;
/// ```
#[derive(Clone)]
pub struct ChannelRoute {
    pub(super) route: Route,
    pub(super) own: Own,
}

/// The settings of a channel that the core does not need.
#[derive(Clone, Default)]
pub(super) struct Own {
    /// The required payloads of its events; objects by default.
    pub(super) payloads: Option<Arc<dyn Payloads>>,
    /// Whether its joins wait until broadcasts of other nodes arrive.
    pub(super) waits: bool,
    /// Settings that must be the same on all nodes, as text.
    pub(super) alike: String,
    /// Set if it is a Supabase channel.
    pub(super) supabase: Option<Settings>,
}

/// The required payloads of a channel's events.
pub(crate) trait Payloads: Send + Sync {
    /// Whether the payload of an event is accepted.
    fn check(&self, event: &str, payload: &Payload<'_>) -> Result<(), Misfit>;

    /// The events with a schema, and how many payloads each has refused.
    fn refused(&self) -> Vec<(&str, u64)>;
}

impl ChannelRoute {
    /// The channel of topics that match `pattern`: a literal, or a prefix that ends in `*`. `join`
    /// is an `async fn` that returns a [`Channel`](crate::asynchronous::Channel), or one with the
    /// payload of its reply. The socket is not read until the join is decided; after
    /// `Config::decision_timeout` (30 s by default) the client receives an error.
    ///
    /// # Panics
    /// If the pattern has a `*` anywhere but at its end.
    pub fn new<F, J>(
        pattern: &str,
        join: impl Fn(JoinContext, Payload<'static>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<J, Reject>> + Send + 'static,
        J: IntoJoin,
    {
        Self::on_shard(pattern, move |ctx, payload| asynchronous::join(ctx, payload, &join))
    }

    /// As [`new`](Self::new), with a channel and a `join` that run on the shard, and must not
    /// block: a [`ShardChannel`](simurgh_channel::ShardChannel). A push and its reply then cost a
    /// few microseconds less.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn on_shard(
        pattern: &str,
        join: impl Fn(&mut ShardContext<'_>, Payload<'_>) -> Join + Send + Sync + 'static,
    ) -> Self {
        Self::of(pattern, Arc::new(join))
    }

    fn of(pattern: &str, join: JoinFn) -> Self {
        let pattern = match Pattern::parse(pattern) {
            Ok(pattern) => pattern,
            #[allow(clippy::panic, reason = "a wrong literal in the program, met at start-up")]
            Err(error) => panic!("channel pattern {pattern:?}: {error}"),
        };
        Self { route: Route::new(pattern, join), own: Own::default() }
    }

    /// Supabase channels, on topics that match `pattern`, which begins with `realtime:` (PROTOCOL
    /// §11). The user socket then accepts the binary frames of Supabase's clients, and tokens from
    /// the parameter `apikey`.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn supabase(pattern: &str, settings: Settings) -> Self {
        let mut it = Self::of(pattern, Realtime::new(settings.clone()).into_join());
        it.own.supabase = Some(settings);
        it
    }

    /// Retains the topics' broadcasts for clients that reconnect and send the position up to which
    /// they have received (docs/HISTORY.md). Without it nothing is retained, at no cost. The
    /// setting holds for the topics of the pattern, also where other user sockets broadcast on
    /// them.
    pub fn history(mut self, history: History) -> Self {
        self.route.history = Some(history);
        self
    }

    /// Messages of its topics that are compressed, in place of the setting of its user socket
    /// ([`UserSocket::compress`](crate::UserSocket::compress)), unless that is off. Where several
    /// user sockets have the topic, the least counts.
    pub fn compress(mut self, compress: Compress) -> Self {
        self.route.compress = Some(compress);
        self
    }

    /// Limits the messages of each socket on each topic (PROTOCOL §6.7). Without it there are no
    /// limits. Costs a record for each member that has sent something lately.
    pub fn limits(mut self, limits: ChannelLimits) -> Self {
        self.route.limits = limits;
        self
    }

    /// Answers joins only once broadcasts of other nodes on the topic arrive (docs/CLUSTER.md).
    /// Without it a client joins at once, and may miss broadcasts of other nodes in the first
    /// milliseconds of a topic's first member here. There is no wait without a cluster or without a
    /// link to it.
    pub fn wait_for_interest(mut self) -> Self {
        self.own.waits = true;
        self
    }

    /// Sets the required payloads of its events.
    pub(crate) fn payloads(mut self, payloads: Arc<dyn Payloads>) -> Self {
        self.own.payloads = Some(payloads);
        self
    }

    /// Prepares long messages off the shard, where they are decoded; the result is in the context
    /// in which the message is handled.
    pub(crate) fn prepares(
        mut self,
        prepare: impl Fn(&mut Message<'static>) -> Prepared + Send + Sync + 'static,
    ) -> Self {
        self.route.prepare = Some(Arc::new(prepare));
        self
    }

    /// Adds settings, beside its history, that all nodes must share.
    pub(crate) fn alike(mut self, settings: String) -> Self {
        self.own.alike = settings;
        self
    }
}

impl fmt::Debug for ChannelRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChannelRoute").field(&self.route).finish()
    }
}

//! User sockets: their path, who may connect, and the channels of their topics.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{Compress, Join, Kind, Route, ShardContext, SocketLimits};
use simurgh_proto::message::Payload;
use simurgh_proto::origin::CheckOrigin;
use simurgh_proto::topic::Pattern;
use simurgh_proto::ws::FrameLimits;
use simurgh_proto::ws::handshake::Request;

use crate::asynchronous::{self, ConnectRequest, Reject};
use crate::connect::{Connect, ConnectFn, ConnectInfo, Transport, segments};
use crate::shape::{Misfit, PayloadShape};

mod longpoll;
mod route;
mod stages;
mod supabase;

pub use longpoll::LongPoll;
pub use route::ChannelRoute;
use route::Own;
pub(crate) use route::Payloads;
pub use stages::InterestFn;

/// A text of escapes or blanks takes 8 ns a byte to decode.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The same for one that a schema checks: a text of many small objects takes 60 ns a byte.
pub const SHORT_TEXT_BYTES: usize = 16 << 10;

/// A user socket: a path, its policy, and its channels.
///
/// ```
/// use simurgh::{Connect, UserSocket};
///
/// let user_socket = UserSocket::new("/socket").connect_on_shard(|info| {
///     match info.param("token").as_deref() {
///         Some("secret") => Connect::ok().id("user_sockets:1"),
///         _ => Connect::refuse(403),
///     }
/// });
/// # let _ = user_socket;
/// ```
#[derive(Clone)]
pub struct UserSocket {
    parts: Parts,
    /// Properties of the channels besides their routes, in the same order.
    own: Vec<Own>,
    #[cfg(feature = "token")]
    tokens: Option<Arc<crate::token::TokenPolicy>>,
}

/// The parts of a [`UserSocket`] that a server reads.
#[doc(hidden)]
#[derive(Clone)]
pub struct Parts {
    pub path: String,
    /// Set if it may be polled as well.
    pub longpoll: Option<LongPoll>,
    pub connect: Option<ConnectFn>,
    /// Its channels, and the settings of its sockets.
    pub channels: simurgh_channel::UserSocket,
    pub check_origin: Option<CheckOrigin>,
    pub auth_token: bool,
    pub subprotocols: Vec<String>,
    pub limits: Option<FrameLimits>,
    /// Longer texts are decoded outside the shard.
    pub text_bytes_max: usize,
    /// Limits that an answer of a hook chooses by their place, in place of its own.
    pub named_limits: Vec<(String, SocketLimits)>,
    /// The index of the copy of this user socket that has each of them.
    limited_copies: Vec<Option<u8>>,
    /// The name of its limits, if it is a copy.
    limited_by: Option<String>,
    /// A reload has removed it: nobody connects to it any more.
    is_retired: bool,
    /// The applications that decide over HTTP.
    #[cfg(feature = "hooks")]
    pub hooks: Option<Arc<crate::hooks::HookSet>>,
}

impl Parts {
    /// Whether it has hooks, whose questions name connections.
    pub fn asks(&self) -> bool {
        #[cfg(feature = "hooks")]
        return self.hooks.is_some();
        #[cfg(not(feature = "hooks"))]
        false
    }

    /// Voids the cached answers of its hooks about a user or a socket id.
    pub fn void_grants(&self, of: &str) {
        #[cfg(feature = "hooks")]
        if let Some(hooks) = &self.hooks {
            hooks.void(of);
        }
        #[cfg(not(feature = "hooks"))]
        let _ = of;
    }
}

impl UserSocket {
    /// A socket at `path`, for example `/socket`: WebSockets connect to `/socket/websocket`. A
    /// segment `:name` is a variable and joins the params.
    pub fn new(path: &str) -> Self {
        Self::of(&format!("{}/websocket", path.trim_end_matches('/')), Kind::Channels(Vec::new()))
    }

    /// A WebSocket endpoint without Channels.
    /// [`ShardChannel::handle_in`](simurgh_channel::ShardChannel::handle_in) receives every message
    /// as the payload of an event `text` or `binary` (text unchanged in [`Payload::Json`], even if
    /// it is not JSON). Pushes, replies and broadcasts on `topic` are sent as bare messages,
    /// without their event.
    pub fn plain(
        path: &str,
        topic: &str,
        join: impl Fn(&mut ShardContext<'_>, Payload<'_>) -> Join + Send + Sync + 'static,
    ) -> Self {
        Self::of(path, Kind::Plain { topic: topic.to_owned(), join: Arc::new(join) })
    }

    fn of(path: &str, kind: Kind) -> Self {
        let parts = Parts {
            path: path.to_owned(),
            longpoll: None,
            connect: None,
            channels: simurgh_channel::UserSocket::new(kind),
            check_origin: None,
            auth_token: false,
            subprotocols: Vec::new(),
            limits: None,
            text_bytes_max: TEXT_BYTES_MAX,
            named_limits: Vec::new(),
            limited_copies: Vec::new(),
            limited_by: None,
            is_retired: false,
            #[cfg(feature = "hooks")]
            hooks: None,
        };
        Self {
            parts,
            own: Vec::new(),
            #[cfg(feature = "token")]
            tokens: None,
        }
    }

    /// The parts that a server reads.
    #[doc(hidden)]
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// As [`connect`](Self::connect), decided by a function that runs on the shard, and must not
    /// block. For what it cannot decide at once there is [`Connect::later`].
    ///
    /// ```
    /// use simurgh::{Connect, UserSocket};
    ///
    /// let user_socket = UserSocket::new("/socket").connect_on_shard(|info| {
    ///     match info.param("token").as_deref() {
    ///         Some("secret") => Connect::ok().id("user_sockets:1"),
    ///         _ => Connect::refuse(403),
    ///     }
    /// });
    /// # let _ = user_socket;
    /// ```
    pub fn connect_on_shard(
        mut self,
        connect: impl Fn(&ConnectInfo<'_>) -> Connect + Send + Sync + 'static,
    ) -> Self {
        self.parts.connect = Some(Arc::new(connect));
        self
    }

    /// Adds a channel. The first route whose pattern matches a topic is used, in the order of these
    /// calls.
    ///
    /// # Panics
    /// At start-up, on a [plain](Self::plain) user socket, which has no channels.
    pub fn channel(mut self, route: ChannelRoute) -> Self {
        let ChannelRoute { route, own } = route;
        match &mut self.parts.channels.kind {
            Kind::Channels(routes) => routes.push(route),
            #[allow(clippy::panic, reason = "a mistake in the program, met at start-up")]
            Kind::Plain { .. } => panic!("a plain user socket has no channel {}", route.pattern),
        }
        self.own.push(own);
        self
    }

    /// Decides who may connect, by an `async fn`; without it, every client may. An `Err` refuses
    /// with 403 and its reason, or with 500 if the application failed. After
    /// `Config::decision_timeout` the connection is refused with 503.
    ///
    /// ```
    /// use simurgh::{Connect, ConnectRequest, Reject, UserSocket};
    ///
    /// async fn connect(request: ConnectRequest) -> Result<Connect, Reject> {
    ///     let token = request.param("token").ok_or_else(|| Reject::new("no token"))?;
    ///     Ok(Connect::ok().id(format!("user:{token}")))
    /// }
    ///
    /// let user_socket = UserSocket::new("/socket").connect(connect);
    /// # let _ = user_socket;
    /// ```
    pub fn connect<F>(self, connect: impl Fn(ConnectRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Connect, Reject>> + Send + 'static,
    {
        self.connect_on_shard(move |info| asynchronous::connect(info, &connect))
    }

    /// Compresses messages for clients that offer permessage-deflate (PROTOCOL §18.1); off by
    /// default. A broadcast is compressed once per shard for all of them, about 10 µs for 1 kB. Do
    /// not compress a message with a secret beside text of an attacker: its length gives the secret
    /// away (BREACH). [`ChannelRoute::compress`] excludes channels.
    pub fn compress(mut self, compress: Compress) -> Self {
        self.parts.channels.compress = compress;
        self
    }

    /// Sets the origins that may connect (PROTOCOL §2); without it, the endpoint's own setting.
    pub fn check_origin(mut self, check: CheckOrigin) -> Self {
        self.parts.check_origin = Some(check);
        self
    }

    /// Accepts an auth token in the subprotocols (PROTOCOL §2); off by default.
    pub fn auth_token(mut self, on: bool) -> Self {
        self.parts.auth_token = on;
        self
    }

    /// Serves long polling beside WebSockets (PROTOCOL §9), for clients whose networks block
    /// WebSockets: at `/socket/longpoll` for a user socket at `/socket`. Off by default, as in
    /// Phoenix; a [plain](Self::plain) user socket does not use Channels and cannot be polled.
    pub fn longpoll(mut self, longpoll: LongPoll) -> Self {
        self.parts.longpoll = Some(longpoll);
        self
    }

    /// Authenticates connections by tokens instead of a connect function, and accepts tokens in the
    /// subprotocols as well ([`auth_token`](Self::auth_token)). The socket gets an id and
    /// [`Claims`](crate::token::Claims), and is closed when its token expires. A connect function
    /// that is set after this may call the policy itself
    /// ([`TokenPolicy::connect`](crate::token::TokenPolicy::connect)).
    #[cfg(feature = "token")]
    pub fn tokens(mut self, policy: crate::token::TokenPolicy) -> Self {
        let policy = Arc::new(policy);
        self.tokens = Some(Arc::clone(&policy));
        self.auth_token(true).connect_on_shard(move |info| policy.connect(info))
    }

    /// Has an application decide who connects, where no token of `tokens` does.
    #[cfg(feature = "hooks")]
    pub(crate) fn hooks(
        self,
        set: Arc<crate::hooks::HookSet>,
        tokens: Option<crate::token::TokenPolicy>,
    ) -> Self {
        let of_tokens = tokens.clone().map(Arc::new);
        let connects = Arc::new(crate::hooks::Connects::new(Arc::clone(&set), of_tokens));
        let mut this = match tokens {
            Some(policy) => self.tokens(policy),
            None => self,
        };
        this.parts.hooks = Some(set);
        this.connect_on_shard(move |info| connects.decide(info))
    }

    /// Whether its keys of tokens are known; those at a URL are read. `None`: it has no tokens.
    #[cfg(feature = "hooks")]
    #[doc(hidden)]
    pub fn has_keys(&self) -> Option<impl Future<Output = bool> + Send + use<>> {
        Some(self.tokens.as_ref()?.has_keys())
    }

    /// Reads its keys of tokens at a URL for as long as the server runs; `None`: it has no tokens.
    #[cfg(feature = "hooks")]
    #[doc(hidden)]
    pub fn keep_keys_fresh(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        Some(self.tokens.as_ref()?.keep_fresh())
    }

    /// How often its keys of tokens were read, and how often they could not be; `None` if they
    /// never change.
    #[cfg(feature = "hooks")]
    #[doc(hidden)]
    pub fn key_reads(&self) -> Option<[u64; 2]> {
        self.tokens.as_ref()?.key_reads()
    }

    /// The patterns of its channels' topics.
    #[doc(hidden)]
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.routes().iter().map(|route| &route.pattern)
    }

    fn routes(&self) -> &[Route] {
        match &self.parts.channels.kind {
            Kind::Channels(routes) => routes,
            Kind::Plain { .. } => &[],
        }
    }

    /// The settings that all nodes must share: each pattern of its channels, and its settings as
    /// text.
    #[doc(hidden)]
    pub fn settings(&self) -> impl Iterator<Item = (Box<str>, String)> {
        let Parts { path, named_limits, .. } = &self.parts;
        let limits = (format!("{path} [limits.NAME]").into(), format!("{named_limits:?}"));
        let channels = self.routes().iter().zip(&self.own).map(move |(route, own)| {
            let text = format!("{:?} {}", route.history, own.alike);
            (format!("{path} {}", route.pattern).into(), text)
        });
        channels.chain([limits])
    }

    /// The supported subprotocols, in order of preference. None: the header is ignored.
    pub fn subprotocols<S: Into<String>>(mut self, list: impl IntoIterator<Item = S>) -> Self {
        self.parts.subprotocols = list.into_iter().map(Into::into).collect();
        self
    }

    /// Closes a connection that sends nothing in this time (1002); `None` for never. Default: the
    /// endpoint's setting.
    pub fn idle_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.parts.channels.idle_timeout = Some(timeout);
        self
    }

    /// Largest frame and message a peer may send here. Without it, the endpoint's own setting.
    pub fn frame_limits(mut self, limits: FrameLimits) -> Self {
        self.parts.limits = Some(limits);
        self
    }

    /// Limits the messages of each socket, on all its topics together (PROTOCOL §6.7). Without it
    /// there are no limits. Costs a record for each socket that has sent something lately.
    ///
    /// ```
    /// use simurgh::{LimitPolicy, Rate, SocketLimits, UserSocket};
    ///
    /// let messages = Rate::per_second(100)?.with_burst(300)?;
    /// let limits = SocketLimits {
    ///     joins: Some(Rate::per_second(10)?.into()),
    ///     messages: Some(simurgh::RateLimit::from(messages).or(LimitPolicy::Close)),
    ///     ..SocketLimits::default()
    /// };
    /// let user_socket = UserSocket::new("/socket").socket_limits(limits);
    /// # let _ = user_socket;
    /// # Ok::<(), simurgh::RateError>(())
    /// ```
    pub fn socket_limits(mut self, limits: SocketLimits) -> Self {
        self.parts.channels.limits = limits;
        self
    }

    /// Sets limits that an answer of a hook chooses by their name, in place of
    /// [`socket_limits`](Self::socket_limits).
    pub fn named_limits(mut self, limits: Vec<(String, SocketLimits)>) -> Self {
        self.parts.named_limits = limits;
        self
    }

    /// All user sockets, then their copies with named limits. An opened socket moves to one of
    /// those, so no socket stores which limits it has. In a reload, each of those `before` keeps
    /// its index, which sockets store. A copy whose limits are gone gets those of all sockets, and
    /// a path that is gone loses its channels.
    #[doc(hidden)]
    pub fn arranged(all: Vec<Self>, before: &[Self]) -> Vec<Self> {
        let copies = all.iter().flat_map(|own| {
            own.parts
                .named_limits
                .iter()
                .map(|(name, limits)| own.copy(name).socket_limits(*limits))
        });
        let mut rest: Vec<_> = all.iter().cloned().chain(copies).collect();
        let mut placed = Vec::with_capacity(rest.len().max(before.len()));
        for old in before {
            let same = rest.iter().position(|own| own.place() == old.place());
            let base = all.iter().find(|own| own.parts.path == old.parts.path);
            placed.push(match (same, base, &old.parts.limited_by) {
                (Some(at), ..) => rest.remove(at),
                (None, Some(base), Some(name)) => base.copy(name),
                _ => old.clone().retired(),
            });
        }
        placed.append(&mut rest);
        let places: Vec<_> = placed.iter().map(|own| own.place().map(str::to_owned)).collect();
        for own in &mut placed {
            let Parts { path, named_limits, limited_copies, .. } = &mut own.parts;
            let index =
                |name: &String| places.iter().position(|place| *place == [path.as_str(), name]);
            let copies = named_limits.iter().map(|(name, _)| index(name)?.try_into().ok());
            *limited_copies = copies.collect();
        }
        placed
    }

    /// Its path and the name of its limits, which no other user socket has.
    fn place(&self) -> [&str; 2] {
        [&self.parts.path, self.parts.limited_by.as_deref().unwrap_or_default()]
    }

    fn copy(&self, name: &str) -> Self {
        let mut copy = self.clone();
        copy.parts.limited_by = Some(name.to_owned());
        #[cfg(feature = "hooks")]
        {
            (copy.tokens, copy.parts.hooks) = Default::default();
        }
        copy
    }

    fn retired(mut self) -> Self {
        self = self.copy(&self.parts.limited_by.clone().unwrap_or_default());
        self.parts.is_retired = true;
        self.parts.channels.kind = Kind::Channels(Vec::new());
        self.own.clear();
        self
    }

    /// The index of the copy with the limits of this name, if there is one.
    #[doc(hidden)]
    pub fn limited_copy(&self, name: &str) -> Option<u8> {
        let place = self.parts.named_limits.iter().position(|(own, _)| own == name)?;
        *self.parts.limited_copies.get(place)?
    }

    /// Keeps topics' broadcasts as another one does, also those of patterns that are gone: they may
    /// have members, and other nodes. Returns whether that changes something.
    #[doc(hidden)]
    pub fn keep_histories_of(&mut self, other: &Self) -> bool {
        let histories = other.parts.channels.histories();
        let histories: Vec<_> = histories.map(|(pattern, rule)| (pattern.clone(), rule)).collect();
        let is_here = |(own, _): &(Pattern, _)| self.patterns().any(|pattern| pattern == own);
        let mut changes = !histories.iter().all(is_here);
        if let Kind::Channels(routes) = &mut self.parts.channels.kind {
            for route in routes {
                let same = histories.iter().find(|(pattern, _)| *pattern == route.pattern);
                let history = same.map(|(_, rule)| *rule);
                changes |= route.history != history;
                route.history = history;
            }
        }
        self.parts.channels.histories_of_start = Some(histories);
        changes
    }

    /// Most channels of one socket, 100 by default (PROTOCOL §5.2).
    pub fn channels_max(mut self, max: u16) -> Self {
        self.parts.channels.channels_max = max;
        self
    }

    /// Counts [`ShardContext::member_count`] for the topics of this user socket. Costs one atomic
    /// addition a join.
    pub fn count_members(mut self, on: bool) -> Self {
        self.parts.channels.count_members = on;
        self
    }

    /// Whether a channel accepts the payload of an event on a topic; `None` if none has that topic.
    #[doc(hidden)]
    pub fn check(
        &self,
        topic: &str,
        event: &str,
        payload: &Payload<'_>,
    ) -> Option<Result<(), Misfit>> {
        Some(match &self.own_of(topic)?.payloads {
            Some(payloads) => payloads.check(event, payload),
            None => PayloadShape::Object.check(payload),
        })
    }

    /// The events with a schema: the pattern of their channel, their name, and how many payloads
    /// the schema has refused.
    #[doc(hidden)]
    pub fn refused_by_schema(&self) -> impl Iterator<Item = (&Pattern, &str, u64)> {
        self.patterns().zip(&self.own).flat_map(|(pattern, own)| {
            let refused = own.payloads.iter().flat_map(|payloads| payloads.refused());
            refused.map(move |(event, count)| (pattern, event, count))
        })
    }

    /// The longest text that a shard decodes itself, bytes.
    #[doc(hidden)]
    pub fn text_bytes_max(&self) -> usize {
        self.parts.text_bytes_max
    }

    /// Has shards decode only short texts: schemas check longer ones where they are decoded.
    pub(crate) fn short_texts(mut self) -> Self {
        self.parts.text_bytes_max = SHORT_TEXT_BYTES;
        self
    }

    /// Whether it has a channel for a topic, or its plain sockets are on it.
    #[doc(hidden)]
    pub fn has_topic(&self, topic: &str) -> bool {
        self.own_of(topic).is_some() || self.parts.channels.is_plain_on(topic)
    }

    fn own_of(&self, topic: &str) -> Option<&Own> {
        let at = self.routes().iter().position(|route| route.pattern.matches(topic))?;
        self.own.get(at)
    }

    /// Whether a request is for this user socket. On the path of a plain one there may be a page as
    /// well: only upgrades are for the user socket.
    #[doc(hidden)]
    pub fn takes(&self, path: &str, wants_upgrade: bool) -> bool {
        (wants_upgrade || matches!(self.parts.channels.kind, Kind::Channels(_)))
            && self.matches(path)
    }

    /// The long-poll settings if `path` is this user socket's long-poll path.
    #[doc(hidden)]
    pub fn polled_at(&self, path: &str) -> Option<LongPoll> {
        let longpoll = self.parts.longpoll.filter(|_| !self.parts.is_retired)?;
        let path = path.trim_end_matches('/').strip_suffix("/longpoll")?;
        let own = self.parts.path.strip_suffix("/websocket")?;
        let is_here = matches!(self.parts.channels.kind, Kind::Channels(_)) && leads(own, path);
        is_here.then_some(longpoll)
    }

    fn matches(&self, path: &str) -> bool {
        !self.parts.is_retired && leads(&self.parts.path, path)
    }

    /// The input of its connect function for a request.
    #[doc(hidden)]
    pub fn connect_info<'a>(
        &'a self,
        request: &'a Request<'a>,
        params: serde_json::Value,
        auth_token: Option<&'a str>,
        peer: SocketAddr,
        transport: Transport,
        connection: Option<String>,
    ) -> ConnectInfo<'a> {
        let (path, takes_api_keys) = (&self.parts.path, self.speaks_supabase());
        ConnectInfo {
            path,
            takes_api_keys,
            request,
            params,
            auth_token,
            peer,
            transport,
            connection,
        }
    }
}

/// Whether `path` matches a user socket's path, which may have variables. Slashes at the end and
/// doubled ones mean nothing, as in Phoenix: clients append `/websocket` to what they are given.
fn leads(own: &str, path: &str) -> bool {
    if own == path {
        return true;
    }
    let (mut own, mut other) = (segments(own), segments(path));
    loop {
        match (own.next(), other.next()) {
            (None, None) => return true,
            (Some(own), Some(_)) if own.starts_with(':') => {}
            (Some(own), Some(other)) if own == other => {}
            _ => return false,
        }
    }
}

impl fmt::Debug for UserSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserSocket").field("path", &self.parts.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use simurgh_channel::HistoryRule;

    use super::*;
    use crate::connect::variables;

    fn route() -> ChannelRoute {
        ChannelRoute::on_shard("room:*", |_, _| Join::error(Payload::NULL))
    }

    fn of_route(route: ChannelRoute) -> UserSocket {
        UserSocket::new("/socket").channel(route)
    }

    fn user_socket() -> UserSocket {
        of_route(route())
    }

    #[test]
    fn settings_that_nodes_share_are_hashed_by_pattern() {
        let of = |user_socket: UserSocket| user_socket.settings().collect::<Vec<_>>();
        let usual = of(user_socket());
        assert_eq!(&*usual[0].0, "/socket/websocket room:*");
        assert_eq!(
            of(of_route(route().wait_for_interest())),
            usual,
            "each node may wait as it likes"
        );
        let others = [route().history(HistoryRule::default()), route().alike("present".to_owned())];
        for other in others {
            assert_ne!(of(of_route(other)), usual);
        }
        let limits = vec![("gold".to_owned(), SocketLimits::default())];
        assert_ne!(of(user_socket().named_limits(limits)), usual);
    }

    #[test]
    fn user_sockets_keep_their_index_in_a_reload() {
        let own = |path: &str, names: &[&str]| {
            let limits = names.iter().map(|name| ((*name).to_owned(), SocketLimits::default()));
            UserSocket::new(path).channel(route()).named_limits(limits.collect())
        };
        let places =
            |all: &[UserSocket]| all.iter().map(|own| own.place().join(" ")).collect::<Vec<_>>();
        let first = UserSocket::arranged(vec![own("/a", &["x", "y"])], &[]);
        assert_eq!(places(&first), ["/a/websocket ", "/a/websocket x", "/a/websocket y"]);
        let second = UserSocket::arranged(vec![own("/b", &["z"]), own("/a", &["z", "y"])], &first);
        assert_eq!(places(&second)[..3], places(&first));
        assert_eq!(places(&second)[3..], ["/b/websocket ", "/b/websocket z", "/a/websocket z"]);
        let copies = ["x", "y", "z"].map(|name| second[0].limited_copy(name));
        assert_eq!(copies, [None, Some(2), Some(5)]);
        let third = UserSocket::arranged(vec![own("/b", &[])], &second);
        assert_eq!(places(&third), places(&second));
        let takes = |all: &[UserSocket], path| all.iter().position(|own| own.takes(path, true));
        let [a, b] = ["/a/websocket", "/b/websocket"];
        assert_eq!((takes(&second, a), takes(&second, b)), (Some(0), Some(3)));
        assert_eq!((takes(&third, a), takes(&third, b)), (None, Some(3)));
        assert!(!third[0].has_topic("room:1") && third[4].has_topic("room:1"));
        let again = UserSocket::arranged(vec![own("/a", &["x"])], &third);
        assert_eq!((takes(&again, a), again[0].limited_copy("x")), (Some(0), Some(1)));
    }

    #[test]
    fn path_variables_match_and_are_named() {
        let user_socket = UserSocket::new("/sockets/:tenant");
        assert!(user_socket.matches("/sockets/acme/websocket"));
        assert!(!user_socket.matches("/sockets//websocket"));
        assert!(!user_socket.matches("/sockets/acme/longpoll"));
        for path in ["/sockets/acme/websocket", "//sockets//acme/websocket/"] {
            assert_eq!(
                variables(&user_socket.parts.path, path).collect::<Vec<_>>(),
                [("tenant", "acme")]
            );
        }
    }

    #[test]
    fn trailing_and_doubled_slashes_have_no_meaning() {
        let user_socket = user_socket().longpoll(LongPoll::new());
        for path in ["/socket/websocket", "/socket//websocket", "//socket/websocket/"] {
            assert!(user_socket.matches(path), "{path}");
        }
        for path in ["/socket/longpoll", "/socket//longpoll/", "//socket/longpoll"] {
            assert!(user_socket.polled_at(path).is_some(), "{path}");
        }
        for path in ["/socket", "/socket/", "/socket/websocket/x", "/socketwebsocket", "//"] {
            assert!(!user_socket.matches(path) && user_socket.polled_at(path).is_none(), "{path}");
        }
    }
}

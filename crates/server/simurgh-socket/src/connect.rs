//! The input and the result of a connect function.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{Decision, SocketState};
use simurgh_proto::ws::handshake::Request;

/// The function that decides who may connect.
pub type ConnectFn = Arc<dyn Fn(&ConnectInfo<'_>) -> Connect + Send + Sync>;

/// The parts of the request that a connect function may use (PROTOCOL §2); other headers are
/// deliberately hidden.
pub struct ConnectInfo<'a> {
    /// The path of the user socket, which may have variables.
    pub(crate) path: &'a str,
    /// Whether tokens are also accepted as Supabase's clients send them.
    pub(crate) takes_api_keys: bool,
    pub(crate) request: &'a Request<'a>,
    pub(crate) params: serde_json::Value,
    pub(crate) auth_token: Option<&'a str>,
    pub(crate) peer: SocketAddr,
    pub(crate) transport: Transport,
    /// A name of the connection that is unique over all nodes, for questions about it.
    #[cfg_attr(not(feature = "hooks"), allow(dead_code, reason = "only questions carry it"))]
    pub(crate) connection: Option<String>,
}

impl ConnectInfo<'_> {
    /// All params, decoded as nested forms, path variables included, `vsn` too.
    pub fn params(&self) -> serde_json::Value {
        let mut params = self.params.clone();
        if let Some(object) = params.as_object_mut() {
            for (name, value) in variables(self.path, self.request.path()) {
                object.insert(name.to_owned(), value.into());
            }
        }
        params
    }

    /// One param, if it exists and is a string. A path variable precedes a query parameter of the
    /// same name, as in [`params`](Self::params): the path has selected the user socket.
    pub fn param(&self, name: &str) -> Option<String> {
        match variables(self.path, self.request.path()).find(|(own, _)| *own == name) {
            Some((_, value)) => Some(value.to_owned()),
            None => Some(self.params.get(name)?.as_str()?.to_owned()),
        }
    }

    /// The address of the client; behind trusted proxies the one that they report.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Path and query as received.
    pub fn uri(&self) -> &str {
        self.request.target
    }

    /// The `user-agent` header.
    pub fn user_agent(&self) -> Option<&str> {
        self.request.header("user-agent").and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Headers whose names begin with `x-`.
    pub fn x_headers(&self) -> HashMap<String, String> {
        self.headers_where(|name| name.starts_with("x-"))
    }

    /// `traceparent` and `tracestate`.
    pub fn trace_headers(&self) -> HashMap<String, String> {
        self.headers_where(|name| name == "traceparent" || name == "tracestate")
    }

    /// Headers whose names begin with `sec-websocket-`.
    pub fn websocket_headers(&self) -> HashMap<String, String> {
        self.headers_where(|name| name.starts_with("sec-websocket-"))
    }

    /// The transport of the socket.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The token sent as a subprotocol, or in the header `x-phoenix-authtoken` of a long poll,
    /// where `UserSocket::auth_token` is on.
    pub fn auth_token(&self) -> Option<&str> {
        self.auth_token
    }

    /// The token of the client: from the subprotocols, else from the param `token`; on a user
    /// socket with `ChannelRoute::supabase` also from the header `x-api-key` or the param `apikey`.
    pub fn token(&self) -> Option<String> {
        let token = self.auth_token.map(str::to_owned).or_else(|| self.param("token"));
        if token.is_some() || !self.takes_api_keys {
            return token;
        }
        let header = self.request.header("x-api-key").and_then(|it| std::str::from_utf8(it).ok());
        let key = header.map(str::to_owned).or_else(|| self.param("apikey"));
        key.filter(|key| !is_project_key(key))
    }

    fn headers_where(&self, wanted: impl Fn(&str) -> bool) -> HashMap<String, String> {
        self.request
            .headers()
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, _)| wanted(name))
            .map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned()))
            .collect()
    }
}

impl fmt::Debug for ConnectInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectInfo")
            // Not the query: it may contain a token.
            .field("path", &self.request.path())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// The transport of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// A WebSocket.
    WebSocket,
    /// A long-poll session (`UserSocket::longpoll`).
    LongPoll,
    /// A driver in this process.
    Driver,
}

impl Transport {
    /// Its name in Phoenix: `websocket`, `longpoll`; and `driver`.
    pub fn name(self) -> &'static str {
        match self {
            Self::WebSocket => "websocket",
            Self::LongPoll => "longpoll",
            Self::Driver => "driver",
        }
    }
}

/// The answer to a connection.
#[must_use]
pub struct Connect(#[doc(hidden)] pub ConnectKind);

#[doc(hidden)]
pub enum ConnectKind {
    Ok(SocketState),
    Refuse { status: u16, body: String },
    Later(Decision<Connect>),
}

impl Connect {
    /// Accepts the socket.
    pub fn ok() -> Self {
        Self(ConnectKind::Ok(SocketState::default()))
    }

    /// Refuses with an HTTP status, usually 403. A browser only reports close code 1006.
    pub fn refuse(status: u16) -> Self {
        Self(ConnectKind::Refuse { status, body: String::new() })
    }

    /// Refuses with an HTTP status and a body.
    pub fn refuse_with(status: u16, body: impl Into<String>) -> Self {
        Self(ConnectKind::Refuse { status, body: body.into() })
    }

    /// Decides with the result of `work`, which runs on tokio. The socket is not read meanwhile.
    pub fn later(work: impl Future<Output = Connect> + Send + 'static) -> Self {
        Self(ConnectKind::Later(Decision::Work(Box::pin(work))))
    }

    /// As [`id`](Self::id), where the id is optional.
    pub fn maybe_id(self, id: Option<impl Into<String>>) -> Self {
        match id {
            Some(id) => self.id(id),
            None => self,
        }
    }

    /// Sets the socket's id, by which `Endpoint::disconnect` and a `disconnect` broadcast find it.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        if let ConnectKind::Ok(state) = &mut self.0 {
            state.id = Some(id.into().into_boxed_str());
        }
        self
    }

    /// Closes the socket with 3000 after this time, unless a channel sets another one
    /// ([`ShardContext::expire_in`](simurgh_channel::OnShard::expire_in)).
    pub fn expires_in(mut self, time: Duration) -> Self {
        if let ConnectKind::Ok(state) = &mut self.0 {
            state.lifetime = Some(time.into());
        }
        self
    }

    /// Stores a value with the socket: its channels read it with
    /// [`ShardContext::assigns`](simurgh_channel::OnShard::assigns) and replace it with
    /// [`ShardContext::assign`](simurgh_channel::OnShard::assign).
    pub fn assign<T: Any + Send + Sync>(mut self, value: T) -> Self {
        if let ConnectKind::Ok(state) = &mut self.0 {
            state.assigns = Some(Arc::new(value));
        }
        self
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ConnectKind::Ok(_) => f.write_str("Connect::ok"),
            ConnectKind::Refuse { status, .. } => write!(f, "Connect::refuse({status})"),
            ConnectKind::Later(_) => f.write_str("Connect::later"),
        }
    }
}

/// The part of a client's address that counts as one address: of IPv6 the first 64 bits, which one
/// household has.
#[doc(hidden)]
pub fn address_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
    }
}

/// The parts of a path between slashes.
pub(crate) fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// The variables of a user socket's path, with their values in a path.
pub(crate) fn variables<'p>(
    own: &'p str,
    path: &'p str,
) -> impl Iterator<Item = (&'p str, &'p str)> {
    segments(own)
        .zip(segments(path))
        .filter_map(|(own, value)| own.strip_prefix(':').map(|name| (name, value)))
}

/// Whether this is the key of a Supabase project, which does not identify a user.
pub(crate) fn is_project_key(token: &str) -> bool {
    token.starts_with("sb_")
}

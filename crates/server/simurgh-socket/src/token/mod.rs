//! Authentication of sockets by tokens: `Phoenix.Token` and JSON Web Tokens.
//!
//! Reexports the crate `simurgh-token`, and adds its use by the server: a [`TokenPolicy`] for
//! [`UserSocket::tokens`](crate::UserSocket::tokens).
//!
//! ```
//! use simurgh::token::{Claims, PhoenixSettings, Rule, Settings, TokenPolicy};
//! use simurgh::{
//!     ShardChannel, ShardContext, Join, ChannelRoute, UserSocket, Outcome, Payload, json,
//! };
//!
//! struct Room;
//! # impl ShardChannel for Room {
//! #     fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
//! #         Outcome::unknown_event()
//! #     }
//! # }
//!
//! fn join(ctx: &mut ShardContext<'_>, own: &Rule) -> Join {
//!     match ctx.assigns::<Claims>() {
//!         Some(claims) if own.allows(ctx.topic(), claims) => Join::ok(Room),
//!         _ => Join::error(json!({"reason": "unauthorized"})),
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let secret_key_base = "as `mix phx.gen.secret` prints it, 64 characters";
//! let settings = Settings::Phoenix(PhoenixSettings::new(secret_key_base, "user socket"));
//! let own: Rule = "room:{sub}".parse()?;
//! let user_socket = UserSocket::new("/socket")
//!     .tokens(TokenPolicy::new(settings)?)
//!     .channel(ChannelRoute::on_shard("room:*", move |ctx, _| join(ctx, &own)));
//! # let _ = user_socket;
//! # Ok(())
//! # }
//! ```
//!
//! # Joins
//! A token may also come with a join, for its topic alone: [`TokenPolicy::join`].
//!
//! A socket does not outlive its token: when that has expired, plus the leeway of the settings and
//! the time of a sweep (PROTOCOL §7.7), it is closed with 3000. The official clients then connect
//! again, and make a new token if it is given as a function. With [`OnExpiry::Renew`] the client
//! may send a fresh one of the same subject before, as event `access_token` on any topic it has
//! joined: `{"access_token": "…"}`. The reply is `ok`, or `error` with a `reason`, and the socket
//! lives as long as the new token is valid.
//!
//! # Cost
//! Verifying takes 2 µs (HMAC) to 100 µs (public keys), once a connect and a renewal. An open
//! socket with a token has its claims and its own record. A channel whose join has its own token
//! costs one tokio task more.

mod join;
mod renewal;
mod verifying;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub(crate) use renewal::is_same;
use simurgh_channel::ShardContext;
pub use simurgh_token::*;
use verifying::CurrentVerifier;
pub use verifying::JwksFileError;

use crate::connect::{Connect, ConnectInfo};
use crate::identity::identity;

/// Accepts clients with a valid token, sets the socket's id, and assigns its [`Claims`].
///
/// Other clients are refused with 403, and with [`TokenError::reason`] as body. Details are logged
/// at level debug, but never the token.
#[derive(Clone)]
pub struct TokenPolicy {
    keys: Arc<CurrentVerifier>,
    on_expiry: OnExpiry,
    socket_id: Arc<Template>,
    is_optional: bool,
    clock: Clock,
}

type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The effect of an expired token on its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnExpiry {
    /// It is closed with 3000.
    #[default]
    Close,
    /// The same, unless its client has sent a fresh token before.
    Renew,
}

impl TokenPolicy {
    /// With fixed keys.
    ///
    /// # Errors
    /// Keys that cannot be used.
    pub fn new(settings: Settings) -> Result<Self, KeyError> {
        Verifier::new(settings).map(|verifier| Self::of(CurrentVerifier::fixed(verifier)))
    }

    /// With the keys of a JWKS file. It is read again when a token names an unknown key, at most
    /// once in 5 s; while it cannot be read, the previous keys stay valid.
    ///
    /// # Errors
    /// A file that cannot be read, or has no key that can be used.
    pub fn jwks_file(
        path: impl Into<PathBuf>,
        algorithms: Vec<jwt::Algorithm>,
        checks: jwt::Checks,
    ) -> Result<Self, JwksFileError> {
        CurrentVerifier::file(path.into(), algorithms, checks).map(Self::of)
    }

    /// With the keys of a JWKS at a URL, which the server reads at its start, every 10 minutes, and
    /// when a token names an unknown key, at most once in 5 s. While it cannot be read, the
    /// previous keys stay valid; before the first read, tokens are refused with `unavailable`.
    ///
    /// # Errors
    /// A mistake in the URL or the certificates.
    #[cfg(feature = "hooks")]
    pub fn jwks_url(
        url: http::Uri,
        tls: simurgh_hooks::TlsConfig,
        algorithms: Vec<jwt::Algorithm>,
        checks: jwt::Checks,
    ) -> Result<Self, String> {
        let document = simurgh_hooks::Document::new(url, tls)?;
        Ok(Self::of(CurrentVerifier::url(document, algorithms, checks)))
    }

    #[cfg(feature = "hooks")]
    pub(crate) fn has_keys(&self) -> impl Future<Output = bool> + Send + use<> {
        Arc::clone(&self.keys).has_keys()
    }

    /// Reads the keys at a URL for as long as the server runs.
    #[cfg(feature = "hooks")]
    pub(crate) fn keep_fresh(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.keys).keep_fresh()
    }

    #[cfg(feature = "hooks")]
    pub(crate) fn key_reads(&self) -> Option<[u64; 2]> {
        self.keys.reads()
    }

    fn of(keys: CurrentVerifier) -> Self {
        let since_epoch = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            keys: Arc::new(keys),
            on_expiry: OnExpiry::Close,
            socket_id: Arc::new(Template::of_subject("user_socket:")),
            is_optional: false,
            // No token was signed before 1970.
            clock: Arc::new(move || since_epoch().unwrap_or_default()),
        }
    }

    /// Sets the effect of an expired token. Default: its socket is closed.
    #[must_use]
    pub fn on_expiry(mut self, on_expiry: OnExpiry) -> Self {
        self.on_expiry = on_expiry;
        self
    }

    /// Sets the socket id as a template of the claims. Default: `user_socket:{sub}`; a socket whose
    /// token lacks a claim of the template gets no id.
    #[must_use]
    pub fn socket_id(mut self, template: Template) -> Self {
        self.socket_id = Arc::new(template);
        self
    }

    /// Whether sockets without a token are accepted as well: they have no id, no [`Claims`] and no
    /// expiry. An invalid token is refused all the same. Default: no.
    #[must_use]
    pub fn optional(mut self, is_optional: bool) -> Self {
        self.is_optional = is_optional;
        self
    }

    /// Sets the clock, since the Unix epoch. Default: the system's clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Verifies a token, for the application's own connect and join functions.
    ///
    /// # Errors
    /// The token is refused; [`TokenError::reason`] is for its client.
    pub fn verify(&self, token: Option<&str>) -> Result<Claims, TokenError> {
        let token = token.ok_or(TokenError::Missing)?;
        self.keys.verifier().verify(token, (self.clock)())
    }

    /// Decides a connect, for the application's own connect function.
    pub fn connect(&self, info: &ConnectInfo<'_>) -> Connect {
        let (token, peer) = (info.token(), info.peer());
        let trace = info.request.header("traceparent").map(String::from_utf8_lossy);
        let trace = trace.map(std::borrow::Cow::into_owned);
        match self.verify(token.as_deref()) {
            Ok(claims) => self.let_in(claims),
            Err(error) if error.is_unknown_key() && self.keys.may_be_newer() => {
                let policy = self.clone();
                Connect::later(async move {
                    policy.keys.read_again().await;
                    match policy.verify(token.as_deref()) {
                        Ok(claims) => policy.let_in(claims),
                        Err(error) => refuse(&error, peer, trace.as_deref()),
                    }
                })
            }
            Err(error) if error.is_missing() && self.is_optional => Connect::ok(),
            Err(error) => refuse(&error, peer, trace.as_deref()),
        }
    }

    /// Verifies a token in a message. Keys are never read on a shard: this token is answered now,
    /// and a later attempt may find newer keys.
    pub(crate) fn verify_on_shard(
        &self,
        ctx: &ShardContext<'_>,
        token: Option<&str>,
    ) -> Result<Claims, &'static str> {
        let claims = self.verify(token).map_err(|error| {
            if error.is_unknown_key() && self.keys.may_be_newer() {
                let keys = Arc::clone(&self.keys);
                ctx.spawn(async move { keys.read_again().await });
            }
            tracing::debug!(topic = ctx.topic(), reason = error.reason(), "refused: {error}");
            error.reason()
        })?;
        match ctx.node.denial(&identity(&claims), Some(ctx.topic())) {
            Some(reason) => Err(reason),
            None => Ok(claims),
        }
    }

    fn let_in(&self, claims: Claims) -> Connect {
        let connect = Connect::ok().maybe_id(self.socket_id.fill(&claims));
        let connect = match self.lifetime(&claims) {
            Some(lifetime) => connect.expires_in(lifetime),
            None => connect,
        };
        connect.assign(claims)
    }

    /// Time until a token expires; none: it does not.
    pub(crate) fn lifetime(&self, claims: &Claims) -> Option<Duration> {
        // The second of the expiry has passed then: a new connect with the same token is refused.
        let until = Duration::from_secs(claims.expires_at()?.saturating_add(1));
        let until = until.saturating_add(self.keys.verifier().leeway());
        Some(until.saturating_sub((self.clock)()))
    }

    #[cfg(feature = "hooks")]
    pub(crate) fn is_optional(&self) -> bool {
        self.is_optional
    }

    #[cfg(feature = "hooks")]
    pub(crate) fn id_of(&self, claims: &Claims) -> Option<String> {
        self.socket_id.fill(claims)
    }

    pub(crate) fn renews(&self) -> bool {
        self.on_expiry == OnExpiry::Renew
    }
}

/// Browsers only report close code 1006; other clients read the reason in the body.
fn refuse(error: &TokenError, peer: std::net::SocketAddr, trace: Option<&str>) -> Connect {
    tracing::debug!(%peer, reason = error.reason(), trace, "connection refused: {error}");
    let status = if error.is_unavailable() { 503 } else { 403 };
    Connect::refuse_with(status, format!("{}\n", error.reason()))
}

impl fmt::Debug for TokenPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, on_expiry, socket_id, is_optional, clock: _ } = self;
        f.debug_struct("TokenPolicy")
            .field("keys", keys)
            .field("on_expiry", on_expiry)
            .field("socket_id", socket_id)
            .field("is_optional", is_optional)
            .finish_non_exhaustive()
    }
}

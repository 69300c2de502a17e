//! Applications that decide over HTTP who connects, joins and publishes: questions.
//!
//! ```text
//! connect ─► HookedSocket, kept with the socket ─► join ─► Asking, a channel whose messages wait
//! ```
//!
//! A [`HookSet`] has the hooks of a server. Its thread must start before the server does
//! ([`HookSet::start`]), since shards keep only the wakers that exist by then. The deciders and
//! their order are in docs/BACKENDS.md.

mod connect;
mod question;
mod refresh;

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

pub use http;
use simurgh_channel::Assigns;
use simurgh_hooks::{Asked, Failure, IdOf, Question, Verdict};
#[doc(hidden)]
pub use simurgh_hooks::{
    BUCKETS_US, BreakerState, Hook, HookFigures, Hooks, Kind, QuestionFigures,
};
pub use simurgh_hooks::{
    Cluster, HookConfig, OnFailure, Secret, SecretError, StartError, TlsConfig,
};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use crate::identity::{Asker, HookedSocket, Regrant};
use crate::token::Claims;
pub(crate) use connect::Connects;
pub use question::{Forward, ForwardError, Headers};
#[doc(hidden)]
pub use refresh::RegrantFn;

/// One hook, and which parts of a client's upgrade its questions carry.
#[derive(Debug, Clone)]
pub struct HookSpec {
    /// Its address, secrets and limits.
    pub config: HookConfig,
    /// Whether it decides about connects.
    pub asks_connect: bool,
    /// Whether it decides again about connects before their grants end.
    pub asks_refresh: bool,
    /// The cookies and headers that it receives.
    pub forward: Forward,
}

/// The hooks of a server, in the order of their declaration.
pub struct HookSet {
    specs: Vec<HookSpec>,
    id_of: OnceLock<IdOf>,
    started: OnceLock<Arc<Hooks>>,
    refreshes: refresh::Refreshes,
}

impl HookSet {
    /// Hooks that are not started yet; until then each question fails.
    pub fn new(specs: Vec<HookSpec>) -> Self {
        Self {
            specs,
            id_of: OnceLock::new(),
            started: OnceLock::new(),
            refreshes: refresh::Refreshes::default(),
        }
    }

    /// Sets the ids of the sockets that answers let in.
    fn identify_by(&self, id_of: IdOf) {
        // A set has one user socket.
        let _ = self.id_of.set(id_of);
    }

    /// Starts the thread that asks. To be called once, before the server starts.
    ///
    /// # Errors
    /// The system has no thread left, or a certificate cannot be used.
    pub fn start(&self, node: &str, cluster: Option<Cluster>) -> Result<(), StartError> {
        let configs = self.specs.iter().map(|spec| spec.config.clone()).collect();
        let id_of = self.id_of.get().cloned().unwrap_or_else(|| Arc::new(|it| it.id.clone()));
        let hooks = Hooks::start(node, configs, id_of, cluster)?;
        // A second start would replace nothing: the first one's sockets use it.
        let _ = self.started.set(hooks);
        Ok(())
    }

    /// The hooks once they are started.
    pub fn started(&self) -> Option<&Arc<Hooks>> {
        self.started.get()
    }

    /// The names of the hooks, by which channels refer to them.
    pub fn names(&self) -> Vec<&str> {
        self.specs.iter().map(|spec| spec.config.name.as_str()).collect()
    }

    /// Whether a hook decides about connects.
    pub fn asks_connect(&self) -> bool {
        self.specs.iter().any(|spec| spec.asks_connect)
    }

    /// Voids the answers about a user or a socket id that are cached until now.
    pub fn void(&self, of: &str) {
        if let Some(started) = self.started.get() {
            started.shared().void(Some(of), until_now_ms());
        }
    }

    fn ask(&self, index: usize, question: Question) -> Asked {
        match self.started.get().and_then(|hooks| hooks.all().get(index)) {
            Some(hook) => hook.ask(question),
            None => Asked::Now(Verdict::Failed(Failure::NOBODY)),
        }
    }
}

impl fmt::Debug for HookSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HookSet").field(&self.names()).finish()
    }
}

/// The content of a socket's questions that its connect determines.
#[derive(Clone)]
pub(crate) struct Client {
    set: Arc<HookSet>,
    /// Unique over all nodes for the life of the socket; a driver's socket has none.
    connection: Option<Box<str>>,
    ip: IpAddr,
    /// The name of its limits, as the answer to its connect chose it.
    limits: Option<Box<str>>,
    /// Patterns of topics that its answer lets it join.
    topics: Box<[Pattern]>,
    /// For each hook the cookies and headers that it receives.
    forwarded: Box<[Headers]>,
    traceparent: Option<http::HeaderValue>,
}

impl Asker for Client {
    fn void_grants(&self, user: &str) {
        if let Some(started) = self.set.started() {
            started.shared().void_everywhere(user, until_now_ms());
        }
    }

    fn limits(&self) -> Option<&str> {
        self.limits.as_deref()
    }
}

/// A grant of this millisecond may be older than this call.
fn until_now_ms() -> u64 {
    u64::try_from(connect::since_epoch().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// A socket, as its questions show it.
pub(crate) struct Asking<'s> {
    pub(crate) claims: Option<&'s Claims>,
    client: &'s Client,
}

impl<'s> Asking<'s> {
    /// The socket that has this assigned value; `None` if it has no hooks.
    pub(crate) fn of(assigns: &'s Assigns) -> Option<Self> {
        Self::of_socket(assigns.downcast_ref()?)
    }

    fn of_socket(HookedSocket { claims, asker }: &'s HookedSocket) -> Option<Self> {
        let client: &dyn Any = &**asker;
        Some(Self { claims: claims.as_deref(), client: client.downcast_ref()? })
    }

    /// Asks a hook.
    pub(crate) fn ask(&self, hook: usize, question: Question) -> Asked {
        self.client.set.ask(hook, question)
    }

    /// Gives the socket other limits.
    pub(crate) fn limit(&self, name: &str) {
        let Client { set, connection, .. } = self.client;
        if let (Some(regrant), Some(connection)) = (set.refreshes.regrant.get(), connection) {
            regrant(connection, Regrant { limits: Some(name.into()), ..Regrant::default() });
        }
    }

    /// Whether the answer to its connect lets it join a topic.
    pub(crate) fn may_join(&self, topic: &str) -> bool {
        self.client.topics.iter().any(|pattern| pattern.matches(topic))
    }
}

/// The error reply to a join or a message whose question was not answered.
pub(crate) fn unavailable(failure: &Failure) -> Payload<'static> {
    let retry_after_ms = failure.retry_after_ms;
    serde_json::json!({"reason": "unavailable", "retry_after_ms": retry_after_ms}).into()
}

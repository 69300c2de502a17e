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
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

pub use http;
use simurgh_channel::Assigns;
use simurgh_hooks::{Asked, Failure, IdOf, Question, Verdict};
#[doc(hidden)]
pub use simurgh_hooks::{
    BUCKETS_US, BreakerState, Hook, HookFigures, Hooks, Kind, LogPlace, NOTICE_TYPES,
    NoticeFigures, NoticesFigures, NoticesInbox, NoticesQuery, NoticesStart, Outside,
    QuestionFigures,
};
pub use simurgh_hooks::{
    Cluster, HookConfig, NoticeConfig, OnFailure, Secret, SecretError, StartError, TlsConfig,
};
use simurgh_notices::Settings;
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;
use tokio::runtime::Handle;

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
    /// The indices of hooks that a reload has removed. Sockets that they decided about still ask
    /// them.
    retired: Vec<usize>,
    id_of: OnceLock<IdOf>,
    running: Arc<Running>,
}

/// A set and those of later reloads share this: sockets of the first ask the hooks of the last.
#[derive(Default)]
struct Running {
    hooks: RwLock<Option<Arc<Hooks>>>,
    refreshes: refresh::Refreshes,
    notices: OnceLock<NoticesInbox>,
}

impl Running {
    fn started(&self) -> Option<Arc<Hooks>> {
        self.hooks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl HookSet {
    /// Hooks that are not started yet; until then each question fails.
    pub fn new(specs: Vec<HookSpec>) -> Self {
        Self { specs, retired: Vec::new(), id_of: OnceLock::new(), running: Arc::default() }
    }

    /// The hooks of a reload. Those with a name from before keep their index, which channels use.
    pub fn after(before: &Self, mut specs: Vec<HookSpec>) -> Self {
        let (mut all, mut retired) = (Vec::new(), Vec::new());
        for (index, old) in before.specs.iter().enumerate() {
            let same = specs.iter().position(|new| new.config.name == old.config.name);
            all.push(same.map(|at| specs.remove(at)).unwrap_or_else(|| {
                retired.push(index);
                HookSpec { asks_connect: false, asks_refresh: false, ..old.clone() }
            }));
        }
        all.append(&mut specs);
        Self { specs: all, retired, id_of: OnceLock::new(), running: Arc::clone(&before.running) }
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
        self.publish(Hooks::start(node, self.configs(), self.ids(), cluster)?);
        Ok(())
    }

    /// The same for a server that runs; `runtime` is one that its shards can wake. Nothing asks
    /// these hooks before they are [published](Self::publish).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn prepare(
        &self,
        node: &str,
        runtime: Handle,
        cluster: Option<Cluster>,
    ) -> Result<Arc<Hooks>, StartError> {
        match self.started() {
            Some(before) => before.followed_by(node, self.configs()),
            None => Hooks::start_on(runtime, node, self.configs(), self.ids(), cluster),
        }
    }

    /// From now on sockets ask these.
    pub fn publish(&self, hooks: Arc<Hooks>) {
        hooks.shared().identify_by(self.ids());
        let before = self.running.hooks.write().unwrap_or_else(PoisonError::into_inner);
        let before = { before }.replace(hooks);
        drop(before);
    }

    fn configs(&self) -> Vec<HookConfig> {
        self.specs.iter().map(|spec| spec.config.clone()).collect()
    }

    fn ids(&self) -> IdOf {
        self.id_of.get().cloned().unwrap_or_else(|| Arc::new(|it| it.id.clone()))
    }

    /// The hooks once they are started.
    pub fn started(&self) -> Option<Arc<Hooks>> {
        self.running.started()
    }

    /// Starts the notices of hooks that want them. Those of a later reload are the same, and go to
    /// the hooks of that reload.
    pub fn notify(&self, start: NoticesStart) {
        let running = Arc::downgrade(&self.running);
        let hook = move |name: &str| running.upgrade()?.started()?.hook(name);
        let inbox = self.started().and_then(|hooks| hooks.notify(start, Box::new(hook)));
        if let Some(inbox) = inbox {
            // A server starts once.
            let _ = self.running.notices.set(inbox);
        }
    }

    /// The way to the notices, once they are started.
    pub fn notices(&self) -> Option<&NoticesInbox> {
        self.running.notices.get()
    }

    /// Settings for the notices that hooks want, which say what shards report; `None`: nothing.
    pub fn notice_settings(&self) -> Option<Settings> {
        NoticeConfig::settings(self.wanted_notices())
    }

    /// The notices that hooks want, by their names.
    pub fn wanted_notices(&self) -> Vec<(&str, &NoticeConfig)> {
        let used = self.specs.iter().enumerate().filter(|(at, _)| !self.retired.contains(at));
        let wanted = used.filter_map(|(_, HookSpec { config, .. })| {
            Some((config.name.as_str(), config.notices.as_ref()?))
        });
        wanted.collect()
    }

    /// The names of the hooks, by which channels refer to them; empty for one that is removed.
    pub fn names(&self) -> Vec<&str> {
        let names = self.specs.iter().map(|spec| spec.config.name.as_str()).enumerate();
        names.map(|(index, name)| if self.retired.contains(&index) { "" } else { name }).collect()
    }

    /// Whether a hook decides about connects.
    pub fn asks_connect(&self) -> bool {
        self.specs.iter().any(|spec| spec.asks_connect)
    }

    /// Voids the answers about a user or a socket id that are cached until now.
    pub fn void(&self, of: &str) {
        if let Some(started) = self.started() {
            started.shared().void(Some(of), until_now_ms());
        }
    }

    fn ask(&self, index: usize, question: Question) -> Asked {
        match self.started().and_then(|hooks| hooks.all().get(index).cloned()) {
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
        if let (Some(regrant), Some(connection)) = (set.running.refreshes.regrant.get(), connection)
        {
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

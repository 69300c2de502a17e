//! The state that shards, the HTTP side and an application's handles share: mailboxes, counters,
//! settings.

use std::fmt;
use std::future::Future;
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::Serialize;
use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{
    Assigns, Audience, BroadcastError, Callback, ChannelId, FanoutPermits, Identity, JoinDecision,
    LinkedWork, Mailboxes, Node, NodeHandle, OtherProcess, PresenceCallback, PresenceConfig,
    Publisher, SightingSink, Signer, ToChannel, WallClock, Work,
};
use simurgh_proto::message::Payload;
use simurgh_proto::origin::CheckOrigin;
use simurgh_reactor::{Key, Mailbox, ReactorStats};
use simurgh_socket::{OffShard, UserSocket, log_panic, user_in};
use tokio::sync::oneshot;
use tokio::task::JoinError;

use crate::access_list::AccessList;
use crate::api_requests::ApiRequests;
use crate::callback_watch::CallbackWatch;
use crate::certificates::Certificates;
use crate::cluster_inbox::ClusterInbox;
use crate::config::Config;
use crate::connection_id::ConnectionId;
use crate::connections::HttpConnections;
use crate::mail::Mail;
use crate::member_counts::MemberCounts;
use crate::peer_limits::PeerLimits;
use crate::saved::Saved;
use crate::takeover::TakeOver;

/// The state behind all handles. Only counters change after the start.
///
/// A reload makes another one with the same counters, mailboxes and lists, and other settings. Each
/// shard replaces its own at once, and others ask for [`now`](Self::now) where settings matter.
#[derive(Clone)]
pub struct Server {
    /// Differs for each start.
    pub id: u64,
    pub config: Config,
    /// `None` without TLS.
    pub certificates: Option<Arc<Certificates>>,
    /// The settings that the shards' cores use.
    pub limits: simurgh_core::Config,
    /// For user sockets without one of their own.
    pub origin_policy: CheckOrigin,
    pub user_sockets: Vec<UserSocket>,
    pub mailboxes: Vec<Mailbox<Mail>>,
    /// The shards that have ended, as some do before others in a drain: bytes charged to their
    /// mailboxes are never given back, so nothing waits for that.
    pub ended: Arc<[AtomicBool]>,
    pub metrics: Vec<Arc<ShardMetrics>>,
    pub member_counts: Arc<MemberCounts>,
    pub permits: Arc<FanoutPermits>,
    pub connection_limit: Arc<ConnectionLimit>,
    pub peer_limits: Arc<PeerLimits>,
    pub access_list: Arc<AccessList>,
    pub api_requests: Arc<ApiRequests>,
    /// Plain HTTP connections, and those to the admin address.
    pub http_connections: Arc<HttpConnections>,
    pub admin_connections: Arc<HttpConnections>,
    pub drain_began: Arc<OnceLock<Instant>>,
    pub watches: Arc<[CallbackWatch]>,
    /// Counters of the event loops; set once the shards have started.
    pub stats: Arc<OnceLock<Vec<Arc<ReactorStats>>>>,
    pub cluster: Option<Arc<ClusterInbox>>,
    /// Limits how many long messages are decoded outside the shards at once.
    pub readers: Arc<tokio::sync::Semaphore>,
    pub runtime: Arc<OnceLock<tokio::runtime::Handle>>,
    /// Whether any channel has a history, and how many bytes of them by shard.
    pub has_history: bool,
    pub history_bytes: Arc<[AtomicU64]>,
    /// Broadcasts from outside of channels that were not confirmed in time.
    pub unconfirmed: Arc<AtomicU64>,
    /// The histories that are kept over a planned restart.
    pub saved: Arc<Saved>,
    pub takeover: Arc<TakeOver>,
    /// Hashes users and addresses of clients.
    pub client_hasher: RandomState,
    /// Signs the proofs of clients' first joins.
    pub history_key: hmac::Key,
    /// When the server was started, by both clocks: histories age by the monotonic one.
    pub started: (Instant, SystemTime),
    pub reloads: Arc<Reloads>,
}

/// How to reload, the newest server, and tasks of the last reload.
#[derive(Default)]
pub struct Reloads {
    /// Refers to itself by this; [`end`](Self::end) breaks the circle.
    latest: RwLock<Option<Arc<Server>>>,
    reload: RwLock<Option<ReloadFn>>,
    /// They end at the next reload.
    tasks: Mutex<Vec<Task>>,
    /// Requests to reload, by whether they succeeded.
    pub succeeded: AtomicU64,
    pub failed: AtomicU64,
}

/// Reads all settings again. Returns the names of those that changed, and of those that need a
/// restart, or why nothing has changed.
pub type ReloadFn = Arc<dyn Fn() -> Result<Reloaded, String> + Send + Sync>;

/// The result of a reload.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Reloaded {
    /// Settings that changed.
    pub changed: Vec<String>,
    /// Settings that were changed in the file, and need a restart.
    pub needs_restart: Vec<String>,
}

impl Reloads {
    /// Publishes the newest state.
    pub fn publish(&self, server: Arc<Server>) {
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    pub fn set(&self, reload: ReloadFn) {
        *self.reload.write().unwrap_or_else(PoisonError::into_inner) = Some(reload);
    }

    pub fn count(&self, is_ok: bool) {
        let count = if is_ok { &self.succeeded } else { &self.failed };
        count.fetch_add(1, Relaxed);
    }

    /// How to reload, if the application can.
    pub fn get(&self) -> Option<ReloadFn> {
        self.reload.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server ends.
    pub fn end(&self) {
        let latest = self.latest.write().unwrap_or_else(PoisonError::into_inner).take();
        let reload = self.reload.write().unwrap_or_else(PoisonError::into_inner).take();
        // Not under a lock: they may be the last.
        drop((latest, reload));
    }
}

impl Server {
    /// The newest: the same one, unless the settings were reloaded.
    pub fn now(self: &Arc<Self>) -> Arc<Self> {
        let latest = self.reloads.latest.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(latest.as_ref().unwrap_or(self))
    }

    /// Runs this until the next reload, in place of what was run so before.
    pub fn spawn_until_reload(&self, work: Vec<impl Future<Output = ()> + Send + 'static>) {
        let Some(runtime) = self.runtime.get() else { return };
        let tasks = work.into_iter().map(|work| Task(Some(runtime.spawn(work).abort_handle())));
        let tasks = tasks.collect();
        *self.reloads.tasks.lock().unwrap_or_else(PoisonError::into_inner) = tasks;
    }

    /// For control mail and answers, which are never refused.
    pub fn post_to(&self, shard: u16, mail: Mail) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(shard)) {
            mailbox.post_anyway(mail);
        }
    }

    /// Runs a decision of the application on tokio and posts it to a shard; `None` if it panics.
    /// `at` names what is decided.
    pub fn decide_and<T: Send + 'static>(
        &self,
        shard: usize,
        at: &'static str,
        work: impl Future<Output = T> + Send + 'static,
        decided: impl FnOnce(Option<T>) -> Mail + Send + 'static,
    ) {
        let Some(mailbox) = self.mailboxes.get(shard).cloned() else { return };
        // By then the shard has given up waiting.
        let longest = 2 * self.config.decision_timeout;
        self.spawn(async move {
            let mut task = tokio::spawn(work);
            let Ok(result) = tokio::time::timeout(longest, &mut task).await else {
                return task.abort();
            };
            let panicked = |error: JoinError| {
                if let Ok(panic) = error.try_into_panic() {
                    log_panic("", at, panic);
                }
            };
            mailbox.post_anyway(decided(result.map_err(panicked).ok()));
        });
    }

    /// A channel for a shard's answer by way of the server's runtime: the caller may wait on
    /// another one, whose waker a shard must not touch. A shard that has ended drops the sender.
    pub fn answer<T: Send + 'static>(&self) -> (Box<dyn FnOnce(T) + Send>, oneshot::Receiver<T>) {
        let (from_shard, told) = oneshot::channel();
        let (to_asker, answered) = oneshot::channel();
        self.spawn(async move {
            if let Ok(it) = told.await {
                // The receiver may be gone.
                let _ = to_asker.send(it);
            }
        });
        (Box::new(move |it| drop(from_shard.send(it))), answered)
    }

    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime.get() {
            runtime.spawn(work);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("id", &self.id).finish_non_exhaustive()
    }
}

/// For the handles of channels, from any thread.
impl NodeHandle for Server {
    fn send(&self, channel: ChannelId, what: ToChannel) {
        self.post_to(channel.shard, Mail::ToChannel(channel, OffShard::new(what)));
    }

    fn broadcast_by(
        &self,
        channel: ChannelId,
        event: &str,
        payload: Payload<'static>,
        audience: Audience,
    ) -> Result<(), BroadcastError> {
        self.broadcast_for(channel, event, payload, audience)
    }

    fn spawn(&self, work: Work) {
        Self::spawn(self, work);
    }

    fn spawn_linked(&self, work: Work) -> Box<dyn LinkedWork> {
        let task = self.runtime.get().map(|runtime| runtime.spawn(work).abort_handle());
        Box::new(Task(task))
    }

    fn presence_config(&self) -> &PresenceConfig {
        &self.limits.presence
    }

    fn list_presences(&self, topic: &str, answer: PresenceCallback) {
        self.request_presences(topic, answer);
    }

    fn member_count(&self, topic: &str) -> Option<u32> {
        self.member_counts.is_counting().then(|| self.member_counts.count(topic))
    }

    fn denial(&self, identity: &Identity<'_>, topic: Option<&str>) -> Option<&'static str> {
        if self.access_list.is_empty() {
            return None;
        }
        self.access_list.denial(identity, topic, self.unix_ms(0) / 1000)
    }
}

/// Work on tokio that is aborted when this is dropped; none on a server without a runtime.
struct Task(Option<tokio::task::AbortHandle>);

impl LinkedWork for Task {
    fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(tokio::task::AbortHandle::is_finished)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// For each shard's core: the other shards and the shared state.
impl Node for Server {
    fn config(&self) -> &simurgh_core::Config {
        &self.limits
    }

    fn user_socket(&self, index: u8) -> Option<&simurgh_core::UserSocket> {
        self.user_sockets.get(usize::from(index)).map(|user_socket| &user_socket.parts().channels)
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn has_history(&self) -> bool {
        self.has_history
    }

    fn history_bytes(&self) -> &[AtomicU64] {
        &self.history_bytes
    }

    #[inline]
    fn cluster(&self) -> Option<&dyn simurgh_core::Cluster> {
        self.cluster.as_ref().map(|inbox| &**inbox as &dyn simurgh_core::Cluster)
    }

    #[inline]
    fn other_process(&self) -> Option<Arc<dyn OtherProcess>> {
        self.takeover.link().map(|link| link as Arc<dyn OtherProcess>)
    }

    fn may_end(&self, shard: usize) -> bool {
        self.takeover.is_empty(shard)
    }

    fn permits(&self) -> &FanoutPermits {
        &self.permits
    }

    fn decide(&self, shard: usize, key: Key, ticket: u32, work: JoinDecision) {
        self.decide_and(shard, "join", work, move |join| {
            Mail::Core(simurgh_core::Mail::Joined(key, ticket, join))
        });
    }

    fn member_joined(&self, topic: &str) {
        self.member_counts.add(topic);
    }

    fn member_left(&self, topic: &str) {
        self.member_counts.subtract(topic);
    }

    fn void_grants(&self, of: &str) {
        self.user_sockets.iter().for_each(|user_socket| user_socket.parts().void_grants(of));
    }

    fn sighting_sink(&self) -> Option<SightingSink> {
        self.config.sighting_sink.clone()
    }

    fn user_of<'a>(&self, of: &'a Assigns) -> Option<&'a str> {
        user_in(of).filter(|user| !user.is_empty())
    }

    fn connection_id(&self, shard: u16, key: Key) -> String {
        ConnectionId { node: self.id, shard, key }.to_string()
    }

    fn release_connection(&self) {
        self.connection_limit.give_back();
    }
}

impl Mailboxes for Server {
    fn shards(&self) -> usize {
        self.mailboxes.len()
    }

    fn post(&self, shard: usize, mail: simurgh_core::Mail) -> bool {
        self.mailboxes.get(shard).is_some_and(|mailbox| mailbox.post_anyway(Mail::Core(mail)))
    }

    fn charge(&self, shard: usize, bytes: usize) {
        if let Some(mailbox) = self.mailboxes.get(shard) {
            mailbox.charge(bytes);
        }
    }

    fn discharge(&self, shard: usize, bytes: usize) {
        if let Some(mailbox) = self.mailboxes.get(shard) {
            mailbox.discharge(bytes);
        }
    }

    fn charged(&self, shard: usize) -> usize {
        let is_there = |ended: &AtomicBool| !ended.load(Relaxed);
        match (self.mailboxes.get(shard), self.ended.get(shard)) {
            (Some(mailbox), Some(ended)) if is_there(ended) => mailbox.bytes(),
            _ => 0,
        }
    }
}

impl simurgh_core::CallbackWatch for Server {
    fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
        simurgh_core::guarded(f)
    }

    fn enter_callback(&self, shard: usize, callback: Callback) {
        if let Some(watch) = self.watches.get(shard) {
            watch.enter(callback);
        }
    }

    fn leave_callback(&self, shard: usize) -> Duration {
        self.watches.get(shard).map_or(Duration::ZERO, CallbackWatch::leave)
    }
}

impl Signer for Server {
    fn sign(&self, text: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.history_key, text.as_bytes()))
    }

    fn is_signed(&self, text: &str, proof: &str) -> bool {
        let proof = URL_SAFE_NO_PAD.decode(proof);
        proof.is_ok_and(|it| hmac::verify(&self.history_key, text.as_bytes(), &it).is_ok())
    }
}

impl WallClock for Server {
    fn unix_ms(&self, _now_ns: u64) -> u64 {
        let (instant, time) = self.started;
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default() + instant.elapsed();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

pub struct ConnectionLimit {
    most: Option<usize>,
    taken: AtomicUsize,
}

impl ConnectionLimit {
    pub fn new(most: Option<usize>) -> Self {
        Self { most, taken: AtomicUsize::new(0) }
    }

    /// Whether the limit is reached; the answer may be outdated when it is used.
    pub fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.taken.load(Relaxed) >= most)
    }

    pub fn take(&self) -> bool {
        let Some(most) = self.most else { return true };
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    pub fn give_back(&self) {
        if self.most.is_some() {
            self.taken.fetch_sub(1, Relaxed);
        }
    }
}

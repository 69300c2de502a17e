//! An [`Endpoint`]: user sockets, shards and the HTTP side, started and stopped as one.

mod successor;

use std::fmt;
use std::hash::RandomState;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::{Instant, SystemTime};

use ring::hmac;
use simurgh_core::metrics::ShardMetrics;
use simurgh_core::{DRAIN_GRACE, FanoutPermits};
use simurgh_proto::message::Payload;
use simurgh_reactor as reactor;
use simurgh_shard::callback_watch::CallbackWatch;
use simurgh_shard::certificates::{CertificateProblems, Certificates};
use simurgh_shard::cluster_inbox::{ClusterInbox, Service};
use simurgh_shard::config::{Config, TlsConfig, cores};
use simurgh_shard::connections::HttpConnections;
use simurgh_shard::mail::Mail;
use simurgh_shard::member_counts::MemberCounts;
use simurgh_shard::peer_limits::PeerLimits;
use simurgh_shard::server::{ConnectionLimit, Reloads, Server};
use simurgh_shard::shard::Shard;
use simurgh_shard::takeover::TakeOver;
use simurgh_socket::UserSocket;

use crate::BroadcastError;
use crate::blocks;
use crate::cluster;
use crate::error::Error;
use crate::handle::Handle;
use crate::http;
use crate::longpoll::{self, LongPolls, Signer};
use crate::observe::{self, Observer};
use crate::prepare::{fit_into_descriptors, reactor_config};
use crate::presence::Presence;
use crate::pubsub::PubSub;
use crate::questions;
use crate::reload::{self, Applied, Reloader};
use crate::secret;
use crate::signals::Signals;
use crate::takeover;
use crate::tls;
use crate::watchdog::{self, Watchdog};

/// A running server. Dropping it stops it at once; [`drain`](Self::drain) stops it gently.
pub struct Endpoint {
    server: Arc<Server>,
    addresses: Vec<SocketAddr>,
    admin_address: Option<SocketAddr>,
    shards: Vec<reactor::ShardHandle>,
    runtime: Option<tokio::runtime::Runtime>,
    /// The threads of plain HTTP; `None` without an address.
    http: Option<http::Threads>,
    _watchdog: Watchdog,
    /// Histories and cached answers are saved only once.
    is_saved: bool,
    /// `None` on a single node.
    cluster: Option<cluster::Started>,
    /// Kept here for the services.
    longpolls: Arc<LongPolls>,
    observer: Arc<Observer>,
    unix: http::UnixListeners,
    site: Arc<http::Site>,
    /// For the process that takes over.
    control: Option<takeover::Control>,
}

/// Called once the server listens.
type Ready = Box<dyn FnOnce(&Endpoint) + Send>;

/// Collects the parts of an [`Endpoint`].
#[must_use]
pub struct Builder {
    pub(crate) config: Config,
    user_sockets: Vec<UserSocket>,
    router: axum::Router,
    front: Option<String>,
    wrong_address: Option<String>,
    ready: Option<Ready>,
    cluster: Option<cluster::Cluster>,
    pub(crate) takeover: takeover::Plan,
}

impl Endpoint {
    /// An empty builder with the default [`Config`].
    pub fn builder() -> Builder {
        Builder {
            config: Config::default(),
            user_sockets: Vec::new(),
            router: axum::Router::new(),
            front: None,
            wrong_address: None,
            ready: None,
            cluster: None,
            takeover: takeover::Plan::default(),
        }
    }

    /// The addresses it listens on, with the real port if 0 was requested: those without TLS, then
    /// those with TLS.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The same as URLs, such as `http://127.0.0.1:4000` and `https://0.0.0.0:443`.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        let plain = self.server.config.listen.len();
        let addresses = self.addresses.iter().enumerate().map(move |(index, address)| {
            let scheme = if index < plain { "http" } else { "https" };
            format!("{scheme}://{address}")
        });
        let paths = self.server.config.listen_unix.iter();
        addresses.chain(paths.map(|path| format!("unix:{}", path.display())))
    }

    /// Reads the TLS certificates and keys again, for all later connections; those that exist keep
    /// theirs. SIGHUP does the same, unless the program reloads more. Blocks while it reads. Logs
    /// the result, also if there is nothing to read because the server has no TLS.
    ///
    /// # Errors
    /// A file cannot be used, or a certificate is not valid now. All old certificates then stay.
    pub fn reload_certificates(&self) -> Result<(), CertificateProblems> {
        self.handle().reload_certificates()
    }

    /// The address of [`Config::admin_listen`], with the real port if 0 was requested.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Broadcasts to all members of a topic, from any thread. Fails on a congested server, or if
    /// the payload exceeds half of [`Config::outbound_bytes_max`].
    pub fn broadcast(
        &self,
        topic: &str,
        event: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<(), BroadcastError> {
        self.pubsub().broadcast(topic, event, payload)
    }

    /// Closes every socket with this id, with 1001.
    pub fn disconnect(&self, socket_id: &str) -> Result<(), BroadcastError> {
        self.pubsub().disconnect(socket_id)
    }

    /// A cheap clone that observes and drains the server without owning it.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.server))
    }

    /// Replaces settings and declared channels while the server runs.
    #[doc(hidden)]
    pub fn reloader(&self) -> Reloader {
        let (polls, observer) = (Arc::clone(&self.longpolls), Arc::clone(&self.observer));
        Reloader::new(polls, observer, Arc::clone(&self.site))
    }

    /// A cheap clone that subscribes and broadcasts.
    pub fn pubsub(&self) -> PubSub {
        PubSub::new(Arc::clone(&self.server))
    }

    /// A cheap clone that lists presences.
    pub fn presence(&self) -> Presence {
        Presence::new(Arc::clone(&self.server))
    }

    /// Serves until SIGTERM or SIGINT has drained the server; a second one ends the process at
    /// once. SIGHUP reloads the certificates. Fails if the system has no thread left to wait for
    /// signals.
    pub fn serve(self, signals: Signals) -> Result<(), Error> {
        signals.drain(self.handle()).map_err(Error::Prepare)?;
        self.wait()
    }

    /// Waits until the server has ended; an error means that a shard's event loop failed and ended
    /// it.
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    /// Stops accepting, closes all sockets with 1012 evenly over [`Config::drain_time`], waits for
    /// running HTTP requests, at most 5 s longer than that, and ends.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn drain(mut self) -> Result<(), Error> {
        self.handle().drain();
        self.join()
    }

    /// Ends at once.
    pub fn stop(mut self) {
        self.end();
    }

    /// Starts the cluster's thread and the shards, with what was saved or what another process
    /// hands over.
    fn begin(
        &mut self,
        set: &mut reactor::ShardSet<Mail>,
        tls: &tls::Prepared,
        prepared: Option<cluster::Prepared>,
        earlier: Option<takeover::Earlier>,
    ) -> Result<Option<takeover::Linked>, Error> {
        let server = Arc::clone(&self.server);
        if let Some(path) = server.config.history_save.as_ref().filter(|_| earlier.is_none()) {
            server.saved.read(path, server.config.shards);
        }
        blocks::load(&server);
        let services = services(&self.longpolls, &self.observer);
        self.cluster = prepared.map(|it| it.start(&server, services)).transpose()?;
        cluster::await_others(&server);
        let linked = earlier.map(|earlier| earlier.receive_state(&server)).transpose()?;
        self.spawn_shards(set, tls)?;
        Ok(linked)
    }

    fn spawn_shards(
        &mut self,
        set: &mut reactor::ShardSet<Mail>,
        tls: &tls::Prepared,
    ) -> Result<(), Error> {
        for index in 0..self.server.config.shards {
            let server = Arc::clone(&self.server);
            // A name of more than eight bytes: a client's channel often takes eight, and the name,
            // which stays, would keep their page of the allocator in use.
            let name = format!("shard-{index:03}");
            let shard = set
                .spawn(&name, reactor_config(&self.server.config, tls, index), move |_| {
                    Shard::new(server, index as u16)
                })
                .map_err(Error::Listen)?;
            self.shards.push(shard);
        }
        let stats = self.shards.iter().map(|shard| Arc::clone(shard.stats())).collect();
        let _ = self.server.stats.set(stats);
        let listening = &self.server.takeover.listening;
        *listening.lock().unwrap_or_else(PoisonError::into_inner) = set.take_listening();
        Ok(())
    }

    fn serve_http(
        &mut self,
        threads: http::Prepared,
        set: &mut reactor::ShardSet<Mail>,
    ) -> Result<(), Error> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let served = (&self.server, &self.longpolls, &self.observer);
        let hand_offs = set.take_hand_off_ends();
        let served = http::serve(runtime, threads, served, &self.site, hand_offs, &mut self.unix);
        let (threads, admin_address) =
            served.map_err(|error| Error::Admin(self.server.config.admin_listen, error))?;
        self.http = Some(threads);
        self.admin_address = admin_address;
        Ok(())
    }

    fn end(&mut self) {
        self.handle().stop();
        let _ = self.join();
    }

    fn join(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for shard in self.shards.drain(..) {
            if let Err(error) = shard.join() {
                tracing::error!(%error, "a shard's event loop failed");
                result = Err(Error::Broken(error));
            }
        }
        let server = self.server.now();
        self.server.takeover.stop_accepting();
        self.control = None;
        let is_handed_over = self.server.takeover.is_handed_over.load(Relaxed);
        if is_handed_over {
            self.unix.leave();
        }
        let has_drained = server.drain_began.get().is_some() && !is_handed_over;
        let saves = has_drained && !std::mem::replace(&mut self.is_saved, true);
        if saves
            && let Some(path) = &server.config.history_save
            && let Err(error) = server.saved.write(path)
        {
            result = result.and(Err(Error::HistorySave(path.clone(), error)));
        }
        #[cfg(feature = "hooks")]
        if saves {
            crate::hooked::save(&server);
        }
        if let Some(began) = server.drain_began.get() {
            let until = *began + server.config.drain_time + DRAIN_GRACE;
            server.http_connections.finish(until);
            server.admin_connections.finish(until);
        }
        if let Some(link) = self.server.takeover.link() {
            link.finish(DRAIN_GRACE);
        }
        self.http = None;
        if let Some(mut cluster) = self.cluster.take() {
            cluster.end(&self.server);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        server.reloads.end();
        result
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Builder {
    /// Adds a user socket. If several match a path, the first one is used.
    pub fn socket(mut self, user_socket: UserSocket) -> Self {
        self.user_sockets.push(user_socket);
        self
    }

    /// Adds an address to listen on, for example `127.0.0.1:4000` or `[::]:4000`;
    /// [`start`](Self::start) reports a wrong one.
    pub fn listen(mut self, address: &str) -> Self {
        match address.parse() {
            Ok(address) => self.config.listen.push(address),
            Err(_) => self.wrong_address = Some(address.to_owned()),
        }
        self
    }

    /// Listens with TLS, too; [`start`](Self::start) reads the certificates.
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// Serves pages and other plain HTTP on the same port.
    pub fn http(mut self, router: axum::Router) -> Self {
        self.router = self.router.merge(router);
        self
    }

    /// Serves a page at `/` that shows what the server serves. Only clients that may see the
    /// observer get `details`, HTML in which `{{host}}` becomes the `Host` of the request, and
    /// `ws://` before it `wss://` if the client uses TLS; the others learn nothing from the page.
    pub fn front_page(mut self, details: impl Into<String>) -> Self {
        self.front = Some(details.into());
        self
    }

    /// Makes the server one of several nodes.
    pub fn cluster(mut self, cluster: cluster::Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Replaces all settings.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Changes settings.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// The user sockets so far.
    #[doc(hidden)]
    pub fn user_sockets(&self) -> &[UserSocket] {
        &self.user_sockets
    }

    /// Has a running server continue with these settings, user sockets and pages.
    ///
    /// # Errors
    /// As for [`start`](Self::start). Nothing has changed then.
    #[doc(hidden)]
    pub fn reload(self, reloader: &Reloader) -> Result<Applied, Error> {
        let Self { config, user_sockets, router, front, .. } = self;
        reloader.reload(config, user_sockets, router, front.as_deref())
    }

    /// Starts the server, and returns once all shards listen.
    ///
    /// # Errors
    /// An address is wrong or taken, or the system refused something; each error says what to do.
    pub fn start(self) -> Result<Endpoint, Error> {
        let has_none = self.config.addresses().next().is_none();
        if self.wrong_address.is_none() && has_none && self.config.listen_unix.is_empty() {
            return Err(Error::NoAddress);
        }
        self.start_local()
    }

    /// As [`start`](Self::start), but no address is needed: without one only sockets of a
    /// [`Driver`](crate::driver::Driver) can connect, and there are no HTTP threads.
    pub fn start_local(self) -> Result<Endpoint, Error> {
        if let Some(address) = self.wrong_address {
            return Err(Error::WrongAddress(address));
        }
        let Self { mut config, mut user_sockets, router, front, cluster, .. } = self;
        let mut takeover = self.takeover.begun(&config, cluster.is_some())?;
        fit_into_descriptors(&mut config);
        let mut set = reactor::ShardSet::prepare(config.shards, config.mailbox_bytes_max)
            .map_err(Error::Prepare)?;
        let tls = tls::prepare(&config)?;
        let unix = http::UnixListeners::bind(&config, &mut takeover.inherited)?;
        let addresses = takeover.bind(&mut set, &config)?;
        let name = cluster.as_ref().map(|cluster| cluster.name().to_owned());
        config.node_name = name.unwrap_or(config.node_name);
        #[cfg(feature = "hooks")]
        crate::notices::listen(&mut config, &user_sockets);
        let own_secret = takeover.secret()?;
        let own = config.secret_key_base.as_deref().or(Some(&own_secret));
        let signer = Signer::new(own).map_err(Error::Prepare)?;
        if let (Some(_), Some(path)) = (&cluster, &config.history_save) {
            return Err(Error::HistorySaveInCluster(path.clone()));
        }
        let prepared =
            cluster.map(|it| cluster::prepare(it, &user_sockets, &config)).transpose()?;
        let inbox = prepared.as_ref().map(|_| Arc::new(ClusterInbox::default()));
        let interest = inbox.clone().map(cluster::interest);
        user_sockets.iter_mut().for_each(|user_socket| user_socket.serve(interest.as_ref()));
        let user_sockets = reload::arranged(user_sockets, &[])?;
        let history_key = secret::key(own, b"simurgh history");
        let keys = (signer.node, history_key.map_err(Error::Prepare)?);
        let (mailboxes, certificates) = (set.mailboxes().to_vec(), tls.certificates.clone());
        let parts = (inbox, TakeOver::new(mailboxes.len(), own_secret));
        let server =
            Arc::new(make_server(config, user_sockets, keys, parts, mailboxes, certificates));
        let longpolls = Arc::new(LongPolls::new(Arc::clone(&server), signer));
        let observer = Arc::new(Observer::new(Arc::clone(&server)));
        let site = http::Site::new(&longpolls, &observer, router, front.as_deref());
        #[cfg(feature = "hooks")]
        crate::hooked::start(&server)?;
        let watchdog = watchdog::start(&server).map_err(Error::Prepare)?;
        let runtime = http::runtime().map_err(Error::Prepare)?;
        let is_listening = !addresses.is_empty() || !server.config.listen_unix.is_empty();
        let loops = if is_listening { server.config.http.threads.max(1) } else { 0 };
        let http_threads = http::prepare(loops).map_err(Error::Prepare)?;
        let _ = server.runtime.set(runtime.handle().clone());
        #[cfg(feature = "hooks")]
        crate::notices::begin(&server, prepared.as_ref().is_some_and(|it| it.stores_notices()));
        // From here on, dropping it on an error ends what was started.
        let mut endpoint = Endpoint {
            server: Arc::clone(&server),
            addresses,
            admin_address: None,
            shards: Vec::with_capacity(server.config.shards),
            runtime: Some(runtime),
            http: None,
            is_saved: false,
            cluster: None,
            longpolls: Arc::clone(&longpolls),
            observer: Arc::clone(&observer),
            unix,
            site: Arc::new(site),
            control: None,
            _watchdog: watchdog,
        };
        let linked = endpoint.begin(&mut set, &tls, prepared, takeover.earlier)?;
        // Without an address there are no pages and no observer.
        let is_served = is_listening || server.config.has_admin();
        if is_served {
            endpoint.serve_http(http_threads, &mut set)?;
        }
        linked.map_or(Ok(()), |linked| linked.ready(&server))?;
        endpoint.offer(takeover.handed_over);
        Ok(endpoint)
    }

    /// Sets a function that [`run`](Self::run) calls once the server listens, for example to print
    /// where.
    ///
    /// ```no_run
    /// use simurgh::Endpoint;
    ///
    /// fn main() -> Result<(), simurgh::Error> {
    ///     let endpoint = Endpoint::builder().listen("127.0.0.1:4000");
    ///     endpoint.on_ready(|it| println!("listening on {:?}", it.addresses())).run()
    /// }
    /// ```
    pub fn on_ready(mut self, ready: impl FnOnce(&Endpoint) + Send + 'static) -> Self {
        self.ready = Some(Box::new(ready));
        self
    }

    /// Starts the server, and serves until SIGTERM or SIGINT has drained it; a second one ends the
    /// process at once. SIGHUP reloads the certificates. Errors as for [`start`](Self::start).
    pub fn run(mut self) -> Result<(), Error> {
        let signals = Signals::block().map_err(Error::Prepare)?;
        let ready = self.ready.take();
        let endpoint = self.start()?;
        tracing::info!(addresses = ?endpoint.addresses(), "listening");
        if let Some(ready) = ready {
            ready(&endpoint);
        }
        endpoint.serve(signals)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("user_sockets", &self.user_sockets).finish_non_exhaustive()
    }
}

fn make_server(
    config: Config,
    user_sockets: Vec<UserSocket>,
    (id, history_key): (u64, hmac::Key),
    (cluster, takeover): (Option<Arc<ClusterInbox>>, TakeOver),
    mailboxes: Vec<reactor::Mailbox<Mail>>,
    certificates: Option<Arc<Certificates>>,
) -> Server {
    let shards = mailboxes.len();
    let reserved = config.http.connections_reserved;
    let held_bytes_max = [config.inbound_budget_bytes, config.outbound_budget_bytes];
    Server {
        id,
        origin_policy: config.origin_policy(),
        member_counts: Arc::new(MemberCounts::new(reload::counts_members(&user_sockets))),
        metrics: (0..shards).map(|_| Arc::new(ShardMetrics::default())).collect(),
        watches: (0..shards).map(|_| CallbackWatch::default()).collect(),
        ended: (0..shards).map(|_| AtomicBool::new(false)).collect(),
        permits: Arc::new(FanoutPermits::new(shards, cores())),
        connection_limit: Arc::new(ConnectionLimit::new(config.max_connections)),
        peer_limits: Arc::new(PeerLimits::new(&config)),
        access_list: Arc::default(),
        api_requests: Arc::default(),
        http_connections: Arc::new(HttpConnections::new(
            config.http.connections_max,
            reserved,
            held_bytes_max,
        )),
        admin_connections: Arc::new(HttpConnections::new(reserved, 0, held_bytes_max)),
        client_hasher: RandomState::new(),
        history_key,
        saved: Arc::default(),
        takeover: Arc::new(takeover),
        drain_began: Arc::default(),
        stats: Arc::default(),
        cluster,
        readers: Arc::new(tokio::sync::Semaphore::new(cores())),
        runtime: Arc::default(),
        has_history: reload::has_history(&user_sockets),
        unconfirmed: Arc::default(),
        history_bytes: (0..shards).map(|_| AtomicU64::new(0)).collect(),
        started: (Instant::now(), SystemTime::now()),
        limits: config.limits_of_core(),
        reloads: Arc::<Reloads>::default(),
        config,
        certificates,
        user_sockets,
        mailboxes,
    }
}

fn services(longpolls: &Arc<LongPolls>, observer: &Arc<Observer>) -> cluster::Serve {
    let (longpolls, observer) = (Arc::clone(longpolls), Arc::clone(observer));
    Arc::new(move |by, service, body, left| {
        let (longpolls, observer) = (Arc::clone(&longpolls), Arc::clone(&observer));
        Box::pin(async move {
            match service {
                Service::LongPoll => {
                    let longpolls = longpolls.with(longpolls.server.now());
                    longpoll::other_node::serve(&longpolls, &body, left).await
                }
                Service::Look => observe::serve(&observer, &body).await,
                Service::Ask => questions::serve(&longpolls.server, &body).await,
                Service::Blocks => blocks::serve(&longpolls.server, &body),
                #[cfg(feature = "hooks")]
                Service::Grants => crate::hooked::serve(&longpolls.server.now(), &body),
                #[cfg(feature = "hooks")]
                Service::Notices => crate::notices::report(&longpolls.server, by, body).await,
                #[cfg(feature = "hooks")]
                Service::AskNotices => crate::notices::serve(&longpolls.server, &body).await,
                #[cfg(not(feature = "hooks"))]
                Service::Grants | Service::Notices | Service::AskNotices => (404, Vec::new()),
            }
        })
    })
}

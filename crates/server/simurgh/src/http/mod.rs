//! The HTTP side, on tokio: all requests that are not for a user socket.
//!
//! Shards hand over plain connections with the bytes they have read ([`HandOffEnd`]); `threads`
//! distributes them, `gate` checks each request's head, hyper serves it, `watch` finds slow
//! clients, `http_connections` counts them. A proxy may send an upgrade as a later request on such
//! a connection: it then returns to its shard the same way, with the request's head written again.

mod admin;
mod admin_listener;
mod api;
mod block;
mod bodies;
mod cluster_metrics;
mod connection;
mod control;
mod copies;
mod error;
mod files;
mod gate;
mod headers;
mod health;
mod history;
mod hosts;
mod lists;
#[cfg(feature = "hooks")]
mod notices;
mod publish;
mod reload;
mod repeated_warning;
mod supabase;
mod threads;
mod unix;
mod verbs;
mod waiting_poll;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use simurgh_reactor::HandOffEnd;
use simurgh_shard::config::Config;
use simurgh_shard::server::Server;
use simurgh_socket::UserSocket;
use tokio::runtime::Runtime;

use crate::error::Error;
use crate::longpoll::LongPolls;
use crate::observe::{self, Observer};
use crate::takeover::Inherited;

pub use files::{static_files, static_files_keeping};
pub use headers::with_security_headers;
pub use simurgh_shard::config::HttpConfig;
pub(crate) use threads::{Prepared, Threads, prepare};

/// Threads of the runtime besides the connections' own.
const WORKERS: usize = 2;

/// For tasks of applications, the observer and the admin address.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("simurgh-work")
        .enable_all()
        .build()
}

/// Serves the pages on connections from the shards; returns the threads and the admin address, if
/// there is one.
pub(crate) fn serve(
    runtime: &Runtime,
    threads: Prepared,
    (server, polls, observer): (&Arc<Server>, &Arc<LongPolls>, &Arc<Observer>),
    site: &Arc<Site>,
    hand_offs: Vec<HandOffEnd>,
    unix: &mut UnixListeners,
) -> io::Result<(Threads, Option<SocketAddr>)> {
    runtime.spawn(observe::run(Arc::downgrade(observer)));
    let mut admin_address = None;
    if server.config.has_admin() {
        let admin = for_operators(polls).merge(observe::router(observer, true));
        let admin = Arc::new(Site::of(admin));
        if let Some(listener) = &unix.admin {
            admin_listener::keep_copy(server, listener.copy()?);
            admin_listener::serve_unix(runtime, server, listener, Arc::clone(&admin))?;
        }
        if let Some(address) = server.config.admin_listen {
            let listener = (address, unix.admin_tcp.take());
            admin_address = Some(admin_listener::serve(runtime, server, listener, admin)?);
        }
    }
    let hand_offs: Vec<_> = hand_offs.into_iter().map(Arc::new).collect();
    let _entered = runtime.enter();
    for listener in &unix.clients {
        admin_listener::keep_copy(server, listener.copy()?);
        let (server, listener) = (Arc::clone(server), listener.to_tokio()?);
        runtime.spawn(unix::accept_all(server, listener, hand_offs.clone()));
    }
    Ok((threads.start(server, site, hand_offs)?, admin_address))
}

fn for_operators(polls: &Arc<LongPolls>) -> Router {
    let has_admin = polls.server.config.has_admin();
    hosts::for_known_hosts(admin::router(polls), &polls.server, has_admin)
}

/// The Unix sockets of a server; their paths are removed when this is dropped. And the admin
/// address's socket, until it is served, if another process opened it.
#[derive(Default)]
pub(crate) struct UnixListeners {
    clients: Vec<unix::Listener>,
    admin: Option<unix::Listener>,
    admin_tcp: Option<admin_listener::Socket>,
}

impl UnixListeners {
    pub(crate) fn bind(config: &Config, inherited: &mut Inherited) -> Result<Self, Error> {
        let mut bind = |path: &PathBuf| {
            unix::Listener::bind(path, inherited.unix(path))
                .map_err(|error| Error::Unix(path.clone(), error))
        };
        Ok(Self {
            clients: config.listen_unix.iter().map(&mut bind).collect::<Result<_, _>>()?,
            admin: config.admin_listen_unix.as_ref().map(bind).transpose()?,
            admin_tcp: config.admin_listen.and_then(|address| inherited.tcp(address).pop()),
        })
    }

    /// Another process listens on them.
    pub(crate) fn leave(&mut self) {
        self.clients.iter_mut().chain(&mut self.admin).for_each(unix::Listener::leave);
    }
}

/// The pages of a server, which a reload replaces.
pub(crate) struct Site(RwLock<Arc<Pages>>);

struct Pages {
    /// The observer, and all others as its fallback.
    observer: Router,
    /// All others: most requests need only these.
    others: Router,
    /// `None` on the admin address.
    polls: Option<Arc<LongPolls>>,
}

impl Site {
    /// The application's pages and the server's own paths; `front` describes what is served.
    pub(crate) fn new(
        polls: &Arc<LongPolls>,
        observer: &Arc<Observer>,
        router: Router,
        front: Option<&str>,
    ) -> Self {
        Self(RwLock::new(Arc::new(Pages::new(polls, observer, router, front))))
    }

    fn of(router: Router) -> Self {
        let pages = Pages { observer: router.clone(), others: router, polls: None };
        Self(RwLock::new(Arc::new(pages)))
    }

    /// Other pages, from the next request on.
    pub(crate) fn replace(&self, other: Self) {
        let other = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = other;
    }

    fn pages(&self) -> Arc<Pages> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pages {
    fn new(
        polls: &Arc<LongPolls>,
        observer: &Arc<Observer>,
        router: Router,
        front: Option<&str>,
    ) -> Self {
        let server = &polls.server;
        let mut others = router.merge(health::router(server));
        if let Some(details) = front {
            others = others.merge(observe::front(observer, details));
        }
        if server.config.has_api() {
            let mut own = api::router(server);
            if server.user_sockets.iter().any(UserSocket::speaks_supabase) {
                own = own.merge(supabase::router(server));
            }
            others = others.merge(hosts::for_known_hosts(own, server, false));
        }
        if !server.config.has_admin() && server.config.is_loopback() {
            others = others.merge(for_operators(polls));
        }
        // Before the application's pages, which may match any path.
        let observer = observe::router(observer, false).fallback_service(others.clone());
        Self { observer, others, polls: Some(Arc::clone(polls)) }
    }

    fn at(&self, path: &str) -> Router {
        let router = if path.starts_with("/observer") { &self.observer } else { &self.others };
        router.clone()
    }

    fn user_sockets(&self) -> &[UserSocket] {
        self.polls.as_ref().map(|polls| &*polls.server.user_sockets).unwrap_or_default()
    }
}

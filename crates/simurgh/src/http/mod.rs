//! The HTTP side: everything that is not on a socket's mount, on tokio.
//!
//! Shards give plain connections here with the bytes they have read ([`HandOffEnd`]); `threads`
//! spreads them, `gate` judges each request's head, hyper serves what it lets through, `watch`
//! knows who is too slow. A proxy may send an upgrade as a later request on a connection that is
//! already here: such a connection goes back to its shard the same way, with the request's head
//! written out again.

mod admin;
mod api;
mod bearer;
mod connection;
mod files;
mod gate;
mod headers;
mod limits;
mod threads;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use simurgh_reactor::HandOffEnd;
use tokio::runtime::Runtime;

use crate::hub::Hub;
use crate::observe;

pub(crate) use admin::REACTOR_METRICS;
pub(crate) use bearer::{Bearer, bearer};
pub use files::static_files;
pub use headers::with_security_headers;
pub use limits::HttpConfig;
pub(crate) use threads::{Prepared, Threads, prepare};

/// How long the admin address waits after it could not accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Threads of the runtime beside the connections' own.
const WORKERS: usize = 2;

/// Makes the runtime that the work which applications spawn runs on, the observer and the admin
/// address.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("simurgh-work")
        .enable_all()
        .build()
}

/// Serves the application's router and the server's own paths to what the shards hand over;
/// returns the threads that do and the admin address, if there is one.
pub(crate) fn serve(
    runtime: &Runtime,
    threads: Prepared,
    hub: &Arc<Hub>,
    router: Router,
    hand_offs: Vec<HandOffEnd>,
) -> io::Result<(Threads, Option<SocketAddr>)> {
    let admin = admin::router(hub);
    runtime.spawn(observe::run(Arc::downgrade(hub)));
    let mut router = router.route("/healthz", get(|| async { "ok\n" }));
    if hub.config.api_token.is_some() {
        router = router.merge(api::router(hub));
    }
    let admin_address = match hub.config.admin_listen {
        Some(address) => {
            let admin = admin.merge(observe::router(hub, true));
            Some(serve_admin(runtime, hub, address, admin)?)
        }
        None => {
            if hub.config.is_loopback() {
                router = router.merge(admin);
            }
            None
        }
    };
    Ok((threads.start(hub, &Pages::new(hub, router), hand_offs)?, admin_address))
}

/// What is served on the server's own port.
#[derive(Clone)]
struct Pages {
    /// The observer, and behind it all others.
    observer: Router,
    /// All others, which most requests are for: they need not be looked for in both.
    others: Router,
}

impl Pages {
    fn new(hub: &Arc<Hub>, others: Router) -> Self {
        // In front of the application's own pages, which may have anything at any path.
        let observer = observe::router(hub, false).fallback_service(others.clone());
        Self { observer, others }
    }

    /// Those of one router.
    fn of(router: Router) -> Self {
        Self { observer: router.clone(), others: router }
    }

    fn at(&self, path: &str) -> Router {
        let router = if path.starts_with("/observer") { &self.observer } else { &self.others };
        router.clone()
    }
}

#[allow(
    clippy::disallowed_types,
    reason = "the admin listener lives in the main table and never meets a shard"
)]
fn serve_admin(
    runtime: &Runtime,
    hub: &Arc<Hub>,
    address: SocketAddr,
    router: Router,
) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let actual = listener.local_addr()?;
    tracing::info!(address = %actual, "metrics and the observer are served");
    let _entered = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (hub, pages) = (Arc::clone(hub), Pages::of(router));
    runtime.spawn(async move {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                // A connection that ended while it waited, or no descriptor left for it.
                Err(error) => {
                    tracing::warn!(%error, "the admin address cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (hub, pages) = (Arc::clone(&hub), pages.clone());
            tokio::spawn(async move {
                let served = connection::serve(hub, pages, None, stream, Vec::new()).await;
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection to the admin address broke");
                }
            });
        }
    });
    Ok(actual)
}

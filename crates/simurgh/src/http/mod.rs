//! The HTTP side: everything that is not on a socket's mount, on tokio.
//!
//! Shards give plain connections here with the bytes they have read ([`HandOffEnd`]); hyper serves
//! them. A proxy may send an upgrade as a later request on a connection that is already here: such
//! a connection goes back to its shard the same way, with the request's head written out again.

mod admin;
mod api;
mod bearer;
mod connection;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use simurgh_reactor::HandOffEnd;
use tokio::runtime::Runtime;

use crate::hub::Hub;
use crate::observe;

pub(crate) use admin::REACTOR_METRICS;
pub(crate) use bearer::{Bearer, bearer};

/// Threads of the HTTP side; pages and back-end calls, not the sockets' traffic.
const WORKERS: usize = 2;

/// Makes the runtime that HTTP, and the work applications spawn, run on.
pub(crate) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("simurgh-http")
        .enable_all()
        .build()
}

/// Serves the application's router and the server's own paths to what the shards hand over;
/// returns the admin address, if there is one.
pub(crate) fn serve(
    runtime: &Runtime,
    hub: &Arc<Hub>,
    router: Router,
    hand_offs: Vec<HandOffEnd>,
) -> io::Result<Option<SocketAddr>> {
    let admin = admin::router(hub);
    runtime.spawn(observe::run(Arc::downgrade(hub)));
    let mut router = router.route("/healthz", get(|| async { "ok\n" }));
    if hub.config.api_token.is_some() {
        router = router.merge(api::router(hub));
    }
    let admin_address = match hub.config.admin_listen {
        Some(address) => {
            let admin = admin.merge(observe::router(hub, true));
            Some(serve_admin(runtime, address, admin)?)
        }
        None => {
            if hub.config.is_loopback() {
                router = router.merge(admin);
            }
            None
        }
    };
    // In front of the application's own pages, which may have anything at any path.
    let router = observe::router(hub, false).fallback_service(router);
    for end in hand_offs {
        runtime.spawn(connection::take_all(Arc::clone(hub), router.clone(), end));
    }
    Ok(admin_address)
}

#[allow(
    clippy::disallowed_types,
    reason = "the admin listener lives in the main table and never meets a shard"
)]
fn serve_admin(runtime: &Runtime, address: SocketAddr, router: Router) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let actual = listener.local_addr()?;
    tracing::info!(address = %actual, "metrics and the observer are served");
    let _entered = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    runtime.spawn(async move {
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        if let Err(error) = axum::serve(listener, service).await {
            tracing::error!(%error, "the admin listener ended");
        }
    });
    Ok(actual)
}

//! The admin address: a separate listener for operators.
//!
//! Its connections have the usual limits, but a small number of slots of their own: they share the
//! descriptor table, and must not take descriptors from the main port.
#![allow(
    clippy::disallowed_types,
    reason = "the admin listener lives in the main table and never meets a shard"
)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use simurgh_proto::ws::handshake;
use simurgh_shard::server::Server;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::Runtime;

use super::repeated_warning::RepeatedWarning;
use super::{Site, connection, unix};

/// The listening socket of another process, in the main table.
pub(super) type Socket = OwnedFd;

/// How long it waits after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn serve(
    runtime: &Runtime,
    server: &Arc<Server>,
    (address, inherited): (SocketAddr, Option<Socket>),
    site: Arc<Site>,
) -> io::Result<SocketAddr> {
    let listener = match inherited {
        Some(fd) => fd.into(),
        None => std::net::TcpListener::bind(address)?,
    };
    keep_copy(server, listener.try_clone()?.into());
    listener.set_nonblocking(true)?;
    let actual = listener.local_addr()?;
    tracing::info!(address = %actual, "serving metrics and the observer");
    let _entered = runtime.enter();
    let listener = Listener::Tcp(TcpListener::from_std(listener)?);
    runtime.spawn(accept_all(Arc::clone(server), listener, site));
    Ok(actual)
}

pub(super) fn serve_unix(
    runtime: &Runtime,
    server: &Arc<Server>,
    listener: &unix::Listener,
    site: Arc<Site>,
) -> io::Result<()> {
    let _entered = runtime.enter();
    let listener = Listener::Unix(listener.to_tokio()?);
    runtime.spawn(accept_all(Arc::clone(server), listener, site));
    Ok(())
}

/// For the process that takes over.
pub(super) fn keep_copy(server: &Server, socket: OwnedFd) {
    let listening = &server.takeover.listening;
    listening.lock().unwrap_or_else(PoisonError::into_inner).extend([socket]);
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// A stream is one, whatever its family: the connection asks for it.
    async fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Self::Tcp(listener) => Ok(listener.accept().await?.0),
            Self::Unix(listener) => {
                let stream = listener.accept().await?.0.into_std()?;
                TcpStream::from_std(OwnedFd::from(stream).into())
            }
        }
    }
}

async fn accept_all(server: Arc<Server>, listener: Listener, site: Arc<Site>) {
    let mut warning = RepeatedWarning::default();
    loop {
        let accepted = unix::while_accepting(&server, listener.accept()).await;
        let Some(accepted) = accepted else { return };
        let stream = match accepted {
            Ok(stream) => stream,
            // The connection ended while it waited, or no descriptor is left.
            Err(error) => {
                server.admin_connections.lost.fetch_add(1, Relaxed);
                if let Some(times) = warning.count() {
                    tracing::warn!(%error, times, "cannot accept connections on the admin address");
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if !server.admin_connections.take_soon().await {
            refuse(&stream);
            continue;
        }
        let (server, site, slot) =
            (server.now(), Arc::clone(&site), server.admin_connections.slot());
        tokio::spawn(async move {
            let served = connection::serve(server, site, None, stream, Vec::new(), slot).await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection to the admin address failed");
            }
        });
    }
}

/// Sends that all slots are taken, as far as that is possible without blocking.
fn refuse(stream: &TcpStream) {
    let mut refusal = Vec::new();
    handshake::write_refusal(503, &[("retry-after", "1")], "", &mut refusal);
    let _ = stream.try_write(&refusal);
}

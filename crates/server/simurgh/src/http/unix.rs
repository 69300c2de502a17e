//! Unix sockets: for proxies on this machine, and for operators.
//!
//! The connections of a proxy go to the shards, as those that return from the HTTP side do. Shards
//! have descriptor tables of their own, and cannot share a listening socket that has a path.
#![allow(
    clippy::disallowed_types,
    reason = "the listeners live in the main table; what they accept leaves it by hand-off"
)]

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use simurgh_reactor::{HandOffEnd, HandOffError};
use simurgh_shard::server::Server;

use super::repeated_warning::RepeatedWarning;

/// Owner and group may connect.
const MODE: u32 = 0o660;
/// How long it waits after a failed accept, or until a shard has room.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a shard without room is tried.
const TRIES: usize = 50;

/// A socket with a path, which is removed when this is dropped, unless another process has it.
pub(crate) struct Listener {
    path: Option<PathBuf>,
    socket: UnixListener,
}

impl Listener {
    /// Listens, on this socket of another process if there is one. A path that an ended server has
    /// left is used again.
    pub(crate) fn bind(path: &Path, inherited: Option<UnixListener>) -> io::Result<Self> {
        if let Some(socket) = inherited {
            socket.set_nonblocking(true)?;
            return Ok(Self { path: Some(path.to_owned()), socket });
        }
        let is_left_over = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
            && UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if is_left_over {
            fs::remove_file(path)?;
        }
        let socket = UnixListener::bind(path)?;
        let listener = Self { path: Some(path.to_owned()), socket };
        listener.socket.set_nonblocking(true)?;
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        Ok(listener)
    }

    /// A copy for the process that takes over.
    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Another process listens on it.
    pub(super) fn leave(&mut self) {
        self.path = None;
    }

    /// The listener for tokio; this one keeps the path.
    pub(super) fn to_tokio(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.socket.try_clone()?)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The directory may be gone.
            let _ = fs::remove_file(path);
        }
    }
}

/// Gives each connection to the next shard.
pub(super) async fn accept_all(
    server: Arc<Server>,
    listener: tokio::net::UnixListener,
    shards: Vec<Arc<HandOffEnd>>,
) {
    let mut warning = RepeatedWarning::default();
    let mut next = (0..shards.len()).cycle();
    loop {
        let Some(accepted) = while_accepting(&server, listener.accept()).await else { return };
        let accepted = accepted.and_then(|(stream, _)| stream.into_std());
        let shard = next.next().and_then(|at| shards.get(at));
        match (accepted, shard) {
            (Ok(stream), Some(shard)) => give(shard, stream.into()).await,
            (Ok(_), None) => return,
            (Err(error), _) => {
                if let Some(times) = warning.count() {
                    tracing::warn!(%error, times, "cannot accept connections on a Unix socket");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The next connection; `None` once the server accepts no more: the one that waits then is for
/// the process that takes over.
pub(super) async fn while_accepting<T>(
    server: &Server,
    accept: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(server.takeover.accepting.acquire()), pin!(accept)).await {
        Either::Left(_) => None,
        Either::Right((accepted, _)) => Some(accepted),
    }
}

async fn give(shard: &HandOffEnd, mut connection: OwnedFd) {
    for _ in 0..TRIES {
        match shard.send(connection, &[]) {
            Err((HandOffError::Full, back)) => connection = back,
            Ok(()) | Err(_) => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

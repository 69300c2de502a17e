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
use std::sync::Arc;
use std::time::Duration;

use simurgh_reactor::{HandOffEnd, HandOffError};
use simurgh_shard::server::Server;

use super::repeated_warning::RepeatedWarning;

/// Owner and group may connect.
const MODE: u32 = 0o660;
/// How long it waits after a failed accept, or until a shard has room.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a shard without room is tried.
const TRIES: usize = 50;

/// A socket with a path, which is removed when this is dropped.
pub(crate) struct Listener {
    path: PathBuf,
    socket: UnixListener,
}

impl Listener {
    /// Listens. A path that an ended server has left is taken over.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let is_left_over = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
            && UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if is_left_over {
            fs::remove_file(path)?;
        }
        let socket = UnixListener::bind(path)?;
        let listener = Self { path: path.to_owned(), socket };
        listener.socket.set_nonblocking(true)?;
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        Ok(listener)
    }

    /// The listener for tokio; this one keeps the path.
    pub(super) fn to_tokio(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.socket.try_clone()?)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The directory may be gone.
        let _ = fs::remove_file(&self.path);
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
        let accepted = listener.accept().await.and_then(|(stream, _)| stream.into_std());
        if server.drain_began.get().is_some() {
            return;
        }
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

async fn give(shard: &HandOffEnd, mut connection: OwnedFd) {
    for _ in 0..TRIES {
        match shard.send(connection, &[]) {
            Err((HandOffError::Full, back)) => connection = back,
            Ok(()) | Err(_) => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

//! Why a server did not start, and how to fix it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use simurgh_shard::shard::USER_SOCKETS_MAX;

/// Why [`Builder::start`](crate::Builder::start) failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address was given.
    #[error("no address to listen on: give one, for example .listen(\"127.0.0.1:4000\")")]
    NoAddress,
    /// More user sockets were given than are allowed.
    #[error(
        "{0} user sockets, and an endpoint has at most {USER_SOCKETS_MAX}: the path of one may \
         have variables, such as /sockets/:tenant"
    )]
    TooManyUserSockets(usize),
    /// The address does not have the form `127.0.0.1:4000` or `[::1]:4000`.
    #[error(
        "{0:?} is no address to listen on: it takes an IP address and a port, for example \
         127.0.0.1:4000 or [::]:4000"
    )]
    WrongAddress(String),
    /// The system has no threads or descriptors left.
    #[error("cannot start the shards' threads: {0}")]
    Prepare(#[source] io::Error),
    /// The server cannot listen on an address; the error names it.
    #[error("{0}")]
    Listen(#[source] simurgh_reactor::StartError),
    /// The server cannot listen on the admin address.
    #[error("{what}: {1}", what = cannot_serve(*.0))]
    Admin(Option<SocketAddr>, #[source] io::Error),
    /// A shard's event loop failed while serving.
    #[error("a shard's event loop broke: {0}")]
    Broken(#[source] io::Error),
    /// Histories are to be saved to this file, but the server is one of several nodes.
    #[error(
        "histories are to be saved to {0:?}, and this server is one of several nodes: their engine \
         keeps them, leave that file out"
    )]
    HistorySaveInCluster(PathBuf),
    /// The histories could not be saved to this file at the end.
    #[error("history cannot be saved to {0:?}: {1}. Clients will have gaps.")]
    HistorySave(PathBuf, #[source] io::Error),
    /// There was no link to the cluster's engine within this time, and why.
    #[error("no link to the cluster's engine within {0:?} ({1})")]
    NoEngine(Duration, String),
}

/// Same as `Display`, so that `fn main() -> Result<(), Error>` prints a sentence.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn cannot_serve(admin: Option<SocketAddr>) -> String {
    match admin {
        Some(address) => format!("cannot listen on {address} (admin_listen)"),
        None => "cannot serve HTTP".to_owned(),
    }
}

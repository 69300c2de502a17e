//! Why a server did not start, and how to fix it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use simurgh_shard::certificates::CertificateProblems;
use simurgh_shard::shard::USER_SOCKETS_MAX;

/// Why [`Builder::start`](crate::Builder::start) failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No address was given.
    #[error("no address to listen on: add one, such as .listen(\"127.0.0.1:4000\")")]
    NoAddress,
    /// More user sockets were given than are allowed.
    #[error(
        "{0} user sockets exceed the maximum of {USER_SOCKETS_MAX}: use variables in a path, \
         such as /sockets/:tenant"
    )]
    TooManyUserSockets(usize),
    /// The address does not have the form `127.0.0.1:4000` or `[::1]:4000`.
    #[error(
        "{0:?} is not an address to listen on: use an IP address and a port, such as \
         127.0.0.1:4000 or [::]:4000"
    )]
    WrongAddress(String),
    /// The certificates or keys for TLS cannot be used.
    #[error("{0}")]
    Certificates(#[source] CertificateProblems),
    /// rustls refuses the settings, or there are no random bytes.
    #[error("cannot prepare TLS: {0}")]
    Tls(String),
    /// The system has no threads or descriptors left.
    #[error("cannot start the shards' threads: {0}")]
    Prepare(#[source] io::Error),
    /// The server cannot listen on an address; the error names it.
    #[error("{0}")]
    Listen(#[source] simurgh_reactor::StartError),
    /// The server cannot listen on the admin address.
    #[error("{what}: {1}", what = cannot_serve(*.0))]
    Admin(Option<SocketAddr>, #[source] io::Error),
    /// The server cannot listen on the Unix socket with this path.
    #[error("cannot listen on {0:?}: {1}")]
    Unix(PathBuf, #[source] io::Error),
    /// A shard's event loop failed while serving.
    #[error("a shard's event loop failed: {0}")]
    Broken(#[source] io::Error),
    /// Histories are to be saved to this file, but the server is one of several nodes.
    #[error(
        "history_save ({0:?}) does not work in a cluster, where the broker stores histories: \
         remove it"
    )]
    HistorySaveInCluster(PathBuf),
    /// The histories could not be saved to this file at the end.
    #[error("cannot save the histories to {0:?}: {1}. Clients will get gaps.")]
    HistorySave(PathBuf, #[source] io::Error),
    /// The running server does not hand over to this one.
    #[error("cannot take over from the running server: {0}. It goes on as before.")]
    TakeOver(#[source] io::Error),
    /// The applications that decide over HTTP cannot be asked.
    #[cfg(feature = "hooks")]
    #[error("{0}")]
    Hooks(#[source] simurgh_socket::hooks::StartError),
    /// The keys of tokens are at a URL, and a reload cannot read them there.
    #[cfg(feature = "hooks")]
    #[error("the keys of [token] cannot be read at their URL: see the log for the reason")]
    NoKeys,
    /// There was no connection to the broker within this time, and why.
    #[error("not connected to the broker within {0:?}: {1}")]
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

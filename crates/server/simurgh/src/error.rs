//! Why a server did not start, and what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::shard::USER_SOCKETS_MAX;

/// Why [`Builder::start`](crate::Builder::start) failed.
#[non_exhaustive]
pub enum Error {
    /// No address was given.
    NoAddress,
    /// So many user sockets were given, and fewer are allowed.
    TooManyUserSockets(usize),
    /// This is no address of the form `127.0.0.1:4000` or `[::1]:4000`.
    WrongAddress(String),
    /// The system gave no threads or descriptors.
    Prepare(io::Error),
    /// An address cannot be listened on; the error names it.
    Listen(simurgh_reactor::StartError),
    /// The admin address cannot be listened on.
    Admin(Option<SocketAddr>, io::Error),
    /// A shard's event loop broke while serving.
    Broken(io::Error),
    /// Histories are to be saved to this file, and the server is one of several nodes.
    HistorySaveInCluster(PathBuf),
    /// There was no link to the engine of the cluster within this time, and why.
    NoEngine(Duration, String),
}

/// The same as its `Display`: what `fn main() -> Result<(), Error>` prints is then a sentence.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str(
                "no address to listen on: give one, for example .listen(\"127.0.0.1:4000\")",
            ),
            Self::TooManyUserSockets(given) => write!(
                f,
                "{given} user sockets, and an endpoint has at most {USER_SOCKETS_MAX}: the path of \
                 one may have variables, such as /sockets/:tenant"
            ),
            Self::WrongAddress(address) => write!(
                f,
                "{address:?} is no address to listen on: it takes an IP address and a port, \
                 for example 127.0.0.1:4000 or [::]:4000"
            ),
            Self::Prepare(error) => write!(f, "cannot start the shards' threads: {error}"),
            Self::Listen(error) => write!(f, "cannot listen: {error}"),
            Self::Broken(error) => write!(f, "a shard's event loop broke: {error}"),
            Self::Admin(Some(address), error) => {
                write!(f, "cannot listen on {address} (admin_listen): {error}")
            }
            Self::Admin(None, error) => write!(f, "cannot serve HTTP: {error}"),
            Self::HistorySaveInCluster(path) => write!(
                f,
                "histories are to be saved to {path:?}, and this server is one of several nodes: \
                 their engine keeps them, leave that file out"
            ),
            Self::NoEngine(within, why) => {
                write!(f, "no link to the cluster's engine within {within:?} ({why})")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoAddress
            | Self::TooManyUserSockets(_)
            | Self::WrongAddress(_)
            | Self::HistorySaveInCluster(_)
            | Self::NoEngine(..) => None,
            Self::Prepare(error) | Self::Admin(_, error) | Self::Broken(error) => Some(error),
            Self::Listen(error) => Some(error),
        }
    }
}

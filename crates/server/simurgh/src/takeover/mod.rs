//! A restart without an outage: a new process takes over from the running one, on one machine.
//!
//! ```text
//! later process                                earlier process
//! connect to the control socket, TakeOver ───► checks who asks
//!   ◄─────────────────── Offer, all listening sockets (SCM_RIGHTS)
//! prepares everything, State ────────────────► every shard copies its histories, and from now on
//!   ◄─────────── Blocks, Grants, History …        has its broadcasts kept by the later process
//! shards accept, Ready ──────────────────────► MAINPID to systemd, drain: 1012 over drain_time
//!   ◄── Store, Kept, Broadcast, Order … ──────► until the earlier process has ended
//! ```
//!
//! The sockets are the same in both processes, so no connection in an accept queue is lost. If the
//! later process ends before `Ready`, the earlier one goes on as before.
//!
//! The control socket has an abstract name of the first address. Only processes of the same user
//! may take over; root may ask for a restart.
#![allow(
    clippy::disallowed_types,
    reason = "control sockets and listeners live in the main table; no shard meets them"
)]

mod control;
mod later;
mod link;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use simurgh_reactor as reactor;
use simurgh_shard::config::Config;
use simurgh_shard::mail::Mail;

pub(crate) use self::control::{Control, ask_for_restart};
pub(crate) use self::later::{Earlier, Linked};
use crate::error::Error;
use crate::secret;

use UnixStream as Stream;

/// Called in the earlier process with the id of the later one, before the drain.
pub(crate) type HandedOver = Box<dyn FnOnce(u32) + Send>;

/// The other processes of a starting server: before it, and after it.
#[derive(Default)]
pub(crate) struct Plan {
    /// It takes over, if a server runs.
    pub(crate) now: bool,
    pub(crate) handed_over: Option<HandedOver>,
    pub(crate) inherited: Inherited,
    pub(crate) earlier: Option<Earlier>,
}

impl Plan {
    /// Gets the sockets of the running server, if it is to take over from one.
    pub(crate) fn begun(mut self, config: &Config, is_node: bool) -> Result<Self, Error> {
        if self.now
            && let Some((earlier, inherited)) = Earlier::find(config, is_node)?
        {
            (self.earlier, self.inherited) = (Some(earlier), inherited);
        }
        Ok(self)
    }

    /// Takes the addresses, on which another process may listen already.
    pub(crate) fn bind(
        &mut self,
        set: &mut reactor::ShardSet<Mail>,
        config: &Config,
    ) -> Result<Vec<SocketAddr>, Error> {
        let mut addresses = Vec::new();
        for address in config.addresses() {
            let sockets = self.inherited.tcp(address);
            if sockets.is_empty() {
                let bound = set.bind(&[address]).map_err(|error| Error::Listen(error.into()))?;
                addresses.extend(bound);
            } else {
                set.inherit(address, sockets);
                addresses.push(address);
            }
        }
        for fd in self.inherited.0.drain(..) {
            let address = reactor::listening_address(&fd);
            tracing::warn!(?address, "closed a listening socket that no setting names");
        }
        Ok(addresses)
    }

    /// In place of `secret_key_base`: what was signed before a process has taken over stays valid.
    pub(crate) fn secret(&self) -> Result<Box<str>, Error> {
        match &self.earlier {
            Some(earlier) => Ok(earlier.secret.clone()),
            None => secret::random().map_err(Error::Prepare),
        }
    }
}

/// How long another process may take for a step: the later one reads its files meanwhile.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

fn limit_steps(stream: &Stream) -> io::Result<()> {
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))
}

/// The control socket of a server that listens on these addresses, or else on a Unix socket.
fn control_address(addresses: &[SocketAddr], config: &Config) -> io::Result<UnixAddress> {
    let address = addresses.first().map(|address| address.to_string());
    let path = || config.listen_unix.first().map(|path| format!("unix:{}", path.display()));
    let name = address.or_else(path).ok_or_else(|| io::Error::other("it has no address"))?;
    abstract_address(&format!("simurgh/{name}"))
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> io::Result<UnixAddress> {
    use std::os::linux::net::SocketAddrExt as _;
    UnixAddress::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &str) -> io::Result<UnixAddress> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The process at the other end, and whether it is of this user, or of root.
#[cfg(target_os = "linux")]
fn peer(stream: &Stream) -> io::Result<Peer> {
    let credentials = rustix::net::sockopt::socket_peercred(stream)?;
    let is_same_user = credentials.uid == rustix::process::geteuid();
    let pid = credentials.pid.as_raw_nonzero().get().unsigned_abs();
    Ok(Peer { pid, is_same_user, is_root: credentials.uid.is_root() })
}

#[cfg(not(target_os = "linux"))]
fn peer(_stream: &Stream) -> io::Result<Peer> {
    Err(io::ErrorKind::Unsupported.into())
}

#[derive(Clone, Copy)]
struct Peer {
    pid: u32,
    is_same_user: bool,
    is_root: bool,
}

/// Listening sockets of another process, or of a service manager.
#[derive(Default)]
pub(crate) struct Inherited(Vec<OwnedFd>);

impl Inherited {
    /// Those that a service manager has opened.
    pub(crate) fn activated() -> Self {
        Self(reactor::activated())
    }

    /// Takes those that listen on this address.
    pub(crate) fn tcp(&mut self, address: SocketAddr) -> Vec<OwnedFd> {
        let is_it = |fd: &mut OwnedFd| reactor::listening_address(fd) == Some(address);
        self.0.extract_if(.., is_it).collect()
    }

    /// Takes the one with this path.
    pub(crate) fn unix(&mut self, path: &Path) -> Option<UnixListener> {
        let has_path = |listener: &UnixListener| {
            listener.local_addr().is_ok_and(|own| own.as_pathname() == Some(path))
        };
        let (mut found, mut others) = (None, Vec::new());
        for listener in self.0.drain(..).map(UnixListener::from) {
            match found.is_none() && has_path(&listener) {
                true => found = Some(listener),
                false => others.push(listener.into()),
            }
        }
        self.0 = others;
        found
    }
}

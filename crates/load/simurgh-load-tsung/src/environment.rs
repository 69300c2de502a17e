//! The environment of a scenario: host names, files, and the addresses of this host.

use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

pub(super) const TEXT_BYTES_MAX: usize = 64 << 20;

/// Resolves names and reads files. [`Host`] is this host; tests have others.
pub trait Environment {
    /// The addresses of a host, best first; empty if it has none.
    fn resolve(&self, host: &str) -> Vec<IpAddr>;

    /// A file of the scenario. Fails if it cannot be read, is not a regular file, or too large.
    fn file(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Whether this host can connect from this address.
    fn is_ours(&self, address: IpAddr) -> bool;

    /// This host's name; empty if it has none.
    fn host_name(&self) -> String;
}

/// This host.
#[derive(Clone, Debug)]
pub struct Host {
    base: PathBuf,
}

impl Host {
    /// File names are relative to `base`, or else to the current directory, as in Tsung.
    #[must_use]
    pub fn new(base: &Path) -> Self {
        Self { base: base.to_owned() }
    }
}

impl Environment for Host {
    fn resolve(&self, host: &str) -> Vec<IpAddr> {
        let found = (host, 0).to_socket_addrs();
        found.map(|all| all.map(|address: SocketAddr| address.ip()).collect()).unwrap_or_default()
    }

    fn file(&self, name: &str) -> io::Result<Vec<u8>> {
        let beside = self.base.join(name);
        let path = if beside.exists() { beside } else { PathBuf::from(name) };
        // Reading a pipe or a device would never end.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("it is not a plain file"));
        }
        let mut bytes = Vec::new();
        fs::File::open(&path)?.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > TEXT_BYTES_MAX {
            return Err(io::Error::other(format!("it is larger than {TEXT_BYTES_MAX} bytes")));
        }
        Ok(bytes)
    }

    #[allow(clippy::disallowed_types, reason = "read before any worker has its own descriptors")]
    fn is_ours(&self, address: IpAddr) -> bool {
        // The kernel knows best, also about address ranges routed to `lo`.
        address.is_loopback() || std::net::UdpSocket::bind((address, 0)).is_ok()
    }

    fn host_name(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname");
        name.map(|name| name.trim().to_owned()).unwrap_or_default()
    }
}

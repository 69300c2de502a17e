//! The application's address: names are resolved again after some time, and all addresses are used
//! in turn.

#![allow(
    clippy::disallowed_types,
    reason = "made and used in the runtime whose thread has the main table of descriptors"
)]

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::Instant;

const RESOLVE_AGAIN: Duration = Duration::from_secs(30);

pub(super) struct Addresses {
    host: String,
    port: u16,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    next: usize,
    resolved: Option<Instant>,
}

impl Addresses {
    pub(super) fn new(host: &str, port: u16) -> Self {
        let host = host.trim_matches(['[', ']']).to_owned();
        Self { host, port, known: Mutex::default() }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Connects to the next address, or to one after it if that refuses.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the name has no address");
        for address in self.in_turn().await? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn in_turn(&self) -> io::Result<Vec<SocketAddr>> {
        if let Some(addresses) = self.known() {
            return Ok(addresses);
        }
        let found = match self.host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, self.port)],
            Err(_) => match lookup_host((self.host.as_str(), self.port)).await {
                Ok(found) => found.collect(),
                Err(error) => return self.last_known().ok_or(error),
            },
        };
        let allowed: Vec<_> =
            found.into_iter().filter(|found| !is_link_local(found.ip())).collect();
        if allowed.is_empty() {
            let error = io::Error::other("link-local addresses are not allowed");
            return Err(error);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.addresses = allowed;
        known.resolved = Some(Instant::now());
        Ok(known.turn())
    }

    fn known(&self) -> Option<Vec<SocketAddr>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = known.resolved.is_some_and(|at| at.elapsed() < RESOLVE_AGAIN);
        is_recent.then(|| known.turn())
    }

    /// The last addresses, for when name servers are away.
    fn last_known(&self) -> Option<Vec<SocketAddr>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.addresses.is_empty() { None } else { Some(known.turn()) }
    }
}

impl Known {
    /// All addresses, each time beginning with the next one.
    fn turn(&mut self) -> Vec<SocketAddr> {
        let count = self.addresses.len().max(1);
        let mut turned = self.addresses.clone();
        turned.rotate_left(self.next % count);
        self.next = (self.next + 1) % count;
        turned
    }
}

/// Addresses of machines' own services, as of the clouds' metadata: a name must not lead there.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => {
            ip.is_unicast_link_local()
                || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_link_local())
                || ip.to_ipv4().is_some_and(|ip| ip.is_link_local())
                || is_translated_link_local(ip)
        }
    }
}

/// 64:ff9b::/96, which NAT64 translates.
fn is_translated_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] && ip.octets()[12..14] == [169, 254]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_are_found_in_all_forms() {
        for text in [
            "169.254.169.254",
            "fe80::1",
            "febf::1",
            "::ffff:169.254.1.1",
            "::169.254.1.1",
            "64:ff9b::169.254.169.254",
        ] {
            assert!(is_link_local(text.parse().unwrap()), "{text}");
        }
        for text in ["127.0.0.1", "10.0.0.1", "::1", "fd00::1", "fec0::1", "64:ff9b::1.1.1.1"] {
            assert!(!is_link_local(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn addresses_are_used_in_turn() {
        let address = |port| SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), port);
        let addresses = vec![address(1), address(2), address(3)];
        let mut known = Known { addresses, ..Known::default() };
        let first: Vec<_> = (0..4).map(|_| known.turn()[0].port()).collect();
        assert_eq!(first, [1, 2, 3, 1]);
        assert_eq!(known.turn(), [address(2), address(3), address(1)]);
    }
}

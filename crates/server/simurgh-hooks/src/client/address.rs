//! The application's address: names are resolved again after some time, and all addresses are used
//! in turn.

#![allow(
    clippy::disallowed_types,
    reason = "made and used in the runtime whose thread has the main table of descriptors"
)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Mutex;
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
        let mut last = io::Error::other("the name has no address, or link-local ones only");
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

    /// All addresses, each time beginning with the next one. If name servers are away, the last
    /// addresses count.
    async fn in_turn(&self) -> io::Result<Vec<SocketAddr>> {
        let mut known = self.known.lock().await;
        if known.resolved.is_none_or(|at| at.elapsed() >= RESOLVE_AGAIN) {
            match lookup_host((self.host.as_str(), self.port)).await {
                Ok(found) => {
                    known.addresses = found.filter(|found| !is_link_local(found.ip())).collect();
                    known.resolved = Some(Instant::now());
                }
                Err(error) if known.addresses.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        let turn = usize::from(known.addresses.len() > 1);
        known.addresses.rotate_left(turn);
        Ok(known.addresses.clone())
    }
}

/// Addresses of machines' own services, as of the clouds' metadata: a name must not lead there.
fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn link_local_addresses_are_found_in_all_forms() {
        for text in ["169.254.169.254", "fe80::1", "febf::1", "::ffff:169.254.1.1"] {
            assert!(is_link_local(text.parse().unwrap()), "{text}");
        }
        for text in ["127.0.0.1", "10.0.0.1", "::1", "fd00::1", "fec0::1"] {
            assert!(!is_link_local(text.parse().unwrap()), "{text}");
        }
    }

    #[tokio::test]
    async fn addresses_are_used_in_turn() {
        let address = |port| SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), port);
        let known = Known {
            addresses: vec![address(1), address(2), address(3)],
            resolved: Some(Instant::now()),
        };
        let addresses = Addresses { known: Mutex::new(known), ..Addresses::new("[::1]", 1) };
        let mut first = Vec::new();
        for _ in 0..4 {
            first.push(addresses.in_turn().await.unwrap()[0].port());
        }
        assert_eq!(first, [2, 3, 1, 2]);
    }

    #[tokio::test]
    async fn link_local_address_is_not_connected_to() {
        let addresses = Addresses::new("169.254.169.254", 80);
        assert_eq!(addresses.in_turn().await.unwrap(), []);
        let error = addresses.connect().await.unwrap_err().to_string();
        assert!(error.contains("link-local"), "{error}");
    }
}

//! Local addresses to connect from.
//!
//! A connection is identified by both addresses and both ports, so one source address has at most
//! 64 thousand connections to one server, or 28 thousand with the kernel's default port range. On
//! loopback each worker has its own addresses from 127.0.0.0/8; otherwise it rotates through those
//! given.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use simurgh_reactor::{ConnectOptions, Io, Key};

use crate::{AddressRange, Sources};

/// Source addresses of a loopback worker: it takes the next one when a connect finds no free port.
const LOOPBACK_ADDRESSES: u32 = 4;
/// The first of them: 127.0.0.1 is left to other programs.
const LOOPBACK_FIRST: u32 = 0x7f00_0100;

impl Sources {
    /// Whether the given addresses are of this machine. An error is for people.
    #[expect(clippy::disallowed_types, reason = "each is closed before a worker has its table")]
    pub fn check(&self) -> Result<(), String> {
        if self.tun.is_some() {
            return Ok(());
        }
        for address in self.addresses.iter().flat_map(|range| [range.first, range.last]) {
            std::net::UdpSocket::bind((address, 0))
                .map_err(|why| format!("cannot connect from source {address}: {why}"))?;
        }
        Ok(())
    }
}

/// The source addresses and ports of one worker.
#[derive(Debug)]
pub struct SourcePool {
    given: Vec<AddressRange>,
    count: u64,
    /// Ports that we choose ourselves; this worker takes one in `workers` of them.
    ports: Option<(u16, u16)>,
    index: u64,
    workers: u64,
    /// Connections opened or tried.
    turn: u64,
    loopback: u32,
}

impl SourcePool {
    /// The addresses of worker `index` of `workers`.
    pub fn new(sources: &Sources, index: u64, workers: u64) -> Self {
        let count = sources.addresses.iter().map(AddressRange::count).sum();
        let given = sources.addresses.clone();
        Self { given, count, ports: sources.ports, index, workers, turn: 0, loopback: 0 }
    }

    /// Begins a connection from the next source; tries another where a source has no free port.
    /// Sets `how.from`. Returns the system's error of the last try.
    pub fn connect<T: Copy>(
        &mut self,
        io: &mut Io<T>,
        to: SocketAddr,
        how: ConnectOptions,
        conn: T,
    ) -> io::Result<Key> {
        // Another port of the same source, or another source on loopback.
        let mut tries = if self.ports.is_some() { 64 } else { LOOPBACK_ADDRESSES.max(8) };
        loop {
            let how = ConnectOptions { from: self.next(to.ip()), ..how };
            let error = match io.connect(to, &how, conn) {
                Ok(key) => return Ok(key),
                Err((error, _)) => error,
            };
            tries = tries.saturating_sub(1);
            let is_out_of_ports =
                matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable);
            if !is_out_of_ports || tries == 0 {
                return Err(error);
            }
            self.loopback = (self.loopback + 1) % LOOPBACK_ADDRESSES;
        }
    }

    fn next(&mut self, target: IpAddr) -> Option<SocketAddr> {
        self.turn += 1;
        let address = if self.count > 0 {
            self.given_address(target)
        } else if target.is_loopback() && target.is_ipv4() {
            // The network has 16 million addresses, and each worker takes four.
            let number = self.index as u32 % 4_000_000 * LOOPBACK_ADDRESSES + self.loopback;
            Some(IpAddr::V4(Ipv4Addr::from_bits(LOOPBACK_FIRST + number)))
        } else {
            None
        };
        let port = self.next_port();
        if address.is_none() && port == 0 {
            return None;
        }
        let any = match target {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Some(SocketAddr::new(address.unwrap_or(any), port))
    }

    fn given_address(&self, target: IpAddr) -> Option<IpAddr> {
        // Each worker begins at a different one.
        let mut number = (self.turn + self.index) % self.count;
        let same_family = |range: &&AddressRange| range.first.is_ipv4() == target.is_ipv4();
        for range in self.given.iter().filter(same_family).cycle().take(2 * self.given.len()) {
            let addresses = range.count();
            if number < addresses {
                return Some(range.nth(number));
            }
            number -= addresses;
        }
        self.given.iter().find(same_family).map(|range| range.first)
    }

    fn next_port(&self) -> u16 {
        let Some((first, last)) = self.ports else { return 0 };
        let ports = u64::from(last - first.min(last)) + 1;
        let mine = (self.turn * self.workers + self.index) % ports;
        first + u16::try_from(mine).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange { first: first.parse().unwrap(), last: last.parse().unwrap() }
    }

    #[test]
    fn each_loopback_worker_has_its_own_source_addresses() {
        let sources = Sources::default();
        let mut seen = std::collections::HashSet::new();
        for index in 0..200 {
            let mut pool = SourcePool::new(&sources, index, 200);
            for _ in 0..LOOPBACK_ADDRESSES {
                let from = pool.next(Ipv4Addr::LOCALHOST.into()).unwrap();
                assert!(from.ip().is_loopback() && from.port() == 0);
                assert!(seen.insert(from.ip()), "{from} twice");
                pool.loopback += 1;
            }
        }
        let mut pool = SourcePool::new(&sources, 0, 1);
        assert_eq!(pool.next("192.0.2.1".parse().unwrap()), None);
    }

    #[test]
    fn exactly_the_given_source_addresses_are_used() {
        let addresses = vec![range("10.0.0.1", "10.0.0.3"), range("10.0.1.9", "10.0.1.9")];
        let mut pool = SourcePool::new(&Sources { addresses, ..Sources::default() }, 0, 1);
        let target = "10.9.9.9".parse().unwrap();
        let all: std::collections::BTreeSet<String> =
            (0..40).map(|_| pool.next(target).unwrap().ip().to_string()).collect();
        let expected = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.9"];
        assert_eq!(all.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn source_address_of_another_machine_is_refused() {
        let of = |range| Sources { addresses: vec![range], ..Sources::default() }.check();
        assert_eq!(of(range("127.0.0.1", "127.0.0.9")), Ok(()));
        let why = of(range("127.0.0.1", "203.0.113.7")).unwrap_err();
        assert!(why.starts_with("cannot connect from source 203.0.113.7: "), "{why}");
    }

    #[test]
    fn a_port_range_is_shared_between_workers_without_overlap() {
        let sources = Sources { ports: Some((2000, 2999)), ..Sources::default() };
        let mut seen = std::collections::HashSet::new();
        for index in 0..4 {
            let mut pool = SourcePool::new(&sources, index, 4);
            for _ in 0..250 {
                let from = pool.next("10.9.9.9".parse().unwrap()).unwrap();
                assert!((2000..=2999).contains(&from.port()));
                assert!(seen.insert(from.port()), "{} twice", from.port());
            }
        }
    }
}

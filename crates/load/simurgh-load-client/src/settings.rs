//! Settings of connections that scenarios and benchmarks share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tls {
    /// Accepts any certificate.
    pub insecure: bool,
    /// PEM text of further roots.
    pub roots_pem: Vec<String>,
    /// PEM text of the client's certificate and key.
    pub identity_pem: Option<String>,
}

/// Where connections come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sources {
    /// Addresses to rotate through; empty: chosen by the engine (on loopback from 127.0.0.0/8, as
    /// many as the ports of the run need, otherwise the route's own).
    pub addresses: Vec<AddressRange>,
    /// Users without kernel sockets: the first part of the name of a TUN device for each worker.
    /// The addresses are one network then; ports and buffers do not matter.
    pub tun: Option<String>,
    /// Local ports to use, first and last; `None`: the kernel's choice.
    pub ports: Option<(u16, u16)>,
    /// `SO_RCVBUF`, bytes.
    pub receive_buffer_bytes: Option<usize>,
    /// `SO_SNDBUF`, bytes.
    pub send_buffer_bytes: Option<usize>,
}

/// An inclusive range of addresses; for one address `first` and `last` are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    /// The first.
    pub first: IpAddr,
    /// The last; of the same family and not before it.
    pub last: IpAddr,
}

impl AddressRange {
    /// The number of addresses in the range.
    pub fn count(&self) -> u64 {
        let span = match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                u128::from(last.to_bits().saturating_sub(first.to_bits()))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => last.to_bits().saturating_sub(first.to_bits()),
            _ => 0,
        };
        u64::try_from(span).unwrap_or(u64::MAX - 1).saturating_add(1)
    }

    /// The address with this index, from 0.
    pub fn nth(&self, number: u64) -> IpAddr {
        match self.first {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().wrapping_add(number as u32)).into(),
            IpAddr::V6(v6) => {
                Ipv6Addr::from_bits(v6.to_bits().wrapping_add(u128::from(number))).into()
            }
        }
    }
}

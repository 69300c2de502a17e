//! How connections are made: settings that scenarios and benchmarks share.

use serde::{Deserialize, Serialize};

/// TLS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tls {
    /// Takes any certificate.
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
    /// many as the ports of the run need, elsewhere the route's own).
    pub addresses: Vec<AddressRange>,
    /// Local ports to use, first and last; `None`: the kernel's choice.
    pub ports: Option<(u16, u16)>,
    /// `SO_RCVBUF` and `SO_SNDBUF`, bytes.
    pub receive_buffer_bytes: Option<usize>,
    /// See above.
    pub send_buffer_bytes: Option<usize>,
}

/// An inclusive range of addresses, for one address twice the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    /// The first.
    pub first: std::net::IpAddr,
    /// The last; of the same family and not before it.
    pub last: std::net::IpAddr,
}

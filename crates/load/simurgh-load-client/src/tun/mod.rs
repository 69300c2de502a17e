//! Connections without sockets of the kernel: a small TCP client over a TUN device.
//!
//! ```text
//!  server ◄─ kernel ◄──────────── TUN device ◄─ Link::send ◄───────────────┐
//!                │ packet             ▲                                    │ segment::write
//!                ▼                    │ RST, if nobody knows it            │
//!  Handler::packet ─► segment::parse ─► place = address × port ─► Tcp::receive ─► user: connected,
//!                                                                          ▲      bytes, end
//!  Handler::local (what the user's turn has sent) ─► Stack::send ──────────┤
//!  end of the turn ─► Stack::flush (acknowledgements), run_due (timers) ───┘
//! ```
//!
//! For the user it is a *local* connection of the reactor, which has output, an end and the pause
//! of reading like any other, but no descriptor. [`Stack`] is its other end. Each worker has a
//! device of its own, whose network is a part of the whole, so workers share nothing.
//!
//! A connection costs 56 bytes here and 32 in the reactor. It has buffers only while the peer has
//! not acknowledged its output, or its user does not read. There is no table of ports: a connection
//! is found by arithmetic. `tcp` lists what of TCP is left out; IPv6 and TLS are, too.

mod rto;
mod segment;
mod stack;
mod table;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr};

use simurgh_reactor::{TUN_PACKET_BYTES_MAX, TunConfig};

pub use stack::{Arrival, Link, Stack};
pub use tcp::End;

use crate::{AddressRange, Sources};

/// The largest segment in a packet of the device.
const MSS: u16 = TUN_PACKET_BYTES_MAX - segment::HEADER_BYTES as u16;

/// Ports of an address: those that need no privilege.
const PORT_FIRST: u16 = 1024;
const PORTS: u32 = 65_536 - PORT_FIRST as u32;

/// The most bytes of a name, which the worker's number follows.
const DEVICE_BYTES_MAX: usize = 11;

/// The network if the scenario names none.
const NETWORK: AddressRange = AddressRange {
    first: IpAddr::V4(Ipv4Addr::new(10, 200, 0, 0)),
    last: IpAddr::V4(Ipv4Addr::new(10, 201, 255, 255)),
};

/// The device of a worker, and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    device: String,
    first: Ipv4Addr,
    /// The length of its prefix, bits.
    prefix: u8,
}

impl Network {
    /// The network of worker `index` of `workers` on all hosts, if they use TUN devices. An error
    /// is for people.
    pub fn of(sources: &Sources, index: u32, workers: u32) -> Result<Option<Self>, String> {
        let Some(name) = &sources.tun else { return Ok(None) };
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_name || name.len() > DEVICE_BYTES_MAX {
            let help = format!("use at most {DEVICE_BYTES_MAX} letters and digits");
            return Err(format!("{name:?} cannot name TUN devices: {help}"));
        }
        let range = match sources.addresses.as_slice() {
            [] => NETWORK,
            [only] => *only,
            _ => return Err("a TUN device takes one range of source addresses".to_owned()),
        };
        let (first, host_bits) = network(range).ok_or_else(|| {
            let AddressRange { first, last } = range;
            format!("{first} to {last} is no IPv4 network, as 10.200.0.0-10.201.255.255 is")
        })?;
        let host_bits = host_bits.saturating_sub(workers.max(1).next_power_of_two().ilog2());
        if host_bits < 2 {
            return Err(format!(
                "{} source addresses are too few for a TUN device and {workers} \
                workers",
                range.count()
            ));
        }
        let first = Ipv4Addr::from_bits(first.to_bits() + (index << host_bits));
        Ok(Some(Self { device: format!("{name}{index}"), first, prefix: (32 - host_bits) as u8 }))
    }

    /// The device's settings. The network's first address is this machine's.
    pub fn config(&self) -> TunConfig {
        let address = Ipv4Addr::from_bits(self.first.to_bits() + 1);
        TunConfig { name: self.device.clone(), address, prefix: self.prefix }
    }

    fn first_client(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.first.to_bits() + 2)
    }

    /// The most connections at a time: one for each address and port.
    pub fn clients(&self) -> u64 {
        // Without the network's own address, this machine's, and the one for broadcasts.
        let addresses = (1_u64 << (32 - self.prefix)).saturating_sub(3);
        addresses * u64::from(PORTS)
    }
}

/// The network with exactly these addresses: its first one, and the bits that differ.
fn network(range: AddressRange) -> Option<(Ipv4Addr, u32)> {
    let (IpAddr::V4(first), IpAddr::V4(last)) = (range.first, range.last) else { return None };
    let host_bits = range.count().checked_ilog2()?;
    let is_network = first <= last
        && range.count() == 1 << host_bits
        && first.to_bits().trailing_zeros() >= host_bits;
    is_network.then_some((first, host_bits))
}

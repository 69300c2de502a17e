//! A TUN device: a network interface whose other end is the shard.
//!
//! What the kernel sends to the device's network comes to [`crate::Handler::packet`]. What
//! [`Io::send_packet`] writes enters the kernel as if it had come over a wire. So a handler can be
//! the clients of a server on this machine, without a socket for any of them.

use std::io;
use std::net::Ipv4Addr;

use rustix::io::Errno;

use crate::handler::Handler;
use crate::io::Io;
use crate::stage::{self, Stage};
use crate::turn::Reactor;

/// The largest packet of the device, bytes.
pub const TUN_PACKET_BYTES_MAX: u16 = 16 << 10;

/// A TUN device of a shard. Needs Linux and the capability `CAP_NET_ADMIN`.
#[derive(Clone, Debug)]
pub struct TunConfig {
    /// The interface's name, at most 15 bytes. The interface goes when the shard ends.
    pub name: String,
    /// This machine's address on it.
    pub address: Ipv4Addr,
    /// The length of its network's prefix, bits: the kernel sends packets for its other addresses
    /// to the handler.
    pub prefix: u8,
}

impl<T> Io<T> {
    /// Writes a packet to the shard's TUN device. A packet that the kernel does not take is lost,
    /// as on any network.
    pub fn send_packet(&mut self, packet: &[u8]) {
        let Some(tun) = &self.tun else { return };
        self.counts.writes += 1;
        match rustix::io::write(tun, packet) {
            Ok(bytes) => self.counts.bytes_out += bytes as u64,
            Err(_) => self.counts.writes_blocked += 1,
        }
    }
}

impl<H: Handler> Reactor<H> {
    /// Reads packets of the TUN device, until none is left or the stage is over.
    pub(crate) fn read_packets(&mut self) {
        let mut stage = Stage::begin(stage::PACKETS, &self.io);
        while self.packets_left {
            let Some(tun) = &self.io.tun else { return };
            match rustix::io::read(tun, &mut self.buffer) {
                Ok(bytes) => {
                    self.io.counts.reads += 1;
                    self.io.counts.bytes_in += bytes as u64;
                    let packet = self.buffer.get_mut(..bytes).unwrap_or_default();
                    self.handler.packet(&mut self.io, packet);
                }
                Err(Errno::INTR) => {}
                Err(_) => self.packets_left = false,
            }
            if stage.is_over(&self.io) {
                return;
            }
        }
    }
}

#[cfg(target_os = "linux")]
pub(crate) use linux::open;

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::fs::{Mode, OFlags};
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::{Errno, TUN_PACKET_BYTES_MAX, TunConfig, io};
    use crate::syscalls::set_interface;

    /// Packets that wait for the shard before the kernel drops more: a broadcast is faster than
    /// its receivers, and a dropped packet comes again only after 200 ms.
    const QUEUE_PACKETS: i32 = 500_000;

    /// Creates the device and gives it its address. An error is for people.
    pub(crate) fn open(config: &TunConfig) -> io::Result<OwnedFd> {
        let name = &config.name;
        let explained = |error: Errno| {
            let help = match error {
                Errno::PERM | Errno::ACCESS => ". Run as root, or with CAP_NET_ADMIN",
                Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                    ". Load the kernel module `tun`, which makes /dev/net/tun"
                }
                Errno::BUSY => ". Another process uses it: choose another name",
                _ => "",
            };
            io::Error::new(error.kind(), format!("{name}: {}{help}", io::Error::from(error)))
        };
        let device = create(config).map_err(explained)?;
        let local = format!("/proc/sys/net/ipv4/conf/{name}/route_localnet");
        // So that servers on 127.0.0.1 can be reached, too.
        if let Err(error) = std::fs::write(&local, "1") {
            tracing::warn!(%error, "cannot write {local}: servers on loopback are out of reach");
        }
        Ok(device)
    }

    fn create(config: &TunConfig) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        let (dgram, cloexec) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::INET, dgram, cloexec, None)?;
        let name = config.name.as_bytes();
        let tun = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
        set_interface(&device, libc::TUNSETIFF, name, &tun.to_ne_bytes())?;
        let set = |what, value: &[u8]| set_interface(&socket, what, name, value);
        set(libc::SIOCSIFMTU, &i32::from(TUN_PACKET_BYTES_MAX).to_ne_bytes())?;
        set(libc::SIOCSIFTXQLEN, &QUEUE_PACKETS.to_ne_bytes())?;
        set(libc::SIOCSIFADDR, &socket_address(config.address.octets()))?;
        let mask = u32::MAX.checked_shl(32 - u32::from(config.prefix)).unwrap_or(0);
        set(libc::SIOCSIFNETMASK, &socket_address(mask.to_be_bytes()))?;
        set(libc::SIOCSIFFLAGS, &(libc::IFF_UP as i16).to_ne_bytes())?;
        Ok(device)
    }

    /// A `sockaddr_in` without a port.
    fn socket_address([a, b, c, d]: [u8; 4]) -> [u8; 8] {
        let [family, second] = (libc::AF_INET as u16).to_ne_bytes();
        [family, second, 0, 0, a, b, c, d]
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(_: &TunConfig) -> io::Result<std::os::fd::OwnedFd> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "TUN devices need Linux"))
}

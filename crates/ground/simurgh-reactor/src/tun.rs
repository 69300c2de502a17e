//! A TUN device: a network interface whose other end is the shard.
//!
//! Packets of the kernel to the device's network come to [`crate::Handler::packet`]. A packet of
//! [`Io::send_packet`] enters the kernel as if it had come over a wire. So a handler can be the
//! clients of a server on this machine, without a socket for any of them.

use rustix::io::Errno;

use crate::handler::Handler;
use crate::io::Io;
use crate::stage::{self, Stage};
use crate::turn::Reactor;

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
        if !self.packets_left {
            return;
        }
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
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::fs::{Mode, OFlags};
    use rustix::net::netdevice;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

    use super::Errno;
    use crate::config::{TUN_PACKET_BYTES_MAX, TunConfig};
    use crate::syscalls::set_interface;

    /// Packets that wait for the shard before the kernel drops more: a broadcast is faster than
    /// its receivers. The kernel refuses more than 4 MiB of pointers.
    const QUEUE_PACKETS: i32 = 500_000;
    /// How long the kernel waits for an acknowledgement before it sends a packet again, instead of
    /// 200 ms: longer than a packet waits in a full queue.
    const RETRANSMISSION_MS_MIN: u32 = 5_000;

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
                Errno::EXIST => ". Its network has a route: choose another one",
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
        // Without a mask, it is a network of one address.
        set(libc::SIOCSIFADDR, &socket_address(config.address.octets()))?;
        set(libc::SIOCSIFFLAGS, &(libc::IFF_UP as i16).to_ne_bytes())?;
        add_route(config, netdevice::name_to_index(&socket, &config.name)?)?;
        Ok(device)
    }

    /// A `sockaddr_in` without a port.
    fn socket_address([a, b, c, d]: [u8; 4]) -> [u8; 8] {
        let [family, second] = (libc::AF_INET as u16).to_ne_bytes();
        [family, second, 0, 0, a, b, c, d]
    }

    /// Routes the network to the device (rtnetlink(7)). Only here a route can have its own time of
    /// retransmission.
    fn add_route(config: &TunConfig, index: u32) -> rustix::io::Result<()> {
        /// The metrics of routes that libc does not have.
        const RTAX_LOCK: u16 = 1;
        const RTAX_RTO_MIN: u16 = 13;
        let mask = u32::MAX.checked_shl(32 - u32::from(config.prefix)).unwrap_or(0);
        let network = (config.address.to_bits() & mask).to_be_bytes();
        let locked = (1_u32 << RTAX_RTO_MIN).to_ne_bytes();
        let rto_min = RETRANSMISSION_MS_MIN.to_ne_bytes();
        let metrics = [attribute(RTAX_LOCK, &locked), attribute(RTAX_RTO_MIN, &rto_min)].concat();
        let (family, scope) = (libc::AF_INET as u8, libc::RT_SCOPE_LINK);
        let (table, protocol) = (libc::RT_TABLE_MAIN, libc::RTPROT_STATIC);
        let body = [
            &[family, config.prefix, 0, 0, table, protocol, scope, libc::RTN_UNICAST, 0, 0, 0, 0],
            &*attribute(libc::RTA_DST, &network),
            &*attribute(libc::RTA_OIF, &index.to_ne_bytes()),
            &*attribute(libc::RTA_METRICS, &metrics),
        ]
        .concat();
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        // `nlmsghdr`: length, type, flags, number, sender.
        let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(libc::RTM_NEWROUTE.to_ne_bytes());
        message.extend((flags as u16).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::send(&socket, &message, SendFlags::empty())?;
        let mut answer = [0; 64];
        rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
        // `nlmsgerr` begins with the negative error, or 0.
        let [a, b, c, d] = [answer[16], answer[17], answer[18], answer[19]];
        match i32::from_ne_bytes([a, b, c, d]).unsigned_abs() as i32 {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error)),
        }
    }

    /// `rtattr`: length, type, value (of a multiple of 4 bytes).
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let bytes = (4 + value.len()) as u16;
        [&bytes.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open(_: &crate::config::TunConfig) -> std::io::Result<std::os::fd::OwnedFd> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "TUN devices need Linux"))
}

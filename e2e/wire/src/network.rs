//! Hosts of a network that exists only for a test: network namespaces, each joined to ours.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::{Command, Stdio, id};
use std::sync::atomic::{AtomicU8, Ordering};

/// Hosts with addresses of their own. Dropping it takes them down; what runs there must have ended.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Host>,
}

#[derive(Debug)]
struct Host {
    name: String,
    /// Ours, at the near end of the cable.
    near: Ipv4Addr,
    far: Ipv4Addr,
}

impl Network {
    /// A network of so many hosts; an error says why there can be none on this machine.
    ///
    /// # Errors
    /// Not root, no `ip` (Debian: iproute2), or a kernel that forbids it.
    pub fn of(hosts: u8) -> Result<Self, String> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let mut network = Self { hosts: Vec::new() };
        for _ in 0..hosts {
            // Four addresses a cable, out of the block that is set aside for benchmarks
            // (RFC 2544).
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % 64;
            let [.., high, low] = id().to_be_bytes();
            let at = |last| Ipv4Addr::new(198, 18 + high % 2, low, 4 * number + last);
            let name = format!("simurgh-{}-{number}", id());
            ip(&format!("netns add {name}"))?;
            network.hosts.push(Host { name: name.clone(), near: at(1), far: at(2) });
            let (near, far) = (at(1), at(2));
            let cable = format!("sg{}n{number}", id());
            ip(&format!("link add {cable} type veth peer name eth0 netns {name}"))?;
            ip(&format!("address add {near}/30 dev {cable}"))?;
            ip(&format!("link set {cable} up"))?;
            ip(&format!("-n {name} address add {far}/30 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} route add default via {near}"))?;
        }
        Ok(network)
    }

    /// An address of this host that all of them reach.
    pub fn here(&self) -> Ipv4Addr {
        self.hosts[0].near
    }

    /// The address of a host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        self.hosts[host].far
    }

    /// The same command, to be run on a host; its pid is the program's own.
    pub fn on(&self, host: usize, command: &Command) -> Command {
        let mut there = Command::new("ip");
        there.args(["netns", "exec", &self.hosts[host].name]).arg(command.get_program());
        there.args(command.get_args());
        there
    }

    /// Connections that are open between a host and a port of ours.
    pub fn connections(&self, host: usize, port: u16) -> usize {
        let text = fs::read_to_string("/proc/net/tcp").expect("the kernel's list of connections");
        let hex = |address: SocketAddrV4| {
            // Addresses stand there in the byte order of the wire, read as the machine's own.
            let word = u32::from_ne_bytes(address.ip().octets());
            format!("{word:08X}:{:04X}", address.port())
        };
        let far = hex(SocketAddrV4::new(self.address(host), 0));
        let far = far.split(':').next().unwrap_or_default();
        let port = format!(":{port:04X}");
        let open = text.lines().filter(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (near, peer, state) = (fields.next(), fields.next(), fields.next());
            near.is_some_and(|near| near.ends_with(&port))
                && peer.is_some_and(|peer| peer.starts_with(far))
                && state == Some("01")
        });
        open.count()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            // The cable goes with its far end.
            if let Err(why) = ip(&format!("netns delete {}", host.name)) {
                eprintln!("{why}");
            }
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip (Debian: iproute2): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

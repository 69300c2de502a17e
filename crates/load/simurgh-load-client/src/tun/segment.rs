//! TCP segments in IPv4 packets: from and to bytes (RFC 791, RFC 9293 §3.1).

use std::net::{Ipv4Addr, SocketAddrV4};

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 1 << 1;
pub(super) const RST: u8 = 1 << 2;
pub(super) const PSH: u8 = 1 << 3;
pub(super) const ACK: u8 = 1 << 4;

/// An IPv4 and a TCP header without options.
pub(super) const HEADER_BYTES: usize = 40;
const TCP: u8 = 6;
/// The option of the largest segment: kind, length, value.
const MSS: u8 = 2;

/// The two ends of a connection, as the client sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) local: SocketAddrV4,
    pub(super) remote: SocketAddrV4,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) mss: Option<u16>,
}

impl Segment {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The segment in a packet that came, and its payload. `None` if it is none, is a fragment, or has
/// a wrong checksum.
pub(super) fn parse(packet: &mut [u8]) -> Option<(Ends, Segment, &mut [u8])> {
    let ip: [u8; 20] = *packet.first_chunk()?;
    let (version, ip_bytes) = (ip[0] >> 4, usize::from(ip[0] & 15) * 4);
    let bytes = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    if version != 4 || ip_bytes < ip.len() || is_fragment || ip[9] != TCP {
        return None;
    }
    let (ip_header, tcp) = packet.get_mut(..bytes)?.split_at_mut_checked(ip_bytes)?;
    let (from, to) = ([ip[12], ip[13], ip[14], ip[15]], [ip[16], ip[17], ip[18], ip[19]]);
    let (from, to) = (Ipv4Addr::from(from), Ipv4Addr::from(to));
    if checksum(sum(ip_header)) != 0 || checksum(pseudo(from, to, tcp.len()) + sum(tcp)) != 0 {
        return None;
    }
    let head: [u8; 20] = *tcp.first_chunk()?;
    let [from_port, to_port, window] =
        [0, 2, 14].map(|at| u16::from_be_bytes([head[at], head[at + 1]]));
    let [seq, ack] =
        [4, 8].map(|at| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let (head_bytes, flags) = (usize::from(head[12] >> 4) * 4, head[13]);
    let (options, payload) =
        tcp.get_mut(20..)?.split_at_mut_checked(head_bytes.checked_sub(20)?)?;
    let ends =
        Ends { local: SocketAddrV4::new(to, to_port), remote: SocketAddrV4::new(from, from_port) };
    Some((ends, Segment { seq, ack, flags, window, mss: mss(options) }, payload))
}

/// The largest segment that the other end takes, by its options.
fn mss(mut options: &[u8]) -> Option<u16> {
    loop {
        options = match options {
            [MSS, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            // No operation.
            [1, rest @ ..] => rest,
            [2..=u8::MAX, length @ 2..=u8::MAX, ..] => options.get(usize::from(*length)..)?,
            // The end of the list, or no list.
            _ => return None,
        };
    }
}

/// Writes the packet of a segment in place of what is in `out`.
pub(super) fn write(out: &mut Vec<u8>, ends: Ends, segment: &Segment, payload: &[u8]) {
    let Ends { local, remote } = ends;
    let head_bytes = if segment.mss.is_some() { 24 } else { 20_usize };
    let tcp_bytes = head_bytes + payload.len();
    let [high, low] = u16::try_from(20 + tcp_bytes).unwrap_or(u16::MAX).to_be_bytes();
    out.clear();
    // Version and length, no fragments, 64 hops.
    out.extend_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
    out.extend_from_slice(&local.ip().octets());
    out.extend_from_slice(&remote.ip().octets());
    let check = checksum(sum(out)).to_be_bytes();
    set(out, 10, check);
    out.extend_from_slice(&local.port().to_be_bytes());
    out.extend_from_slice(&remote.port().to_be_bytes());
    out.extend_from_slice(&segment.seq.to_be_bytes());
    out.extend_from_slice(&segment.ack.to_be_bytes());
    out.extend_from_slice(&[(head_bytes as u8 / 4) << 4, segment.flags]);
    out.extend_from_slice(&segment.window.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    if let Some(mss) = segment.mss {
        let [high, low] = mss.to_be_bytes();
        out.extend_from_slice(&[MSS, 4, high, low]);
    }
    out.extend_from_slice(payload);
    let tcp = sum(out.get(20..).unwrap_or_default());
    let check = checksum(pseudo(*local.ip(), *remote.ip(), tcp_bytes) + tcp).to_be_bytes();
    set(out, 36, check);
}

fn set(out: &mut [u8], at: usize, bytes: [u8; 2]) {
    if let Some(place) = out.get_mut(at..at + 2) {
        place.copy_from_slice(&bytes);
    }
}

/// The sum of the bytes for a checksum (RFC 1071), of which more can be added up.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    for (place, byte) in last.iter_mut().zip(rest) {
        *place = *byte;
    }
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    sum + u64::from(u32::from_be_bytes(last))
}

/// The sum of the header that TCP's checksum includes.
fn pseudo(from: Ipv4Addr, to: Ipv4Addr, bytes: usize) -> u64 {
    sum(&from.octets()) + sum(&to.octets()) + u64::from(TCP) + bytes as u64
}

fn checksum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

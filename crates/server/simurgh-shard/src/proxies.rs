//! A client's address and page, from its request and from trusted proxies: the same rules for
//! WebSockets, long polls and plain HTTP.
//!
//! A header that is a list may come on several lines (RFC 9110 §5.3): all lines count, in order.

use std::net::{IpAddr, SocketAddr};
use std::str;

use ipnet::IpNet;
use simurgh_proto::origin::{CheckOrigin, OwnOrigin};

use crate::config::Config;

pub fn is_trusted(trusted: &[IpNet], hop: IpAddr) -> bool {
    let hop = hop.to_canonical();
    trusted.iter().any(|net| net.contains(&hop))
}

/// Whether a request names its client as trusted proxies do, if there are any. A browser beside a
/// proxy has the proxy's address, but opens sockets without such a header.
pub fn names_client(config: &Config, has: impl Fn(&str) -> bool) -> bool {
    !config.trusted_proxies.is_empty()
        && (config.proxy_protocol || has("x-forwarded-for") || has("x-forwarded-proto"))
}

/// The elements of a list header, the last first; empty ones do not count.
fn last_first<'h>(lines: &[&'h [u8]]) -> impl Iterator<Item = &'h [u8]> {
    let elements = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The client's address as the last hop that is not trusted: walks `x-forwarded-for` from the right
/// while the addresses belong to trusted proxies. `lines` has the header's lines.
pub fn real_peer(peer: SocketAddr, lines: &[&[u8]], trusted: &[IpNet]) -> SocketAddr {
    let mut real = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    for hop in addresses(lines) {
        match hop {
            Some(ip) if is_trusted(trusted, real.ip()) => real = SocketAddr::new(ip, 0),
            _ => break,
        }
    }
    real
}

/// The addresses of a list header, the last first; `None` for what is none.
pub fn addresses(lines: &[&[u8]]) -> impl Iterator<Item = Option<IpAddr>> {
    last_first(lines).map(address)
}

/// An address as proxies write it: alone, in brackets, with a port, or in quotes.
fn address(hop: &[u8]) -> Option<IpAddr> {
    let hop = str::from_utf8(hop).ok()?.trim_matches('"');
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let ip = bare.parse().or_else(|_| hop.parse().map(|hop: SocketAddr| hop.ip()));
    ip.ok().map(|ip: IpAddr| ip.to_canonical())
}

/// A client that is not the peer of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub client: SocketAddr,
    /// Its own connection has TLS.
    pub is_secure: bool,
}

/// The line that names the client of a connection whose PROXY header has been read: it goes before
/// the connection's bytes where a shard and the HTTP side pass the connection on to each other.
/// It has the port 443 as its destination if the connection has TLS.
pub fn proxy_line(Named { client, is_secure }: Named) -> String {
    let (version, other) = if client.is_ipv4() { (4, "0.0.0.0") } else { (6, "::") };
    let port = if is_secure { 443 } else { 0 };
    format!("PROXY TCP{version} {} {other} {} {port}\r\n", client.ip(), client.port())
}

/// Reads that line from the front of a connection's bytes; returns also the bytes behind it.
pub fn read_proxy_line(bytes: &[u8]) -> Option<(Named, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let (line, rest) = bytes.split_at_checked(end)?;
    let mut words = str::from_utf8(line).ok()?.strip_prefix("PROXY TCP")?.split_ascii_whitespace();
    let ip = words.nth(1)?.parse().ok()?;
    let port = words.nth(1)?.parse().ok()?;
    let client = SocketAddr::new(ip, port);
    Some((Named { client, is_secure: words.next() == Some("443") }, rest))
}

/// Why a page is refused whose host the settings do not know.
pub const UNKNOWN_HOST: &str = "this server listens on loopback and does not know the host of the \
                                page: list it in trusted_hosts, or its proxy in trusted_proxies\n";

/// The headers of a request about the page that sent it.
#[derive(Debug, Clone, Default)]
pub struct Page<'a> {
    /// The header `origin`.
    pub origin: Option<&'a [u8]>,
    /// The header `host`.
    pub host: Option<&'a [u8]>,
    /// The lines of `x-forwarded-proto` from the trusted proxy in front, if there is one.
    pub proxy: Option<Vec<&'a [u8]>>,
    /// Whether the connection itself has TLS.
    pub is_secure: bool,
}

impl Page<'_> {
    /// Whether the client uses TLS, here or to the trusted proxy.
    pub fn is_secure(&self) -> bool {
        let proto = self.proxy.as_deref().and_then(|lines| last_first(lines).last());
        proto.map_or(self.is_secure, is_secure)
    }

    /// Whether the page may connect under a policy.
    ///
    /// On loopback a host that is neither this machine nor listed is no page's own: any site can
    /// resolve its own name to 127.0.0.1 (DNS rebinding). Only a trusted proxy may pass on others.
    ///
    /// # Errors
    /// It may not: [`UNKNOWN_HOST`] if the settings do not know its host, else nothing.
    pub fn check(&self, config: &Config, policy: &CheckOrigin) -> Result<(), &'static str> {
        // It is no page.
        let Some(origin) = self.origin else { return Ok(()) };
        let scheme = if self.is_secure() { "https" } else { "http" };
        let named = self.host.and_then(|host| OwnOrigin::from_host_header(scheme, text(host)));
        let passes_on = self.proxy.is_some() || !config.is_loopback();
        let own = named.filter(|own| passes_on || is_known(config, own));
        let none = OwnOrigin { scheme, host: "", port: 0 };
        if policy.allows(Some(text(origin)), own.unwrap_or(none)) {
            return Ok(());
        }
        Err(if named.is_some() && own.is_none() { UNKNOWN_HOST } else { "" })
    }
}

fn is_secure(proto: &[u8]) -> bool {
    proto.eq_ignore_ascii_case(b"https") || proto.eq_ignore_ascii_case(b"wss")
}

/// The text of a header; empty if it is none, which no policy but `off` allows.
fn text(value: &[u8]) -> &str {
    str::from_utf8(value).unwrap_or_default()
}

/// Whether a request to a server on loopback names this machine, or one of `trusted_hosts`.
pub fn is_known(config: &Config, own: &OwnOrigin<'_>) -> bool {
    let mut listed = config.trusted_hosts.iter();
    own.is_this_machine() || listed.any(|host| host.eq_ignore_ascii_case(own.host))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: &str = "127.0.0.1:9";

    fn trusted() -> Vec<IpNet> {
        ["127.0.0.0/8", "10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap()).into()
    }

    fn real(peer: &str, lines: &[&str]) -> String {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        real_peer(peer.parse().unwrap(), &lines, &trusted()).ip().to_string()
    }

    #[test]
    fn forwarded_for_counts_only_from_trusted_proxies() {
        let header = ["198.51.100.7, 192.0.2.1, 127.0.0.3"];
        assert_eq!(real(PROXY, &header), "192.0.2.1");
        assert_eq!(real("192.0.2.9:9", &header), "192.0.2.9");
        assert_eq!(real(PROXY, &[]), "127.0.0.1");
        assert_eq!(real("[::ffff:127.0.0.1]:9", &header), "192.0.2.1", "a mapped proxy");
    }

    #[test]
    fn forwarded_for_is_one_list_on_all_its_lines() {
        assert_eq!(real(PROXY, &["1.1.1.1", "203.0.113.1"]), "203.0.113.1");
        assert_eq!(real(PROXY, &["1.1.1.1, 203.0.113.1", "10.0.0.1"]), "203.0.113.1");
        assert_eq!(real(PROXY, &["203.0.113.1,, ,", " , "]), "203.0.113.1", "empty elements");
    }

    #[test]
    fn forwarded_addresses_may_have_ports_brackets_and_quotes() {
        for (hop, address) in [
            ("203.0.113.1:5000", "203.0.113.1"),
            ("[2001:db8::1]:5000", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("\"[2001:db8::1]:5000\"", "2001:db8::1"),
            ("\t203.0.113.1 ", "203.0.113.1"),
            ("::ffff:203.0.113.1", "203.0.113.1"),
            ("203.0.113.1, [fd00::1]:443, 10.0.0.1:5000", "203.0.113.1"),
        ] {
            assert_eq!(real(PROXY, &[hop]), address, "{hop}");
        }
    }

    #[test]
    fn unreadable_hop_ends_the_reading() {
        for hop in ["unknown", "_hidden", "203.0.113.1:x", "[203.0.113.1", "\u{e9}"] {
            let line = format!("198.51.100.7, {hop}, 10.0.0.1");
            assert_eq!(real(PROXY, &[&line]), "10.0.0.1", "{hop}");
        }
    }

    #[test]
    fn a_client_named_by_a_proxy_header_stays_known_across_threads() {
        for (client, is_secure) in [("198.51.100.7:5000", false), ("[2001:db8::1]:5000", true)] {
            let named = Named { client: client.parse().unwrap(), is_secure };
            let bytes = format!("{}GET / HTTP/1.1\r\n", proxy_line(named)).into_bytes();
            let (found, rest) = read_proxy_line(&bytes).unwrap();
            assert_eq!((found, rest), (named, &b"GET / HTTP/1.1\r\n"[..]));
            assert_eq!(read_proxy_line(rest), None);
        }
    }

    fn listening(on: &str) -> Config {
        let trusted_hosts = vec!["listed.example".to_owned()];
        Config { listen: vec![on.parse().unwrap()], trusted_hosts, ..Config::default() }
    }

    #[test]
    fn the_forwarded_scheme_is_read_in_any_case_and_from_lists() {
        let config = listening("0.0.0.0:4000");
        let allows = |origin: &'static str, lines: &[&'static str]| {
            let proxy = Some(lines.iter().map(|line| line.as_bytes()).collect());
            let (origin, host) = (Some(origin.as_bytes()), Some(&b"h.com"[..]));
            let page = Page { origin, host, proxy, is_secure: false };
            page.check(&config, &CheckOrigin::Conn).is_ok()
        };
        for lines in [
            &["https"][..],
            &["HTTPS"],
            &["wss"],
            &["https, http"],
            &[" ,https"],
            &["https", "http"],
        ] {
            assert!(allows("https://h.com", lines), "{lines:?}");
            assert!(!allows("http://h.com", lines), "{lines:?}");
        }
        for lines in [&["http"][..], &["ws"], &["http, https"], &[], &["httpsx"]] {
            assert!(allows("http://h.com", lines) && !allows("https://h.com", lines), "{lines:?}");
        }
    }

    #[test]
    fn foreign_host_on_loopback_is_not_a_pages_own() {
        let (local, public) = (listening("127.0.0.1:4000"), listening("0.0.0.0:4000"));
        let page = |origin: &'static str, host: &'static str| Page {
            origin: Some(origin.as_bytes()),
            host: Some(host.as_bytes()),
            ..Page::default()
        };
        let rebound = page("http://evil.example:4000", "evil.example:4000");
        let listed = page("http://listed.example", "listed.example");
        let listing = CheckOrigin::list(["//evil.example"]).unwrap();
        for policy in [CheckOrigin::Local, CheckOrigin::Conn] {
            assert!(rebound.check(&local, &policy) == Err(UNKNOWN_HOST));
            assert!(rebound.check(&public, &policy).is_ok());
            let forwarded = Page { proxy: Some(Vec::new()), ..rebound.clone() };
            assert!(forwarded.check(&local, &policy).is_ok(), "a trusted proxy passes it on");
            assert!(listed.check(&local, &policy).is_ok());
            assert!(page("http://localhost:4000", "localhost:4000").check(&local, &policy).is_ok());
            let other_client = Page { origin: None, ..rebound.clone() };
            assert!(other_client.check(&local, &policy).is_ok(), "no browser");
        }
        assert!(page("127.0.0.1", "127.0.0.1").check(&local, &CheckOrigin::Local).is_ok(), "Tsung");
        assert!(rebound.check(&local, &CheckOrigin::Off).is_ok());
        assert!(rebound.check(&local, &listing).is_ok());
    }
}

//! The Origin check: which pages may open a socket (PROTOCOL §2, rows 12–15).
//!
//! A browser sends the origin of the page that opens a socket; a server that accepts every page can
//! be driven by any site that its user visits. Other clients send no Origin and are accepted.
use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

/// A user socket's policy on the Origin header. Refusal is HTTP 403.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOrigin {
    /// Every origin is allowed.
    Off,
    /// The origin's scheme, host and port must be the request's own.
    Conn,
    /// The origin is of this machine, by `localhost` or a loopback address with any scheme and
    /// port, or its host is that of the request: for servers that listen on loopback, alone or
    /// behind a proxy. An origin without a scheme, which no browser sends and Tsung does, is read
    /// as its host.
    Local,
    /// One of these must allow the origin.
    List(Vec<OriginPattern>),
}

impl CheckOrigin {
    /// A list from its written form; a single entry such as `//h.com` is Phoenix's default, which
    /// allows the endpoint's own host with any scheme and port.
    ///
    /// # Errors
    /// The first entry that is not a pattern; see [`OriginPattern::parse`].
    pub fn list<'a>(
        entries: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, OriginPatternError> {
        let patterns: Result<_, _> = entries.into_iter().map(OriginPattern::parse).collect();
        Ok(CheckOrigin::List(patterns?))
    }

    /// Whether a request with this Origin header may open a socket; `request` is its own target.
    pub fn allows(&self, origin: Option<&str>, request: OwnOrigin<'_>) -> bool {
        let Some(origin) = origin else { return true };
        if matches!(self, CheckOrigin::Off) {
            return true;
        }
        let without_scheme =
            || OriginParts::without_scheme(origin).filter(|_| matches!(self, CheckOrigin::Local));
        let Some(origin) = OriginParts::parse(origin).or_else(without_scheme) else { return false };
        match self {
            CheckOrigin::Off => true,
            CheckOrigin::Local => {
                is_this_machine(origin.host) || origin.host.eq_ignore_ascii_case(bare(request.host))
            }
            CheckOrigin::Conn => {
                origin.host.eq_ignore_ascii_case(bare(request.host))
                    && origin.scheme.is_some_and(|s| s.eq_ignore_ascii_case(request.scheme))
                    && origin.port == Some(request.port)
            }
            CheckOrigin::List(patterns) => patterns.iter().any(|pattern| pattern.covers(&origin)),
        }
    }
}

/// The target of the request itself, for [`CheckOrigin::Conn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnOrigin<'a> {
    /// `http` or `https`.
    pub scheme: &'a str,
    /// The host without its port.
    pub host: &'a str,
    /// The port of the Host header, or else the scheme's.
    pub port: u16,
}

impl<'a> OwnOrigin<'a> {
    /// Reads host and port from a Host header such as `h.com` or `h.com:4000`.
    ///
    /// None: the header is malformed, or has no port and `scheme` has no usual one.
    pub fn from_host_header(scheme: &'a str, header: &'a str) -> Option<Self> {
        let (host, port) = host_and_port(header)?;
        Some(OwnOrigin { scheme, host, port: port.or_else(|| usual_port(scheme))? })
    }

    /// Whether the host is this machine: a loopback address, `localhost`, or a name below it.
    pub fn is_this_machine(&self) -> bool {
        is_this_machine(self.host)
    }
}

/// One entry of an allow list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPattern {
    /// None: any scheme.
    scheme: Option<Box<str>>,
    host: Box<str>,
    subdomains: bool,
    /// None: any port.
    port: Option<u16>,
}

impl OriginPattern {
    /// `https://h.com` (its port being 443), `//h.com` (any scheme and port), `//h.com:888`, or
    /// `//*.h.com` (h.com and every subdomain of it).
    ///
    /// # Errors
    /// If it has no `//`, no host, a malformed port, or a `*` elsewhere; or if no browser sends
    /// such an origin.
    pub fn parse(text: &str) -> Result<Self, OriginPatternError> {
        let parts = OriginParts::parse(text).ok_or(OriginPatternError::Form)?;
        let (host, subdomains) = match parts.host.strip_prefix("*.") {
            Some(parent) => (parent, true),
            None => (parts.host, false),
        };
        if host.is_empty() || host.contains('*') {
            return Err(OriginPatternError::Form);
        }
        if !host.is_ascii() {
            return Err(OriginPatternError::NotAscii);
        }
        if parts.scheme.is_some_and(|scheme| {
            scheme.eq_ignore_ascii_case("ws") || scheme.eq_ignore_ascii_case("wss")
        }) {
            return Err(OriginPatternError::WebSocket);
        }
        let authority = text.split_once("//").map_or("", |(_, rest)| rest);
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        if authority.contains(['/', '?', '#', '@', '%']) {
            return Err(OriginPatternError::Form);
        }
        // Browsers write an address of version 6 in one way.
        let canonical = host.parse::<Ipv6Addr>().map(|address| address.to_string());
        let host = canonical.as_deref().unwrap_or(host);
        Ok(OriginPattern {
            scheme: parts.scheme.map(Box::from),
            host: host.into(),
            subdomains,
            port: parts.port,
        })
    }

    fn covers(&self, origin: &OriginParts<'_>) -> bool {
        let scheme = self.scheme.as_deref();
        scheme.is_none_or(|s| origin.scheme.is_some_and(|o| o.eq_ignore_ascii_case(s)))
            && self.port.is_none_or(|port| origin.port == Some(port))
            && self.covers_host(origin.host)
    }

    fn covers_host(&self, host: &str) -> bool {
        let Some(extra) = host.len().checked_sub(self.host.len()) else { return false };
        let Some((front, back)) = host.split_at_checked(extra) else { return false };
        let below = front.is_empty() || self.subdomains && front.ends_with('.');
        below && back.eq_ignore_ascii_case(&self.host)
    }
}

/// An entry of an Origin list that cannot be read. An error in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OriginPatternError {
    /// It is written in another way.
    #[error("write an origin as https://h.com, //h.com, //h.com:888 or //*.h.com")]
    Form,
    /// Its host has characters beyond ASCII.
    #[error("browsers send a host like bücher.example in its ASCII form, xn--bcher-kva.example")]
    NotAscii,
    /// The scheme is that of the socket, not that of the page that opens it.
    #[error("the origin of a page must begin with https:// or http://, not with wss:// or ws://")]
    WebSocket,
}

/// The parts of a URL that the check uses.
struct OriginParts<'a> {
    scheme: Option<&'a str>,
    host: &'a str,
    /// The given one, or the scheme's usual one.
    port: Option<u16>,
}

impl<'a> OriginParts<'a> {
    /// None: not a URL with a host, such as `null`, `file://` or the empty text.
    fn parse(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("//")?;
        let scheme = match scheme.strip_suffix(':') {
            Some(scheme) => Some(Some(scheme).filter(|scheme| is_scheme(scheme))?),
            None if scheme.is_empty() => None,
            None => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        let (_, authority) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (host, port) = host_and_port(authority)?;
        Some(OriginParts { scheme, host, port: port.or_else(|| usual_port(scheme?)) })
    }

    /// `h.com` or `h.com:80` alone. None: anything else, and `null`, which stands for no origin.
    fn without_scheme(text: &'a str) -> Option<Self> {
        let is_alone = text != "null" && !text.contains(['/', '@', '?', '#']);
        let (host, port) = host_and_port(text).filter(|_| is_alone)?;
        Some(OriginParts { scheme: None, host, port })
    }
}

/// Whether a host, without brackets, is this machine: browsers resolve `localhost` and names below
/// it themselves (RFC 6761).
fn is_this_machine(host: &str) -> bool {
    let name = host.len().checked_sub("localhost".len()).and_then(|at| host.split_at_checked(at));
    let is_named = name.is_some_and(|(below, name)| {
        (below.is_empty() || below.ends_with('.')) && name.eq_ignore_ascii_case("localhost")
    });
    is_named || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Host and given port of `h.com`, `h.com:80`, `[::1]` or `[::1]:80`; brackets are removed.
fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => authority.split_at_checked(authority.find(':').unwrap_or(authority.len()))?,
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        None => return None,
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        Some(_) => return None,
    };
    let named = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control());
    named.then_some((host, port))
}

fn usual_port(scheme: &str) -> Option<u16> {
    const USUAL: [(&str, u16); 4] = [("http", 80), ("https", 443), ("ws", 80), ("wss", 443)];
    USUAL.iter().find(|(name, _)| scheme.eq_ignore_ascii_case(name)).map(|(_, port)| *port)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: OwnOrigin<'_> = OwnOrigin { scheme: "http", host: "h.com", port: 4000 };

    fn allowed(entry: &str, origin: &str) -> bool {
        CheckOrigin::list([entry]).unwrap().allows(Some(origin), OWN)
    }

    #[test]
    fn missing_origin_is_allowed_and_origin_without_host_is_rejected() {
        for check in [CheckOrigin::Conn, CheckOrigin::list(["//h.com"]).unwrap()] {
            assert!(check.allows(None, OWN));
            for origin in
                ["null", "file://", "", "h.com", "http://", "http:///p", "//", "http://h.com:x"]
            {
                assert!(!check.allows(Some(origin), OWN), "{origin}");
            }
        }
        for origin in [None, Some("null"), Some(""), Some("http://other.com")] {
            assert!(CheckOrigin::Off.allows(origin, OWN));
        }
    }

    #[test]
    fn origin_entries_allow_exactly_the_named_origins() {
        assert!(
            allowed("https://h.com", "https://h.com")
                && allowed("https://h.com", "https://h.com:443")
        );
        assert!(
            !allowed("https://h.com", "http://h.com")
                && !allowed("https://h.com", "https://h.com:444")
        );
        assert!(allowed("//h.com", "https://h.com:1") && allowed("//h.com", "HTTP://H.com/page"));
        assert!(!allowed("//h.com", "http://a.h.com") && !allowed("//h.com", "http://h.com.evil"));
        assert!(
            !allowed("//h.com", "http://h.com@evil") && allowed("//h.com", "http://evil@h.com")
        );
        assert!(
            allowed("//h.com:888", "http://h.com:888") && !allowed("//h.com:888", "http://h.com")
        );
        assert!(allowed("//h.com:80", "http://h.com") && !allowed("//h.com:80", "app://h.com"));
        assert!(
            allowed("//[::1]", "http://[::1]:4000") && allowed("//127.0.0.1", "http://127.0.0.1")
        );
    }

    #[test]
    fn wildcard_matches_the_domain_and_its_subdomains() {
        for origin in ["http://h.com", "https://a.h.com", "http://a.b.h.com:1"] {
            assert!(allowed("//*.h.com", origin), "{origin}");
        }
        for origin in ["http://x-h.com", "http://com", "http://h.com.org", "http://éh.com"] {
            assert!(!allowed("//*.h.com", origin), "{origin}");
        }
    }

    #[test]
    fn conn_check_compares_with_the_requests_own_origin() {
        let allows = |origin, own| CheckOrigin::Conn.allows(Some(origin), own);
        assert!(allows("http://h.com:4000", OWN));
        assert!(!allows("https://h.com:4000", OWN) && !allows("http://h.com", OWN));
        assert!(!allows("http://a.h.com:4000", OWN) && !allows("//h.com:4000", OWN));
        let own = OwnOrigin::from_host_header("https", "[::1]").unwrap();
        assert_eq!(own, OwnOrigin { scheme: "https", host: "::1", port: 443 });
        assert!(allows("https://[::1]", own));
        assert_eq!(OwnOrigin::from_host_header("http", "h.com:4000"), Some(OWN));
        assert_eq!(OwnOrigin::from_host_header("http", "h.com:99999"), None);
    }

    #[test]
    fn local_check_allows_this_machine_and_the_requested_host() {
        let allows = |origin| CheckOrigin::Local.allows(Some(origin), OWN);
        for origin in [
            "http://localhost",
            "https://LOCALHOST:3000",
            "http://app.localhost:5173",
            "http://127.0.0.1:8080",
            "http://127.7.7.7",
            "http://[::1]:4000",
            "http://[::ffff:127.0.0.1]",
            "http://h.com:4000",
            "https://h.com",
            "http://H.com:1",
            "127.0.0.1:4000",
            "localhost",
            "h.com",
        ] {
            assert!(allows(origin), "{origin}");
        }
        for origin in [
            "http://evil.com",
            "http://localhost.evil.com",
            "http://127.0.0.1.evil.com",
            "http://notlocalhost",
            "http://localhost@evil.com",
            "http://192.168.0.1",
            "http://128.0.0.1",
            "http://a.h.com",
            "http://[::2]",
            "evil.com",
            "null",
            "file://",
            "",
            "127.0.0.1/x",
            "x@127.0.0.1",
        ] {
            assert!(!allows(origin), "{origin}");
        }
        assert!(CheckOrigin::Local.allows(None, OWN));
        // A request without a usable host has no own origin.
        let none = OwnOrigin { scheme: "http", host: "", port: 0 };
        assert!(!CheckOrigin::Local.allows(Some("http://"), none));
        assert!(!CheckOrigin::Local.allows(Some(""), none));
        assert!(!CheckOrigin::Conn.allows(Some("h.com:4000"), OWN), "a scheme is part of that");
    }

    #[test]
    fn meaningless_origin_patterns_are_rejected() {
        for text in [
            "h.com",
            "",
            "//",
            "https://",
            "//*",
            "//*.",
            "//a.*.com",
            "//h.com:x",
            "1http://h.com",
        ] {
            assert_eq!(OriginPattern::parse(text), Err(OriginPatternError::Form), "{text}");
        }
    }

    #[test]
    fn origin_patterns_that_no_browser_sends_are_rejected() {
        use OriginPatternError::{Form, NotAscii, WebSocket};
        for (text, error) in [
            ("wss://h.com", WebSocket),
            ("WS://*.h.com", WebSocket),
            ("https://b\u{fc}cher.example", NotAscii),
            ("//*.b\u{fc}cher.example", NotAscii),
            ("https://h.com/app", Form),
            ("https://h.com?x", Form),
            ("https://user@h.com", Form),
            ("//b%C3%BCcher.example", Form),
        ] {
            assert_eq!(OriginPattern::parse(text), Err(error), "{text}");
        }
        for entry in ["https://h.com/", "app://h.com", "//xn--bcher-kva.example", "//h_1.com"] {
            assert!(OriginPattern::parse(entry).is_ok(), "{entry}");
        }
        assert!(allowed("//[0:0::1]", "http://[::1]:4000"));
    }
}

//! Absolute URLs, split into the parts for a request.

use std::borrow::Cow;

/// An absolute URL of one of the four schemes that can be loaded.
///
/// The `url` crate is not used: it normalises paths, escapes and host names, and a load generator
/// sends what is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url<'a> {
    /// `https` and `wss`.
    pub tls: bool,
    /// `ws` and `wss`.
    pub websocket: bool,
    /// Name or address, without the brackets of IPv6.
    pub host: &'a str,
    /// The scheme's default port where none is written.
    pub port: u16,
    /// Path and query, at least `/`; without the fragment, which is never sent.
    pub target: Cow<'a, str>,
}

impl<'a> Url<'a> {
    /// Whether `text` begins like an absolute URL and can be given to [`Url::parse`].
    #[must_use]
    pub fn is_absolute(text: &str) -> bool {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }

    /// Splits `text`. An error is a message for people.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let wrong = |what: &str| Err(format!("'{text}' {what}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return wrong("is no absolute URL: it has no '://'");
        };
        let (tls, websocket) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, false),
            "https" => (true, false),
            "ws" => (false, true),
            "wss" => (true, true),
            _ => return wrong("is not of the schemes http, https, ws and wss"),
        };
        let rest = rest.split('#').next().unwrap_or(rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return wrong("holds a user name: write it as the request's credentials");
        }
        let Some((host, port)) = split_authority(authority) else {
            return wrong("has no valid host and port");
        };
        let target = match target.as_bytes().first() {
            None => Cow::Borrowed("/"),
            Some(b'?') => Cow::Owned(format!("/{target}")),
            Some(_) => Cow::Borrowed(target),
        };
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, websocket, host, port, target })
    }
}

fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_odd = |byte: u8| byte <= b' ' || byte == 0x7f || b"\"<>\\^`{|}".contains(&byte);
    if host.is_empty() || host.bytes().any(is_odd) {
        return None;
    }
    let port = match port.strip_prefix(':') {
        Some("") => None,
        // `parse` alone would accept `+80`.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok().filter(|port| *port > 0)?)
        }
        Some(_) => return None,
        None if port.is_empty() => None,
        None => return None,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(bool, bool, String, u16, String)> {
        let url = Url::parse(text).ok()?;
        Some((url.tls, url.websocket, url.host.to_owned(), url.port, url.target.into_owned()))
    }

    #[test]
    fn urls_are_taken_apart() {
        let table = [
            ("http://a", (false, false, "a", 80, "/")),
            ("HTTPS://a.b/c?d=e#f", (true, false, "a.b", 443, "/c?d=e")),
            (
                "ws://127.0.0.1:4000/socket/websocket",
                (false, true, "127.0.0.1", 4000, "/socket/websocket"),
            ),
            ("wss://[::1]:4001?x", (true, true, "::1", 4001, "/?x")),
            ("http://[fe80::1]", (false, false, "fe80::1", 80, "/")),
            ("http://a:/x@y:z", (false, false, "a", 80, "/x@y:z")),
            ("http://a#/no", (false, false, "a", 80, "/")),
            ("http://a/b://c", (false, false, "a", 80, "/b://c")),
        ];
        for (text, (tls, websocket, host, port, target)) in table {
            let wanted = (tls, websocket, host.to_owned(), port, target.to_owned());
            assert_eq!(parts(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "",
            "/path",
            "a:80",
            "ftp://a",
            "http://",
            "http:///x",
            "http://:80",
            "http://a:0",
            "http://a:65536",
            "http://a:+80",
            "http://a:8 0",
            "http://a b",
            "http://u:p@a",
            "http://[::1",
            "http://[a]",
            "http://[::1]x",
            "http://a\r\nb/",
            "://a",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?} gave {:?}", parts(text));
        }
    }

    #[test]
    fn only_a_scheme_makes_it_absolute() {
        assert!(Url::is_absolute("http://a") && Url::is_absolute("ftp://a"));
        assert!(!Url::is_absolute("/a?b=http://c") && !Url::is_absolute("://"));
    }
}

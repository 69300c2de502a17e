//! Absolute URLs, split into the parts for a request.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::basic;

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
    /// The user information before `@` and the host: `user:password`, percent-encoded.
    pub credentials: Option<&'a str>,
    /// Name or address, without the brackets of IPv6.
    pub host: &'a str,
    /// The scheme's default port if the URL has no port.
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

    /// Splits `text`; the scheme may be in capitals. An error is a message for people and repeats
    /// no password.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let wrong = |what: &str| Err(format!("'{}' {what}", without_user(text)));
        let Some((scheme, rest)) = text.split_once("://") else {
            return wrong("is not an absolute URL: it has no '://'");
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
        let (credentials, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        let credentials = Some(credentials).filter(|text| !text.is_empty());
        let Some((host, port)) = split_authority(server) else {
            return wrong("has no valid host and port");
        };
        let target = match target.as_bytes().first() {
            None => Cow::Borrowed("/"),
            Some(b'?') => Cow::Owned(format!("/{target}")),
            Some(_) => Cow::Borrowed(target),
        };
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, websocket, credentials, host, port, target })
    }

    /// A text without users and passwords of the URLs in it: for all that is shown.
    #[must_use]
    pub fn without_credentials(text: &str) -> String {
        let is_end = |char: char| char.is_whitespace() || "/?#\"'<>".contains(char);
        let mut parts = text.split("://");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (authority, rest) = part.split_at(part.find(is_end).unwrap_or(part.len()));
            let server = authority.rsplit('@').next().unwrap_or(authority);
            out.extend(["://", server, rest]);
        }
        out
    }
}

/// A text that is no URL, without what may be a user and a password: a `/` in one ends the server's
/// part too early.
fn without_user(text: &str) -> String {
    let Some(at) = text.rfind('@') else { return text.to_owned() };
    let scheme = text.get(..at).and_then(|before| before.split_once("://"));
    let scheme = scheme.map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
    format!("{scheme}…{}", text.get(at..).unwrap_or_default())
}

/// The value of `Authorization` for credentials of a URL, decoded as curl does.
#[must_use]
pub fn basic_of_url(credentials: &str) -> String {
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let decoded = |text| Cow::from(percent_decode_str(text));
    basic(&decoded(user), &decoded(password))
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
    let is_odd = |byte: u8| byte <= b' ' || byte == 0x7f || b"\"<>[\\]^`{|}".contains(&byte);
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
    fn url_is_split_into_its_parts() {
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
            ("Wss://u:p@a:9", (true, true, "a", 9, "/")),
            ("WS://u@[::1]/@", (false, true, "::1", 80, "/@")),
            ("http://a#/no", (false, false, "a", 80, "/")),
            ("http://a/b://c", (false, false, "a", 80, "/b://c")),
        ];
        for (text, (tls, websocket, host, port, target)) in table {
            let wanted = (tls, websocket, host.to_owned(), port, target.to_owned());
            assert_eq!(parts(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
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
            "http://u:p@",
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
    fn url_user_and_password_are_decoded_and_never_shown() {
        for (url, pair) in [
            ("http://Aladdin:open%20sesame@a/", Some(("Aladdin", "open sesame"))),
            ("http://u@a", Some(("u", ""))),
            ("http://:p@a", Some(("", "p"))),
            ("http://u:p:q@r@a", Some(("u", "p:q@r"))),
            ("http://u%3A:100%@a", Some(("u:", "100%"))),
            ("http://@a", None),
            ("http://a/u:p@b", None),
        ] {
            let header = Url::parse(url).unwrap().credentials.map(basic_of_url);
            let wanted = pair.map(|(user, password)| basic(user.as_bytes(), password.as_bytes()));
            assert_eq!(header, wanted, "{url}");
        }
        for (url, shown) in [
            ("http://u:p@a:1/b@c", "http://a:1/b@c"),
            ("ftp://u:p@a", "ftp://a"),
            ("http://a/u:p@b", "http://a/u:p@b"),
            ("u:p@a", "u:p@a"),
            ("a = 'ws://u:p@b'\nc@d ws://e:f@g h@i", "a = 'ws://b'\nc@d ws://g h@i"),
        ] {
            assert_eq!(Url::without_credentials(url), shown);
        }
        for wrong in ["ws://u:p/secret@a", "ws:/u:secret@a", "u:secret@a", "http://u:secret#@a:x/"]
        {
            let error = Url::parse(wrong).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        let error = Url::parse("http://u:secret@a:x/").unwrap_err();
        assert!(error.contains("'http://…@a:x/'"), "{error}");
    }

    #[test]
    fn url_is_absolute_only_with_a_scheme() {
        assert!(Url::is_absolute("http://a") && Url::is_absolute("ftp://a"));
        assert!(!Url::is_absolute("/a?b=http://c") && !Url::is_absolute("://"));
    }
}

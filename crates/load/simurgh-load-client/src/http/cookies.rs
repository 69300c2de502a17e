//! A user's cookies: which are sent to which host and path, and until when (RFC 6265).
//!
//! `cookie_store` is not used: it bounds neither the number nor the size of cookies and keeps three
//! maps of strings for each user. Public suffixes are not checked: a server under load can only
//! harm the users of its own run.

mod date;
mod tsung;

use std::time::Duration;

use date::date;

/// Cookies of one user; beyond that the oldest is removed.
pub const COOKIES_MAX: usize = 50;
/// Bytes of one cookie, name, value, domain and path together; longer ones are not kept.
pub const COOKIE_BYTES_MAX: usize = 4096;

/// A user's cookies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jar {
    cookies: Vec<Cookie>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cookie {
    name: Box<[u8]>,
    value: Box<[u8]>,
    /// Lower case, without a dot in front.
    domain: Box<str>,
    path: Box<str>,
    /// Since 1970; `None`: until the user ends.
    expires: Option<Duration>,
    /// Not sent to subdomains.
    host_only: bool,
    secure: bool,
}

impl Jar {
    /// Stores the cookie of one `Set-Cookie` header, or removes the one it expires.
    ///
    /// `host` and `path` (a query after it is ignored) are those of the request; `now` is the time
    /// since 1970. Invalid cookies and those for another host are ignored (RFC 6265 §5.3).
    pub fn take(&mut self, set_cookie: &[u8], host: &str, path: &str, now: Duration) {
        let Some(cookie) = parse(set_cookie, host, path, now) else { return };
        if cookie.expires.is_some_and(|expires| expires <= now) {
            self.cookies.retain(|kept| !is_same(kept, &cookie));
            return;
        }
        self.put(cookie);
    }

    /// Sets a cookie of the scenario: for all paths of `host`, until the user ends.
    pub fn set(&mut self, name: &[u8], value: &[u8], host: &str) {
        let (name, value) = (name.trim_ascii(), value.trim_ascii());
        if is_text(name) && is_text(value) && !name.is_empty() {
            self.put(Cookie {
                name: name.into(),
                value: value.into(),
                domain: host.to_ascii_lowercase().into(),
                path: "/".into(),
                expires: None,
                host_only: true,
                secure: false,
            });
        }
    }

    /// Appends the value of the `Cookie` header for a request, or nothing if no cookie matches.
    /// Longer paths come first, then older cookies (RFC 6265 §5.4).
    pub fn write(&self, host: &str, path: &str, tls: bool, now: Duration, out: &mut Vec<u8>) {
        if self.cookies.is_empty() {
            return;
        }
        let path = without_query(path);
        let goes = |cookie: &&Cookie| {
            let here = match cookie.host_only {
                true => cookie.domain.eq_ignore_ascii_case(host),
                false => is_within(host, &cookie.domain),
            };
            let lives = cookie.expires.is_none_or(|expires| expires > now);
            here && lives && (tls || !cookie.secure) && is_below(path, &cookie.path)
        };
        let mut chosen: Vec<&Cookie> = self.cookies.iter().filter(goes).collect();
        chosen.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        chosen.into_iter().for_each(|cookie| append_cookie(&cookie.name, &cookie.value, out));
    }

    /// Whether it has no cookies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cookies.is_empty()
    }

    /// The number of cookies, with expired ones until they are replaced.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cookies.len()
    }

    fn put(&mut self, cookie: Cookie) {
        let Cookie { name, value, domain, path, .. } = &cookie;
        if name.len() + value.len() + domain.len() + path.len() > COOKIE_BYTES_MAX {
            return;
        }
        if let Some(kept) = self.cookies.iter_mut().find(|kept| is_same(kept, &cookie)) {
            *kept = cookie;
            return;
        }
        if self.cookies.len() >= COOKIES_MAX {
            self.cookies.remove(0);
        }
        self.cookies.push(cookie);
    }
}

fn is_same(a: &Cookie, b: &Cookie) -> bool {
    (&a.name, &a.domain, &a.path) == (&b.name, &b.domain, &b.path)
}

/// RFC 6265 §5.2.
fn parse(set_cookie: &[u8], host: &str, path: &str, now: Duration) -> Option<Cookie> {
    let mut parts = set_cookie.split(|byte| *byte == b';');
    let (name, value) = split_pair(parts.next()?)?;
    if name.is_empty() || !is_text(name) || !is_text(value) {
        return None;
    }
    let mut cookie = Cookie {
        name: name.into(),
        value: value.into(),
        domain: host.to_ascii_lowercase().into(),
        path: default_path(path).into(),
        expires: None,
        host_only: true,
        secure: false,
    };
    let mut max_age = None;
    for part in parts {
        let (name, value) = split_pair(part).unwrap_or((part.trim_ascii(), b""));
        let value = std::str::from_utf8(value).unwrap_or_default();
        if name.eq_ignore_ascii_case(b"max-age") {
            max_age = seconds(value).or(max_age);
        } else if name.eq_ignore_ascii_case(b"expires") {
            cookie.expires = date(value.as_bytes()).or(cookie.expires);
        } else if name.eq_ignore_ascii_case(b"secure") {
            cookie.secure = true;
        } else if name.eq_ignore_ascii_case(b"path") && value.starts_with('/') {
            cookie.path = value.into();
        } else if name.eq_ignore_ascii_case(b"domain") {
            let domain = value.strip_prefix('.').unwrap_or(value).to_ascii_lowercase();
            if !domain.is_empty() {
                if !is_within(host, &domain) {
                    return None;
                }
                // An address has no subdomains, and a host may name itself.
                cookie.host_only = is_address(host);
                cookie.domain = domain.into();
            }
        }
    }
    if let Some(max_age) = max_age {
        cookie.expires = Some(now.saturating_add(max_age));
    }
    Some(cookie)
}

fn split_pair(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = part.split_at(memchr::memchr(b'=', part)?);
    Some((name.trim_ascii(), value.get(1..)?.trim_ascii()))
}

/// Whether it has no characters that would end the header in which it is sent back.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f || *byte == b';')
}

/// Digits; a minus sign means that the cookie has expired.
fn seconds(value: &str) -> Option<Duration> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if digits.len() < value.len() {
        return Some(Duration::ZERO);
    }
    // More digits than fit mean "for ever".
    Some(Duration::from_secs(digits.parse().unwrap_or(u64::from(u32::MAX))))
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// RFC 6265 §5.1.4: up to the last slash, without it.
fn default_path(path: &str) -> &str {
    let path = without_query(path);
    match path.rfind('/') {
        Some(at) if at > 0 && path.starts_with('/') => path.get(..at).unwrap_or("/"),
        _ => "/",
    }
}

/// RFC 6265 §5.1.4.
fn is_below(path: &str, cookie: &str) -> bool {
    let path = if path.is_empty() { "/" } else { path };
    let rest = path.strip_prefix(cookie);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || cookie.ends_with('/'))
}

/// RFC 6265 §5.1.3: `host` is `domain` or below it.
fn is_within(host: &str, domain: &str) -> bool {
    if host.eq_ignore_ascii_case(domain) {
        return true;
    }
    let Some(at) = host.len().checked_sub(domain.len()) else { return false };
    let tail = host.get(at..).is_some_and(|tail| tail.eq_ignore_ascii_case(domain));
    tail && host.get(..at).is_some_and(|front| front.ends_with('.')) && !is_address(host)
}

fn is_address(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok()
}

/// Appends one cookie to the value of a `Cookie` header.
pub fn append_cookie(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if !out.is_empty() {
        out.extend_from_slice(b"; ");
    }
    out.extend_from_slice(name);
    out.push(b'=');
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_900_000_000); // March 2030.

    fn jar(cookies: &[&str]) -> Jar {
        let mut jar = Jar::default();
        for cookie in cookies {
            jar.take(cookie.as_bytes(), "www.example.org", "/app/login?next=/x/y", NOW);
        }
        jar
    }

    fn sent_at(jar: &Jar, host: &str, path: &str, tls: bool, now: Duration) -> String {
        let mut out = Vec::new();
        jar.write(host, path, tls, now, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn sent(jar: &Jar, host: &str, path: &str) -> String {
        sent_at(jar, host, path, false, NOW)
    }

    #[test]
    fn cookies_are_sent_only_to_their_host_and_path() {
        // Set-Cookie, host, path, whether it is sent.
        let table = [
            ("a=1", "www.example.org", "/app", true),
            ("a=1", "WWW.Example.ORG", "/app/x", true),
            ("a=1", "www.example.org", "/app?q=/", true),
            ("a=1", "www.example.org", "/", false),
            ("a=1", "www.example.org", "/apple", false),
            ("a=1", "example.org", "/app", false),
            ("a=1", "x.www.example.org", "/app", false),
            ("a=1; path=/", "www.example.org", "", true),
            ("a=1; Path=/app/", "www.example.org", "/app", false),
            ("a=1; Path=/app/", "www.example.org", "/app/x", true),
            ("a=1; path=relative", "www.example.org", "/app", true),
            ("a=1; path=/; domain=example.org", "example.org", "/", true),
            ("a=1; path=/; Domain=.Example.org", "other.example.org", "/", true),
            ("a=1; path=/; domain=example.org", "badexample.org", "/", false),
            ("a=1; path=/; domain=www.example.org", "x.www.example.org", "/", true),
            ("a=1; path=/; domain=other.org", "www.example.org", "/", false),
            ("a=1; path=/; domain=x.www.example.org", "www.example.org", "/", false),
            ("a=1; path=/; domain=", "www.example.org", "/", true),
            ("a=1; path=/; secure", "www.example.org", "/", false),
            ("a=1; path=/; HttpOnly; SameSite=Lax; Foo", "www.example.org", "/", true),
        ];
        for (cookie, host, path, goes) in table {
            let wanted = if goes { "a=1" } else { "" };
            assert_eq!(sent(&jar(&[cookie]), host, path), wanted, "{cookie} to {host} {path}");
        }
        let secure = jar(&["a=1; secure"]);
        assert_eq!(sent_at(&secure, "www.example.org", "/app", true, NOW), "a=1");
    }

    #[test]
    fn cookies_expire() {
        let later = |seconds| NOW + Duration::from_secs(seconds);
        // Set-Cookie, after how many seconds, whether it is sent.
        let table = [
            ("a=1", 1_000_000, true),
            ("a=1; max-age=10", 9, true),
            ("a=1; Max-Age=10", 10, false),
            ("a=1; max-age=0", 0, false),
            ("a=1; max-age=-5", 0, false),
            ("a=1; max-age=soon", 1_000_000, true),
            ("a=1; max-age=99999999999999999999999", 1_000_000, true),
            ("a=1; expires=Sun, 17 Mar 2030 17:46:50 GMT", 9, true),
            ("a=1; expires=Sun, 17 Mar 2030 17:46:50 GMT", 10, false),
            ("a=1; expires=Sun, 17-Mar-2030 17:46:50 GMT", 10, false),
            ("a=1; expires=Sunday, 17-Mar-30 17:46:50 GMT", 10, false),
            ("a=1; expires=Thu, 01 Jan 1970 00:00:00 GMT", 0, false),
            ("a=1; expires=tomorrow", 1_000_000, true),
            ("a=1; expires=Thu, 01 Jan 1970 00:00:00 GMT; max-age=10", 9, true),
        ];
        for (cookie, seconds, goes) in table {
            let (jar, wanted) = (jar(&[cookie]), if goes { "a=1" } else { "" });
            let text = sent_at(&jar, "www.example.org", "/app", false, later(seconds));
            assert_eq!(text, wanted, "{cookie} after {seconds} s");
        }
    }

    #[test]
    fn newer_cookie_replaces_or_removes_an_older_one() {
        let twice = jar(&["a=1", "b=x=y", "a=2"]);
        assert_eq!(sent(&twice, "www.example.org", "/app"), "a=2; b=x=y");
        let ended = jar(&["a=1", "b=2", "a=; max-age=0"]);
        assert_eq!((sent(&ended, "www.example.org", "/app").as_str(), ended.len()), ("b=2", 1));
        let paths = jar(&["a=1; path=/", "a=2; path=/app/deep", "b=3; path=/app"]);
        assert_eq!(sent(&paths, "www.example.org", "/app/deep"), "a=2; b=3; a=1");
    }

    #[test]
    fn invalid_cookies_are_not_stored() {
        let long = format!("a={}", "x".repeat(COOKIE_BYTES_MAX));
        for cookie in ["", "a", "=1", " =1", "; path=/", "a=1\r\nX: y", "a\0=1", long.as_str()] {
            assert!(jar(&[cookie]).is_empty(), "{cookie:?}");
        }
        assert_eq!(sent(&jar(&[" a = 1 ; path=/"]), "www.example.org", "/"), "a=1");
        assert_eq!(sent(&jar(&["a=;path=/"]), "www.example.org", "/"), "a=");
    }

    #[test]
    fn cookie_of_an_ip_address_is_not_sent_to_subdomains() {
        let mut jar = Jar::default();
        jar.take(b"a=1; domain=127.0.0.1", "127.0.0.1", "/", NOW);
        jar.take(b"b=1; domain=0.0.1", "127.0.0.1", "/", NOW);
        assert_eq!(sent(&jar, "127.0.0.1", "/"), "a=1");
    }

    #[test]
    fn cookie_jar_is_bounded_and_accepts_cookies_of_the_scenario() {
        let mut jar = Jar::default();
        for number in 0..COOKIES_MAX + 5 {
            jar.take(format!("c{number}=1").as_bytes(), "a", "/", NOW);
        }
        assert_eq!(jar.len(), COOKIES_MAX);
        assert!(sent(&jar, "a", "/").starts_with("c5=1; c6=1"));
        let mut jar = Jar::default();
        jar.set(b"own", b"1; x", "A");
        jar.set(b"own", b"2", "A");
        assert_eq!(sent(&jar, "a", "/any"), "own=2");
    }
}

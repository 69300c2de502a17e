//! A user's cookies, as far as a run needs RFC 6265: which go back to whom, and until when.
//!
//! Not the `cookie` crate: it reads one header and brings a calendar along, and what is left to do
//! (domains, paths, expiry, bounds) is the larger part. There is no list of public suffixes: a
//! server under load can only harm the users of its own run.

use std::time::Duration;

/// Cookies of one user; the one that was set first goes when there are more.
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
    /// Subdomains do not get it.
    host_only: bool,
    /// Only over TLS.
    secure: bool,
}

impl Jar {
    /// Keeps the cookie in the value of one `Set-Cookie` header, or drops the one it ends.
    ///
    /// `host` and `path` (a query after it does no harm) are those of the request; `now` is the
    /// time since 1970. What is no cookie, or not for this host, is ignored (RFC 6265 §5.3).
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

    /// Appends the value of the `Cookie` header for a request: nothing if no cookie is for it.
    /// Those of longer paths come first, then those that were set first (RFC 6265 §5.4).
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
        for (index, cookie) in chosen.into_iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(b"; ");
            }
            out.extend_from_slice(&cookie.name);
            out.push(b'=');
            out.extend_from_slice(&cookie.value);
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cookies.is_empty()
    }

    /// How many there are, expired ones among them until they are replaced.
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
            cookie.expires = date(value).or(cookie.expires);
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

/// Nothing that would end the header it is sent back in.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f || *byte == b';')
}

/// Digits, with a minus for what is over already.
fn seconds(value: &str) -> Option<Duration> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if digits.len() < value.len() {
        return Some(Duration::ZERO);
    }
    // More digits than a number holds: for ever.
    Some(Duration::from_secs(digits.parse().unwrap_or(u64::from(u32::MAX))))
}

/// Since 1970; what came before is 1970.
fn date(value: &str) -> Option<Duration> {
    // `Wed, 01-Jan-2031 00:00:00 GMT` is in none of the RFCs and in half of the servers.
    let time = httpdate::parse_http_date(value)
        .or_else(|_| httpdate::parse_http_date(&value.replacen('-', " ", 2)));
    Some(time.ok()?.duration_since(std::time::UNIX_EPOCH).unwrap_or_default())
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

//! Cookies as Tsung 1.7.0 keeps and sends them.
//!
//! A cookie without a path is for all of its host, the newest comes first, names are replaced
//! whatever their path, and expiry and `Secure` have no effect.

use super::{COOKIE_BYTES_MAX, COOKIES_MAX, Cookie, Jar, append_cookie, is_text};

impl Jar {
    /// Stores the cookies of one answer's `Set-Cookie` headers.
    pub fn take_as_tsung<'a>(&mut self, set_cookies: impl Iterator<Item = &'a [u8]>, host: &str) {
        let mut fresh = Vec::new();
        set_cookies
            .filter_map(|text| parse(text, host))
            .for_each(|cookie| put_first(&mut fresh, cookie));
        match self.cookies.is_empty() {
            true => self.cookies = fresh,
            false => fresh.into_iter().for_each(|cookie| put_first(&mut self.cookies, cookie)),
        }
        self.cookies.truncate(COOKIES_MAX);
    }

    /// Appends the value of the `Cookie` header for a request to this `Host` and URL.
    pub fn write_as_tsung(&self, host: &str, url: &str, out: &mut Vec<u8>) {
        let host = format!(".{host}");
        for cookie in &self.cookies {
            let is_below = match url.starts_with("http") {
                true => url.contains(&*cookie.path),
                false => url.starts_with(&*cookie.path),
            };
            if is_below && host.contains(&*cookie.domain) {
                append_cookie(&cookie.name, &cookie.value, out);
            }
        }
    }
}

fn put_first(cookies: &mut Vec<Cookie>, cookie: Cookie) {
    match cookies.iter_mut().find(|known| known.name == cookie.name) {
        Some(known) if known.domain == cookie.domain => *known = cookie,
        _ => cookies.insert(0, cookie),
    }
}

fn parse(set_cookie: &[u8], host: &str) -> Option<Cookie> {
    let mut parts = set_cookie.split(|byte| *byte == b';');
    let (name, value) = split(parts.next()?);
    let mut cookie = Cookie {
        name: name.into(),
        value: value.into(),
        domain: format!(".{host}").into(),
        path: "/".into(),
        expires: None,
        host_only: false,
        secure: false,
    };
    // The first of several counts.
    for (name, value) in parts.map(|part| split(part.trim_ascii())).rev() {
        let text = || String::from_utf8_lossy(value).into();
        match name {
            b"Domain" | b"domain" => cookie.domain = text(),
            b"Path" | b"path" => cookie.path = text(),
            _ => {}
        }
    }
    let bytes = name.len() + value.len() + cookie.domain.len() + cookie.path.len();
    (is_text(name) && is_text(value) && bytes <= COOKIE_BYTES_MAX).then_some(cookie)
}

fn split(part: &[u8]) -> (&[u8], &[u8]) {
    let at = memchr::memchr(b'=', part).unwrap_or(part.len());
    (part.get(..at).unwrap_or_default(), part.get(at + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(jar: &Jar, host: &str, url: &str) -> String {
        let mut out = Vec::new();
        jar.write_as_tsung(host, url, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn cookies_are_sent_as_by_tsung() {
        let mut jar = Jar::default();
        let first = ["a=1", "b=2; Path=/app", "c=3; HttpOnly", "d=4; Secure", "e=5; Max-Age=0"];
        let more = ["g=7; Domain=example.com", "h=8; domain=.127.0.0.1"];
        let first = first.iter().chain(&more).map(|text| text.as_bytes());
        jar.take_as_tsung(first, "127.0.0.1");
        assert_eq!(sent(&jar, "127.0.0.1:80", "/x"), "h=8; e=5; d=4; c=3; a=1");
        assert_eq!(sent(&jar, "127.0.0.1", "/apple"), "h=8; e=5; d=4; c=3; b=2; a=1");
        let second: [&[u8]; 3] = [b"a=9", b"z=10", b"b=; Max-Age=0"];
        jar.take_as_tsung(second.into_iter(), "127.0.0.1");
        assert_eq!(sent(&jar, "127.0.0.1:80", "/app"), "z=10; h=8; e=5; d=4; c=3; b=; a=9");
        assert_eq!(sent(&jar, "www.example.com", "http://www.example.com/"), "g=7");
    }
}

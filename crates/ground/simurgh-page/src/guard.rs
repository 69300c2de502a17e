//! Header checks: a page of another site must neither read nor control what our page does.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, ORIGIN};

/// Whether the `Host` of a request is this host; a foreign name that resolves to loopback (DNS
/// rebinding) is not. Any port is allowed: an SSH tunnel has its own.
pub fn names_this_host(headers: &HeaderMap) -> bool {
    one(headers, HOST.as_str()).is_some_and(is_loopback)
}

/// Whether a request has an `Origin` and it is the page's own: the host it was sent to.
pub fn is_own_origin(headers: &HeaderMap) -> bool {
    let origin = one(headers, ORIGIN.as_str())
        .and_then(|it| it.strip_prefix("http://").or_else(|| it.strip_prefix("https://")));
    origin.is_some() && origin == one(headers, HOST.as_str())
}

/// The value of a header that occurs exactly once.
pub fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let value = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(value)
}

fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    port.chars().all(|digit| digit.is_ascii_digit())
        && (name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in of {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_names_of_this_host_are_accepted() {
        for host in ["127.0.0.1:8091", "localhost:9000", "LOCALHOST", "[::1]:80", "[::1]"] {
            assert!(names_this_host(&headers(&[("host", host)])), "{host}");
        }
        for host in ["evil.example:8091", "127.0.0.1.evil.example", "localhost.:1", "[::2]", ""] {
            assert!(!names_this_host(&headers(&[("host", host)])), "{host}");
        }
        assert!(!names_this_host(&headers(&[("host", "127.0.0.1:x")])));
        assert!(!names_this_host(&headers(&[])));
        let twice = headers(&[("host", "127.0.0.1"), ("host", "127.0.0.1")]);
        assert!(!names_this_host(&twice));
    }

    #[test]
    fn origin_is_classified_as_own_or_foreign() {
        let host = ("host", "127.0.0.1:8091");
        let check = |origin| is_own_origin(&headers(&[host, ("origin", origin)]));
        assert!(check("http://127.0.0.1:8091") && check("https://127.0.0.1:8091"));
        assert!(!is_own_origin(&headers(&[host])));
        for foreign in ["http://evil.example", "http://127.0.0.1:8092", "null", "127.0.0.1:8091"] {
            assert!(!check(foreign), "{foreign}");
        }
    }
}

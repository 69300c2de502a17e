//! Who may ask: pages of this host. A page of another site must neither read the run nor steer it.
//!
//! - Every request names this host in `Host`: a foreign name that resolves to loopback (DNS
//!   rebinding) is refused.
//! - A command bears the page's own `Origin` and its token, which no other page can read.
//!
//! Other users of this machine are not kept out: whoever can connect to loopback can load the page.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};

/// The header with the page's token.
pub(super) const TOKEN: &str = "x-simurgh-token";

/// Why a request is refused.
pub(super) type Refusal = (StatusCode, &'static str);

/// Whether a request comes to this host by a name of its own. Any port will do: an SSH tunnel has
/// one of its own.
pub(super) fn check_host(headers: &HeaderMap) -> Result<(), Refusal> {
    if one(headers, HOST.as_str()).is_some_and(is_loopback) {
        return Ok(());
    }
    Err((StatusCode::MISDIRECTED_REQUEST, "open this page as http://127.0.0.1 with its port\n"))
}

/// Whether a command comes from our own page.
pub(super) fn check_command(headers: &HeaderMap, token: &str) -> Result<(), Refusal> {
    let host = one(headers, HOST.as_str());
    let origin = one(headers, ORIGIN.as_str()).and_then(|it| it.strip_prefix("http://"));
    if origin.is_none() || origin != host {
        return Err((StatusCode::FORBIDDEN, "a command must come from this page itself\n"));
    }
    if one(headers, TOKEN) != Some(token) {
        return Err((StatusCode::FORBIDDEN, "the token is not of this run: reload the page\n"));
    }
    Ok(())
}

/// A header that is there once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
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
    fn only_names_of_this_host_are_taken() {
        for host in ["127.0.0.1:8091", "localhost:9000", "LOCALHOST", "[::1]:80", "[::1]"] {
            assert!(check_host(&headers(&[("host", host)])).is_ok(), "{host}");
        }
        for host in ["evil.example:8091", "127.0.0.1.evil.example", "localhost.:1", "[::2]", ""] {
            assert!(check_host(&headers(&[("host", host)])).is_err(), "{host}");
        }
        assert!(check_host(&headers(&[("host", "127.0.0.1:x")])).is_err());
        assert!(check_host(&headers(&[])).is_err());
        let twice = headers(&[("host", "127.0.0.1"), ("host", "127.0.0.1")]);
        assert!(check_host(&twice).is_err());
    }

    #[test]
    fn a_command_bears_origin_and_token() {
        let host = ("host", "127.0.0.1:8091");
        let origin = ("origin", "http://127.0.0.1:8091");
        let token = (TOKEN, "secret");
        let check = |of: &[_]| check_command(&headers(of), "secret").is_ok();
        assert!(check(&[host, origin, token]));
        assert!(!check(&[host, origin]));
        assert!(!check(&[host, token]));
        assert!(!check(&[host, origin, (TOKEN, "other")]));
        for foreign in ["http://evil.example", "http://127.0.0.1:8092", "null", "127.0.0.1:8091"] {
            assert!(!check(&[host, ("origin", foreign), token]), "{foreign}");
        }
    }
}

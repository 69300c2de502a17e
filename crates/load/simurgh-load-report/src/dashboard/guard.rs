//! Access control for pages of this host: a page of another site must not read or control the run.
//!
//! - Every request names this host in `Host`: a foreign name that resolves to loopback (DNS
//!   rebinding) is refused.
//! - A command has the page's own `Origin` and its token, which no other page can read.
//!
//! Other users of this machine have access: they can connect to loopback and load the page.

use axum::http::{HeaderMap, StatusCode};
use simurgh_page::{is_own_origin, names_this_host, one};

pub(super) const TOKEN: &str = "x-simurgh-token";

pub(super) type Refusal = (StatusCode, &'static str);

/// Checks that a request names this host by a loopback name.
pub(super) fn check_host(headers: &HeaderMap) -> Result<(), Refusal> {
    if names_this_host(headers) {
        return Ok(());
    }
    Err((StatusCode::MISDIRECTED_REQUEST, "open this page as http://127.0.0.1 with its port\n"))
}

pub(super) fn check_command(headers: &HeaderMap, token: &str) -> Result<(), Refusal> {
    if !is_own_origin(headers) {
        return Err((StatusCode::FORBIDDEN, "a command must come from this page itself\n"));
    }
    if one(headers, TOKEN) != Some(token) {
        return Err((StatusCode::FORBIDDEN, "the token is not of this run: reload the page\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_accepted_only_with_matching_origin_and_token() {
        let host = ("host", "127.0.0.1:8091");
        let origin = ("origin", "http://127.0.0.1:8091");
        let token = (TOKEN, "secret");
        let check = |of: &[(&'static str, &str)]| {
            let named = of.iter().map(|(name, value)| {
                (axum::http::HeaderName::from_static(name), value.parse().unwrap())
            });
            check_command(&named.collect(), "secret").is_ok()
        };
        assert!(check(&[host, origin, token]));
        assert!(!check(&[host, origin]));
        assert!(!check(&[host, token]));
        assert!(!check(&[host, origin, (TOKEN, "other")]));
        assert!(!check(&[host, ("origin", "http://evil.example"), token]));
    }
}

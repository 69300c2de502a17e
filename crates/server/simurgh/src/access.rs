//! Which hosts and tokens the server's own paths accept.
//!
//! A server that listens on loopback is meant for this machine. But a page of any site can resolve
//! its own name to 127.0.0.1 (DNS rebinding), and a proxy on this machine forwards requests from
//! anywhere; both show in `Host`. So `/metrics`, the observer and the publish API accept this
//! machine's own names, and those that the settings list.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header};
use simurgh_proto::origin::OwnOrigin;
use simurgh_shard::config::{ApiToken, Config, Scope};
use simurgh_shard::proxies;
use subtle::ConstantTimeEq;

/// Headers of proxies that name their client, besides those that begin with `x-forwarded`. Through
/// a proxy on this machine every client would look local.
pub(crate) const OF_PROXIES: [&str; 17] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "forwarded-for",
    "true-client-ip",
    "via",
    "x-azure-clientip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "x-originating-ip",
    "x-real-ip",
    "x-remote-addr",
    "x-remote-ip",
];

/// The token of a request, compared with the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bearer {
    NotWanted,
    Missing,
    Wrong,
    Right,
}

/// Compared in constant time, so that the token cannot be guessed byte by byte.
pub(crate) fn bearer(config: &Config, headers: &HeaderMap) -> Bearer {
    match (&config.api_token, given_token(headers)) {
        (None, _) => Bearer::NotWanted,
        (Some(_), None) => Bearer::Missing,
        (Some(token), Some(given)) if token.as_bytes().ct_eq(given).into() => Bearer::Right,
        (Some(_), Some(_)) => Bearer::Wrong,
    }
}

fn given_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
        .map(|(_, token)| token)
}

/// Whose token a request to the server API has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// `api_token`, which may do everything.
    Whole,
    /// One of `api_tokens`, by its index.
    Token(usize),
}

/// The caller of a request, if it has a known token. Compares in constant time with every token.
pub(crate) fn caller(config: &Config, headers: &HeaderMap) -> Option<Caller> {
    if bearer(config, headers) == Bearer::Right {
        return Some(Caller::Whole);
    }
    if config.api_tokens.is_empty() {
        return None;
    }
    let given = ApiToken::hash(given_token(headers)?);
    let mut found = None;
    for (index, token) in config.api_tokens.iter().enumerate() {
        if token.sha256.ct_eq(&given).into() {
            found = Some(Caller::Token(index));
        }
    }
    found
}

impl Caller {
    /// `None`: it may do everything.
    pub(crate) fn token(self, config: &Config) -> Option<&ApiToken> {
        match self {
            Self::Whole => None,
            Self::Token(index) => config.api_tokens.get(index),
        }
    }

    pub(crate) fn name(self, config: &Config) -> &str {
        self.token(config).map_or("api_token", |token| &token.name)
    }

    pub(crate) fn has(self, config: &Config, scope: Scope) -> bool {
        self.token(config).is_none_or(|token| token.scopes.contains(&scope))
    }
}

/// The values of all headers of a name, in order.
pub(crate) fn lines<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h [u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
}

/// The response to a request for another host.
pub(crate) const FOREIGN: &str = "this server listens on loopback and does not know this host: \
    use 127.0.0.1 or localhost, or add the host to trusted_hosts";

/// Whether a request names a host that is known. Through a proxy anybody can name this machine:
/// there only listed hosts count.
pub(crate) fn is_known(config: &Config, is_admin: bool, headers: &HeaderMap) -> bool {
    let is_proxied =
        headers.keys().any(|name| names_client(name.as_str())) && !speaks_for_this_machine(headers);
    names_known(config, is_admin, headers, |own| !is_proxied || !own.is_this_machine())
}

/// The same, where requests of proxies are allowed.
pub(crate) fn names_known_host(config: &Config, is_admin: bool, headers: &HeaderMap) -> bool {
    names_known(config, is_admin, headers, |_| true)
}

fn names_known(
    config: &Config,
    is_admin: bool,
    headers: &HeaderMap,
    counts: impl FnOnce(&OwnOrigin<'_>) -> bool,
) -> bool {
    let is_loopback = match config.admin_listen {
        Some(address) if is_admin => address.ip().is_loopback(),
        _ => config.is_loopback(),
    };
    !is_loopback
        || simurgh_page::one(headers, header::HOST.as_str())
            .and_then(|host| OwnOrigin::from_host_header("http", host))
            .is_some_and(|own| proxies::is_known(config, &own) && counts(&own))
}

/// Whether a trusted proxy reports this machine as its client, and no other header, which it may
/// have passed on from a proxy before it, contradicts that.
pub(crate) fn speaks_for_this_machine(headers: &HeaderMap) -> bool {
    let says_so = |name: &str| {
        let lines = lines(headers, name);
        let mut hops = proxies::addresses(&lines).peekable();
        hops.peek().is_some() && hops.all(|hop| hop.is_some_and(is_here))
    };
    says_so("x-forwarded-for")
        && OF_PROXIES.iter().all(|name| !headers.contains_key(*name) || says_so(name))
}

pub(crate) fn names_client(header: &str) -> bool {
    header.starts_with("x-forwarded") || OF_PROXIES.contains(&header)
}

pub(crate) fn is_here(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn token_follows_bearer_and_exactly_one_space() {
        let mut config = Config::default();
        config.api_token = Some("s3cret".to_owned());
        let check = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            bearer(&config, &[(header::AUTHORIZATION, value)].into_iter().collect())
        };
        for right in ["Bearer s3cret", "bearer s3cret", "BEARER s3cret"] {
            assert_eq!(check(right), Bearer::Right, "{right}");
        }
        for wrong in ["Bearer  s3cret", "Bearer s3cret ", "Bearer ", "Bearer s3cre"] {
            assert_eq!(check(wrong), Bearer::Wrong, "{wrong}");
        }
        for missing in ["Bearer", "Basic s3cret", "Bearer\ts3cret", "s3cret"] {
            assert_eq!(check(missing), Bearer::Missing, "{missing}");
        }
    }

    #[test]
    fn loopback_accepts_its_own_names_and_trusted_hosts() {
        let mut config = Config::default();
        let known = |config: &Config, is_admin, host: &str| {
            let mut headers = HeaderMap::new();
            headers.append(header::HOST, host.parse().unwrap());
            is_known(config, is_admin, &headers)
        };
        config.listen = vec!["127.0.0.1:4000".parse().unwrap()];
        config.trusted_hosts = vec!["chat.example".into(), "fd00::1".into()];
        for host in ["127.0.0.1:4000", "localhost", "[::1]:1", "Chat.Example:80", "[fd00::1]:1"] {
            assert!(known(&config, false, host), "{host}");
        }
        for host in ["evil.example", "chat.example.evil", "a.chat.example", "", "fd00::1"] {
            assert!(!known(&config, false, host), "{host}");
        }
        assert!(!is_known(&config, false, &HeaderMap::new()));
        for (client, here) in [("192.0.2.1", false), ("127.0.0.1, 192.0.2.1", false), ("::1", true)]
        {
            for (host, is_good) in
                [("localhost", here), ("127.0.0.1:4000", here), ("chat.example", true)]
            {
                let headers = [("host", host), ("x-forwarded-for", client)];
                let headers = headers.map(|(name, value)| {
                    (HeaderName::from_static(name), HeaderValue::from_static(value))
                });
                let headers = headers.into_iter().collect();
                assert_eq!(is_known(&config, false, &headers), is_good, "{host} of {client}");
            }
        }
        config.admin_listen = Some("10.0.0.1:9000".parse().unwrap());
        assert!(known(&config, true, "evil.example"), "that one is not on loopback");
        assert!(!known(&config, false, "evil.example"));
        config.listen = vec!["0.0.0.0:4000".parse().unwrap()];
        config.admin_listen = Some("127.0.0.1:9000".parse().unwrap());
        assert!(known(&config, false, "evil.example") && !known(&config, true, "evil.example"));
    }
}

//! Who may look, and who may disconnect.
//!
//! - *From where:* this machine, by a name of its own and through no proxy; with
//!   [`Config::observer`](crate::Config::observer) from anywhere. On the admin listener, which is
//!   nobody else's to reach, from anywhere too.
//! - *Who:* bearers of the API token where there is one. Without one nobody beyond this machine,
//!   and nobody disconnects.
//! - *Which page:* our own. A page of another site gets neither figures nor its will.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::ConnectInfo;
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::config::Config;
use crate::http::{Bearer, bearer};

/// Headers by which proxies are known. One of this machine would make everybody local.
const OF_PROXIES: [&str; 6] =
    ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"];

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Not on from there.
    Off,
    /// On, but there is no token to know friends by.
    NoToken,
    /// Of another site.
    Foreign,
    /// Without a token.
    Missing,
    /// With another token.
    Wrong,
    /// Nobody may, for there is no token.
    NobodyMay,
}

impl Refusal {
    fn text(self) -> &'static str {
        match self {
            Self::Off => {
                "the observer answers this machine only; the server's settings observer = true and \
                 api_token open it to others"
            }
            Self::NoToken => {
                "the observer answers others only with a token: set api_token on the server"
            }
            Self::Foreign => "a page of another site asks: open the observer's own page",
            Self::Missing => "the API token is missing: authorization: Bearer TOKEN",
            Self::Wrong => "this is not the API token",
            Self::NobodyMay => {
                "without api_token on the server nobody disconnects sockets from here"
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.text() }));
        match self {
            Self::Missing | Self::Wrong => {
                let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
                (StatusCode::UNAUTHORIZED, challenge, body).into_response()
            }
            _ => (StatusCode::FORBIDDEN, body).into_response(),
        }
    }
}

/// Whether the observer is there for a request: all that its page, which shows nothing by itself,
/// asks for.
pub(super) fn check_place(
    config: &Config,
    is_admin: bool,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<(), Refusal> {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    if is_local(config, headers, peer) {
        return Ok(());
    }
    match (config.observer || is_admin, &config.api_token) {
        (false, _) => Err(Refusal::Off),
        (true, None) => Err(Refusal::NoToken),
        (true, Some(_)) => Ok(()),
    }
}

/// Whether somebody may see figures.
pub(super) fn check_viewer(config: &Config, headers: &HeaderMap) -> Result<(), Refusal> {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    let is_foreign_site = site.is_some_and(|site| site != b"same-origin" && site != b"none");
    if is_foreign_site
        || (headers.contains_key(header::ORIGIN) && !simurgh_page::is_own_origin(headers))
    {
        return Err(Refusal::Foreign);
    }
    match bearer(config, headers) {
        Bearer::Right | Bearer::NotWanted => Ok(()),
        Bearer::Missing => Err(Refusal::Missing),
        Bearer::Wrong => Err(Refusal::Wrong),
    }
}

/// Whether somebody who may look may disconnect.
pub(super) fn check_order(config: &Config) -> Result<(), Refusal> {
    config.api_token.as_ref().map(|_| ()).ok_or(Refusal::NobodyMay)
}

fn is_local(config: &Config, headers: &HeaderMap, peer: Option<SocketAddr>) -> bool {
    let is_proxy = |peer: SocketAddr| {
        let trusted = &config.trusted_proxies;
        trusted.iter().any(|net| net.contains(&peer.ip().to_canonical()))
            || OF_PROXIES.iter().any(|name| headers.contains_key(*name))
    };
    let is_here = |peer: SocketAddr| peer.ip().to_canonical().is_loopback();
    peer.is_some_and(|peer| is_here(peer) && !is_proxy(peer))
        && simurgh_page::names_this_host(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn place(config: &Config, is_admin: bool, peer: &str, of: &[(&'static str, &str)]) -> Reached {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectInfo::<SocketAddr>(peer.parse().unwrap()));
        check_place(config, is_admin, &headers(of), &extensions)
    }

    type Reached = Result<(), Refusal>;

    const HOST: (&str, &str) = ("host", "127.0.0.1:4000");

    #[test]
    fn this_machine_is_known_by_address_name_and_the_absence_of_proxies() {
        let config = Config::default();
        for peer in ["127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
            assert_eq!(place(&config, false, peer, &[HOST]), Ok(()), "{peer}");
        }
        assert_eq!(place(&config, false, "192.0.2.1:5000", &[HOST]), Err(Refusal::Off));
        let local = "127.0.0.1:5000";
        assert_eq!(place(&config, false, local, &[("host", "evil.example")]), Err(Refusal::Off));
        assert_eq!(place(&config, false, local, &[]), Err(Refusal::Off));
        for name in OF_PROXIES {
            assert_eq!(place(&config, false, local, &[HOST, (name, "x")]), Err(Refusal::Off));
        }
        let trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        let trusting = Config { trusted_proxies, ..Config::default() };
        assert_eq!(place(&trusting, false, local, &[HOST]), Err(Refusal::Off));
    }

    #[test]
    fn others_need_the_setting_and_a_token() {
        let mut config = Config::default();
        let far = "192.0.2.1:5000";
        config.observer = true;
        assert_eq!(place(&config, false, far, &[HOST]), Err(Refusal::NoToken));
        config.api_token = Some("secret".into());
        assert_eq!(place(&config, false, far, &[("host", "chat.example")]), Ok(()));
        config.observer = false;
        assert_eq!(place(&config, false, far, &[HOST]), Err(Refusal::Off));
        assert_eq!(place(&config, true, far, &[HOST]), Ok(()), "the admin listener");
    }

    #[test]
    fn figures_are_for_bearers_of_the_token_and_our_own_page() {
        let mut config = Config::default();
        assert_eq!(check_viewer(&config, &headers(&[HOST])), Ok(()));
        assert_eq!(check_order(&config), Err(Refusal::NobodyMay));
        config.api_token = Some("secret".into());
        assert_eq!(check_order(&config), Ok(()));
        let check = |of: &[_]| check_viewer(&config, &headers(of));
        assert_eq!(check(&[HOST]), Err(Refusal::Missing));
        assert_eq!(check(&[("authorization", "Basic c2VjcmV0")]), Err(Refusal::Missing));
        for wrong in ["Bearer secre", "Bearer secret2", "Bearer ", "bearer Secret"] {
            assert_eq!(check(&[("authorization", wrong)]), Err(Refusal::Wrong), "{wrong}");
        }
        let right = ("authorization", "bearer secret");
        assert_eq!(check(&[HOST, right]), Ok(()));
        assert_eq!(check(&[HOST, right, ("origin", "http://127.0.0.1:4000")]), Ok(()));
        for foreign in ["http://evil.example", "null", "http://127.0.0.1:4001"] {
            assert_eq!(check(&[HOST, right, ("origin", foreign)]), Err(Refusal::Foreign));
        }
        assert_eq!(check(&[HOST, right, ("sec-fetch-site", "cross-site")]), Err(Refusal::Foreign));
        assert_eq!(check(&[HOST, right, ("sec-fetch-site", "same-origin")]), Ok(()));
    }
}

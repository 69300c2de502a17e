//! Access to the observer, and the right to disconnect.
//!
//! - *From where:* this machine, by its own names and through no proxy; with
//!   [`Config::observer`](crate::Config::observer) from anywhere. On the admin listener, which only
//!   operators reach, from anywhere, too.
//! - *Who:* clients with the API token, if there is one. Without one only this machine may view,
//!   and no client may disconnect.
//! - *Which page:* our own. Pages of other sites can neither read figures nor disconnect.

use std::borrow::Cow;
use std::net::SocketAddr;

use axum::Json;
use axum::extract::ConnectInfo;
use axum::extract::rejection::QueryRejection;
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use simurgh_shard::config::Config;
use simurgh_shard::proxies::is_trusted;

use crate::access::{
    Bearer, FOREIGN, bearer, is_here, names_client, names_known_host, speaks_for_this_machine,
};

/// An error, as JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal(StatusCode, Cow<'static, str>);

impl Refusal {
    /// Not enabled for this address.
    const OFF: Self = Self::new(
        StatusCode::FORBIDDEN,
        "the observer is open to this machine only: set observer = true and api_token to open it \
         to others",
    );
    /// Enabled, but the server has no token to check.
    const NO_TOKEN: Self = Self::new(
        StatusCode::FORBIDDEN,
        "the observer needs a token for clients of other machines: set api_token on the server",
    );
    /// For an unknown host.
    const MISDIRECTED: Self = Self::new(StatusCode::MISDIRECTED_REQUEST, FOREIGN);
    /// From another site.
    const FOREIGN: Self = Self::new(
        StatusCode::FORBIDDEN,
        "this request comes from a page of another site: open the observer's own page",
    );
    const MISSING: Self = Self::new(
        StatusCode::UNAUTHORIZED,
        "the API token is missing: send the header authorization: Bearer TOKEN",
    );
    const WRONG: Self = Self::new(StatusCode::UNAUTHORIZED, "the API token is wrong");
    /// No client may: the server has no token.
    const NOBODY_MAY: Self = Self::new(
        StatusCode::FORBIDDEN,
        "the observer cannot disconnect sockets: set api_token on the server",
    );

    pub(super) const fn new(status: StatusCode, text: &'static str) -> Self {
        Self(status, Cow::Borrowed(text))
    }

    /// A query or a body with a mistake.
    pub(super) fn mistake(text: impl Into<Cow<'static, str>>) -> Self {
        Self(StatusCode::BAD_REQUEST, text.into())
    }
}

impl From<QueryRejection> for Refusal {
    fn from(error: QueryRejection) -> Self {
        Self::mistake(error.body_text())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, text) = self;
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        let challenge = (status == StatusCode::UNAUTHORIZED).then_some(challenge);
        (status, challenge, Json(json!({ "error": text }))).into_response()
    }
}

/// Whether the observer is available to a request: enough for its page, which contains no figures.
pub(super) fn check_place(
    config: &Config,
    is_admin: bool,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<(), Refusal> {
    if !names_known_host(config, is_admin, headers) {
        return Err(Refusal::MISDIRECTED);
    }
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    if is_local(config, headers, peer) {
        return Ok(());
    }
    match (config.observer || is_admin, &config.api_token) {
        (false, _) => Err(Refusal::OFF),
        (true, None) => Err(Refusal::NO_TOKEN),
        (true, Some(_)) => Ok(()),
    }
}

pub(super) fn check_viewer(config: &Config, headers: &HeaderMap) -> Result<(), Refusal> {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    let is_foreign_site = site.is_some_and(|site| site != b"same-origin" && site != b"none");
    if is_foreign_site
        || (headers.contains_key(header::ORIGIN) && !simurgh_page::is_own_origin(headers))
    {
        return Err(Refusal::FOREIGN);
    }
    match bearer(config, headers) {
        Bearer::Right | Bearer::NotWanted => Ok(()),
        Bearer::Missing => Err(Refusal::MISSING),
        Bearer::Wrong => Err(Refusal::WRONG),
    }
}

pub(super) fn check_order(config: &Config) -> Result<(), Refusal> {
    config.api_token.as_ref().map(|_| ()).ok_or(Refusal::NOBODY_MAY)
}

fn is_local(config: &Config, headers: &HeaderMap, peer: Option<SocketAddr>) -> bool {
    let Some(peer) = peer.filter(|peer| is_here(peer.ip())) else { return false };
    let is_of_proxy = match is_trusted(&config.trusted_proxies, peer.ip()) {
        true => !speaks_for_this_machine(headers),
        false => headers.keys().any(|name| names_client(name.as_str())),
    };
    !is_of_proxy && simurgh_page::names_this_host(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::OF_PROXIES;

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
    fn local_request_has_loopback_address_known_host_and_no_proxy() {
        let config = Config::default();
        for peer in ["127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
            assert_eq!(place(&config, false, peer, &[HOST]), Ok(()), "{peer}");
        }
        assert_eq!(place(&config, false, "192.0.2.1:5000", &[HOST]), Err(Refusal::OFF));
        let local = "127.0.0.1:5000";
        let elsewhere = [("host", "evil.example")];
        assert_eq!(place(&config, false, local, &elsewhere), Err(Refusal::MISDIRECTED));
        assert_eq!(place(&config, false, local, &[]), Err(Refusal::MISDIRECTED));
        let trusted_hosts = vec!["evil.example".to_owned()];
        let mut listing = Config::default();
        listing.trusted_hosts = trusted_hosts;
        assert_eq!(place(&listing, false, local, &elsewhere), Err(Refusal::OFF), "a proxy's name");
    }

    #[test]
    fn proxied_client_is_local_only_if_a_trusted_proxy_names_loopback() {
        let config = Config::default();
        let local = "127.0.0.1:5000";
        let forwarded = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
        for name in OF_PROXIES.into_iter().chain(forwarded).chain(["x-forwarded", "x-real-ip"]) {
            for value in ["192.0.2.1", "127.0.0.1", "x"] {
                let of = [HOST, (name, value)];
                assert_eq!(place(&config, false, local, &of), Err(Refusal::OFF), "{name}");
            }
        }
        let trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        let mut trusting = Config::default();
        trusting.trusted_proxies = trusted_proxies;
        let check = |of: &[_]| place(&trusting, false, local, &[&[HOST], of].concat());
        assert_eq!(check(&[]), Err(Refusal::OFF), "it says nothing");
        assert_eq!(check(&[("x-forwarded-for", "127.0.0.1")]), Ok(()));
        assert_eq!(check(&[("x-forwarded-for", "::1"), ("x-real-ip", "::1")]), Ok(()));
        for client in
            ["192.0.2.1", "127.0.0.1, 192.0.2.1", "192.0.2.1, 127.0.0.1", "x, 127.0.0.1", "x", ""]
        {
            assert_eq!(check(&[("x-forwarded-for", client)]), Err(Refusal::OFF), "{client}");
        }
        let of_another = [("x-forwarded-for", "127.0.0.1"), ("cf-connecting-ip", "192.0.2.1")];
        assert_eq!(check(&of_another), Err(Refusal::OFF));
    }

    #[test]
    fn remote_clients_need_the_setting_and_a_token() {
        let mut config = Config::default();
        let far = "192.0.2.1:5000";
        config.listen = vec!["0.0.0.0:4000".parse().unwrap()];
        config.observer = true;
        assert_eq!(place(&config, false, far, &[HOST]), Err(Refusal::NO_TOKEN));
        config.api_token = Some("secret".into());
        assert_eq!(place(&config, false, far, &[("host", "chat.example")]), Ok(()));
        config.observer = false;
        assert_eq!(place(&config, false, far, &[HOST]), Err(Refusal::OFF));
        assert_eq!(place(&config, true, far, &[HOST]), Ok(()), "the admin listener");
    }

    #[test]
    fn figures_need_the_token_and_our_own_page() {
        let mut config = Config::default();
        assert_eq!(check_viewer(&config, &headers(&[HOST])), Ok(()));
        assert_eq!(check_order(&config), Err(Refusal::NOBODY_MAY));
        config.api_token = Some("secret".into());
        assert_eq!(check_order(&config), Ok(()));
        let check = |of: &[_]| check_viewer(&config, &headers(of));
        assert_eq!(check(&[HOST]), Err(Refusal::MISSING));
        assert_eq!(check(&[("authorization", "Basic c2VjcmV0")]), Err(Refusal::MISSING));
        for wrong in ["Bearer secre", "Bearer secret2", "Bearer ", "bearer Secret"] {
            assert_eq!(check(&[("authorization", wrong)]), Err(Refusal::WRONG), "{wrong}");
        }
        let right = ("authorization", "bearer secret");
        assert_eq!(check(&[HOST, right]), Ok(()));
        assert_eq!(check(&[HOST, right, ("origin", "http://127.0.0.1:4000")]), Ok(()));
        for foreign in ["http://evil.example", "null", "http://127.0.0.1:4001"] {
            assert_eq!(check(&[HOST, right, ("origin", foreign)]), Err(Refusal::FOREIGN));
        }
        assert_eq!(check(&[HOST, right, ("sec-fetch-site", "cross-site")]), Err(Refusal::FOREIGN));
        assert_eq!(check(&[HOST, right, ("sec-fetch-site", "same-origin")]), Ok(()));
    }
}

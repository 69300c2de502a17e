//! Subprotocols, and the auth token that Phoenix sends as one of them (PROTOCOL §2).
use alloc::string::String;

use thiserror::Error;

use super::{Request, decode_text};

/// The prefix of the subprotocol with an auth token; the rest of it is the token in base64.
pub const TOKEN_PREFIX: &str = "base64url.bearer.phx.";

/// The server's answer when a client sends an auth token and offers this subprotocol.
const PHOENIX: &str = "phoenix";

/// The outcome of negotiating the subprotocols that a client offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated<'c> {
    /// The one to answer with, if any: `phoenix` or one of the configured.
    pub subprotocol: Option<&'c str>,
    /// The auth token, decoded.
    pub token: Option<String>,
}

/// A client offers subprotocols, but none that this server supports: refuse with 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no common subprotocol")]
pub struct NoCommonSubprotocol;

impl NoCommonSubprotocol {
    /// The status to refuse with: 403 (PROTOCOL §2).
    #[must_use]
    pub const fn status(self) -> u16 {
        403
    }
}

/// Picks the subprotocol to answer with, and reads the auth token if `auth_token` is set.
///
/// * The first of `configured` that the client offers wins; with `auth_token`, `phoenix` comes
///   before all of them. An empty `configured` without `auth_token` ignores the offer.
/// * A client that offers nothing (except a token) is accepted without an answer.
/// * One entry with [`TOKEN_PREFIX`] is removed from the list and decoded, in the standard or the
///   URL-safe alphabet, with or without `=`. Two or more stay on the list as subprotocols that are
///   not supported. An entry that cannot be decoded to text gives no token, so that the
///   application's connect decides as for a client that sent none.
///
/// # Errors
/// If the client offers only subprotocols that the server does not support.
pub fn negotiate<'c>(
    request: &Request<'_>,
    configured: &'c [&'c str],
    auth_token: bool,
) -> Result<Negotiated<'c>, NoCommonSubprotocol> {
    let offered = || request.header_tokens("sec-websocket-protocol");
    let encoded = auth_token.then(|| single(offered().filter_map(token_of))).flatten();
    let token = encoded.and_then(decode_text);
    let is_token = |entry: &&str| encoded.is_some() && token_of(entry).is_some();
    let names = || offered().filter(|entry| !is_token(entry));
    let ours = auth_token.then_some(PHOENIX).into_iter().chain(configured.iter().copied());
    let speaks_any = auth_token || !configured.is_empty();
    if !speaks_any || names().next().is_none() {
        return Ok(Negotiated { subprotocol: None, token });
    }
    for subprotocol in ours {
        if names().any(|name| name == subprotocol) {
            return Ok(Negotiated { subprotocol: Some(subprotocol), token });
        }
    }
    Err(NoCommonSubprotocol)
}

fn token_of(entry: &str) -> Option<&str> {
    entry.strip_prefix(TOKEN_PREFIX)
}

fn single<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let item = items.next()?;
    items.next().is_none().then_some(item)
}

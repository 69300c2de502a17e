//! The API token that a request bears.

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use crate::config::Config;

/// What a request bears against what the server wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bearer {
    /// The server has no token.
    NotWanted,
    Missing,
    Wrong,
    Right,
}

/// Compared in constant time, so that the token cannot be guessed byte by byte.
pub(crate) fn bearer(config: &Config, headers: &HeaderMap) -> Bearer {
    let given = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
        .map(|(_, token)| token);
    match (&config.api_token, given) {
        (None, _) => Bearer::NotWanted,
        (Some(_), None) => Bearer::Missing,
        (Some(token), Some(given)) if token.as_bytes().ct_eq(given).into() => Bearer::Right,
        (Some(_), Some(_)) => Bearer::Wrong,
    }
}

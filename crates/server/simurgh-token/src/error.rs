//! Errors of tokens, caused by the client or the issuer, and of keys, caused by the operator.

use std::fmt;
use std::time::Duration;

use crate::algorithm::Algorithm;

/// Why a token was refused.
///
/// `Display` says who has to act, for logs and people; it repeats names in the token (`kid`, `alg`,
/// `iss`), shortened, and never another claim, a signature or a key. [`reason`](Self::reason) is
/// for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The token has an algorithm that is not allowed here.
    #[error(
        "the token's alg is {}, but the configured keys are for {}: its issuer must use one of \
         these",
        short(found),
        names(allowed)
    )]
    Algorithm {
        /// Its `alg`.
        found: String,
        /// The algorithms of the configured keys.
        allowed: Vec<Algorithm>,
    },
    /// `aud` is missing, or names no accepted audience.
    #[error(
        "the token's aud contains none of the accepted audiences: get a token for this service"
    )]
    Audience,
    /// The token is encrypted; only signed ones are accepted.
    #[error("the token is encrypted: its issuer must sign it instead (Phoenix.Token.sign, a JWS)")]
    Encrypted,
    /// The token has expired.
    #[error(
        "the token expired {} ago: the client must fetch a new one",
        words(*ago)
    )]
    Expired {
        /// How long ago.
        ago: Duration,
    },
    /// `iss` is missing, or is not an accepted issuer.
    #[error(
        "{}",
        issuer(found.as_deref())
    )]
    Issuer {
        /// The issuer in the token.
        found: Option<String>,
    },
    /// It is not a token.
    #[error("the token is malformed, {part}: {why}")]
    Malformed {
        /// The malformed part.
        part: Part,
        /// The fault.
        why: String,
    },
    /// No token was sent.
    #[error("no token: the client must send one")]
    Missing,
    /// A required claim is missing.
    #[error("the token has no {claim}: its issuer must add it")]
    MissingClaim {
        /// Its name.
        claim: &'static str,
    },
    /// The keys have not been read yet.
    #[error("the keys of the issuer have not been read yet: the client must try again later")]
    NoKeys,
    /// The token is not valid yet.
    #[error(
        "the token becomes valid in {} ({claim}): it was used too early, or the clocks of its \
         issuer and of this server differ",
        words(*after)
    )]
    NotYetValid {
        /// The claim with that time: `nbf`, `iat`, or `signed` of a `Phoenix.Token`.
        claim: &'static str,
        /// The time until then.
        after: Duration,
    },
    /// The signature was not made with a configured key.
    #[error(
        "the token's signature matches no configured key: it was signed with another key, secret \
         or salt, or changed afterwards"
    )]
    Signature,
    /// The token is longer than [`TOKEN_BYTES_MAX`](crate::TOKEN_BYTES_MAX).
    #[error("the token has {bytes} bytes; the maximum is {}", crate::TOKEN_BYTES_MAX)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// `kid` names an unknown key.
    #[error(
        "the token's kid is {}, but no configured key has this name: add the key if the issuer \
         is yours",
        short(kid)
    )]
    UnknownKey {
        /// The `kid`.
        kid: String,
    },
    /// The token is not signed (`alg` is `none`).
    #[error("the token is not signed (alg none): its issuer must sign it")]
    Unsigned,
}

/// A part of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The whole: its parts and the dots between them.
    Whole,
    /// The part before the first dot.
    Header,
    /// The claims, or the term.
    Payload,
    /// The part after the last dot.
    Signature,
}

impl TokenError {
    pub(crate) fn malformed(part: Part, why: impl Into<String>) -> Self {
        Self::Malformed { part, why: why.into() }
    }

    /// A stable word for clients: `missing`, `expired`, `not_yet_valid`, `unknown_key`,
    /// `wrong_issuer`, `wrong_audience`, `unavailable`, or `invalid` for all else.
    ///
    /// `missing`, `expired` and `invalid` are those of `Phoenix.Token.verify/4`, which has
    /// `invalid` in place of `not_yet_valid`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::UnknownKey { .. } => "unknown_key",
            Self::NoKeys => "unavailable",
            Self::Issuer { .. } => "wrong_issuer",
            Self::Audience => "wrong_audience",
            _ => "invalid",
        }
    }

    /// Whether it has expired: the client should fetch a new one.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Expired { .. })
    }

    /// Whether no token was sent.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    /// Whether newer keys could help: the issuer may have changed them since they were fetched.
    #[must_use]
    pub fn is_unknown_key(&self) -> bool {
        matches!(self, Self::UnknownKey { .. } | Self::NoKeys)
    }

    /// Whether the keys are not known yet, so that the same token may be accepted later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NoKeys)
    }

    /// Whether it was signed with another key, or not signed.
    #[must_use]
    pub fn is_forged(&self) -> bool {
        matches!(self, Self::Signature | Self::Unsigned | Self::Algorithm { .. })
    }

    /// Whether it cannot be decoded as a token.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::Malformed { .. } | Self::TooLong { .. } | Self::Encrypted)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "as a whole",
            Self::Header => "its header",
            Self::Payload => "its payload",
            Self::Signature => "its signature",
        })
    }
}

/// Why a key cannot be used, or a signature cannot be made: an error for the operator.
///
/// `Display` names the key by its index or `kid`, and never shows it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct KeyError {
    why: String,
}

impl KeyError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

fn names(algorithms: &[Algorithm]) -> String {
    let names: Vec<_> = algorithms.iter().map(|it| it.name()).collect();
    names.join(", ")
}

fn issuer(found: Option<&str>) -> String {
    match found {
        Some(found) => {
            format!(
                "the token's iss is {}, which is not in the list of accepted issuers",
                short(found)
            )
        }
        None => "the token has no iss, but this server requires one".to_owned(),
    }
}

/// Where a text stops being JSON, without a part of the text, which may be secret.
pub(crate) fn not_json(error: &serde_json::Error) -> String {
    format!("is not JSON at line {}, column {}", error.line(), error.column())
}

/// A text from another party: quoted, escaped, and shortened for a line.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS_MAX) {
        None => format!("{text:?}"),
        Some((at, _)) => format!("{:?}…", text.get(..at).unwrap_or_default()),
    }
}

const CHARACTERS_MAX: usize = 64;

/// A duration in its two largest units; less than a second is `less than 1s`.
pub(crate) fn words(duration: Duration) -> String {
    let whole = Duration::from_secs(duration.as_secs());
    if whole.is_zero() {
        return "less than 1s".to_owned();
    }
    let text = humantime::format_duration(whole).to_string();
    let units: Vec<_> = text.split(' ').take(2).collect();
    units.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        assert_eq!(words(Duration::from_millis(400)), "less than 1s");
        assert_eq!(words(Duration::from_millis(61_900)), "1m 1s");
        assert_eq!(words(Duration::from_secs(90_061)), "1day 1h");
        let ago = Duration::from_secs(75);
        let text = TokenError::Expired { ago }.to_string();
        assert_eq!(text, "the token expired 1m 15s ago: the client must fetch a new one");
    }

    #[test]
    fn text_of_a_token_is_quoted_and_truncated() {
        assert_eq!(short("a\n\u{1b}[2J"), r#""a\n\u{1b}[2J""#);
        let long = "ü".repeat(10_000);
        let text = TokenError::UnknownKey { kid: long }.to_string();
        assert!(text.len() < 400 && text.contains('…'), "{text}");
    }

    #[test]
    fn each_error_has_a_reason_for_clients() {
        let after = Duration::ZERO;
        let claim = "nbf";
        assert_eq!(TokenError::NotYetValid { claim, after }.reason(), "not_yet_valid");
        assert_eq!(TokenError::Signature.reason(), "invalid");
        assert!(TokenError::Unsigned.is_forged() && !TokenError::Unsigned.is_malformed());
    }
}

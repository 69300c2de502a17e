//! Tokens that identify the user who connects: `Phoenix.Token` and JSON Web Tokens, signed and
//! verified.
//!
//! ```text
//!   settings ─► Verifier ── verify(token, now) ─► Claims        who, until when
//!                                              └► TokenError    whose fault, a word for the wire
//!   key ──────► Signer ──── mint(data, now, lifetime) ─► token
//!   token ────► inspect ─► its contents, unverified
//!   Rule ───── allows(topic, &Claims)                           who may join a topic
//! ```
//! - [`phoenix`]: the tokens of `Phoenix.Token.sign/4`, byte for byte, so that a Phoenix
//!   application signs and a Simurgh server verifies, or the other way round.
//! - [`jwt`]: HS256, RS256, ES256 and EdDSA, keys as secret, PEM or JWKS.
//! - [`etf`]: the terms inside a `Phoenix.Token`, as JSON.
//!
//! Without a clock and without I/O: times are arguments, as a [`Duration`] since the Unix epoch,
//! and keys are texts. Only signing by ES256 and RS256 asks the system for random numbers.
//! Cryptography is `ring`'s, and MACs are compared in constant time.

#![forbid(unsafe_code)]

mod algorithm;
mod base64url;
mod claims;
mod error;
pub mod etf;
mod inspect;
pub mod jwt;
mod key_text;
pub mod phoenix;
mod rule;
mod verifier;

use std::time::Duration;

pub use claims::Claims;
pub use error::{KeyError, Part, TokenError};
pub use inspect::{Format, Inspection, inspect};
pub use rule::{Rule, RuleError, Template};
pub use verifier::{JwtSettings, KeySource, PhoenixSettings, Settings, Signer, Verifier};

/// The longest accepted token, in bytes: it has to fit into the head of a request.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;

const LEEWAY: Duration = Duration::from_secs(5);

const THREE_PARTS: &str = "it does not have three parts separated by dots";

fn check_length(token: &str) -> Result<(), TokenError> {
    match token.len() {
        0 => Err(TokenError::Missing),
        bytes if bytes > TOKEN_BYTES_MAX => Err(TokenError::TooLong { bytes }),
        _ => Ok(()),
    }
}

/// Milliseconds, limited to the largest number.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

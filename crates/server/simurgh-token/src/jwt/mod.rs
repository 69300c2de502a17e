//! JSON Web Tokens (RFC 7519) as signed by HS256, RS256, ES256 and EdDSA (RFC 7515, 7518, 8037).
//!
//! What a key is for is known when it is read, and a token's `alg` can only agree with that or be
//! refused: no token chooses how it is verified. `none` is refused by name, and so is a token that
//! asks for an extension (`crit`), since none is known.
//!
//! ```
//! use std::time::Duration;
//! use serde_json::json;
//! use simurgh_token::jwt::{Checks, Keys, SigningKey};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let secret = b"a secret of thirty-two bytes or more";
//! let claims = json!({"sub": "alice", "exp": 1_700_000_060});
//! let token = SigningKey::from_secret(secret)?.sign(claims.as_object().ok_or("no object")?)?;
//!
//! let keys = Keys::from_secret(secret)?;
//! let now = Duration::from_secs(1_700_000_000);
//! let claims = keys.verify(&token, &Checks::default(), now)?;
//! assert_eq!(claims.subject(), Some("alice"));
//! assert_eq!(claims.expires_at(), Some(1_700_000_060));
//! # Ok(())
//! # }
//! ```

mod checks;
mod der;
mod jwk;
mod keys;
mod signing;

use std::fmt;

use serde_json::{Map, Value};

pub use checks::Checks;
pub(crate) use checks::seconds;
pub use keys::{Jws, Key, Keys, Skipped};
pub use signing::SigningKey;

use crate::base64url;
use crate::error::{Part, TokenError};

/// How a token is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519. Its `alg` is `EdDSA`, or `Ed25519` (RFC 9864).
    EdDsa,
    /// HMAC with SHA-256: who verifies could sign as well.
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Es256, Self::EdDsa, Self::Hs256, Self::Rs256];

    /// By the name that it has in a token, exactly so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            "HS256" => Some(Self::Hs256),
            "RS256" => Some(Self::Rs256),
            _ => None,
        }
    }

    /// The name that it has in a token.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A token taken apart, and nothing verified.
pub(crate) struct Parts<'a> {
    pub(crate) header: Map<String, Value>,
    /// What is signed: header and payload as they came.
    pub(crate) message: &'a str,
    pub(crate) payload: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

impl<'a> Parts<'a> {
    pub(crate) fn of(token: &'a str) -> Result<Self, TokenError> {
        crate::check_length(token)?;
        let parts: Vec<_> = token.split('.').take(6).collect();
        let [header, payload, signature] = parts.as_slice() else {
            return Err(match parts.len() {
                5 => TokenError::Encrypted,
                _ => TokenError::malformed(Part::Whole, crate::THREE_PARTS),
            });
        };
        if crate::phoenix::is_phoenix(token) {
            let why = "this is a Phoenix.Token, and a JWT is expected here";
            return Err(TokenError::malformed(Part::Header, why));
        }
        let message = token.get(..header.len() + 1 + payload.len()).unwrap_or_default();
        let header = object(&bytes(header, Part::Header)?, Part::Header)?;
        let payload = bytes(payload, Part::Payload)?;
        Ok(Self { header, message, payload, signature: bytes(signature, Part::Signature)? })
    }

    /// What it says, whoever signed it.
    pub(crate) fn claims(&self) -> Result<Map<String, Value>, TokenError> {
        object(&self.payload, Part::Payload)
    }

    /// `alg`, as it is written.
    pub(crate) fn algorithm(&self) -> Result<&str, TokenError> {
        match self.header.get("alg").and_then(Value::as_str) {
            Some(name) => Ok(name),
            None => Err(TokenError::malformed(Part::Header, "it has no alg that is a string")),
        }
    }

    /// `kid`, if there is one.
    pub(crate) fn key_id(&self) -> Result<Option<&str>, TokenError> {
        match self.header.get("kid") {
            None => Ok(None),
            Some(Value::String(id)) => Ok(Some(id)),
            Some(_) => Err(TokenError::malformed(Part::Header, "its kid is no string")),
        }
    }
}

fn bytes(text: &str, part: Part) -> Result<Vec<u8>, TokenError> {
    let why = "it is not base64url without padding";
    base64url::decode(text).ok_or_else(|| TokenError::malformed(part, why))
}

fn object(bytes: &[u8], part: Part) -> Result<Map<String, Value>, TokenError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(TokenError::malformed(part, "it is JSON, but no object")),
        // Of the text only the place is told.
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let why = format!("it is not JSON at line {line}, column {column}");
            Err(TokenError::malformed(part, why))
        }
    }
}

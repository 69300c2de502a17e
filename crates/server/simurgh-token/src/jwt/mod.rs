//! JSON Web Tokens (RFC 7519) as signed by HS256, RS256, ES256 and EdDSA (RFC 7515, 7518, 8037).
//!
//! Each key is for one algorithm, and a token whose `alg` differs is refused: a token cannot choose
//! how it is verified. `none` is refused. So is a token that requires an extension (`crit`): this
//! crate supports no extensions.
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
pub(crate) mod der;
mod jwk;
mod keys;
mod pem;
mod signing;

use serde_json::{Map, Value};

pub use crate::algorithm::Algorithm;
pub use checks::Checks;
pub(crate) use checks::seconds;
pub use keys::{Jws, Key, Keys, Skipped};
pub use signing::SigningKey;

use crate::base64url::decode_part;
use crate::error::{Part, TokenError, not_json};

pub(crate) struct Parts<'a> {
    pub(crate) header: Map<String, Value>,
    /// The signed text: header and payload as received.
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
            let why = "this is a Phoenix.Token, but a JWT was expected";
            return Err(TokenError::malformed(Part::Header, why));
        }
        let message = token.get(..header.len() + 1 + payload.len()).unwrap_or_default();
        let header = object(&decode_part(header, Part::Header)?, Part::Header)?;
        let payload = decode_part(payload, Part::Payload)?;
        Ok(Self { header, message, payload, signature: decode_part(signature, Part::Signature)? })
    }

    pub(crate) fn claims(&self) -> Result<Map<String, Value>, TokenError> {
        object(&self.payload, Part::Payload)
    }

    pub(crate) fn algorithm(&self) -> Result<&str, TokenError> {
        match self.header.get("alg").and_then(Value::as_str) {
            Some(name) => Ok(name),
            None => Err(TokenError::malformed(Part::Header, "its alg is missing or not a string")),
        }
    }

    pub(crate) fn key_id(&self) -> Result<Option<&str>, TokenError> {
        match self.header.get("kid") {
            None => Ok(None),
            Some(Value::String(id)) => Ok(Some(id)),
            Some(_) => Err(TokenError::malformed(Part::Header, "its kid is not a string")),
        }
    }
}

fn object(bytes: &[u8], part: Part) -> Result<Map<String, Value>, TokenError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(TokenError::malformed(part, "it is JSON, but not an object")),
        Err(error) => Err(TokenError::malformed(part, format!("it {}", not_json(&error)))),
    }
}

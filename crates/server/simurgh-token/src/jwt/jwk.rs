//! JSON Web Keys (RFC 7517), read from their members (RFC 7518 §6, RFC 8037 §2).

use serde_json::{Map, Value};

use super::{Algorithm, der};
use crate::base64url;
use crate::error::short;

/// The members of a key, decoded up to its public half.
pub(super) struct Jwk<'a> {
    members: &'a Map<String, Value>,
    pub(super) algorithm: Algorithm,
}

impl<'a> Jwk<'a> {
    /// Reads the key's algorithm; `operation` is the required one (RFC 7517 §4.3).
    pub(super) fn new(value: &'a Value, operation: &str) -> Result<Self, String> {
        let members = value.as_object().ok_or("it is not a JSON object")?;
        let text = |name| members.get(name).and_then(Value::as_str);
        let kind = text("kty").ok_or("it has no kty")?;
        let algorithm = match (kind, text("crv")) {
            ("EC", Some("P-256")) => Algorithm::Es256,
            ("OKP", Some("Ed25519")) => Algorithm::EdDsa,
            ("oct", _) => Algorithm::Hs256,
            ("RSA", _) => Algorithm::Rs256,
            ("EC" | "OKP", curve) => {
                let curve = short(curve.unwrap_or_default());
                return Err(format!("its crv is {curve}; the server supports P-256 and Ed25519"));
            }
            (kind, _) => {
                return Err(format!(
                    "its kty is {}; the server supports EC, OKP, oct and RSA",
                    short(kind)
                ));
            }
        };
        if let Some(usage) = text("use").filter(|usage| *usage != "sig") {
            return Err(format!("its use is {}, not \"sig\"", short(usage)));
        }
        if let Some(Value::Array(operations)) = members.get("key_ops")
            && !operations.iter().any(|it| it == operation)
        {
            return Err(format!("its key_ops do not contain {operation:?}"));
        }
        if let Some(named) = members.get("alg") {
            let named = named.as_str().ok_or("its alg is not a string")?;
            if Algorithm::named(named) != Some(algorithm) {
                let named = short(named);
                return Err(format!("its alg is {named}, but only {algorithm} is possible"));
            }
        }
        Ok(Self { members, algorithm })
    }

    pub(super) fn id(&self) -> Option<String> {
        id(self.members)
    }

    /// Whether it has what only the signer should have.
    pub(super) fn is_private(&self) -> bool {
        self.algorithm != Algorithm::Hs256 && self.members.contains_key("d")
    }

    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        let text = self.members.get(name).and_then(Value::as_str);
        let text = text.ok_or_else(|| format!("it has no {name}"))?;
        base64url::decode(text).ok_or_else(|| format!("its {name} is not base64url"))
    }

    /// A number, without leading zeros as `ring` requires.
    pub(super) fn number(&self, name: &str) -> Result<Vec<u8>, String> {
        Ok(der::unsigned(&self.bytes(name)?).to_vec())
    }

    pub(super) fn sized(&self, name: &str, bytes: usize) -> Result<Vec<u8>, String> {
        let found = self.bytes(name)?;
        match found.len() == bytes {
            true => Ok(found),
            false => Err(format!("its {name} has {} bytes instead of {bytes}", found.len())),
        }
    }

    /// A point of P-256, uncompressed (SEC 1 §2.3.3).
    pub(super) fn point(&self) -> Result<Vec<u8>, String> {
        Ok([&[4], self.sized("x", 32)?.as_slice(), self.sized("y", 32)?.as_slice()].concat())
    }
}

pub(super) fn id(members: &Map<String, Value>) -> Option<String> {
    members.get("kid").and_then(Value::as_str).map(str::to_owned)
}

//! Keys that verify, and their selection.

use std::fmt;
use std::time::Duration;

use ring::hmac;
use ring::signature::{self, RsaPublicKeyComponents};
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::{Map, Value};

use super::jwk::{self, Jwk};
use super::pem::{self, Section};
use super::{Algorithm, Checks, Parts, der};
use crate::claims::Claims;
use crate::error::{KeyError, Part, TokenError, not_json, short};
use crate::key_text::refuse_key;

/// Verification keys, each for one algorithm.
#[derive(Debug, Clone)]
pub struct Keys {
    keys: Vec<Key>,
    skipped: Vec<Skipped>,
}

/// A key that verifies. `Debug` does not show secrets.
#[derive(Debug, Clone)]
pub struct Key {
    pub(super) id: Option<String>,
    pub(super) material: Material,
}

#[derive(Debug, Clone)]
pub(super) enum Material {
    /// An uncompressed point of P-256.
    Ec(Vec<u8>),
    Ed25519(Vec<u8>),
    Hmac(hmac::Key),
    /// Without leading zeros.
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
}

/// Keys that one token is checked with.
const TRIED_MAX: usize = 8;

/// A key of a set that is not used, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Its index in the set, from 0.
    pub index: usize,
    /// Its `kid`.
    pub id: Option<String>,
    /// The reason.
    pub why: String,
}

/// Any signed payload (RFC 7515).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Jws {
    /// Its header.
    pub header: Map<String, Value>,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Keys {
    /// No keys yet: every token is refused with [`TokenError::NoKeys`].
    #[must_use]
    pub fn none() -> Self {
        Self { keys: Vec::new(), skipped: Vec::new() }
    }

    /// One key for HS256.
    ///
    /// # Errors
    /// A secret of less than 32 bytes (RFC 7518 §3.2), or a public key in PEM as secret: any reader
    /// of that could sign.
    pub fn from_secret(secret: &[u8]) -> Result<Self, KeyError> {
        refuse_key(secret)?;
        let material = hmac_key(secret).map(Material::Hmac).map_err(KeyError::new)?;
        Ok(Self::from(Key { id: None, material }))
    }

    /// The public keys of a PEM file: RSA (RS256), P-256 (ES256), Ed25519 (EdDSA).
    ///
    /// # Errors
    /// The text is not PEM, or has no public key, or one of another kind.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for section in Section::pem_slice_iter(text.as_bytes()) {
            let Ok(Section(SectionKind::PublicKey, bytes)) = section else {
                return Err(pem::not_public(text));
            };
            let material = spki(&bytes).map_err(KeyError::new)?;
            keys.push(Key { id: None, material });
        }
        if keys.is_empty() {
            return Err(pem::not_public(text));
        }
        Ok(Self { keys, skipped: Vec::new() })
    }

    /// The keys of a JWK set (RFC 7517 §5), or a single JWK. Unusable ones are left out, with their
    /// reasons in [`skipped`](Self::skipped).
    ///
    /// # Errors
    /// The text is not a set of keys, or none of them can be used.
    pub fn from_jwks(text: &str) -> Result<Self, KeyError> {
        let root: Value = serde_json::from_str(text)
            .map_err(|error| KeyError::new(format!("the JWKS {}", not_json(&error))))?;
        let several = match root.get("keys") {
            Some(keys) => {
                keys.as_array().ok_or_else(|| KeyError::new("its keys are not an array"))?
            }
            None if root.get("kty").is_some() => std::slice::from_ref(&root),
            None => return Err(KeyError::new("it is not a JWKS: it has no keys")),
        };
        let mut found = Self { keys: Vec::new(), skipped: Vec::new() };
        for (index, value) in several.iter().enumerate() {
            let key = match found.keys.len() < KEYS_MAX {
                true => Key::from_jwk(value),
                false => Err(format!("a set may have at most {KEYS_MAX} keys")),
            };
            match key {
                Ok(key) => found.keys.push(key),
                Err(why) => {
                    let id = value.as_object().and_then(jwk::id);
                    found.skipped.push(Skipped { index, id, why });
                }
            }
        }
        found.or_none()
    }

    /// Keeps only the keys for these algorithms; all if the list is empty.
    ///
    /// # Errors
    /// No key is left.
    pub fn only_for(mut self, algorithms: &[Algorithm]) -> Result<Self, KeyError> {
        if algorithms.is_empty() {
            return Ok(self);
        }
        let keys = std::mem::take(&mut self.keys);
        for (index, key) in keys.into_iter().enumerate() {
            if algorithms.contains(&key.algorithm()) {
                self.keys.push(key);
            } else {
                let why = format!("it is for {}, which is not in algorithms", key.algorithm());
                self.skipped.push(Skipped { index, id: key.id, why });
            }
        }
        self.or_none()
    }

    fn or_none(self) -> Result<Self, KeyError> {
        if !self.keys.is_empty() {
            return Ok(self);
        }
        let why: Vec<_> = self.skipped.iter().map(ToString::to_string).collect();
        Err(KeyError::new(match why.is_empty() {
            true => "the JWKS has no keys".to_owned(),
            false => format!("none of the keys can be used: {}", why.join("; ")),
        }))
    }

    /// The keys that are used.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The keys that are not used, with their reasons.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Verifies a token and returns its claims; `now` is since the Unix epoch.
    ///
    /// # Errors
    /// As [`verify_jws`](Self::verify_jws), then as [`Checks::check`].
    pub fn verify(
        &self,
        token: &str,
        checks: &Checks,
        now: Duration,
    ) -> Result<Claims, TokenError> {
        let parts = Parts::of(token)?;
        self.verify_parts(&parts)?;
        checks.check(parts.claims()?, now)
    }

    /// Verifies a signed payload that need not be a JWT, without checks of claims.
    ///
    /// The key is selected by the token's `kid`. Keys without a name, or all keys if the token has
    /// no `kid`, are tried if they are for its `alg`. More than eight are not tried, so that a
    /// forged token does not cost many checks. A set has at most 64 keys.
    ///
    /// # Errors
    /// The first that applies: missing, too long, malformed, encrypted, unsigned, no key for its
    /// `alg`, no key with its `kid`, a signature of another key.
    pub fn verify_jws(&self, token: &str) -> Result<Jws, TokenError> {
        let parts = Parts::of(token)?;
        self.verify_parts(&parts)?;
        Ok(Jws { header: parts.header, payload: parts.payload })
    }

    fn verify_parts(&self, parts: &Parts<'_>) -> Result<(), TokenError> {
        let name = parts.algorithm()?;
        if name.eq_ignore_ascii_case("none") {
            return Err(TokenError::Unsigned);
        }
        if parts.header.contains_key("crit") {
            let why = "it requires extensions (crit); the server supports none";
            return Err(TokenError::malformed(Part::Header, why));
        }
        if self.keys.is_empty() {
            return Err(TokenError::NoKeys);
        }
        let algorithm = Algorithm::named(name);
        if !self.keys.iter().any(|key| Some(key.algorithm()) == algorithm) {
            let allowed = Algorithm::ALL.into_iter();
            let held = |it: &Algorithm| self.keys.iter().any(|key| key.algorithm() == *it);
            let allowed = allowed.filter(held).collect();
            return Err(TokenError::Algorithm { found: name.to_owned(), allowed });
        }
        let id = parts.key_id()?;
        let mut candidates = self
            .keys
            .iter()
            .filter(|key| Some(key.algorithm()) == algorithm)
            .filter(|key| id.is_none() || key.id.is_none() || key.id.as_deref() == id);
        match (id, candidates.clone().nth(TRIED_MAX), candidates.clone().next()) {
            (_, Some(_), _) => {
                let why = "it has no kid, and there are too many keys to try them all";
                return Err(TokenError::malformed(Part::Header, why));
            }
            (Some(id), None, None) => {
                return Err(TokenError::UnknownKey { kid: id.to_owned() });
            }
            _ => {}
        }
        match candidates.any(|key| key.verifies(parts.message.as_bytes(), &parts.signature)) {
            true => Ok(()),
            false => Err(TokenError::Signature),
        }
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Self {
        Self { keys: vec![key], skipped: Vec::new() }
    }
}

impl Key {
    fn from_jwk(value: &Value) -> Result<Self, String> {
        let jwk = Jwk::new(value, "verify")?;
        if jwk.is_private() {
            let why = "it is a private key, which is only for signing: for the public key, \
                remove d, p, q, dp, dq and qi";
            return Err(why.to_owned());
        }
        let material = match jwk.algorithm {
            Algorithm::Es256 => Material::Ec(jwk.point()?),
            Algorithm::EdDsa => Material::Ed25519(jwk.sized("x", 32)?),
            Algorithm::Hs256 => Material::Hmac(hmac_key(&jwk.bytes("k")?)?),
            Algorithm::Rs256 => rsa(jwk.number("n")?, jwk.number("e")?)?,
        };
        Ok(Self { id: jwk.id(), material })
    }

    /// Its algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Ec(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
            Material::Hmac(_) => Algorithm::Hs256,
            Material::Rsa(_) => Algorithm::Rs256,
        }
    }

    /// Its `kid`.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Whether a signature of these bytes was made with this key. MACs are compared in constant
    /// time.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let by = |algorithm: &'static dyn signature::VerificationAlgorithm, key: &Vec<u8>| {
            signature::UnparsedPublicKey::new(algorithm, key).verify(message, signature)
        };
        let verdict = match &self.material {
            Material::Ec(point) => by(&signature::ECDSA_P256_SHA256_FIXED, point),
            Material::Ed25519(key) => by(&signature::ED25519, key),
            Material::Hmac(key) => hmac::verify(key, message, signature),
            Material::Rsa(key) => {
                key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
        };
        verdict.is_ok()
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.id {
            Some(id) => write!(f, "key {} ({}): {}", self.index, short(id), self.why),
            None => write!(f, "key {}: {}", self.index, self.why),
        }
    }
}

/// A key for HS256, if the secret is long enough.
pub(super) fn hmac_key(secret: &[u8]) -> Result<hmac::Key, String> {
    if secret.len() < SECRET_BYTES_MIN {
        let bytes = secret.len();
        return Err(format!(
            "the secret has {bytes} bytes; HS256 needs at least {SECRET_BYTES_MIN}"
        ));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret))
}

fn rsa(n: Vec<u8>, e: Vec<u8>) -> Result<Material, String> {
    let first = n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    let bits = (n.len() * 8).saturating_sub(first);
    match bits {
        2048..=8192 => Ok(Material::Rsa(RsaPublicKeyComponents { n, e })),
        _ => Err(format!("its modulus has {bits} bits; RS256 needs 2048 to 8192")),
    }
}

fn spki(bytes: &[u8]) -> Result<Material, String> {
    let (purpose, key) = der::public_key(bytes).ok_or("it contains an invalid public key")?;
    match (purpose, key) {
        (Some(Algorithm::Es256), [4, point @ ..]) if point.len() == 64 => {
            Ok(Material::Ec(key.to_vec()))
        }
        (Some(Algorithm::Es256), _) => Err("its point is compressed, or not on P-256".to_owned()),
        (Some(Algorithm::EdDsa), _) if key.len() == 32 => Ok(Material::Ed25519(key.to_vec())),
        (Some(Algorithm::EdDsa), _) => Err("its Ed25519 key does not have 32 bytes".to_owned()),
        (Some(Algorithm::Rs256), _) => {
            let (n, e) = der::rsa_public_key(key).ok_or("its RSA key is invalid")?;
            rsa(n.to_vec(), e.to_vec())
        }
        _ => Err("its key is neither RSA, P-256 nor Ed25519".to_owned()),
    }
}

const SECRET_BYTES_MIN: usize = 32;

/// All of them may be tried for a token without a `kid`.
const KEYS_MAX: usize = 64;

//! Keys that sign.

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use ring::{hmac, rsa};
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::{Map, Value, json};

use super::jwk::Jwk;
use super::keys::{Key, hmac_key};
use super::pem::{self, Section};
use super::{Algorithm, der, keys};
use crate::base64url;
use crate::error::{KeyError, not_json};
use crate::key_text::refuse_key;

/// A key that signs. `Debug` does not show secrets.
#[derive(Debug)]
pub struct SigningKey {
    id: Option<String>,
    material: Box<Material>,
}

#[derive(Debug)]
enum Material {
    Ec(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Hmac(hmac::Key),
    Rsa(RsaKeyPair),
}

impl SigningKey {
    /// For HS256.
    ///
    /// # Errors
    /// As [`Keys::from_secret`](super::Keys::from_secret).
    pub fn from_secret(secret: &[u8]) -> Result<Self, KeyError> {
        refuse_key(secret)?;
        let key = hmac_key(secret).map_err(KeyError::new)?;
        Ok(Self { id: None, material: Box::new(Material::Hmac(key)) })
    }

    /// The private key of a PEM file: PKCS #8 of RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA), or
    /// PKCS #1 of RSA.
    ///
    /// # Errors
    /// The text is not PEM, or its first section is not a private key of these kinds.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let Ok(Section(kind, bytes)) = Section::from_pem_slice(text.as_bytes()) else {
            return Err(pem::not_private(text));
        };
        let material = match kind {
            SectionKind::PrivateKey => pkcs8(&bytes),
            SectionKind::RsaPrivateKey => {
                RsaKeyPair::from_der(&bytes).map_err(rejected).and_then(rsa_pair)
            }
            _ => return Err(pem::not_private(text)),
        };
        Ok(Self { id: None, material: Box::new(material.map_err(KeyError::new)?) })
    }

    /// A private JWK (RFC 7517). Tokens have its `kid` in their header.
    ///
    /// # Errors
    /// The text is not a JWK, or is of another kind or without private members.
    pub fn from_jwk(text: &str) -> Result<Self, KeyError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| KeyError::new(format!("the JWK {}", not_json(&error))))?;
        if value.get("keys").is_some() {
            return Err(KeyError::new(
                "it is a set of keys (JWKS): use a single private key of the set",
            ));
        }
        let jwk = Jwk::new(&value, "sign").map_err(KeyError::new)?;
        let material = private(&jwk).map_err(KeyError::new)?;
        Ok(Self { id: jwk.id(), material: Box::new(material) })
    }

    /// The same key with this name, which is sent as `kid` in the header.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Its algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match *self.material {
            Material::Ec(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
            Material::Hmac(_) => Algorithm::Hs256,
            Material::Rsa(_) => Algorithm::Rs256,
        }
    }

    /// The key that verifies the signatures of this one.
    #[must_use]
    pub fn verifying_key(&self) -> Key {
        let material = match &*self.material {
            Material::Ec(pair) => keys::Material::Ec(pair.public_key().as_ref().to_vec()),
            Material::Ed25519(pair) => keys::Material::Ed25519(pair.public_key().as_ref().to_vec()),
            Material::Hmac(key) => keys::Material::Hmac(key.clone()),
            Material::Rsa(pair) => keys::Material::Rsa(pair.public().into()),
        };
        Key { id: self.id.clone(), material }
    }

    /// Signs claims unchanged; nothing is added, not even `exp`.
    ///
    /// # Errors
    /// The system has no random numbers, which ES256 and RS256 need.
    pub fn sign(&self, claims: &Map<String, Value>) -> Result<String, KeyError> {
        let mut header = json!({"alg": self.algorithm().name(), "typ": "JWT"});
        if let Some(id) = &self.id {
            header["kid"] = id.as_str().into();
        }
        let claims = Value::Object(claims.clone()).to_string();
        self.sign_jws(&header.to_string(), claims.as_bytes())
    }

    /// Signs any payload with any header, whose `alg` should be this key's.
    ///
    /// # Errors
    /// As [`sign`](Self::sign).
    pub fn sign_jws(&self, header: &str, payload: &[u8]) -> Result<String, KeyError> {
        let mut token = format!("{}.{}", base64url::encode(header), base64url::encode(payload));
        let signature = self.signature(token.as_bytes())?;
        token.push('.');
        token.push_str(&base64url::encode(signature));
        Ok(token)
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        let signature = match &*self.material {
            Material::Ec(pair) => pair.sign(&random, message).map(|it| it.as_ref().to_vec()),
            Material::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Material::Hmac(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            Material::Rsa(pair) => rsa_signature(pair, message),
        };
        let why = "signing failed: the key is invalid, or the system has no randomness";
        signature.map_err(|_| KeyError::new(why))
    }
}

fn pkcs8(bytes: &[u8]) -> Result<Material, String> {
    match der::private_key_purpose(bytes).ok_or("it contains an invalid private key")? {
        Some(Algorithm::Es256) => {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, bytes, &SystemRandom::new())
                .map(Material::Ec)
                .map_err(rejected)
        }
        // OpenSSL leaves the public half out, so there may be nothing to compare.
        Some(Algorithm::EdDsa) => Ed25519KeyPair::from_pkcs8_maybe_unchecked(bytes)
            .map(Material::Ed25519)
            .map_err(rejected),
        Some(Algorithm::Rs256) => {
            RsaKeyPair::from_pkcs8(bytes).map_err(rejected).and_then(rsa_pair)
        }
        _ => Err("its key is neither RSA, P-256 nor Ed25519".to_owned()),
    }
}

fn private(jwk: &Jwk<'_>) -> Result<Material, String> {
    match jwk.algorithm {
        Algorithm::Es256 => {
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let (private, point) = (jwk.sized("d", 32)?, jwk.point()?);
            let random = SystemRandom::new();
            EcdsaKeyPair::from_private_key_and_public_key(algorithm, &private, &point, &random)
                .map(Material::Ec)
                .map_err(rejected)
        }
        Algorithm::EdDsa => {
            let (seed, public) = (jwk.sized("d", 32)?, jwk.sized("x", 32)?);
            Ed25519KeyPair::from_seed_and_public_key(&seed, &public)
                .map(Material::Ed25519)
                .map_err(rejected)
        }
        Algorithm::Hs256 => hmac_key(&jwk.bytes("k")?).map(Material::Hmac),
        Algorithm::Rs256 => {
            let components = rsa::KeyPairComponents {
                public_key: rsa::PublicKeyComponents { n: jwk.number("n")?, e: jwk.number("e")? },
                d: jwk.number("d")?,
                p: jwk.number("p")?,
                q: jwk.number("q")?,
                dP: jwk.number("dp")?,
                dQ: jwk.number("dq")?,
                qInv: jwk.number("qi")?,
            };
            RsaKeyPair::from_components(&components).map_err(rejected).and_then(rsa_pair)
        }
    }
}

/// `ring` checks each number of the key by itself, and each signature before it returns it: a trial
/// signature shows whether the numbers belong together.
fn rsa_pair(pair: RsaKeyPair) -> Result<Material, String> {
    let why = "the private key is invalid: its numbers do not belong together";
    rsa_signature(&pair, b"").map_err(|_| why)?;
    Ok(Material::Rsa(pair))
}

fn rsa_signature(pair: &RsaKeyPair, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)?;
    Ok(signature)
}

/// With the error of `ring`, which names the kind of fault without a part of the key.
fn rejected(error: ring::error::KeyRejected) -> String {
    format!("the private key is invalid: {error}")
}

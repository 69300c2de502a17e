//! The supported algorithms of JSON Web Tokens (RFC 7518 §3, RFC 8037 §3.1).

use std::fmt;

/// The algorithm of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519. Its `alg` is `EdDSA`, or `Ed25519` (RFC 9864).
    EdDsa,
    /// HMAC with SHA-256: a holder of the verification key can also sign.
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 4] = [Self::Es256, Self::EdDsa, Self::Hs256, Self::Rs256];

    /// The algorithm with this name in a token, case-sensitive.
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

    /// Its name in a token.
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

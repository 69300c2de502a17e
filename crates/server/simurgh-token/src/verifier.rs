//! Verifies and signs tokens of either format.

use std::time::Duration;

use serde_json::Value;

use crate::claims::Claims;
use crate::error::{KeyError, TokenError};
use crate::jwt::{self, Algorithm, Checks};
use crate::phoenix::{self, KeyOptions, MaxAge};

/// The accepted tokens. `Debug` does not show secrets.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Settings {
    /// JSON Web Tokens.
    Jwt(JwtSettings),
    /// Tokens of `Phoenix.Token.sign/4`.
    Phoenix(PhoenixSettings),
}

/// Settings for tokens that a Phoenix application signs.
#[derive(Clone)]
pub struct PhoenixSettings {
    /// The application's (`config :my_app, MyAppWeb.Endpoint, secret_key_base: …`).
    pub secret_key_base: String,
    /// The salt of `Phoenix.Token.sign(_, salt, _)`.
    pub salt: String,
    /// Maximum age of a token; none: as in the token, which is a day by default.
    pub max_age: Option<MaxAge>,
    /// The application's options with these names.
    pub key: KeyOptions,
    /// By how much the clocks of the two machines may differ. [`new`](Self::new): 5 s.
    pub leeway: Duration,
}

impl PhoenixSettings {
    /// With the defaults of Phoenix.
    pub fn new(secret_key_base: impl Into<String>, salt: impl Into<String>) -> Self {
        Self {
            secret_key_base: secret_key_base.into(),
            salt: salt.into(),
            max_age: None,
            key: KeyOptions::default(),
            leeway: crate::LEEWAY,
        }
    }
}

/// Settings for JSON Web Tokens.
#[derive(Debug, Clone)]
pub struct JwtSettings {
    /// The verification keys.
    pub keys: KeySource,
    /// The accepted algorithms; if empty, those of the keys.
    pub algorithms: Vec<Algorithm>,
    /// Checks of their claims.
    pub checks: Checks,
}

impl JwtSettings {
    /// With these keys, and the defaults of [`Checks`].
    #[must_use]
    pub fn new(keys: KeySource) -> Self {
        Self { keys, algorithms: Vec::new(), checks: Checks::default() }
    }
}

/// Keys as text. `Debug` does not show it.
#[derive(Clone)]
#[non_exhaustive]
pub enum KeySource {
    /// A set of JSON Web Keys, as an issuer publishes it.
    Jwks(String),
    /// Public keys in PEM.
    Pem(String),
    /// The secret of HS256.
    Secret(Vec<u8>),
}

impl std::fmt::Debug for PhoenixSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { secret_key_base: _, salt, max_age, key, leeway } = self;
        f.debug_struct("PhoenixSettings")
            .field("salt", salt)
            .field("max_age", max_age)
            .field("key", key)
            .field("leeway", leeway)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Jwks(_) => "Jwks",
            Self::Pem(_) => "Pem",
            Self::Secret(_) => "Secret",
        })
    }
}

/// Verifies tokens. Made once, used from any thread.
///
/// ```
/// use std::time::Duration;
/// use simurgh_token::{PhoenixSettings, Settings, Verifier};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let secret = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR";
/// let verifier = Verifier::new(Settings::Phoenix(PhoenixSettings::new(secret, "user socket")))?;
/// let now = Duration::from_secs(1_700_000_000);
/// let refused = verifier.verify("SFMyNTY.g2gDYSpuBgAAwMdJiwFiAAFRgA.AAAA", now).unwrap_err();
/// assert_eq!(refused.reason(), "invalid");
/// assert!(refused.is_forged());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Verifier {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Jwt { keys: jwt::Keys, checks: Checks },
    Phoenix { key: phoenix::Key, max_age: Option<MaxAge>, leeway: Duration },
}

impl Verifier {
    /// Loads the keys. Deriving a Phoenix key takes a millisecond.
    ///
    /// # Errors
    /// Keys that cannot be read, are too weak, or are all for other algorithms.
    pub fn new(settings: Settings) -> Result<Self, KeyError> {
        let kind = match settings {
            Settings::Jwt(JwtSettings { keys, algorithms, checks }) => {
                let keys = match keys {
                    KeySource::Jwks(text) => jwt::Keys::from_jwks(&text),
                    KeySource::Pem(text) => jwt::Keys::from_pem(&text),
                    KeySource::Secret(secret) => jwt::Keys::from_secret(&secret),
                };
                Kind::Jwt { keys: keys?.only_for(&algorithms)?, checks }
            }
            Settings::Phoenix(PhoenixSettings { secret_key_base, salt, max_age, key, leeway }) => {
                let key = phoenix::Key::derive_with(&secret_key_base, &salt, &key)?;
                Kind::Phoenix { key, max_age, leeway }
            }
        };
        Ok(Self { kind })
    }

    /// With loaded keys.
    #[must_use]
    pub fn of_keys(keys: jwt::Keys, checks: Checks) -> Self {
        Self { kind: Kind::Jwt { keys, checks } }
    }

    /// The accepted difference of clocks: a token is accepted for that much longer.
    #[must_use]
    pub fn leeway(&self) -> Duration {
        match &self.kind {
            Kind::Jwt { checks, .. } => checks.leeway,
            Kind::Phoenix { leeway, .. } => *leeway,
        }
    }

    /// The keys of a set that are not used, with their reasons, for a log.
    #[must_use]
    pub fn skipped_keys(&self) -> &[jwt::Skipped] {
        match &self.kind {
            Kind::Jwt { keys, .. } => keys.skipped(),
            Kind::Phoenix { .. } => &[],
        }
    }

    /// Verifies a token; `now` is since the Unix epoch.
    ///
    /// # Errors
    /// The token is refused; [`TokenError::reason`] is for its client.
    pub fn verify(&self, token: &str, now: Duration) -> Result<Claims, TokenError> {
        match &self.kind {
            Kind::Jwt { keys, checks } => keys.verify(token, checks, now),
            Kind::Phoenix { key, max_age, leeway } => {
                let signed = key.verify(token, *max_age, *leeway, now)?;
                let second = |ms: i64| u64::try_from(ms).unwrap_or(0) / 1000;
                let (issued_at, expires_at) =
                    (second(signed.signed_at_ms), signed.expires_at_ms().map(second));
                Ok(Claims::of_data(signed.data, Some(issued_at), expires_at))
            }
        }
    }
}

/// Signs tokens.
#[derive(Debug)]
#[non_exhaustive]
pub enum Signer {
    /// JSON Web Tokens.
    Jwt(jwt::SigningKey),
    /// Tokens that `Phoenix.Token.verify/4` reads.
    Phoenix(phoenix::Key),
}

impl Signer {
    /// Makes a token with `data`, signed at `now` (since the Unix epoch) and valid for `lifetime`;
    /// without it, for ever.
    ///
    /// A JWT gets `iat` and `exp`, unless `data` has them.
    ///
    /// # Errors
    /// For a JWT, data that is not an object; for Phoenix, data that is nested too deep.
    pub fn mint(
        &self,
        data: &Value,
        now: Duration,
        lifetime: Option<Duration>,
    ) -> Result<String, KeyError> {
        match self {
            Self::Phoenix(key) => {
                key.sign(data, now, lifetime.map_or(MaxAge::Infinity, MaxAge::Within))
            }
            Self::Jwt(key) => {
                let Value::Object(claims) = data else {
                    return Err(KeyError::new("the claims of a JWT are a JSON object"));
                };
                let mut claims = claims.clone();
                claims.entry("iat").or_insert_with(|| now.as_secs().into());
                if let Some(lifetime) = lifetime {
                    let until = now.saturating_add(lifetime).as_secs();
                    claims.entry("exp").or_insert_with(|| until.into());
                }
                key.sign(&claims)
            }
        }
    }
}

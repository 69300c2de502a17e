//! What a server holds to know whom it talks to.

use std::time::Duration;

use serde_json::Value;

use crate::claims::Claims;
use crate::error::{KeyError, TokenError};
use crate::jwt::{self, Algorithm, Checks};
use crate::phoenix::{self, KeyOptions, MaxAge};

/// What tokens are expected. `Debug` does not show secrets.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Settings {
    /// JSON Web Tokens.
    Jwt(JwtSettings),
    /// Those of `Phoenix.Token.sign/4`.
    Phoenix(PhoenixSettings),
}

/// Of tokens that a Phoenix application signs.
#[derive(Clone)]
pub struct PhoenixSettings {
    /// The application's (`config :my_app, MyAppWeb.Endpoint, secret_key_base: …`).
    pub secret_key_base: String,
    /// What is given to `Phoenix.Token.sign(_, salt, _)`.
    pub salt: String,
    /// How old a token may be; none: as old as it says itself, which is a day by default.
    pub max_age: Option<MaxAge>,
    /// The options of these names, if the application has any.
    pub key: KeyOptions,
    /// By how much the clocks of the two machines may differ. [`new`](Self::new): 5 s.
    pub leeway: Duration,
}

impl PhoenixSettings {
    /// As Phoenix has it where nothing else is said.
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

/// Of JSON Web Tokens.
#[derive(Debug, Clone)]
pub struct JwtSettings {
    /// The keys they are signed by.
    pub keys: KeySource,
    /// How they may be signed; none named: by whatever the keys are for.
    pub algorithms: Vec<Algorithm>,
    /// What their claims have to say.
    pub checks: Checks,
}

impl JwtSettings {
    /// By these keys, with the defaults of [`Checks`].
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

/// Tells good tokens from others. Made once, used from any thread.
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
    /// Reads the keys. Of those of Phoenix that takes a millisecond.
    ///
    /// # Errors
    /// Keys that cannot be read, are too weak, or are for no algorithm that is allowed.
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

    /// With keys that have been read already.
    #[must_use]
    pub fn of_keys(keys: jwt::Keys, checks: Checks) -> Self {
        Self { kind: Kind::Jwt { keys, checks } }
    }

    /// By how much clocks may differ: a token is taken for so much longer than it says.
    #[must_use]
    pub fn leeway(&self) -> Duration {
        match &self.kind {
            Kind::Jwt { checks, .. } => checks.leeway,
            Kind::Phoenix { leeway, .. } => *leeway,
        }
    }

    /// The keys of a set that are not used, and why: for a log.
    #[must_use]
    pub fn skipped_keys(&self) -> &[jwt::Skipped] {
        match &self.kind {
            Kind::Jwt { keys, .. } => keys.skipped(),
            Kind::Phoenix { .. } => &[],
        }
    }

    /// Looks at a token; `now` is since the Unix epoch.
    ///
    /// # Errors
    /// What is wrong with it; [`TokenError::reason`] is for its client.
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

/// What makes tokens.
#[derive(Debug)]
#[non_exhaustive]
pub enum Signer {
    /// JSON Web Tokens.
    Jwt(jwt::SigningKey),
    /// Those that `Phoenix.Token.verify/4` reads.
    Phoenix(phoenix::Key),
}

impl Signer {
    /// Makes a token that says `data`, signed `now` (since the Unix epoch) and good for `lifetime`;
    /// none: for ever.
    ///
    /// A JWT gets `iat` and `exp`, unless `data` has them.
    ///
    /// # Errors
    /// Data that is no object, for a JWT; what is nested too deep, for Phoenix.
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

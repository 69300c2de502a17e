//! Verifies and signs tokens of either format.

use std::time::Duration;

use serde_json::Value;

use crate::claims::Claims;
use crate::error::{KeyError, TokenError};
use crate::jwt::{self, Algorithm, Checks};
use crate::key_text::refuse_key;
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

impl KeySource {
    /// Recognises public keys by their form, PEM or JSON. Everything else is the secret of HS256 if
    /// the caller says so by `is_secret`, never by default: everybody who can read a public key
    /// could sign with it.
    ///
    /// # Errors
    /// Keys in another form, whatever the caller says, and what is not recognised.
    pub fn recognise(bytes: &[u8], is_secret: bool) -> Result<Self, KeyError> {
        let text = std::str::from_utf8(bytes).ok();
        let text = text.map(|text| text.trim_start_matches('\u{feff}').trim_start());
        match text {
            Some(text) if text.starts_with('{') => return Ok(Self::Jwks(text.to_owned())),
            Some(text) if text.starts_with('[') => {
                let why = "it is a list of keys: write a set as {\"keys\": [ … ]}";
                return Err(KeyError::new(why));
            }
            Some(text) if text.contains("-----BEGIN ") => return Ok(Self::Pem(text.to_owned())),
            _ => {}
        }
        refuse_key(bytes)?;
        if is_secret {
            return Ok(Self::Secret(bytes.to_vec()));
        }
        Err(KeyError::new(
            "it is neither PEM nor JSON. If it is a secret for HS256, add algorithms = \
             [\"HS256\"] to the file, or --secret on the command line",
        ))
    }
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

    /// Verifies a token; `now` is the time since the Unix epoch.
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
                Ok(Claims::new(signed.data, Some(issued_at), expires_at))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_text::BASE64;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE as BASE64URL;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    const SPKI: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgU\
        g2R9q9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==";
    /// As `mix phx.gen.secret` makes it.
    const SECRET: &str = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR";

    fn hex(bytes: &[u8], separator: &str) -> String {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<Vec<_>>().join(separator)
    }

    fn kind(bytes: impl AsRef<[u8]>, is_secret: bool) -> String {
        match KeySource::recognise(bytes.as_ref(), is_secret) {
            Ok(source) => format!("{source:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn public_key_in_any_form_is_not_a_secret() {
        let der = BASE64.decode(SPKI).unwrap();
        let hex = hex(&der, "");
        let point = BASE64.encode(&der[der.len() - 65..]);
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{SPKI}\n-----END PUBLIC KEY-----\n");
        let utf16: Vec<u8> = pem.encode_utf16().flat_map(|unit| unit.to_le_bytes()).collect();
        let jwk = r#"{"kty":"EC","crv":"P-256","x":"EVs","y":"9KI"}"#;
        for is_secret in [false, true] {
            for form in [
                SPKI.as_bytes(),
                &der,
                hex.as_bytes(),
                hex.to_uppercase().as_bytes(),
                point.as_bytes(),
                BASE64URL.encode(&der).as_bytes(),
                BASE64.encode(&pem).as_bytes(),
                BASE64.encode(jwk).as_bytes(),
                &utf16,
                b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8x user@host",
                b"ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY= user@host",
                b"AAAAC3NzaC1lZDI1NTE5AAAAIDQVjXOLPE0oBs3zbbQZb3sBz6yb7uG+PZUj6Vd5Cb7t",
                b"---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----",
                format!("[{jwk}]").as_bytes(),
            ] {
                let found = kind(form, is_secret);
                assert!(found != "Secret", "{}", String::from_utf8_lossy(form));
            }
            assert_eq!(kind(format!("\u{feff}{pem}"), is_secret), "Pem");
            assert_eq!(kind(format!("my key\n{pem}"), is_secret), "Pem");
            assert_eq!(kind(format!("\u{feff} {jwk}"), is_secret), "Jwks");
        }
    }

    #[test]
    fn text_is_a_secret_only_if_declared() {
        let hex_of_32 = "0123456789abcdef".repeat(4);
        let base64_of_32 = BASE64.encode([7; 32]);
        let phrase = "a passphrase of more than thirty-two characters";
        let url = "https://id.example/.well-known/jwks.json";
        for text in [SECRET, phrase, &hex_of_32, &base64_of_32, url, "/etc/key.pem"] {
            assert!(kind(text, false).contains("algorithms = [\"HS256\"]"), "{text}");
            assert_eq!(kind(text, true), "Secret", "{text}");
        }
    }

    #[test]
    fn encoded_public_key_is_not_a_secret() {
        let der = BASE64.decode(SPKI).unwrap();
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{SPKI}\n-----END PUBLIC KEY-----\n");
        let jwks = "{\n  \"keys\": [ {\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"EVs\"} ]\n}";
        let percent: String = pem.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let base64 = |text: &str| BASE64.encode(text);
        let lines = |before: &str| {
            let parts = SPKI.as_bytes().chunks(64).map(String::from_utf8_lossy);
            parts.map(|part| format!("{before}{part}\n")).collect::<String>()
        };
        let dump: Vec<String> = der[..16].chunks(2).map(|pair| hex(pair, "")).collect();
        for form in [
            hex(&der, ":"),
            format!("0x{}", hex(&der, ", 0x")),
            format!("PUBLIC_KEY=\"{SPKI}\""),
            format!("PUBLIC_KEY={}", hex(&der, "")),
            format!("'{SPKI}'"),
            base64(SPKI),
            base64(&base64(SPKI)),
            base64(jwks),
            base64(&format!("[{jwks}]")),
            base64(&format!("\u{feff}{pem}")),
            base64(&format!("\nBag Attributes: <No Attributes>\n{pem}")),
            format!("data:application/x-pem-file;base64,{}", base64(&pem)),
            percent.clone(),
            base64(&percent),
            SPKI.replace('+', "%2B").replace('/', "%2F"),
            format!("{jwks:?}"),
            "Public-Key: (256 bit)\npub:\n    04:11:5b:3f:a3:9f:ae:41:b4:e3".to_owned(),
            format!("Modulus={}", "C0FFEE".repeat(40)),
            format!("<RSAKeyValue><Exponent>AQAB</Exponent>{}</RSAKeyValue>", "A".repeat(40)),
            format!("{SPKI}\n{SPKI}"),
            format!("RS256 {SPKI}"),
            format!("kid1 {SPKI} comment"),
            format!("BEGIN PUBLIC KEY\n{SPKI}\nEND PUBLIC KEY"),
            lines("> "),
            lines("1 "),
            lines("+"),
            SPKI.replace('+', "\\u002B"),
            "kty = \"EC\"\nx = \"EVs\"".to_owned(),
            "kty=RSA&n=12".to_owned(),
            format!("00000000: {} 0Y0.\n", dump.join(" ")),
            format!("00000000  {}  |0Y0.|\n", dump.join(" ")),
            "Sun RSA public key\n  modulus: 1203\n  public exponent: 65537".to_owned(),
            format!("{}.eyJzdWIiOiJ1In0.c2ln", BASE64URL.encode("{\"alg\":\"HS256\"}")),
            "sb_publishable_ACJWlzQHlZjBrEguHvfOxg_3BJgxAaH".to_owned(),
        ] {
            assert_ne!(kind(&form, true), "Secret", "{form}");
        }
        for (name, file) in [("bzip2", &b"BZh91AY&SY"[..]), ("xz", b"\xfd7zXZ\0\0\x04")] {
            assert_ne!(kind([file, &[7; 40][..]].concat(), true), "Secret", "{name}");
        }
        assert_ne!(kind([&der, &b"end"[..]].concat(), true), "Secret", "something behind it");
        let gzip = [&[0x1f, 0x8b, 8, 0], &[7; 40][..]].concat();
        assert_ne!(kind(base64(&hex(&gzip, "")), true), "Secret");
        for end in ["\n", "\r\n\n", "\0", "\n\0"] {
            assert_ne!(kind([&der, end.as_bytes()].concat(), true), "Secret", "{end:?}");
        }
        assert_ne!(kind(&der[..der.len() - 1], true), "Secret", "a final 0x0a is cut off");
        assert!(kind(format!("\u{feff}{SECRET}"), true).contains("byte order mark"));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(7),
            failure_persistence: None,
            ..ProptestConfig::with_cases(300)
        })]

        #[test]
        fn random_secret_is_accepted_in_every_encoding(
            secret in prop::collection::vec(any::<u8>(), 32..=64),
        ) {
            let texts = [hex(&secret, ""), BASE64.encode(&secret), BASE64URL.encode(&secret)];
            prop_assert_eq!(kind(&secret, true), "Secret");
            for text in texts {
                prop_assert_eq!(kind(&text, true), "Secret", "{}", text);
            }
        }
    }
}

//! `Phoenix.Token`: the format of `Phoenix.Token.sign/4` and `verify/4` of Phoenix 1.4 to 1.8.
//!
//! ```text
//! SFMyNTY . base64url(term_to_binary({data, signed_ms, max_age_s})) . base64url(HMAC-SHA256)
//! ```
//! The HMAC covers everything before the second dot, with a key that PBKDF2 derives from
//! `secret_key_base` and a salt. The source is plug_crypto 2.1 (`Plug.Crypto`,
//! `Plug.Crypto.MessageVerifier`, `Plug.Crypto.KeyGenerator`), which Phoenix calls. Payloads of
//! older versions are accepted as there: `{data, signed_ms}` and
//! `%{data: data, signed: signed_ms}`, valid for a day.
//!
//! ```
//! use std::time::Duration;
//! use simurgh_token::phoenix::{Key, MaxAge};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // token = Phoenix.Token.sign(MyAppWeb.Endpoint, "user socket", user.id)
//! let key = Key::derive("as `mix phx.gen.secret` prints it, 64 characters", "user socket")?;
//! let now = Duration::from_secs(1_700_000_000);
//! let token = key.sign(&42.into(), now, MaxAge::DAY)?;
//! let signed = key.verify(&token, None, Duration::ZERO, now + Duration::from_secs(5))?;
//! assert_eq!(signed.data, 42);
//! # Ok(())
//! # }
//! ```

use std::num::NonZeroU32;
use std::time::Duration;

use ring::{hmac, pbkdf2};
use serde_json::Value;

use crate::base64url::decode_part;
use crate::error::{KeyError, Part, TokenError};
use crate::etf::Element;
use crate::key_text::refuse_key;
use crate::{base64url, etf, millis};

/// How long a token is valid, from its signing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxAge {
    /// Without an end: Phoenix's `:infinity`.
    Infinity,
    /// For this long; with zero a token is never valid.
    Within(Duration),
}

impl MaxAge {
    /// The default of Phoenix.
    pub const DAY: Self = Self::Within(Duration::from_secs(86_400));
}

/// A hash function, of PBKDF2 or of the HMAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Digest {
    /// SHA-256, `:sha256`.
    #[default]
    Sha256,
    /// SHA-384, `:sha384`.
    Sha384,
    /// SHA-512, `:sha512`.
    Sha512,
}

impl Digest {
    const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The first part of a token, the name of the HMAC in JWTs, and the functions.
    fn of(self) -> (&'static str, &'static str, hmac::Algorithm, pbkdf2::Algorithm) {
        match self {
            Self::Sha256 => ("SFMyNTY", "HS256", hmac::HMAC_SHA256, pbkdf2::PBKDF2_HMAC_SHA256),
            Self::Sha384 => ("SFMzODQ", "HS384", hmac::HMAC_SHA384, pbkdf2::PBKDF2_HMAC_SHA384),
            Self::Sha512 => ("SFM1MTI", "HS512", hmac::HMAC_SHA512, pbkdf2::PBKDF2_HMAC_SHA512),
        }
    }

    fn protected(self) -> &'static str {
        self.of().0
    }

    pub(crate) fn name(self) -> &'static str {
        self.of().1
    }
}

/// How a key is derived from `secret_key_base` and salt: the options of `Phoenix.Token` with these
/// names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyOptions {
    /// Rounds of PBKDF2. Default: 1000.
    pub key_iterations: NonZeroU32,
    /// Bytes of the key, at most 4096. Default: 32.
    pub key_length: usize,
    /// Default: SHA-256.
    pub key_digest: Digest,
}

impl Default for KeyOptions {
    fn default() -> Self {
        let key_iterations = NonZeroU32::MIN.saturating_add(999);
        Self { key_iterations, key_length: 32, key_digest: Digest::Sha256 }
    }
}

/// A key that signs and verifies. `Debug` does not show it.
#[derive(Debug, Clone)]
pub struct Key {
    /// One for each [`Digest::ALL`]: a token names its digest.
    keys: Box<[hmac::Key; 3]>,
}

/// The contents of a token with a verified signature and age.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Signed {
    /// Its data.
    pub data: Value,
    /// Time of signing, milliseconds since the Unix epoch.
    pub signed_at_ms: i64,
    /// How long it is valid: as requested, otherwise as in the token.
    pub max_age: MaxAge,
}

impl Signed {
    /// The last millisecond since the Unix epoch at which it is valid; none if it never expires.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<i64> {
        match self.max_age {
            MaxAge::Infinity => None,
            MaxAge::Within(age) => Some(self.signed_at_ms.saturating_add(millis(age))),
        }
    }
}

impl Key {
    /// The key that Phoenix derives from the same arguments by default. Takes a millisecond: store
    /// it.
    ///
    /// # Errors
    /// A `secret_key_base` of less than 20 bytes, which Phoenix refuses as well.
    pub fn derive(secret_key_base: &str, salt: &str) -> Result<Self, KeyError> {
        Self::derive_with(secret_key_base, salt, &KeyOptions::default())
    }

    /// The same with options. `secret_key_base` is used as text and not decoded, as in Phoenix.
    ///
    /// # Errors
    /// As [`derive`](Self::derive); a length of zero or of more than 4096 bytes.
    pub fn derive_with(
        secret_key_base: &str,
        salt: &str,
        options: &KeyOptions,
    ) -> Result<Self, KeyError> {
        refuse_key(secret_key_base.as_bytes())?;
        let bytes = secret_key_base.len();
        if bytes < SECRET_KEY_BASE_BYTES_MIN {
            return Err(KeyError::new(format!(
                "secret_key_base has {bytes} bytes, but needs at least \
                 {SECRET_KEY_BASE_BYTES_MIN}: create one with `mix phx.gen.secret`"
            )));
        }
        if options.key_length == 0 || options.key_length > KEY_BYTES_MAX {
            let why = format!("key_length is {}, not 1 to {KEY_BYTES_MAX}", options.key_length);
            return Err(KeyError::new(why));
        }
        let mut key = vec![0; options.key_length];
        let (salt, secret) = (salt.as_bytes(), secret_key_base.as_bytes());
        let (.., pbkdf2) = options.key_digest.of();
        pbkdf2::derive(pbkdf2, options.key_iterations, salt, secret, &mut key);
        let keys = Digest::ALL.map(|digest| hmac::Key::new(digest.of().2, &key));
        Ok(Self { keys: Box::new(keys) })
    }

    /// Signs `data`, as `Phoenix.Token.sign(_, salt, data, signed_at: …, max_age: …)` does.
    ///
    /// `signed_at` is since the Unix epoch. Objects become maps with strings as keys, so that a
    /// Phoenix application receives `%{"user_id" => 42}`.
    ///
    /// # Errors
    /// Data that is nested deeper than [`etf::DEPTH_MAX`].
    pub fn sign(
        &self,
        data: &Value,
        signed_at: Duration,
        max_age: MaxAge,
    ) -> Result<String, KeyError> {
        let signed_ms = Value::from(millis(signed_at));
        let seconds = match max_age {
            MaxAge::Infinity => None,
            MaxAge::Within(age) if age.subsec_nanos() == 0 => Some(Value::from(age.as_secs())),
            MaxAge::Within(age) => Some(Value::from(age.as_secs_f64())),
        };
        let max_age = seconds.as_ref().map_or(Element::Atom(INFINITY), Element::Value);
        let elements = [Element::Value(data), Element::Value(&signed_ms), max_age];
        let term = etf::encode_tuple(&elements)
            .map_err(|error| KeyError::new(format!("the data cannot be signed: {error}")))?;
        Ok(self.sign_payload(&term))
    }

    fn sign_payload(&self, payload: &[u8]) -> String {
        let [key, ..] = &*self.keys;
        let mut token = format!("{}.{}", Digest::Sha256.protected(), base64url::encode(payload));
        let tag = hmac::sign(key, token.as_bytes());
        token.push('.');
        token.push_str(&base64url::encode(tag));
        token
    }

    /// Verifies a token and decodes it.
    ///
    /// `max_age` overrides that of the token; `now` is since the Unix epoch. The clocks of the two
    /// machines may differ by `leeway`: a token may be that much older, or that far in the future.
    /// Without leeway the result is that of `Phoenix.Token.verify/4`.
    ///
    /// # Errors
    /// The first that applies: missing, too long, malformed, forged, a payload that is not that of
    /// a `Phoenix.Token` or has no equivalent in JSON, expired or not yet valid.
    pub fn verify(
        &self,
        token: &str,
        max_age: Option<MaxAge>,
        leeway: Duration,
        now: Duration,
    ) -> Result<Signed, TokenError> {
        let parts = Parts::of(token)?;
        let [sha256, sha384, sha512] = &*self.keys;
        let key = match parts.digest {
            Digest::Sha256 => sha256,
            Digest::Sha384 => sha384,
            Digest::Sha512 => sha512,
        };
        // Compares in constant time.
        hmac::verify(key, parts.message.as_bytes(), &parts.tag)
            .map_err(|_| TokenError::Signature)?;
        let mut signed = read(&parts.payload)?;
        signed.max_age = max_age.unwrap_or(signed.max_age);
        check_age(&signed, millis(leeway), millis(now))?;
        Ok(signed)
    }
}

pub(crate) struct Parts<'a> {
    pub(crate) digest: Digest,
    message: &'a str,
    payload: Vec<u8>,
    pub(crate) tag: Vec<u8>,
}

impl<'a> Parts<'a> {
    pub(crate) fn of(token: &'a str) -> Result<Self, TokenError> {
        crate::check_length(token)?;
        let mut parts = token.split('.');
        let (Some(protected), Some(payload), Some(tag), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(match is_encrypted(token) {
                true => TokenError::Encrypted,
                false => TokenError::malformed(Part::Whole, crate::THREE_PARTS),
            });
        };
        let Some(digest) = Digest::ALL.into_iter().find(|it| it.protected() == protected) else {
            let why = match protected.starts_with("eyJ") {
                true => "this is a JWT, but a Phoenix.Token was expected",
                false => "a Phoenix.Token begins with SFMyNTY (HS256), SFMzODQ or SFM1MTI",
            };
            return Err(TokenError::malformed(Part::Header, why));
        };
        let message = token.get(..protected.len() + 1 + payload.len()).unwrap_or_default();
        let payload = decode_part(payload, Part::Payload)?;
        let tag = decode_part(tag, Part::Signature)?;
        Ok(Self { digest, message, payload, tag })
    }

    pub(crate) fn unverified(&self) -> Result<Signed, TokenError> {
        read(&self.payload)
    }
}

/// Whether a text begins like a signed token of Phoenix.
pub(crate) fn is_phoenix(token: &str) -> bool {
    let protected = token.split('.').next().unwrap_or_default();
    Digest::ALL.iter().any(|digest| digest.protected() == protected)
}

/// Whether a text begins like a token of `Plug.Crypto.MessageEncryptor`: `XCP`, or base64url of
/// `A128GCM` and so on.
pub(crate) fn is_encrypted(token: &str) -> bool {
    let protected = token.split('.').next().unwrap_or_default();
    matches!(protected, "XCP" | "QTEyOEdDTQ" | "QTE5MkdDTQ" | "QTI1NkdDTQ")
}

fn read(payload: &[u8]) -> Result<Signed, TokenError> {
    let malformed = |why: String| TokenError::malformed(Part::Payload, why);
    let term = etf::decode(payload).map_err(|error| malformed(error.to_string()))?;
    let (data, signed, max_age) = match term {
        Value::Array(elements) if etf::is_tuple(payload) => {
            let mut elements = elements.into_iter();
            let (data, signed) = (elements.next(), elements.next());
            let max_age = elements.next();
            match elements.next() {
                None => (data, signed, max_age),
                Some(_) => (None, None, None),
            }
        }
        Value::Object(mut map) => (map.remove("data"), map.remove("signed"), map.remove("max_age")),
        _ => (None, None, None),
    };
    let Some((data, signed)) = data.zip(signed) else {
        let why = "it was signed, but not by Phoenix.Token: it is not {data, signed, max_age}";
        return Err(malformed(why.to_owned()));
    };
    let Some(signed_at_ms) = signed.as_i64() else {
        return Err(malformed("its signing time is not a whole number".to_owned()));
    };
    let max_age = match max_age {
        None => MaxAge::DAY,
        Some(max_age) => age(&max_age)
            .ok_or_else(|| malformed("max_age is neither seconds nor :infinity".to_owned()))?,
    };
    Ok(Signed { data, signed_at_ms, max_age })
}

fn age(value: &Value) -> Option<MaxAge> {
    if value.as_str() == Some(INFINITY) {
        return Some(MaxAge::Infinity);
    }
    if let Some(seconds) = value.as_u64() {
        return Some(MaxAge::Within(Duration::from_secs(seconds)));
    }
    // Negative ages count as zero.
    let seconds = value.as_f64()?.max(0.0);
    Duration::try_from_secs_f64(seconds).ok().map(MaxAge::Within)
}

fn check_age(signed: &Signed, leeway_ms: i64, now_ms: i64) -> Result<(), TokenError> {
    let Some(expires_at_ms) = signed.expires_at_ms() else { return Ok(()) };
    let beyond = |from: i64, to: i64| Duration::from_millis(to.saturating_sub(from).unsigned_abs());
    if signed.max_age == MaxAge::Within(Duration::ZERO) {
        return Err(TokenError::Expired { ago: beyond(expires_at_ms, now_ms) });
    }
    if signed.signed_at_ms > now_ms.saturating_add(leeway_ms) {
        let after = beyond(now_ms, signed.signed_at_ms);
        return Err(TokenError::NotYetValid { claim: "signed", after });
    }
    if expires_at_ms.saturating_add(leeway_ms) < now_ms {
        return Err(TokenError::Expired { ago: beyond(expires_at_ms, now_ms) });
    }
    Ok(())
}

const INFINITY: &str = "infinity";

const SECRET_KEY_BASE_BYTES_MIN: usize = 20;

/// Far more than an HMAC uses.
const KEY_BYTES_MAX: usize = 4096;

//! The contents of a token for display, unverified.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::claims::{subject, text};
use crate::error::{TokenError, short, words};
use crate::jwt::{self, Algorithm};
use crate::phoenix;

/// Decodes a token without a key.
///
/// ```
/// use std::time::Duration;
/// use serde_json::json;
/// use simurgh_token::Signer;
/// use simurgh_token::jwt::SigningKey;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = SigningKey::from_secret(b"a secret of thirty-two bytes or more")?;
/// let now = Duration::from_secs(1_700_000_000);
/// let token = Signer::Jwt(key).mint(&json!({"sub": "alice"}), now, Some(now / 1_000))?;
///
/// let inspection = simurgh_token::inspect(&token)?;
/// assert_eq!(inspection.algorithm, "HS256");
/// assert_eq!(inspection.expires_at, Some(1_701_700_000.0));
/// let text = inspection.text(now);
/// assert!(text.contains("expires    2023-12-04T14:26:40Z, in 19days 16h"), "{text}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// It is not a token, or is encrypted.
pub fn inspect(token: &str) -> Result<Inspection, TokenError> {
    if phoenix::is_phoenix(token) {
        return of_phoenix(&phoenix::Parts::of(token)?);
    }
    if phoenix::is_encrypted(token) {
        return Err(TokenError::Encrypted);
    }
    of_jwt(&jwt::Parts::of(token)?)
}

/// The contents of a token, unverified.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Inspection {
    /// Its format.
    pub format: Format,
    /// Its algorithm by `alg`.
    pub algorithm: String,
    /// The header of a JWT; empty for a `Phoenix.Token`.
    pub header: Map<String, Value>,
    /// The claims of a JWT, or the data of a `Phoenix.Token`.
    pub claims: Value,
    /// Its user, as [`Claims::subject`](crate::Claims::subject).
    pub subject: Option<String>,
    /// When it was signed, in seconds since the Unix epoch.
    pub issued_at: Option<f64>,
    /// When it becomes valid, in seconds since the Unix epoch.
    pub not_before: Option<f64>,
    /// When it expires, in seconds since the Unix epoch.
    pub expires_at: Option<f64>,
    /// The length of its signature.
    pub signature_bytes: usize,
}

/// The format of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON Web Token.
    Jwt,
    /// A `Phoenix.Token`.
    Phoenix,
}

impl Format {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jwt => "JWT",
            Self::Phoenix => "Phoenix.Token",
        }
    }
}

impl Inspection {
    /// As lines of text, with times relative to `now`, which is since the Unix epoch.
    #[must_use]
    pub fn text(&self, now: Duration) -> String {
        let mut lines = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(lines, "{name:<10} {value}");
        };
        line("format", self.format.name());
        line("algorithm", &self.described_algorithm());
        if let Some(id) = self.header.get("kid").and_then(text) {
            line("key", &short(&id));
        }
        if let Some(subject) = &self.subject {
            line("subject", &short(subject));
        }
        let time = |seconds: f64| when(seconds, now.as_secs_f64());
        if let Some(issued_at) = self.issued_at {
            line("signed", &time(issued_at));
        }
        if let Some(not_before) = self.not_before {
            line("not before", &time(not_before));
        }
        line("expires", &self.expires_at.map_or_else(|| "never".to_owned(), time));
        line("signature", &format!("{} bytes", self.signature_bytes));
        if self.format == Format::Jwt {
            let _ = writeln!(lines, "header     {}", Value::Object(self.header.clone()));
        }
        let claims = serde_json::to_string_pretty(&self.claims).unwrap_or_default();
        let _ = writeln!(lines, "claims     {claims}");
        lines
    }

    /// As a JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "format": self.format.name(),
            "algorithm": self.algorithm,
            "header": self.header,
            "claims": self.claims,
            "subject": self.subject,
            "issued_at": self.issued_at,
            "not_before": self.not_before,
            "expires_at": self.expires_at,
            "signature_bytes": self.signature_bytes,
        })
    }

    fn described_algorithm(&self) -> String {
        let name = &self.algorithm;
        match (self.format, Algorithm::named(name)) {
            (Format::Phoenix, _) => format!("{name}, by secret_key_base and a salt"),
            _ if name.eq_ignore_ascii_case("none") => {
                format!("{name}: it is not signed, and no server may accept it")
            }
            (_, Some(Algorithm::Hs256)) => format!("{name}, by a shared secret"),
            (_, Some(_)) => format!("{name}, by a private key"),
            (_, None) => format!("{}, which is unknown", short(name)),
        }
    }
}

fn of_phoenix(parts: &phoenix::Parts<'_>) -> Result<Inspection, TokenError> {
    let signed = parts.unverified()?;
    let seconds = |ms: i64| ms as f64 / 1000.0;
    Ok(Inspection {
        format: Format::Phoenix,
        algorithm: parts.digest.name().to_owned(),
        header: Map::new(),
        subject: subject(&signed.data),
        issued_at: Some(seconds(signed.signed_at_ms)),
        not_before: None,
        expires_at: signed.expires_at_ms().map(seconds),
        claims: signed.data,
        signature_bytes: parts.tag.len(),
    })
}

fn of_jwt(parts: &jwt::Parts<'_>) -> Result<Inspection, TokenError> {
    let claims = parts.claims()?;
    let time = |claim| jwt::seconds(&claims, claim);
    let (issued_at, not_before, expires_at) = (time("iat")?, time("nbf")?, time("exp")?);
    let claims = Value::Object(claims);
    Ok(Inspection {
        format: Format::Jwt,
        algorithm: parts.algorithm()?.to_owned(),
        header: parts.header.clone(),
        subject: subject(&claims),
        issued_at,
        not_before,
        expires_at,
        claims,
        signature_bytes: parts.signature.len(),
    })
}

/// A time in RFC 3339, and its distance from now.
fn when(seconds: f64, now: f64) -> String {
    let distance = Duration::try_from_secs_f64((seconds - now).abs()).unwrap_or(Duration::MAX);
    let distance = match seconds < now {
        true => format!("{} ago", words(distance)),
        false => format!("in {}", words(distance)),
    };
    // The last year in RFC 3339 is 9999.
    let date = Duration::try_from_secs_f64(seconds.floor()).ok();
    let date = date.filter(|date| date.as_secs() < 253_402_300_800);
    match date.and_then(|date| UNIX_EPOCH.checked_add(date)) {
        Some(date) => format!("{}, {distance}", humantime::format_rfc3339_seconds(date)),
        None => format!("{seconds} s since 1970, {distance}"),
    }
}

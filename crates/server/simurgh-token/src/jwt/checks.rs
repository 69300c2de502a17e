//! Checks of the claims of a signed token.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::claims::Claims;
use crate::error::{Part, TokenError};

/// Checks of a JWT's claims (RFC 7519 §4.1), after its signature was verified.
///
/// `exp`, `nbf` and `iat` are always checked if present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checks {
    /// By how much the clocks of issuer and server may differ. Default: 5 s.
    pub leeway: Duration,
    /// The accepted values of `iss`. Default: none, and it is not checked.
    pub issuers: Vec<String>,
    /// The accepted values of `aud`, one of which it must be or contain. Default: none, and it is
    /// not checked. Set it if the issuer signs for several services with one key.
    pub audiences: Vec<String>,
    /// Whether `exp` is required. Default: true, since a token without it never expires.
    pub expiry_required: bool,
}

impl Default for Checks {
    fn default() -> Self {
        let leeway = crate::LEEWAY;
        Self { leeway, issuers: Vec::new(), audiences: Vec::new(), expiry_required: true }
    }
}

impl Checks {
    /// Checks claims whose signature was verified; `now` is since the Unix epoch.
    ///
    /// # Errors
    /// The first that applies: a time that is not a number, a required claim that is missing,
    /// expired, not yet valid, another issuer, another audience.
    pub fn check(&self, claims: Map<String, Value>, now: Duration) -> Result<Claims, TokenError> {
        let (expires, not_before, issued) =
            (seconds(&claims, "exp")?, seconds(&claims, "nbf")?, seconds(&claims, "iat")?);
        if self.expiry_required && expires.is_none() {
            return Err(TokenError::MissingClaim { claim: "exp" });
        }
        let (now, leeway) = (now.as_secs_f64(), self.leeway.as_secs_f64());
        if let Some(expires) = expires.filter(|expires| now >= expires + leeway) {
            return Err(TokenError::Expired { ago: length(now - expires) });
        }
        let times = [("nbf", not_before), ("iat", issued)];
        for (claim, time) in times {
            if let Some(time) = time.filter(|time| *time > now + leeway) {
                return Err(TokenError::NotYetValid { claim, after: length(time - now) });
            }
        }
        self.check_issuer(&claims)?;
        self.check_audience(&claims)?;
        Ok(Claims::new(Value::Object(claims), issued.map(whole), expires.map(whole)))
    }

    fn check_issuer(&self, claims: &Map<String, Value>) -> Result<(), TokenError> {
        let found = claims.get("iss").and_then(Value::as_str);
        if self.issuers.is_empty() || self.issuers.iter().any(|it| found == Some(it)) {
            return Ok(());
        }
        Err(TokenError::Issuer { found: found.map(str::to_owned) })
    }

    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), TokenError> {
        let is_ours =
            |it: &Value| it.as_str().is_some_and(|it| self.audiences.iter().any(|a| a == it));
        let accepted = self.audiences.is_empty()
            || match claims.get("aud") {
                Some(Value::Array(several)) => several.iter().any(is_ours),
                Some(one) => is_ours(one),
                None => false,
            };
        if accepted { Ok(()) } else { Err(TokenError::Audience) }
    }
}

/// A NumericDate (RFC 7519 §2): seconds since the Unix epoch, possibly with a fraction.
pub(crate) fn seconds(claims: &Map<String, Value>, claim: &str) -> Result<Option<f64>, TokenError> {
    match claims.get(claim) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(seconds) => Ok(Some(seconds)),
            None => {
                let why = format!("{claim} is not a number of seconds since 1970");
                Err(TokenError::malformed(Part::Payload, why))
            }
        },
    }
}

/// Seconds as a duration, limited to the longest one.
fn length(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

pub(crate) fn whole(seconds: f64) -> u64 {
    seconds as u64
}

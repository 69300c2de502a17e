//! The table `[token]` of `simurgh.toml`: which tokens are accepted.
//!
//! Keys come from a file or the environment, never from `simurgh.toml` or arguments, so nothing
//! printed has to be masked.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use simurgh::token::jwt::{Algorithm, Checks};
use simurgh::token::phoenix::MaxAge;
use simurgh::token::{
    JwtSettings, KeySource, OnExpiry, PhoenixSettings, Settings, Template, TokenPolicy,
};
use simurgh_text::{duration, duration_or_zero};

use super::hook::{http_url, is_plain_beyond_this_machine, tls};
use super::mistakes::{Mistake, Mistakes};

/// The table with its comments, for `simurgh config`.
pub(crate) const TEXT: &str = include_str!("../token.toml");

/// The table of the file.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TokenSpec {
    kind: Option<Kind>,
    connect: Need,
    key_file: Option<PathBuf>,
    key_env: Option<String>,
    jwks_url: Option<String>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    insecure: bool,
    salt: Option<String>,
    max_age: Option<String>,
    #[serde(deserialize_with = "one_or_more")]
    algorithms: Vec<String>,
    leeway: Option<String>,
    #[serde(deserialize_with = "one_or_more")]
    iss: Vec<String>,
    #[serde(deserialize_with = "one_or_more")]
    aud: Vec<String>,
    on_expiry: Expiry,
    socket_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Jwt,
    Phoenix,
}

/// Whether a connect needs a token.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Need {
    #[default]
    Required,
    Optional,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expiry {
    #[default]
    Close,
    Renew,
}

impl TokenSpec {
    /// Whether clients without a token may connect.
    pub(crate) fn is_optional(&self) -> bool {
        self.connect == Need::Optional
    }

    /// The policy with its keys, or all mistakes.
    pub(crate) fn policy(&self) -> Result<TokenPolicy, Vec<Mistake>> {
        let mut wrong = Mistakes::default();
        let socket_id = self.socket_id.as_deref().map(str::parse::<Template>).transpose();
        let socket_id = wrong.note("socket_id", socket_id);
        let policy = match self.kind {
            Some(Kind::Jwt) => self.jwt(&mut wrong),
            Some(Kind::Phoenix) => self.phoenix(&mut wrong),
            None => wrong.refuse(
                "kind",
                "is missing: \"jwt\", or \"phoenix\" for tokens of Phoenix.Token.sign",
            ),
        };
        let (Some(policy), true) = (policy, wrong.0.is_empty()) else { return Err(wrong.0) };
        let policy = match socket_id.flatten() {
            Some(template) => policy.socket_id(template),
            None => policy,
        };
        let policy = policy.optional(self.is_optional());
        Ok(policy.on_expiry(match self.on_expiry {
            Expiry::Close => OnExpiry::Close,
            Expiry::Renew => OnExpiry::Renew,
        }))
    }

    fn jwt(&self, wrong: &mut Mistakes) -> Option<TokenPolicy> {
        let others = [("salt", self.salt.is_some()), ("max_age", self.max_age.is_some())];
        refuse_others(wrong, "phoenix", &others);
        let mut algorithms = Vec::new();
        for name in &self.algorithms {
            match Algorithm::named(name) {
                Some(algorithm) => algorithms.push(algorithm),
                None => {
                    let known: Vec<_> = Algorithm::ALL.iter().map(|it| it.name()).collect();
                    wrong.add(
                        "algorithms",
                        format!("{name:?} is unknown: use {}", known.join(", ")),
                    );
                }
            }
        }
        let mut checks = Checks { issuers: self.iss.clone(), ..Checks::default() };
        checks.audiences.clone_from(&self.aud);
        checks.leeway = self.leeway(wrong).unwrap_or(checks.leeway);
        if let Some(url) = &self.jwks_url {
            return self.jwks(wrong, url, algorithms, checks);
        }
        let (at, bytes) = self.key(wrong)?;
        let keys =
            wrong.note(at, KeySource::recognise(&bytes, algorithms == [Algorithm::Hs256]))?;
        if let (KeySource::Jwks(_), Some(path)) = (&keys, &self.key_file) {
            return wrong.note(at, TokenPolicy::jwks_file(path, algorithms, checks));
        }
        let mut settings = JwtSettings::new(keys);
        (settings.algorithms, settings.checks) = (algorithms, checks);
        wrong.note(at, TokenPolicy::new(Settings::Jwt(settings)))
    }

    /// The policy with keys at a URL, which the server reads.
    fn jwks(
        &self,
        wrong: &mut Mistakes,
        url: &str,
        algorithms: Vec<Algorithm>,
        checks: Checks,
    ) -> Option<TokenPolicy> {
        if self.key_file.is_some() || self.key_env.is_some() {
            wrong.add("jwks_url", "key_file or key_env is set, too: remove one of them");
        }
        let url = http_url(wrong, "jwks_url", url)?;
        if is_plain_beyond_this_machine(&url) && !self.insecure {
            let why = "would read keys over the network without TLS, where others can replace \
                them: use https://, or set insecure = true";
            wrong.add("jwks_url", why);
        }
        let tls = tls(wrong, [&self.tls_ca, &self.tls_cert, &self.tls_key].map(Option::as_deref));
        wrong.note("jwks_url", TokenPolicy::jwks_url(url, tls, algorithms, checks))
    }

    fn phoenix(&self, wrong: &mut Mistakes) -> Option<TokenPolicy> {
        let others = [
            ("algorithms", !self.algorithms.is_empty()),
            ("iss", !self.iss.is_empty()),
            ("aud", !self.aud.is_empty()),
            ("jwks_url", self.jwks_url.is_some()),
        ];
        refuse_others(wrong, "jwt", &others);
        if self.salt.as_deref().unwrap_or_default().is_empty() {
            wrong
                .add("salt", "is missing: the salt of Phoenix.Token.sign, such as \"user socket\"");
        }
        let max_age = match self.max_age.as_deref() {
            None => None,
            Some("infinity") => Some(MaxAge::Infinity),
            Some(text) => wrong.note("max_age", duration(text)).map(MaxAge::Within),
        };
        let leeway = self.leeway(wrong);
        let (at, bytes) = self.key(wrong)?;
        let secret = String::from_utf8(bytes).map_err(|_| "secret_key_base is not UTF-8");
        let mut settings = PhoenixSettings::new(wrong.note(at, secret)?, self.salt.clone()?);
        settings.max_age = max_age;
        settings.leeway = leeway.unwrap_or(settings.leeway);
        wrong.note(at, TokenPolicy::new(Settings::Phoenix(settings)))
    }

    fn leeway(&self, wrong: &mut Mistakes) -> Option<Duration> {
        wrong.note("leeway", duration_or_zero(self.leeway.as_deref()?))
    }

    /// The setting that names the key, and the key without the final newline that an editor adds.
    fn key(&self, wrong: &mut Mistakes) -> Option<(&'static str, Vec<u8>)> {
        let (at, bytes) = match (&self.key_file, &self.key_env) {
            (Some(path), None) => {
                let read = std::fs::read(path);
                let read = read.map_err(|error| format!("cannot read {}: {error}", path.display()));
                ("key_file", wrong.note("key_file", read)?)
            }
            (None, Some(name)) => match std::env::var_os(name) {
                Some(value) => ("key_env", value.into_encoded_bytes()),
                None => {
                    let why = format!("the environment variable {name} is not set");
                    return wrong.refuse("key_env", why);
                }
            },
            (Some(_), Some(_)) => {
                return wrong.refuse("key_env", "key_file is set, too: remove one of them");
            }
            (None, None) => {
                return wrong.refuse(
                    "key_file",
                    "is missing: the file with the key; or set key_env, the environment variable \
                     with it, or jwks_url",
                );
            }
        };
        let key = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let key = key.strip_suffix(b"\r").unwrap_or(key);
        if key.is_empty() {
            return wrong.refuse(at, "the key is empty");
        }
        Some((at, key.to_vec()))
    }
}

/// Refuses the keys that are given and are only for the other kind.
fn refuse_others(wrong: &mut Mistakes, other: &str, keys: &[(&'static str, bool)]) {
    for (key, _) in keys.iter().filter(|(_, is_given)| *is_given) {
        wrong.add(key, format!("applies only to kind = \"{other}\": remove it"));
    }
}

fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    simurgh::declared::one_or_more(from, "the list is empty: remove it to allow any")
}

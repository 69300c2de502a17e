//! The tables `[[api]]` of `simurgh.toml`: tokens of back ends, and what each may do.

use serde::Deserialize;
use simurgh::api::{ApiToken, Pattern, Scope};

use super::mistakes::{Mistake, Mistakes};
use super::values;

/// The tables with their comments, for `simurgh config`.
pub(crate) const TEXT: &str = include_str!("../api.toml");

/// Bytes of a name.
const NAME_BYTES_MAX: usize = 32;
/// The name of the key `api_token` in metrics.
const RESERVED: &str = "api_token";

/// A table of the file.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApiSpec {
    name: String,
    token_sha256: Option<String>,
    token_env: Option<String>,
    scopes: Vec<String>,
    topics: Vec<String>,
}

impl ApiSpec {
    /// The token, or all mistakes; `others` are those of the tables before.
    pub(crate) fn token(&self, others: &[ApiToken]) -> Result<ApiToken, Vec<Mistake>> {
        let mut wrong = Mistakes::default();
        self.check_name(others, &mut wrong);
        let hash = self.hash(&mut wrong);
        if let Some((key, hash)) = &hash
            && let Some(other) = others.iter().find(|other| other.sha256 == *hash)
        {
            wrong.add(key, format!("is the token of {:?}, too: use another one", other.name));
        }
        let scopes = self.scopes(&mut wrong);
        let topics = self.topics.iter().filter_map(|topic| {
            wrong.note(
                "topics",
                Pattern::parse(topic).map_err(|error| format!("{topic:?}: {error}")),
            )
        });
        let topics: Vec<Pattern> = topics.collect();
        match hash {
            Some((_, hash)) if wrong.0.is_empty() => {
                Ok(ApiToken::new(&*self.name, hash, scopes).topics(topics))
            }
            _ => Err(wrong.0),
        }
    }

    fn check_name(&self, others: &[ApiToken], wrong: &mut Mistakes) {
        let is_valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let length = self.name.len();
        if !(1..=NAME_BYTES_MAX).contains(&length) || !self.name.bytes().all(is_valid) {
            let text =
                format!("must have 1 to {NAME_BYTES_MAX} of a-z, 0-9 and _ (got {:?})", self.name);
            wrong.add("name", text);
        } else if self.name == RESERVED || others.iter().any(|other| other.name == self.name) {
            wrong.add("name", format!("{:?} is taken: choose another name", self.name));
        }
    }

    /// The key that has the token, and its hash.
    fn hash(&self, wrong: &mut Mistakes) -> Option<(&'static str, [u8; 32])> {
        match (&self.token_sha256, &self.token_env) {
            (Some(hex), None) => match from_hex(hex) {
                Some(hash) => Some(("token_sha256", hash)),
                None => wrong.refuse("token_sha256", "must be 64 hexadecimal digits"),
            },
            (None, Some(name)) => {
                let token = std::env::var(name)
                    .map_err(|_| format!("the environment variable {name} is not set"));
                let token = wrong.note("token_env", token)?;
                wrong.note("token_env", values::token(&token))?;
                Some(("token_env", ApiToken::hash(token.as_bytes())))
            }
            (Some(_), Some(_)) => {
                wrong.refuse("token_env", "token_sha256 is set, too: remove one of them")
            }
            (None, None) => wrong.refuse(
                "token_sha256",
                "is missing: the hash of the token; or set token_env, the environment variable \
                 with it",
            ),
        }
    }

    fn scopes(&self, wrong: &mut Mistakes) -> Vec<Scope> {
        let known = || Scope::ALL.map(Scope::name).join(", ");
        if self.scopes.is_empty() {
            wrong.add("scopes", format!("is missing: some of {}", known()));
        }
        let mut scopes = Vec::new();
        for name in &self.scopes {
            match Scope::named(name) {
                Some(scope) => scopes.push(scope),
                None => wrong.add("scopes", format!("{name:?} is unknown: use {}", known())),
            }
        }
        scopes
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

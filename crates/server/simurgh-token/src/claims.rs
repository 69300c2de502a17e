//! The claims of a verified token.

use serde_json::{Map, Value};

/// The claims of a verified token.
#[derive(Debug, Clone, PartialEq)]
pub struct Claims {
    claims: Map<String, Value>,
    subject: Option<String>,
    issued_at: Option<u64>,
    expires_at: Option<u64>,
}

impl Claims {
    /// The data of a `Phoenix.Token` may be anything.
    pub(crate) fn new(data: Value, issued_at: Option<u64>, expires_at: Option<u64>) -> Self {
        let subject = subject(&data);
        let claims = match data {
            Value::Object(claims) => claims,
            data => Map::from_iter([("data".to_owned(), data)]),
        };
        Self { claims, subject, issued_at, expires_at }
    }

    /// The claims that an application grants without a token, at `issued_at` (seconds since the
    /// Unix epoch): `user` is their subject.
    #[must_use]
    pub fn granted(
        user: Option<&str>,
        claims: &Map<String, Value>,
        issued_at: Option<u64>,
        expires_at: Option<u64>,
    ) -> Self {
        let mut claims = claims.clone();
        if let Some(user) = user {
            claims.insert("sub".to_owned(), user.into());
        }
        if let Some(expires_at) = expires_at {
            claims.insert("exp".to_owned(), expires_at.into());
        }
        Self { claims, subject: user.map(str::to_owned), issued_at, expires_at }
    }

    /// All claims of a JWT; of a `Phoenix.Token` its data if that is a map, otherwise
    /// `{"data": data}`.
    #[must_use]
    pub fn claims(&self) -> &Map<String, Value> {
        &self.claims
    }

    /// One claim.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.claims.get(name)
    }

    /// A claim by its path: names of nested claims with dots between them. Names may have dots
    /// themselves, such as `https://example.com/roles`.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Value> {
        at(&self.claims, path)
    }

    /// The user of the token: `sub`, otherwise `user_id`, otherwise the data of a `Phoenix.Token`;
    /// none unless that is a string or a number.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// When it was signed, in seconds since the Unix epoch; none if unknown.
    #[must_use]
    pub fn issued_at(&self) -> Option<u64> {
        self.issued_at
    }

    /// When it expires, in seconds since the Unix epoch, without leeway; none if never.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }
}

/// The claim of this path. Names may have dots themselves, such as `https://example.com/roles`: the
/// longest name that is there counts.
pub(crate) fn at<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(claim) = claims.get(path) {
        return Some(claim);
    }
    let dots = path.rmatch_indices('.').map(|(dot, _)| path.split_at(dot));
    let mut inner = dots.filter_map(|(name, rest)| {
        let inner = claims.get(name)?.as_object()?;
        at(inner, rest.get(1..)?)
    });
    inner.next()
}

/// As [`Claims::subject`].
pub(crate) fn subject(data: &Value) -> Option<String> {
    ["sub", "user_id"].into_iter().find_map(|name| text(data.get(name)?)).or_else(|| text(data))
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

//! What a good token says.

use serde_json::{Map, Value};

/// What a token says, once it was found good.
#[derive(Debug, Clone, PartialEq)]
pub struct Claims {
    claims: Map<String, Value>,
    subject: Option<String>,
    issued_at: Option<u64>,
    expires_at: Option<u64>,
}

impl Claims {
    /// Of a JWT.
    pub(crate) fn new(
        claims: Map<String, Value>,
        issued_at: Option<u64>,
        expires_at: Option<u64>,
    ) -> Self {
        let subject = subject(&claims);
        Self { claims, subject, issued_at, expires_at }
    }

    /// Of a `Phoenix.Token`, whose data may be anything.
    pub(crate) fn of_data(data: Value, issued_at: Option<u64>, expires_at: Option<u64>) -> Self {
        match data {
            Value::Object(claims) => Self::new(claims, issued_at, expires_at),
            data => {
                let subject = text(&data);
                let claims = Map::from_iter([("data".to_owned(), data)]);
                Self { claims, subject, issued_at, expires_at }
            }
        }
    }

    /// All of it: the claims of a JWT; of a `Phoenix.Token` its data, if that is a map, and else
    /// `{"data": data}`.
    #[must_use]
    pub fn claims(&self) -> &Map<String, Value> {
        &self.claims
    }

    /// The same, to keep.
    #[must_use]
    pub fn into_claims(self) -> Map<String, Value> {
        self.claims
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.claims.get(name)
    }

    /// Whom the token is about: `sub`, or else `user_id`, or else the data of a `Phoenix.Token`;
    /// each as far as it is a string or a number.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// When it was signed, in seconds since the Unix epoch, if it says so.
    #[must_use]
    pub fn issued_at(&self) -> Option<u64> {
        self.issued_at
    }

    /// Until when it is good, in seconds since the Unix epoch, without any leeway; none: for ever.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }
}

/// Whom claims are about.
pub(crate) fn subject(claims: &Map<String, Value>) -> Option<String> {
    ["sub", "user_id"].into_iter().find_map(|name| claims.get(name).and_then(text))
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

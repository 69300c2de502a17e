//! What a long poll is answered: always HTTP 200 with JSON, in which the real status stands.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use serde::Serialize;

/// The headers of all these answers: pages of any origin may read them, since the origin was
/// checked; and nobody may keep them, since the address may be the same for all sessions.
pub(crate) const HEADERS: [(&str, &str); 3] = [
    ("content-type", "application/json; charset=utf-8"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "no-store"),
];

/// The body of an answer.
#[derive(Debug, Serialize)]
pub(crate) struct Reply<'a> {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a [Box<str>]>,
}

impl<'a> Reply<'a> {
    /// A status alone.
    pub(crate) fn status(status: u16) -> Self {
        Self { status, token: None, messages: None }
    }

    /// The answer to a poll.
    pub(crate) fn poll(status: u16, token: &'a str, messages: &'a [Box<str>]) -> Self {
        Self { status, token: Some(token), messages: Some(messages) }
    }

    /// What goes over the wire.
    pub(crate) fn body(&self) -> Vec<u8> {
        // Texts and numbers: there is nothing that could not be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl From<Reply<'_>> for Response<Body> {
    fn from(reply: Reply<'_>) -> Self {
        json(reply.body())
    }
}

/// An answer with this body.
pub(super) fn json(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// An answer without any JSON: to a preflight, to what is no request of this protocol.
pub(super) fn bare(status: axum::http::StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let all = HeaderValue::from_static("*");
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, all);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_texts_within_the_text() {
        let messages: [Box<str>; 2] = [r#"["1",null,"t","é",{}]"#.into(), "\n".into()];
        let body = String::from_utf8(Reply::poll(200, "T", &messages).body()).unwrap();
        let expected =
            r#"{"status":200,"token":"T","messages":["[\"1\",null,\"t\",\"é\",{}]","\n"]}"#;
        assert_eq!(body, expected);
        assert_eq!(Reply::status(410).body(), br#"{"status":410}"#);
    }
}

//! Answers to long polls: always HTTP 200 with JSON, which contains the real status.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use serde::Serialize;

/// Headers of all these answers: pages of any origin may read them, since the origin was checked,
/// and caches must not keep them, since the address may be the same for all sessions.
pub(crate) const HEADERS: [(&str, &str); 3] = [
    ("content-type", "application/json; charset=utf-8"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "no-store"),
];

/// Room for the head of an answer, and for all of its body but the messages.
const HEAD_BYTES: usize = 768;

#[derive(Debug, Serialize)]
pub(crate) struct Reply<'a> {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a [Box<str>]>,
}

impl<'a> Reply<'a> {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, token: None, messages: None }
    }

    pub(crate) fn poll(status: u16, token: &'a str, messages: &'a [Box<str>]) -> Self {
        Self { status, token: Some(token), messages: Some(messages) }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        // Grown step by step, a large body would take thrice its size.
        let texts = self.messages.unwrap_or_default().iter();
        let bytes: usize = texts.map(|text| text.len() + text.len() / 8 + 8).sum();
        let mut body = Vec::with_capacity(bytes + HEAD_BYTES);
        // Texts and numbers: writing cannot fail.
        let _ = serde_json::to_writer(&mut body, self);
        body
    }
}

impl From<Reply<'_>> for Response<Body> {
    fn from(reply: Reply<'_>) -> Self {
        json(reply.body())
    }
}

pub(super) fn json(body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// An answer without JSON: to a preflight, or to a request that is not of this protocol.
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
    fn poll_messages_are_strings_in_json() {
        let messages: [Box<str>; 2] = [r#"["1",null,"t","é",{}]"#.into(), "\n".into()];
        let body = String::from_utf8(Reply::poll(200, "T", &messages).body()).unwrap();
        let expected =
            r#"{"status":200,"token":"T","messages":["[\"1\",null,\"t\",\"é\",{}]","\n"]}"#;
        assert_eq!(body, expected);
        assert_eq!(Reply::status(410).body(), br#"{"status":410}"#);
    }
}

//! Errors of the server API: a sentence for people, and a word for programs.

use std::fmt::Display;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use simurgh_socket::Misfit;

/// Shown as `{"error": "sentence", "code": "word"}`.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) error: String,
    /// Further fields: how many messages were published before, or why a payload is refused.
    pub(super) fields: Value,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, error: impl Display) -> Self {
        Self { status, code, error: error.to_string(), fields: json!({}) }
    }

    /// The request is wrong.
    pub(super) fn wrong(error: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", error)
    }

    /// The payload of a message is not accepted; a schema's rule is also in fields of their own.
    pub(super) fn misfit(misfit: &Misfit, which: impl Display) -> Self {
        match misfit {
            Misfit::Shape { expected, found } => Self::wrong(format_args!(
                "payload: expected {}, found {found}, {which}",
                expected.name()
            )),
            Misfit::Schema { at, rule } => {
                let error = format!("payload: breaks the rule {rule:?} at {at:?}, {which}");
                Self { fields: misfit.fields(), ..Self::wrong(error) }
            }
        }
    }

    pub(super) fn not_found(code: &'static str, error: impl Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, error)
    }

    /// The error is temporary.
    pub(super) fn for_now(error: impl Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error)
    }

    pub(super) fn after(mut self, taken: usize) -> Self {
        self.fields["taken"] = taken.into();
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, error, fields: mut body } = self;
        body["error"] = error.into();
        body["code"] = code.into();
        let later = [(header::RETRY_AFTER, "1")];
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        match status {
            StatusCode::SERVICE_UNAVAILABLE => (status, later, Json(body)).into_response(),
            StatusCode::UNAUTHORIZED => (status, challenge, Json(body)).into_response(),
            _ => (status, Json(body)).into_response(),
        }
    }
}

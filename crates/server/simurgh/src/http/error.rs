//! Errors of the server API: a sentence for people, and a word for programs.

use std::fmt::Display;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Shown as `{"error": "sentence", "code": "word"}`.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) error: String,
    /// How many messages were published before.
    taken: Option<usize>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, error: impl Display) -> Self {
        Self { status, code, error: error.to_string(), taken: None }
    }

    /// The request is wrong.
    pub(super) fn wrong(error: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", error)
    }

    pub(super) fn not_found(code: &'static str, error: impl Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, error)
    }

    /// The error is temporary.
    pub(super) fn for_now(error: impl Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error)
    }

    pub(super) fn after(mut self, taken: usize) -> Self {
        self.taken = Some(taken);
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, error, taken } = self;
        let mut body = json!({"error": error, "code": code});
        if let (Some(taken), Value::Object(fields)) = (taken, &mut body) {
            fields.insert("taken".to_owned(), taken.into());
        }
        let later = [(header::RETRY_AFTER, "1")];
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        match status {
            StatusCode::SERVICE_UNAVAILABLE => (status, later, Json(body)).into_response(),
            StatusCode::UNAUTHORIZED => (status, challenge, Json(body)).into_response(),
            _ => (status, Json(body)).into_response(),
        }
    }
}

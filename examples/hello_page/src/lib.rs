//! A first page as in a web framework: a controller decides, a view has its values, templates in
//! files render it, and a signed session stores state.
//!
//! ```text
//! router (here) ──► controller ──► view + templates/ ──► HTML
//!                       │
//!                       └──► session: a signed cookie with a token against forged forms
//! ```

use std::sync::Arc;

use simurgh::axum::Router;
use simurgh::axum::http::HeaderValue;
use simurgh::axum::routing::{get, post};
use simurgh::http::with_security_headers;

mod controller;
mod session;
mod view;

pub use session::Secret;

/// Nothing from other hosts, not in a foreign frame, and forms only to this host.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
);

/// The page with its form, for [`Builder::http`](simurgh::Builder::http). Sessions are signed with
/// a new random secret: they end with the process.
pub fn router() -> Router {
    router_with(Secret::random())
}

/// The same, with sessions that survive restarts or are shared with other processes.
pub fn router_with(secret: Secret) -> Router {
    let pages = Router::new()
        .route("/", get(controller::index))
        .route("/greeting", post(controller::greet))
        .with_state(Arc::new(secret))
        .merge(controller::files());
    with_security_headers(pages, POLICY)
}

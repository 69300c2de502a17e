//! The headers that keep a page to itself: in no foreign frame, with no guessed content type.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::middleware::map_response;
use axum::response::Response;

/// Adds security headers to all answers of a router, those of its fallback included: the content
/// security policy given, `x-frame-options: DENY`, `x-content-type-options: nosniff`,
/// `referrer-policy: strict-origin-when-cross-origin`, `x-permitted-cross-domain-policies: none`
/// and `cross-origin-opener-policy: same-origin`. What a handler has set itself stays.
///
/// ```
/// use simurgh::axum::Router;
/// use simurgh::axum::http::HeaderValue;
/// use simurgh::axum::routing::get;
///
/// let policy = HeaderValue::from_static("default-src 'self'; frame-ancestors 'none'");
/// let page = Router::new().route("/", get(|| async { "hello" }));
/// let router: Router = simurgh::http::with_security_headers(page, policy);
/// ```
pub fn with_security_headers(router: Router, policy: HeaderValue) -> Router {
    let policy = (CONTENT_SECURITY_POLICY, policy);
    let all: Arc<[_]> = simurgh_page::SECURITY_HEADERS.into_iter().chain([policy]).collect();
    router.layer(map_response(move |mut response: Response| {
        let headers = response.headers_mut();
        headers.reserve(all.len());
        for (name, value) in all.iter() {
            headers.entry(name).or_insert_with(|| value.clone());
        }
        std::future::ready(response)
    }))
}

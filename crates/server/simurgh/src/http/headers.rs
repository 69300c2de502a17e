//! Security headers: no framing by other sites, no content-type sniffing.

use std::sync::Arc;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::response::Response;
use tower::util::MapResponseLayer;

/// Adds security headers to all answers of a router, including its fallback: the given content
/// security policy, `x-frame-options: DENY`, `x-content-type-options: nosniff`,
/// `referrer-policy: strict-origin-when-cross-origin`, `x-permitted-cross-domain-policies: none`
/// and `cross-origin-opener-policy: same-origin`. Headers that a handler has set stay.
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
    // tower's, not axum's: it allocates no future for each request.
    router.layer(MapResponseLayer::new(move |mut response: Response| {
        let headers = response.headers_mut();
        headers.reserve(all.len());
        for (name, value) in all.iter() {
            headers.entry(name).or_insert_with(|| value.clone());
        }
        response
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::header::{HeaderMap, REFERRER_POLICY, X_FRAME_OPTIONS};
    use axum::http::{HeaderName, Request};
    use axum::response::AppendHeaders;
    use axum::routing::get;
    use tower::util::ServiceExt;

    fn headers_of(path: &str) -> HeaderMap {
        let own = AppendHeaders([(REFERRER_POLICY, "a"), (REFERRER_POLICY, "b")]);
        let router = Router::new()
            .route("/", get(|| async { "plain" }))
            .route("/own", get(move || async move { (own, "own") }));
        let router = with_security_headers(router, HeaderValue::from_static("default-src 'self'"));
        let request = Request::get(path).body(Body::empty()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(router.oneshot(request)).unwrap().headers().clone()
    }

    fn all(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_response_has_each_header_once() {
        for path in ["/", "/nowhere"] {
            let headers = headers_of(path);
            for (name, value) in simurgh_page::SECURITY_HEADERS {
                assert_eq!(all(&headers, &name), [value.to_str().unwrap()], "{path} {name}");
            }
            assert_eq!(all(&headers, &CONTENT_SECURITY_POLICY), ["default-src 'self'"], "{path}");
        }
    }

    #[test]
    fn headers_set_by_a_handler_stay() {
        let headers = headers_of("/own");
        assert_eq!(all(&headers, &REFERRER_POLICY), ["a", "b"]);
        assert_eq!(all(&headers, &X_FRAME_OPTIONS), ["DENY"]);
    }
}

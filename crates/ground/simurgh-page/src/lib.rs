//! Shared by the pages of the load generator and of the server: styles, scripts, and which requests
//! they answer. Files in the binary, and checks of headers; no server and no state.

mod guard;
pub mod svg;

use http::HeaderValue;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};

pub use guard::{is_own_origin, names_this_host, one};

/// Colours and layout.
pub const STYLE: &str = include_str!("../assets/page.css");

/// The icon in a browser's tab, SVG.
pub const ICON: &str = include_str!("../assets/favicon.svg");

/// Number formats (`Format`), elements (`el`), charts (`Timeline`, `Chart`), in loading order.
pub const SCRIPTS: [&str; 3] = [
    include_str!("../assets/format.js"),
    include_str!("../assets/element.js"),
    include_str!("../assets/chart.js"),
];

/// Headers of each answer of a live page: only our own files, no frames, no caching.
pub const HEADERS: [(HeaderName, HeaderValue); 7] = [
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// Headers of each page of an application: restrictions for browsers that suit any content. A
/// policy of its content is added by the page itself.
pub const SECURITY_HEADERS: [(HeaderName, HeaderValue); 5] = [
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("strict-origin-when-cross-origin")),
    (
        HeaderName::from_static("x-permitted-cross-domain-policies"),
        HeaderValue::from_static("none"),
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_files_fetch_nothing_and_can_be_put_into_a_page() {
        let script = SCRIPTS.concat();
        let own = script.replace("http://www.w3.org/2000/svg", "");
        for text in [own.as_str(), STYLE] {
            assert!(!text.contains("http://") && !text.contains("https://"));
        }
        for mark in ["</script", "<!--", "{{", "innerHTML ", "insertAdjacentHTML", "eval("] {
            assert!(!script.contains(mark), "{mark}");
        }
        assert!(!STYLE.contains("</style") && !STYLE.contains("{{"));
    }
}

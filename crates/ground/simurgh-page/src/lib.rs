//! What the pages of the load generator and of the server share: how they look, how they draw, and
//! which requests they answer. Files in the binary, and checks of headers; no server and no state.

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

/// The picture in a browser's tab, SVG.
pub const ICON: &str = include_str!("../assets/favicon.svg");

/// Numbers as people read them (`Format`), elements (`el`), and charts (`Timeline`, `Chart`), in
/// the order in which one needs the other.
pub const SCRIPTS: [&str; 3] = [
    include_str!("../assets/format.js"),
    include_str!("../assets/element.js"),
    include_str!("../assets/chart.js"),
];

/// With each answer of a live page: nothing but our own files, in no frame, kept nowhere.
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

/// With each page of an application: what browsers should not do whatever is on it. A policy of its
/// content comes on top, which only the page knows.
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

//! The chat page: its files are in the binary, and nothing is fetched from elsewhere.

use simurgh::axum::Router;
use simurgh::axum::http::HeaderValue;
use simurgh::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use simurgh::axum::routing::{MethodRouter, get};
use simurgh::http::with_security_headers;

/// Everything comes from this host; `ws:` and `wss:` are named because not every browser takes
/// `'self'` to mean the socket of the same host.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; connect-src 'self' ws: wss:; base-uri 'self'; frame-ancestors 'none'",
);

/// The files' names have no version: a browser's cache would mix old and new ones.
const CACHING: &str = "no-cache";

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, content type, content.
const FILES: [(&str, &str, &[u8]); 9] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../static/index.html")),
    ("/chat.css", "text/css; charset=utf-8", include_bytes!("../static/chat.css")),
    ("/chat.js", JAVASCRIPT, include_bytes!("../static/chat.js")),
    ("/history.js", JAVASCRIPT, include_bytes!("../static/history.js")),
    ("/payload.js", JAVASCRIPT, include_bytes!("../static/payload.js")),
    ("/present.js", JAVASCRIPT, include_bytes!("../static/present.js")),
    ("/phoenix.min.js", JAVASCRIPT, include_bytes!("../static/phoenix.min.js")),
    ("/simurgh-resume.js", JAVASCRIPT, include_bytes!("../static/simurgh-resume.js")),
    ("/favicon.svg", "image/svg+xml", include_bytes!("../static/favicon.svg")),
];

/// The official client with our addition to it, and the icon: for pages of other channels.
pub fn client_scripts() -> Router {
    let wanted = ["/phoenix.min.js", "/simurgh-resume.js", "/favicon.svg"];
    router(FILES.into_iter().filter(|(path, ..)| wanted.contains(path)))
}

/// The page at `/` with its script and style, for [`Builder::http`](simurgh::Builder::http).
pub fn page() -> Router {
    router(FILES)
}

fn router(files: impl IntoIterator<Item = (&'static str, &'static str, &'static [u8])>) -> Router {
    let router = files.into_iter().fold(Router::new(), |router, (path, content_type, content)| {
        router.route(path, file(content_type, content))
    });
    with_security_headers(router, POLICY)
}

fn file(content_type: &'static str, content: &'static [u8]) -> MethodRouter {
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, CACHING)];
    get(move || async move { (headers, content) })
}

#[cfg(test)]
mod tests {
    use super::FILES;

    /// The page names its files; a missing one would break the page.
    #[test]
    fn every_file_named_in_the_page_is_served() {
        let named: Vec<_> = include_str!("../static/index.html")
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("href=\"").or(word.strip_prefix("src=\"")))
            .filter_map(|rest| rest.split('"').next())
            .filter(|name| !name.starts_with('#'))
            .collect();
        assert!(named.contains(&"chat.js"), "{named:?}");
        for name in named {
            let path = format!("/{name}");
            assert!(FILES.iter().any(|file| file.0 == path), "{path} is not served");
        }
    }
}

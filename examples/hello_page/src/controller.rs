//! What happens on a request: the session is read, a view is filled, a response is made.

use std::sync::Arc;

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use simurgh::axum::Router;
use simurgh::axum::body::Bytes;
use simurgh::axum::extract::State;
use simurgh::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, SET_COOKIE};
use simurgh::axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use simurgh::axum::response::{IntoResponse, Response};
use simurgh::axum::routing::get;

use crate::session::{Secret, Session};
use crate::view::{Guide, Index, Link, Page};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// A page with a session's token in it is nobody else's.
const CACHING: HeaderValue = HeaderValue::from_static("max-age=0, private, must-revalidate");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const LINKS: &[Link] = &[
    Link { href: "/", text: "Home" },
    Link { href: "#guides", text: "Guides" },
    Link { href: "#name", text: "Say hello" },
];

const GUIDES: &[Guide] = &[
    Guide {
        href: "#channels",
        title: "Channels",
        text: "Topics, joins and broadcasts over one socket, for the clients that exist already.",
    },
    Guide {
        href: "#pages",
        title: "Pages",
        text: "A router, handlers and templates: what is wrong in a template does not compile.",
    },
    Guide {
        href: "#load",
        title: "Load",
        text: "A generator in the same binary puts a server under load & measures what it does.",
    },
    Guide {
        href: "#observe",
        title: "Observe",
        text: "Shards, topics and connections while they live: in a browser, a terminal, as JSON.",
    },
];

/// `GET /`
pub(crate) async fn index(State(secret): State<Arc<Secret>>, headers: HeaderMap) -> Response {
    let (mut session, mut is_changed) = Session::of(&headers, &secret);
    // Shown once.
    let flash = session.flash.take();
    is_changed |= flash.is_some();
    let view = Index {
        page: Page {
            title: "Hello",
            path: "/",
            csrf_token: session.masked_token(),
            flash: flash.as_deref(),
            links: LINKS,
            version: env!("CARGO_PKG_VERSION"),
        },
        guides: GUIDES,
    };
    match view.render() {
        Ok(html) => {
            let mut response = (page_headers(&headers), html).into_response();
            if is_changed {
                set_session(&mut response, &session, &secret);
            }
            response
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The form of the page.
#[derive(Deserialize)]
struct Greeting {
    #[serde(rename = "_csrf_token")]
    csrf_token: String,
    name: String,
}

/// `POST /greeting`
pub(crate) async fn greet(
    State(secret): State<Arc<Secret>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (mut session, _) = Session::of(&headers, &secret);
    let Ok(form) = serde_urlencoded::from_bytes::<Greeting>(&body) else {
        return (StatusCode::BAD_REQUEST, "a form with a name is wanted\n").into_response();
    };
    if !session.bears(&form.csrf_token) {
        return (StatusCode::FORBIDDEN, "this form is not of your session\n").into_response();
    }
    let name: String = form.name.trim().chars().take(80).collect();
    session.flash = Some(format!("Hello, {name}!"));
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    set_session(&mut response, &session, &secret);
    response
}

fn set_session(response: &mut Response, session: &Session, secret: &Secret) {
    if let Some(cookie) = session.to_header(secret) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}

fn page_headers(headers: &HeaderMap) -> [(HeaderName, HeaderValue); 3] {
    [(CONTENT_TYPE, HTML), (CACHE_CONTROL, CACHING), (REQUEST_ID, request_id(headers))]
}

/// The request's own, if a proxy gave it one; else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|it| (20..=200).contains(&it.len()));
    given.cloned().unwrap_or_else(|| {
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 15]>());
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
    })
}

/// What the page asks for besides itself.
pub(crate) fn files() -> Router {
    const CSS: &str = include_str!("../static/page.css");
    const ICON: &str = include_str!("../static/favicon.svg");
    let file = |content_type, content| {
        let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-cache")];
        get(move || async move { (headers, content) })
    };
    Router::new()
        .route("/page.css", file("text/css; charset=utf-8", CSS))
        .route("/favicon.svg", file("image/svg+xml", ICON))
}

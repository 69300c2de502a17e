//! From request to response: reads the session, fills a view, makes a response.

use std::sync::Arc;

use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use simurgh::axum::Router;
use simurgh::axum::body::{Body, Bytes};
use simurgh::axum::extract::{Request, State};
use simurgh::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, SET_COOKIE};
use simurgh::axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use simurgh::axum::response::{IntoResponse, Response};
use simurgh::axum::routing::get;

use crate::session::{Secret, Session, TOKEN_BYTES};
use crate::view::{Guide, Index, Link, Page};

const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
/// A page with a session's token must not be cached for other sessions.
const CACHING: HeaderValue = HeaderValue::from_static("max-age=0, private, must-revalidate");
/// More than the size of a page: the buffer should not have to grow.
const PAGE_BYTES: usize = 2_560;
/// Headers of a page, with those added later.
const HEADERS: usize = 12;
/// Random bytes of an id.
const ID_BYTES: usize = 15;
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
pub(crate) async fn index(State(secret): State<Arc<Secret>>, request: Request) -> Response {
    let (mut session, mut is_changed) = Session::of(request.headers(), &secret);
    // Shown once.
    let flash = session.flash.take();
    is_changed |= flash.is_some();
    // Drawn together: a draw of a few bytes costs as much as one of a few dozen.
    let mut random = [0; ID_BYTES + TOKEN_BYTES];
    rand::fill(&mut random);
    let (id, mask) = random.split_at(ID_BYTES);
    let csrf_token = session.masked_token(mask.try_into().unwrap_or_else(|_| rand::random()));
    let view = Index {
        page: Page {
            title: "Hello",
            path: "/",
            csrf_token: csrf_token.as_str(),
            flash: flash.as_deref(),
            links: LINKS,
            version: env!("CARGO_PKG_VERSION"),
        },
        guides: GUIDES,
    };
    let mut html = String::with_capacity(PAGE_BYTES);
    if let Err(error) = view.render_into(&mut html) {
        return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
    }
    let mut response = Response::new(Body::from(html));
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS);
    let page = response.headers_mut();
    page.insert(CONTENT_TYPE, HTML);
    page.insert(CACHE_CONTROL, CACHING);
    page.insert(REQUEST_ID, request_id(request.headers(), id));
    if is_changed {
        set_session(&mut response, &session, &secret);
    }
    response
}

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

/// The request's own id, if a proxy set one; else a new random one.
fn request_id(headers: &HeaderMap, random: &[u8]) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|it| (20..=200).contains(&it.len()));
    given.cloned().unwrap_or_else(|| {
        let mut id = [0; ID_BYTES / 3 * 4];
        // It fills the array to its end.
        let _ = URL_SAFE_NO_PAD.encode_slice(random, &mut id);
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("none"))
    })
}

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

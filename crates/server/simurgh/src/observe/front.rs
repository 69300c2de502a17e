//! The page at `/` of a server without pages of its own: what it serves, for those who may see the
//! observer; for all others only that it is here.

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use simurgh_page::{HEADERS, svg::escaped};

use super::{Observer, access};
use crate::longpoll::Client;

/// `{{details}}` is what viewers see, `{{script}}` asks for that with the observer's token.
const PAGE: &str = include_str!("../../assets/front.html");
const SCRIPT: &str = r#"<script src="observer/front.js"></script>"#;
const SHORT: &str = "<p>This server has no page for visitors.</p>";
const ASKS: &str = "<p>To see what this server serves, open the \
                    <a href=\"observer/\">observer</a>, enter the API token there, and return to \
                    this page.</p>";

#[derive(Clone)]
struct Front {
    observer: Weak<Observer>,
    details: Arc<str>,
}

/// `details` is HTML, in which `{{host}}` becomes the server's name in the request; `ws://` before
/// it becomes `wss://` if the client uses TLS.
pub(crate) fn router(observer: &Arc<Observer>, details: &str) -> Router {
    let front = Front { observer: Arc::downgrade(observer), details: details.into() };
    Router::new().route("/", get(page)).with_state(front)
}

async fn page(State(front): State<Front>, request: Request) -> Response {
    let headers = request.headers();
    let (script, text) = match front.observer.upgrade() {
        Some(observer) => {
            let config = &observer.server.now().config;
            let place = access::check_place(config, false, headers, request.extensions());
            match (place, access::check_viewer(config, headers)) {
                (Err(_), _) => ("", SHORT.to_owned()),
                (Ok(()), Err(_)) => (SCRIPT, ASKS.to_owned()),
                (Ok(()), Ok(())) => {
                    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
                    let host = escaped(host.unwrap_or("HOST"));
                    let client = request.extensions().get::<Client>();
                    let page = client.map(|client| client.page(config, headers));
                    let scheme =
                        if page.is_some_and(|page| page.is_secure()) { "wss" } else { "ws" };
                    let address = format!("{scheme}://{host}");
                    let details = front.details.replace("ws://{{host}}", &address);
                    ("", details.replace("{{host}}", &host))
                }
            }
        }
        None => ("", SHORT.to_owned()),
    };
    let html = PAGE.replace("{{script}}", script).replace("{{details}}", &text);
    let mut response = Html(html).into_response();
    response.headers_mut().extend(HEADERS.map(|(name, value)| (Some(name), value)));
    response
}

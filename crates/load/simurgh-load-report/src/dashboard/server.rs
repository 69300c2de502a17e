//! The page over HTTP: its files, events and commands.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Json, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::{self, Stream};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::task::JoinHandle;

use super::frames::Frame;
use super::guard::{self, Refusal};
use super::view::PageView;
use super::{END_TIME_MAX, Shared, assets};
use crate::control::{Command, ControlState, RATE_FACTOR_MAX, RATE_FACTOR_MIN};

/// Bytes of a command; the longest has about fifty.
const COMMAND_BYTES_MAX: usize = 1024;

/// How often a stream without events sends a keep-alive.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Listens on this port, or on one of the next `more`.
#[allow(clippy::disallowed_types, reason = "the dashboard's thread has the main table")]
pub(super) fn listen(asked: SocketAddr, more: u16) -> io::Result<std::net::TcpListener> {
    let last = asked.port().saturating_add(more);
    let mut address = asked;
    loop {
        match std::net::TcpListener::bind(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && asked.port() != 0
                    && address.port() < last =>
            {
                address.set_port(address.port() + 1);
            }
            Err(error) => {
                let text = format!("the dashboard cannot listen on {address}: {error}");
                return Err(io::Error::new(error.kind(), text));
            }
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                return Ok(listener);
            }
        }
    }
}

/// Serves until `stopped`; open pages get the last event.
#[allow(clippy::disallowed_types, reason = "the dashboard's thread has the main table")]
pub(super) async fn serve(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    publisher: JoinHandle<()>,
    stopped: oneshot::Receiver<()>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the dashboard cannot serve");
            return;
        }
    };
    let (end, mut ended) = watch::channel(());
    let over = Arc::clone(&shared);
    let stop = async move {
        // An error means that the dashboard was dropped, which is the same.
        let _ = stopped.await;
        if over.record(|record| record.ending().is_none()) {
            publisher.abort();
        }
        let _ = publisher.await;
        drop(end);
    };
    let serving = axum::serve(listener, router(shared)).with_graceful_shutdown(stop);
    let late = async move {
        let _ = ended.changed().await;
        tokio::time::sleep(END_TIME_MAX).await;
    };
    tokio::select! {
        done = serving => {
            if let Err(error) = done {
                tracing::error!(%error, "the dashboard ended");
            }
        }
        () = late => {}
    }
}

fn router(shared: Arc<Shared>) -> Router {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    const STYLE: &str = "text/css; charset=utf-8";
    let script = assets::live_script();
    Router::new()
        .route("/", get(page))
        .route("/page.js", get(|| async move { ([(header::CONTENT_TYPE, SCRIPT)], script) }))
        .route("/page.css", get(|| async { ([(header::CONTENT_TYPE, STYLE)], assets::STYLE) }))
        .route(
            "/favicon.svg",
            get(|| async { ([(header::CONTENT_TYPE, "image/svg+xml")], assets::ICON) }),
        )
        .route("/events", get(events))
        .route("/control", post(control))
        .layer(DefaultBodyLimit::max(COMMAND_BYTES_MAX))
        .layer(middleware::from_fn(guarded))
        .with_state(shared)
}

async fn guarded(request: Request, next: Next) -> Response {
    let mut response = match guard::check_host(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    response.headers_mut().extend(simurgh_page::HEADERS.map(|(name, value)| (Some(name), value)));
    response
}

async fn page(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    axum::response::Html(assets::live_page(&shared.token))
}

async fn control(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Result<Json<Command>, axum::extract::rejection::JsonRejection>,
) -> Result<Json<ControlState>, Response> {
    guard::check_command(&headers, &shared.token).map_err(IntoResponse::into_response)?;
    let Json(command) = body.map_err(IntoResponse::into_response)?;
    if let Command::Rate { factor } = command
        && !(RATE_FACTOR_MIN..=RATE_FACTOR_MAX).contains(&factor)
    {
        let text = format!(
            "a rate factor of {factor} is not between {RATE_FACTOR_MIN} and {RATE_FACTOR_MAX}\n"
        );
        return Err((StatusCode::UNPROCESSABLE_ENTITY, text).into_response());
    }
    shared.control.send(command);
    tracing::info!(?command, "a command from the dashboard");
    Ok(Json(shared.control.state()))
}

struct Page {
    shared: Arc<Shared>,
    frames: watch::Receiver<Arc<Frame>>,
    /// Number of its last frame; `None`: none yet.
    knows: Option<u64>,
    over: bool,
    /// Its permit of [`super::PAGES_MAX`].
    _place: OwnedSemaphorePermit,
}

async fn events(
    State(shared): State<Arc<Shared>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let Ok(place) = Arc::clone(&shared.pages).try_acquire_owned() else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "too many pages are open\n"));
    };
    let frames = shared.frames.clone();
    let page = Page { shared, frames, knows: None, over: false, _place: place };
    let events = stream::unfold(page, |mut page| async move {
        let event = page.next().await?;
        Some((Ok(event), page))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(ALIVE_EVERY)))
}

impl Page {
    /// The next event; `None`: the run is over, or the dashboard ends.
    async fn next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let Some(knows) = self.knows else {
            let number = self.frames.borrow_and_update().number;
            return Some(self.whole(number));
        };
        loop {
            self.frames.changed().await.ok()?;
            let frame = Arc::clone(&self.frames.borrow_and_update());
            self.over = frame.last;
            if frame.number == knows {
                continue;
            }
            if frame.number != knows + 1 || frame.text.is_empty() {
                return Some(self.whole(frame.number));
            }
            self.knows = Some(frame.number);
            return Some(Event::default().event("tick").data(&frame.text));
        }
    }

    fn whole(&mut self, number: u64) -> Event {
        self.knows = Some(number);
        let view = PageView::live(&self.shared);
        self.over = self.shared.record(|record| record.ending().is_some());
        // Serializing our own types cannot fail.
        Event::default().event("whole").data(serde_json::to_string(&view).unwrap_or_default())
    }
}

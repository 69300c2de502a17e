//! One handed-over connection: served by hyper, or given back when it asks for an upgrade.
#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use http_body_util::Limited;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use simurgh_reactor::HandOffEnd;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::Pages;
use super::gate::Gate;
use super::guests::{Guests, Seat};
use super::limits::HttpConfig;
use super::watch::{Overdue, Watch};
use crate::hub::Hub;

/// How long, and for how many bytes, a client may go on sending after its answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 8 << 20;
/// The body of an answer that is at hand when it begins, one way or the other.
const SMALL_BYTES: u64 = 64 << 10;

/// Whom a connection came from, and may go back to.
pub(super) type Back = Arc<AsyncFd<HandOffEnd>>;

/// What all requests of one connection share.
struct Answers {
    hub: Arc<Hub>,
    pages: Pages,
    peer: SocketAddr,
    watch: Arc<Watch>,
    /// The head of an upgrade request, once there is one: the connection is then ours again.
    upgrade: Mutex<Option<Vec<u8>>>,
    /// Whether there is a shard to give it to.
    can_go_back: bool,
    guests: Arc<Guests>,
}

/// Serves one connection to its end, or to the upgrade that leads it back.
pub(super) async fn serve(
    hub: Arc<Hub>,
    pages: Pages,
    back: Option<Back>,
    stream: TcpStream,
    read_ahead: Vec<u8>,
    mut seat: Seat,
) -> io::Result<()> {
    let peer = stream.peer_addr()?;
    let limits = hub.config.http;
    let watch = Arc::new(Watch::new(Instant::now()));
    seat.sit(&watch);
    let gate = Gate::new(stream, read_ahead, Arc::clone(&watch), limits);
    let answers = Arc::new(Answers {
        hub,
        pages,
        peer,
        watch,
        upgrade: Mutex::new(None),
        can_go_back: back.is_some(),
        guests: Arc::clone(seat.guests()),
    });
    let service = {
        let answers = Arc::clone(&answers);
        service_fn(move |request| answer(Arc::clone(&answers), request))
    };
    // Its own time-out of heads would set a timer with each request. Whether a client has left the
    // gate knows better: one that has only shut its side is there for its answers.
    let mut connection =
        http1::Builder::new().half_close(true).serve_connection(TokioIo::new(gate), service);
    let mut timer = pin!(sleep(limits.shortest_timeout()));
    let ended = poll_fn(|context| {
        answers.watch.is_watched_by(context);
        match look(&answers, timer.as_mut(), context) {
            Ok(()) => {}
            Err(Overdue::Idle) => return Poll::Ready(Ok(Ended::Served)),
            Err(_) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut))),
        }
        // With its shutdown, which alone waits for an answer to be written whose request's body was
        // not wanted.
        let served = Pin::new(&mut connection).poll(context);
        match answers.upgrade.lock().map(|mut head| head.take()) {
            Ok(Some(head)) => Poll::Ready(Ok(Ended::Upgrade(head))),
            _ if served.is_pending() && answers.watch.has_to_leave() && answers.watch.is_idle() => {
                Poll::Ready(Ok(Ended::SentAway))
            }
            _ => served.map(|served| served.map(|()| Ended::Served).map_err(io::Error::other)),
        }
    })
    .await?;
    let parts = connection.into_parts();
    let (stream, ahead) = parts.io.into_inner().into_parts();
    let (mut head, back) = match (ended, back) {
        (Ended::Upgrade(head), Some(back)) => (head, back),
        // Its place is wanted now, and nothing was asked.
        (Ended::SentAway, _) => return Ok(()),
        _ => return linger(stream).await,
    };
    head.extend_from_slice(&parts.read_buf);
    head.extend_from_slice(&ahead);
    let descriptor = OwnedFd::from(stream.into_std()?);
    back.get_ref().send(descriptor, &head).map_err(|(error, _)| io::Error::other(error))
}

/// How the serving of a connection ended.
enum Ended {
    /// With its last answer, or with its idle time.
    Served,
    /// Idle, in favour of others.
    SentAway,
    /// With the head of an upgrade request.
    Upgrade(Vec<u8>),
}

/// Looks whether somebody is too slow, when it is time to. A request that is gets its answer first;
/// if that is not the end of it, nothing else is.
fn look(
    answers: &Answers,
    mut timer: Pin<&mut Sleep>,
    context: &mut Context<'_>,
) -> Result<(), Overdue> {
    let (watch, limits) = (&answers.watch, &answers.hub.config.http);
    while timer.as_mut().poll(context).is_ready() {
        let next = match watch.look(limits, answers.guests.idle_limit(limits.idle_timeout)) {
            Ok(next) => next,
            Err(Overdue::Request) if !watch.is_given_up() => {
                watch.give_up();
                limits.shortest_timeout()
            }
            Err(overdue) => return Err(overdue),
        };
        // The watch counts milliseconds, and so does the timer.
        let next = next.max(Duration::from_millis(1));
        timer.as_mut().reset(tokio::time::Instant::now() + next);
    }
    Ok(())
}

/// Closes a connection that has its answer. What the client may still be sending, such as a body
/// that nobody wanted, is read for a while: left unread it would turn the close into a reset, which
/// can destroy the answer.
pub(super) async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let read_to_end = async {
        let mut scratch = vec![0; 16 << 10];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match stream.read(&mut scratch).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        Ok(())
    };
    tokio::time::timeout(LINGER, read_to_end).await.unwrap_or(Ok(()))
}

/// A response of the router, or a refusal; or nothing ever, for a request that belongs to a mount.
async fn answer(
    answers: Arc<Answers>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let watch = &answers.watch;
    let limits = &answers.hub.config.http;
    let number = watch.request_came();
    if let Some(status) = watch.refusal_of(number) {
        watch.answered();
        return Ok(refusal(status));
    }
    if answers.is_for_a_mount(&request) {
        if let Ok(mut head) = answers.upgrade.lock() {
            *head = Some(write_head(&request));
        }
        return pending().await;
    }
    request.extensions_mut().insert(ConnectInfo(answers.peer));
    let request = request.map(|body| body_of(body, limits));
    let mut router = answers.pages.at(request.uri().path());
    let mut routed = pin!(router.call(request));
    let mut response = poll_fn(|context| match watch.is_given_up() {
        true => Poll::Ready(Ok(refusal(408))),
        false => routed.as_mut().poll(context),
    })
    .await?;
    if number >= limits.requests_max || answers.is_over(number) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if response.body().size_hint().exact().is_some_and(|bytes| bytes <= SMALL_BYTES) {
        watch.answered();
        return Ok(response);
    }
    Ok(response.map(|body| Body::new(Watched { body, watch: Arc::clone(watch) })))
}

/// The body of an answer that may take its time: until its end nobody is idle.
struct Watched {
    body: Body,
    watch: Arc<Watch>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.answered();
    }
}

/// A body in chunks says its length only by ending; one with a length was measured before.
fn body_of(body: Incoming, limits: &HttpConfig) -> Body {
    match body.size_hint().exact() {
        Some(0) => Body::empty(),
        Some(_) => Body::new(body),
        None => {
            let most = usize::try_from(limits.body_bytes_max).unwrap_or(usize::MAX);
            Body::new(Limited::new(body, most))
        }
    }
}

/// What a request is refused with before any application sees it; the connection ends with it.
fn refusal(status: u16) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let reason = status.canonical_reason().unwrap_or_default();
    (status, [(header::CONNECTION, "close")], format!("{reason}\n")).into_response()
}

impl Answers {
    /// Whether the connection ends with this request.
    fn is_over(&self, number: u64) -> bool {
        self.watch.is_last(number) || self.watch.has_to_leave() || self.guests.is_draining()
    }

    fn is_for_a_mount(&self, request: &Request<Incoming>) -> bool {
        let wants_upgrade = request
            .headers()
            .get(header::UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
        let path = request.uri().path();
        self.can_go_back && self.hub.mounts.iter().any(|mount| mount.takes(path, wants_upgrade))
    }
}

/// Writes a request's head out again, for a shard to read.
fn write_head(request: &Request<Incoming>) -> Vec<u8> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let mut head =
        format!("{} {target} {:?}\r\n", request.method(), request.version()).into_bytes();
    for (name, value) in request.headers() {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

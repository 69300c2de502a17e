//! One handed-over connection: served by hyper, taken from hyper while a long poll of it waits, or
//! given back when it asks for an upgrade.
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
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use axum::response::IntoResponse;
use http_body_util::Limited;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use simurgh_reactor::HandOffEnd;
use simurgh_shard::config::HttpConfig;
use simurgh_shard::connections::{ConnectionSlot, HttpConnections, Overdue, Watch};
use simurgh_shard::server::Server;
use simurgh_socket::LongPoll;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::Pages;
use super::gate::Gate;
use super::waiting_poll::{self, WaitingPoll};
use crate::longpoll::{self, LongPolls, Served};

/// How long, and for how many bytes, a client may go on sending after its answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 8 << 20;
/// The body of an answer that is at hand when it begins, one way or the other.
const SMALL_BYTES: u64 = 64 << 10;

/// Whom a connection came from, and may go back to.
pub(super) type Back = Arc<AsyncFd<HandOffEnd>>;

/// What all requests of one connection share.
struct Answers {
    server: Arc<Server>,
    pages: Pages,
    peer: SocketAddr,
    watch: Arc<Watch>,
    /// The head of an upgrade request, once there is one: the connection is then ours again.
    upgrade: Mutex<Option<Vec<u8>>>,
    /// A poll that waits, once there is one: its connection does not wait in hyper.
    waiting: Mutex<Option<WaitingPoll>>,
    /// Whether there is a shard to give it to.
    can_go_back: bool,
    http_connections: Arc<HttpConnections>,
}

/// Serves one connection to its end, or to the upgrade that leads it back.
///
/// What serves requests is on the heap, so that a connection whose poll waits is without it; so is
/// all else that waits. An `async fn` would have room for its arguments twice.
pub(super) fn serve(
    server: Arc<Server>,
    pages: Pages,
    back: Option<Back>,
    mut stream: TcpStream,
    mut ahead: Vec<u8>,
    mut slot: ConnectionSlot,
) -> impl Future<Output = io::Result<()>> + Send {
    let answers = stream.peer_addr().map(|peer| {
        let watch = Arc::new(Watch::new(Instant::now()));
        slot.enter(&watch);
        Arc::new(Answers {
            server,
            pages,
            peer,
            watch,
            upgrade: Mutex::new(None),
            waiting: Mutex::new(None),
            can_go_back: back.is_some(),
            http_connections: Arc::clone(slot.http_connections()),
        })
    });
    async move {
        let _seat = &slot;
        let answers = answers.as_ref().map_err(|error| io::Error::from(error.kind()))?;
        loop {
            let ended;
            (ended, stream, ahead) = boxed(|| serve_requests(answers, stream, ahead)).await?;
            match (ended, &back) {
                (Ended::Upgrade(head), Some(back)) => return give_back(back, stream, head, &ahead),
                (Ended::Waits(parked), _) => {
                    if !boxed(|| answer_waiting(answers, &mut stream, parked)).await? {
                        return boxed(|| linger(stream)).await;
                    }
                }
                // Its place is wanted now, and nothing was asked.
                (Ended::SentAway, _) => return Ok(()),
                _ => return boxed(|| linger(stream)).await,
            }
        }
    }
}

/// A future on the heap, and made there: one that is made where it is awaited has a place there,
/// too, for as long.
fn boxed<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(make())
}

/// Gives a connection back to its shard, with the head of an upgrade request and what came behind.
fn give_back(back: &Back, stream: TcpStream, mut head: Vec<u8>, ahead: &[u8]) -> io::Result<()> {
    head.extend_from_slice(ahead);
    let descriptor = OwnedFd::from(stream.into_std()?);
    back.get_ref().send(descriptor, &head).map_err(|(error, _)| io::Error::other(error))
}

/// Waits for what a poll is told and answers it; whether there may be further requests.
async fn answer_waiting(
    answers: &Answers,
    stream: &mut TcpStream,
    mut parked: Box<WaitingPoll>,
) -> io::Result<bool> {
    let limits = &answers.server.config.http;
    let body = waiting_poll::wait(stream, &mut parked.waiting).await;
    let WaitingPoll { number, closes, .. } = *parked;
    let closes = closes || number >= limits.requests_max || answers.is_over(number);
    waiting_poll::write(stream, &body, closes, limits.write_timeout).await?;
    answers.watch.answered();
    Ok(!closes)
}

/// Serves requests until one of them needs the connection itself; returns it with what was read
/// ahead.
async fn serve_requests(
    answers: &Arc<Answers>,
    stream: TcpStream,
    ahead: Vec<u8>,
) -> io::Result<(Ended, TcpStream, Vec<u8>)> {
    let limits = answers.server.config.http;
    let gate = Gate::new(stream, ahead, Arc::clone(&answers.watch), limits);
    let service = {
        let answers = Arc::clone(answers);
        service_fn(move |request| answer(Arc::clone(&answers), request))
    };
    // Its own time-out of heads would set a timer with each request. Whether a client has left the
    // gate knows better: one that has only shut its side is there for its answers.
    let mut connection =
        http1::Builder::new().half_close(true).serve_connection(TokioIo::new(gate), service);
    let mut timer = pin!(sleep(limits.shortest_timeout()));
    let ended = poll_fn(|context| {
        answers.watch.is_watched_by(context);
        match look(answers, timer.as_mut(), context) {
            Ok(()) => {}
            Err(Overdue::Idle) => return Poll::Ready(Ok(Ended::Served)),
            Err(_) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut))),
        }
        // With its shutdown, which alone waits for an answer to be written whose request's body was
        // not wanted.
        let served = Pin::new(&mut connection).poll(context);
        if let Ok(Some(head)) = answers.upgrade.lock().map(|mut head| head.take()) {
            return Poll::Ready(Ok(Ended::Upgrade(head)));
        }
        // An answer that is still on its way out would be lost with hyper.
        let may_wait = served.is_pending() && !answers.watch.is_writing();
        match answers.waiting.lock().map(|mut waiting| waiting.take_if(|_| may_wait)) {
            Ok(Some(parked)) => Poll::Ready(Ok(Ended::Waits(Box::new(parked)))),
            _ if served.is_pending() && answers.watch.has_to_leave() && answers.watch.is_idle() => {
                Poll::Ready(Ok(Ended::SentAway))
            }
            _ => served.map(|served| served.map(|()| Ended::Served).map_err(io::Error::other)),
        }
    })
    .await?;
    let parts = connection.into_parts();
    let (stream, behind) = parts.io.into_inner().into_parts();
    // Copied: most often there is nothing, in a buffer that would stay as long as the connection.
    let mut ahead = parts.read_buf.to_vec();
    ahead.extend_from_slice(&behind);
    Ok((ended, stream, ahead))
}

/// How the serving of a connection ended.
enum Ended {
    /// With its last answer, or with its idle time.
    Served,
    /// Idle, in favour of others.
    SentAway,
    /// With the head of an upgrade request.
    Upgrade(Vec<u8>),
    /// With a poll that waits.
    Waits(Box<WaitingPoll>),
}

/// Looks whether somebody is too slow, when it is time to. A request that is gets its answer first;
/// if that is not the end of it, nothing else is.
fn look(
    answers: &Answers,
    mut timer: Pin<&mut Sleep>,
    context: &mut Context<'_>,
) -> Result<(), Overdue> {
    let (watch, limits) = (&answers.watch, &answers.server.config.http);
    while timer.as_mut().poll(context).is_ready() {
        let next =
            match watch.look(limits, answers.http_connections.idle_limit(limits.idle_timeout)) {
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

/// A response of the router, or a refusal; or nothing ever, for a request that belongs to a user
/// socket.
async fn answer(
    answers: Arc<Answers>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let watch = &answers.watch;
    let limits = &answers.server.config.http;
    let number = watch.request_came();
    if let Some(status) = watch.refusal_of(number) {
        watch.answered();
        return Ok(refusal(status));
    }
    if answers.is_for_a_user_socket(&request) {
        if let Ok(mut head) = answers.upgrade.lock() {
            *head = Some(write_head(&request.into_parts().0));
        }
        return pending().await;
    }
    if let Some((polls, polled)) = answers.polled_at(&request) {
        // On the heap: no other request is to be as large.
        return Ok(Box::pin(answer_poll(&answers, polls, polled, number, request)).await);
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
    answers.mark_last(number, &mut response);
    if response.body().size_hint().exact().is_some_and(|bytes| bytes <= SMALL_BYTES) {
        watch.answered();
        return Ok(response);
    }
    Ok(response.map(|body| Body::new(Watched { body, watch: Arc::clone(watch) })))
}

/// A request of long polling: answered, or never, if its connection is to be parked for it.
async fn answer_poll(
    answers: &Answers,
    polls: &Arc<LongPolls>,
    polled: (u8, LongPoll),
    number: u64,
    request: Request<Incoming>,
) -> Response<Body> {
    let watch = &answers.watch;
    let closes = wants_close(request.version(), request.headers());
    let request = request.map(|body| body_of(body, &answers.server.config.http));
    let mut served = pin!(longpoll::serve(polls, polled, request, answers.peer, write_head));
    let served = poll_fn(|context| match watch.is_given_up() {
        true => Poll::Ready(Served::Now(refusal(408))),
        false => served.as_mut().poll(context),
    });
    let mut response = match served.await {
        Served::Now(response) => response,
        // It has no body: with one a GET is refused.
        Served::Waits(waiting) => {
            if let Ok(mut place) = answers.waiting.lock() {
                *place = Some(WaitingPoll { waiting, number, closes });
            }
            return pending().await;
        }
    };
    answers.mark_last(number, &mut response);
    watch.answered();
    response
}

/// Whether a client wants no further request on its connection; older ones would have to say that
/// they do.
fn wants_close(version: Version, headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    version != Version::HTTP_11 || words.any(|it| it.trim_ascii().eq_ignore_ascii_case(b"close"))
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
        self.watch.is_last(number)
            || self.watch.has_to_leave()
            || self.http_connections.is_draining()
    }

    /// Has the answer to a connection's last request say so.
    fn mark_last(&self, number: u64, response: &mut Response<Body>) {
        if number >= self.server.config.http.requests_max || self.is_over(number) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// The user socket that a request polls. Nobody does on the admin address.
    fn polled_at(&self, request: &Request<Incoming>) -> Option<(&Arc<LongPolls>, (u8, LongPoll))> {
        let polls = self.pages.polls.as_ref()?;
        Some((polls, polls.user_socket_at(request.uri().path())?))
    }

    fn is_for_a_user_socket(&self, request: &Request<Incoming>) -> bool {
        let wants_upgrade = request
            .headers()
            .get(header::UPGRADE)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
        let path = request.uri().path();
        self.can_go_back
            && self
                .server
                .user_sockets
                .iter()
                .any(|user_socket| user_socket.takes(path, wants_upgrade))
    }
}

/// Writes a request's head out again, for a shard to read.
fn write_head(request: &Parts) -> Vec<u8> {
    let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut head = format!("{} {target} {:?}\r\n", request.method, request.version).into_bytes();
    for (name, value) in &request.headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

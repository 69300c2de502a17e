//! A connection from a shard: hyper serves it; it leaves hyper while a long poll waits, and returns
//! to its shard for an upgrade.
#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::AddressFamily;
use simurgh_reactor::HandOffEnd;
use simurgh_shard::connections::{
    ConnectionSlot, HeldBytes, HttpConnections, Overdue, Side, Watch,
};
use simurgh_shard::proxies::{Named, is_trusted, proxy_line, read_proxy_line};
use simurgh_shard::server::Server;
use simurgh_socket::LongPoll;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::bodies::{self, Watched};
use super::gate::Gate;
use super::waiting_poll::{self, WaitingPoll};
use super::{Pages, Site};
use crate::longpoll::{self, Client, LongPolls, Served, write_head};

/// How long a client may continue to send after its answer, and how many bytes.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 8 << 20;

/// The peer of a Unix socket is on this machine.
const UNIX_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The shard that a connection came from, and may return to.
pub(super) type Back = Arc<AsyncFd<Arc<HandOffEnd>>>;

struct Answers {
    server: Arc<Server>,
    site: Arc<Site>,
    client: Client,
    watch: Arc<Watch>,
    /// The head of an upgrade request: with it the connection returns to its shard.
    upgrade: Mutex<Option<Vec<u8>>>,
    /// A waiting poll; its connection leaves hyper.
    waiting: Mutex<Option<WaitingPoll>>,
    can_go_back: bool,
    http_connections: Arc<HttpConnections>,
}

/// Serves a connection to its end, or to an upgrade that returns it to its shard.
///
/// The future that serves requests is on the heap, so that a connection with a waiting poll can
/// free it, and so is all else that waits. An `async fn` would store its arguments twice.
pub(super) fn serve(
    server: Arc<Server>,
    site: Arc<Site>,
    back: Option<Back>,
    mut stream: TcpStream,
    mut ahead: Vec<u8>,
    mut slot: ConnectionSlot,
) -> impl Future<Output = io::Result<()>> + Send {
    let answers = peer_of(&stream).map(|hop| {
        let named = if back.is_some() { take_named(&server, hop, &mut ahead) } else { None };
        let hop = hop.or(named.map(|named| named.client)).unwrap_or(UNIX_PEER);
        let is_proxy = is_trusted(&server.config.trusted_proxies, hop.ip());
        let (is_named, is_secure) = (named.is_some(), named.is_some_and(|named| named.is_secure));
        let peer = named.map_or(hop, |named| named.client);
        let client = Client { peer, is_named, is_secure, is_proxy };
        let watch = Arc::new(Watch::default());
        slot.enter(&watch);
        Arc::new(Answers {
            server,
            site,
            client,
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
                (Ended::Upgrade(head), Some(back)) => {
                    let Client { peer: client, is_named, is_secure, .. } = answers.client;
                    let named = is_named.then_some(Named { client, is_secure });
                    let line = named.map(proxy_line).unwrap_or_default();
                    return give_back(back, stream, [line.into_bytes(), head].concat(), &ahead);
                }
                (Ended::Waits(parked), _) => {
                    if !boxed(|| answer_waiting(answers, &mut stream, parked)).await? {
                        return boxed(|| linger(stream)).await;
                    }
                }
                // Its slot is needed, and no request is open.
                (Ended::SentAway, _) => return Ok(()),
                _ => return boxed(|| linger(stream)).await,
            }
        }
    }
}

/// The address of a connection's other end; `None` for a Unix socket.
fn peer_of(stream: &TcpStream) -> io::Result<Option<SocketAddr>> {
    let peer = rustix::net::getpeername(stream)?.ok_or(io::ErrorKind::NotConnected)?;
    let is_unix = peer.address_family() == AddressFamily::UNIX;
    if is_unix { Ok(None) } else { Ok(Some(SocketAddr::try_from(peer)?)) }
}

/// Takes the line that names the client, if a shard has put it before the connection's bytes: a
/// shard reads all that clients send before it passes them on, so no client can write that line.
fn take_named(server: &Server, hop: Option<SocketAddr>, ahead: &mut Vec<u8>) -> Option<Named> {
    let config = &server.config;
    let is_of_proxy =
        |hop: SocketAddr| config.proxy_protocol && is_trusted(&config.trusted_proxies, hop.ip());
    if !hop.is_none_or(is_of_proxy) {
        return None;
    }
    let (named, rest) = read_proxy_line(ahead)?;
    *ahead = rest.to_vec();
    Some(named)
}

/// Builds a future on the heap: one that is built where it is awaited would take space there, too.
fn boxed<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(make())
}

/// Returns a connection to its shard, with the head of an upgrade request and the bytes after it.
fn give_back(back: &Back, stream: TcpStream, mut head: Vec<u8>, ahead: &[u8]) -> io::Result<()> {
    head.extend_from_slice(ahead);
    let descriptor = OwnedFd::from(stream.into_std()?);
    back.get_ref().send(descriptor, &head).map_err(|(error, _)| io::Error::other(error))
}

/// Waits for the answer of a poll and writes it; returns whether further requests may follow.
async fn answer_waiting(
    answers: &Answers,
    stream: &mut TcpStream,
    mut parked: Box<WaitingPoll>,
) -> io::Result<bool> {
    let limits = &answers.server.config.http;
    let body = waiting_poll::wait(stream, &mut parked.waiting).await;
    let WaitingPoll { number, closes, .. } = *parked;
    let closes = closes || number >= limits.requests_max || answers.is_over(number);
    let held = answers.held(Side::Outbound);
    // On the heap, so that it takes no space while the poll waits.
    boxed(|| waiting_poll::write(stream, body, closes, &answers.watch, held, limits)).await?;
    answers.watch.answered();
    Ok(!closes)
}

/// Serves requests until one needs the connection itself; returns it with what was read ahead.
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
    // hyper's own timeout of heads would set a timer for each request, and the gate detects better
    // whether a client has left: one that has only shut its side still waits for answers.
    let mut connection =
        http1::Builder::new().half_close(true).serve_connection(TokioIo::new(gate), service);
    let mut timer = pin!(sleep(limits.shortest_timeout()));
    let ended = poll_fn(|context| {
        answers.watch.is_watched_by(context);
        if answers.watch.is_cut_off() {
            return Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut)));
        }
        match look(answers, timer.as_mut(), context) {
            Ok(()) => {}
            Err(Overdue::Idle) => return Poll::Ready(Ok(Ended::Served)),
            Err(_) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut))),
        }
        // With shutdown: only that waits for the answer to a request whose body was not read.
        let served = Pin::new(&mut connection).poll(context);
        if let Ok(Some(head)) = answers.upgrade.lock().map(|mut head| head.take()) {
            return Poll::Ready(Ok(Ended::Upgrade(head)));
        }
        // Dropping hyper would lose a response that is still being written.
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
    let gate = parts.io.into_inner();
    // With nothing unread, a close cannot destroy the answer, and its slot is free at once.
    let can_go = gate.is_between_requests() && answers.watch.has_to_leave();
    let ended = match ended {
        Ended::Served if can_go => Ended::SentAway,
        ended => ended,
    };
    let (stream, behind) = gate.into_parts();
    // Copied: it is mostly empty, in a buffer that would live as long as the connection.
    let mut ahead = parts.read_buf.to_vec();
    ahead.extend_from_slice(&behind);
    Ok((ended, stream, ahead))
}

enum Ended {
    /// After its last answer, or after its idle timeout.
    Served,
    /// Closed, while idle or after its answer, to free its slot.
    SentAway,
    Upgrade(Vec<u8>),
    Waits(Box<WaitingPoll>),
}

/// Checks for slow clients when it is time to. A slow request gets its answer first; if that does
/// not end it, nothing else is done.
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
                Err(Overdue::Request) if watch.given_up().is_none() => {
                    watch.give_up(408);
                    limits.shortest_timeout()
                }
                Err(overdue) => return Err(overdue),
            };
        // The watch and the timer have a resolution of milliseconds.
        let next = next.max(Duration::from_millis(1));
        timer.as_mut().reset(tokio::time::Instant::now() + next);
    }
    Ok(())
}

/// Closes a connection after its answer. Bytes that the client still sends, such as an unread body,
/// are read for a while: if they stayed unread, the close would become a reset, which can destroy
/// the answer.
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

/// A response of the router or a refusal; pending forever for a request of a user socket.
async fn answer(
    answers: Arc<Answers>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let watch = &answers.watch;
    let limits = &answers.server.config.http;
    let number = watch.request_came();
    if let Some(status) = watch.refusal_of(number) {
        watch.answered();
        return Ok(refusal(status));
    }
    let pages = answers.site.pages();
    if answers.is_for_a_user_socket(&pages, &request) {
        if let Ok(mut head) = answers.upgrade.lock() {
            *head = Some(write_head(&request.into_parts().0));
        }
        return pending().await;
    }
    let came = Arc::new(answers.held(Side::Inbound));
    let mut request = request.map(|body| bodies::received(body, limits, &came));
    if let Some((polls, polled)) = polled_at(&pages, request.uri().path()) {
        // On the heap, so that the futures of other requests stay small.
        return Ok(Box::pin(answer_poll(&answers, polls, polled, number, request)).await);
    }
    request.extensions_mut().insert(ConnectInfo(answers.client.peer));
    request.extensions_mut().insert(answers.client);
    let is_options = request.method() == Method::OPTIONS;
    let is_root = matches!(request.uri().path(), "/" | "*");
    let mut router = pages.at(request.uri().path());
    let mut routed = pin!(router.call(request));
    let mut response = poll_fn(|context| match watch.given_up() {
        Some(status) => Poll::Ready(Ok(refusal(status))),
        None => routed.as_mut().poll(context),
    })
    .await?;
    // The default check of HAProxy is `OPTIONS /`: the server lives, whether or not it has a page.
    let status = response.status();
    let has_no_answer =
        status == StatusCode::METHOD_NOT_ALLOWED || (is_root && status.is_client_error());
    if is_options && has_no_answer {
        let allow = response.headers_mut().remove(header::ALLOW);
        response = StatusCode::NO_CONTENT.into_response();
        let allow = allow.unwrap_or(HeaderValue::from_static("OPTIONS"));
        response.headers_mut().insert(header::ALLOW, allow);
    }
    answers.mark_last(number, &mut response);
    Ok(answers.send(response))
}

/// A long-poll request: answered, or pending forever if its connection is to be parked.
async fn answer_poll(
    answers: &Answers,
    polls: &Arc<LongPolls>,
    polled: (u8, LongPoll),
    number: u64,
    request: Request<Body>,
) -> Response<Body> {
    let watch = &answers.watch;
    let closes = wants_close(request.version(), request.headers());
    let mut served = pin!(longpoll::serve(polls, polled, request, answers.client));
    let served = poll_fn(|context| match watch.given_up() {
        Some(status) => Poll::Ready(Served::Now(refusal(status))),
        None => served.as_mut().poll(context),
    });
    let mut response = match served.await {
        Served::Now(response) => response,
        // It has no body: a GET with one is refused.
        Served::Waits(waiting) => {
            if let Ok(mut place) = answers.waiting.lock() {
                *place = Some(WaitingPoll { waiting, number, closes });
            }
            return pending().await;
        }
    };
    answers.mark_last(number, &mut response);
    answers.send(response)
}

/// The user socket that a request polls. The admin address has none.
fn polled_at<'p>(pages: &'p Pages, path: &str) -> Option<(&'p Arc<LongPolls>, (u8, LongPoll))> {
    let polls = pages.polls.as_ref()?;
    Some((polls, polls.user_socket_at(path)?))
}

/// `close` is the default before HTTP/1.1.
fn wants_close(version: Version, headers: &HeaderMap) -> bool {
    version != Version::HTTP_11 || lists(headers, &header::CONNECTION, b"close")
}

/// Whether a list header has this element, in any case and on any of its lines.
fn lists(headers: &HeaderMap, name: &HeaderName, element: &[u8]) -> bool {
    let lines = headers.get_all(name).iter();
    let mut elements = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    elements.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(element))
}

fn refusal(status: u16) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let reason = status.canonical_reason().unwrap_or_default();
    (status, [(header::CONNECTION, "close")], format!("{reason}\n")).into_response()
}

impl Answers {
    /// Counts bytes that the connection holds.
    fn held(&self, side: Side) -> HeldBytes {
        HeldBytes::new(&self.http_connections, &self.watch, side)
    }

    fn send(&self, response: Response<Body>) -> Response<Body> {
        if bodies::is_small(&response) {
            self.watch.answered();
            return response;
        }
        let (watch, http_connections) =
            (Arc::clone(&self.watch), Arc::clone(&self.http_connections));
        response.map(|body| Body::new(Watched { body, watch, http_connections }))
    }

    fn is_over(&self, number: u64) -> bool {
        self.watch.is_last(number)
            || self.watch.has_to_leave()
            || self.http_connections.is_draining()
    }

    fn mark_last(&self, number: u64, response: &mut Response<Body>) {
        if number >= self.server.config.http.requests_max || self.is_over(number) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    fn is_for_a_user_socket(&self, pages: &Pages, request: &Request<Incoming>) -> bool {
        let wants_upgrade = lists(request.headers(), &header::UPGRADE, b"websocket");
        let mut user_sockets = pages.user_sockets().iter();
        self.can_go_back && user_sockets.any(|it| it.takes(request.uri().path(), wants_upgrade))
    }
}

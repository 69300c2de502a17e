//! The requests of long polling: checks them, and sends them to shards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError};
use simurgh_cluster::NodeId;
use simurgh_core::Wire;
use simurgh_proto::params;
use simurgh_proto::serializer::Serializer;
use simurgh_shard::config::Config;
use simurgh_shard::mail::Mail;
use simurgh_shard::mail::poll::{Opener, Opening, PollCommand};
use simurgh_shard::proxies::{Page, names_client, real_peer};
use simurgh_socket::{LongPoll, UserSocket};
use tokio::sync::oneshot;

use super::answer::{bare, json};
use super::frames::is_ndjson;
use super::session_request::{PollOutcome, SessionRequest};
use super::token::{Claim, now_s};
use super::waiting::What;
use super::{LongPolls, Reply, Waiting, other_node};
use crate::access::lines;

/// Newer clients send their token in this header; it takes precedence over the one in the address.
const TOKEN_HEADER: &str = "x-phoenix-longpoll-token";
/// The auth token of a first request, if the user socket accepts one.
const AUTH_TOKEN_HEADER: &str = "x-phoenix-authtoken";

pub(crate) enum Served {
    Now(Response<Body>),
    /// A poll without messages yet.
    Waits(Box<Waiting>),
}

impl From<Reply<'_>> for Served {
    fn from(reply: Reply<'_>) -> Self {
        Self::Now(reply.into())
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    /// The address of the client or a proxy, or the one that a PROXY header has named.
    pub(crate) peer: SocketAddr,
    /// By a PROXY header, or by the shard that has the connection's TLS.
    pub(crate) is_named: bool,
    /// Its connection has TLS.
    pub(crate) is_secure: bool,
    /// It is a trusted proxy.
    pub(crate) is_proxy: bool,
}

impl Client {
    /// The page that sent a request.
    pub(crate) fn page<'h>(&self, config: &Config, headers: &'h HeaderMap) -> Page<'h> {
        let of_proxy = self.is_proxy && names_client(config, |name| headers.contains_key(name));
        Page {
            origin: headers.get(header::ORIGIN).map(HeaderValue::as_bytes),
            host: headers.get(header::HOST).map(HeaderValue::as_bytes),
            proxy: of_proxy.then(|| lines(headers, "x-forwarded-proto")),
            is_secure: self.is_secure,
        }
    }
}

struct PollRequest<'a> {
    polls: &'a Arc<LongPolls>,
    at: u8,
    user_socket: &'a UserSocket,
    longpoll: LongPoll,
    client: Client,
    parts: Parts,
}

pub(crate) async fn serve(
    polls: &Arc<LongPolls>,
    (at, longpoll): (u8, LongPoll),
    request: Request<Body>,
    client: Client,
) -> Served {
    let Some(user_socket) = polls.server.user_sockets.get(usize::from(at)) else {
        return Served::Now(bare(StatusCode::NOT_FOUND));
    };
    let (parts, body) = request.into_parts();
    let request_of = PollRequest { polls, at, user_socket, longpoll, client, parts };
    if !request_of.origin_is_allowed() {
        return request_of.refuse(403);
    }
    match request_of.parts.method {
        Method::OPTIONS => Served::Now(preflight(&request_of.parts.headers)),
        Method::GET => request_of.poll().await,
        Method::POST => request_of.post(body).await,
        _ => Served::Now(bare(StatusCode::BAD_REQUEST)),
    }
}

impl PollRequest<'_> {
    fn origin_is_allowed(&self) -> bool {
        let server = &self.polls.server;
        let policy =
            self.user_socket.parts().check_origin.as_ref().unwrap_or(&server.origin_policy);
        let page = self.client.page(&server.config, &self.parts.headers);
        page.check(&server.config, policy).is_ok()
    }

    /// Refuses a session. Of statuses over 499 clients know only 500, after which they retry; any
    /// other they ignore.
    fn refuse(&self, status: u16) -> Served {
        self.polls.refused.fetch_add(1, Relaxed);
        Reply::status(status.min(500)).into()
    }

    fn claim(&self) -> Option<(Claim, String)> {
        let token = match self.parts.headers.get(TOKEN_HEADER) {
            Some(token) => token.to_str().ok()?.to_owned(),
            None => query_token(self.parts.uri.query().unwrap_or_default())?,
        };
        let claim = self.polls.signer.verify(&token)?;
        let is_known = claim.node == self.polls.server.id || self.elsewhere(&claim).is_some();
        (is_known && claim.user_socket == self.at).then_some((claim, token))
    }

    /// The other node of a session, if it is connected.
    fn elsewhere(&self, claim: &Claim) -> Option<NodeId> {
        let (node, server) = (NodeId(claim.node), &self.polls.server);
        let inbox = server.cluster.as_ref().filter(|_| claim.node != server.id)?;
        inbox.view().knows(node).then_some(node)
    }

    async fn poll(self) -> Served {
        let Some((claim, token)) = self.claim() else {
            return self.open().await;
        };
        let (polls, window) = (self.polls, self.longpoll.window_time());
        if let Some(node) = self.elsewhere(&claim) {
            return match other_node::poll(&polls.server, node, &token) {
                Some(calling) => {
                    polls.elsewhere.fetch_add(1, Relaxed);
                    let what = What::Elsewhere(calling);
                    Served::Waits(Box::new(Waiting::new(polls, what, claim, token, window)))
                }
                None => self.begin_anew(&claim).await,
            };
        }
        match (SessionRequest { polls, window, claim, token }).poll(false).await {
            PollOutcome::Body(body) => Served::Now(json(body)),
            PollOutcome::Waits(waiting) => Served::Waits(waiting),
            PollOutcome::Gone => self.begin_anew(&claim).await,
        }
    }

    /// The session does not exist; a new one replaces it. If an answer of it may be lost, its
    /// client has to start again instead: versions before 1.8 would poll a new session and believe
    /// that they are still joined.
    async fn begin_anew(self, claim: &Claim) -> Served {
        match claim.heard > 0 {
            true => Reply::status(500).into(),
            false => self.open().await,
        }
    }

    async fn open(self) -> Served {
        let server = &self.polls.server;
        if server.drain_began.get().is_some() {
            return self.refuse(503);
        }
        let query = self.parts.uri.query().unwrap_or_default();
        let params = match &self.user_socket.parts().connect {
            Some(_) => match params::decode(query) {
                Ok(params) => params,
                Err(_) => return Served::Now(bare(StatusCode::BAD_REQUEST)),
            },
            None => serde_json::Value::Null,
        };
        let serializer = params::vsn(query).ok().map(|vsn| Serializer::for_vsn(vsn.as_deref()));
        let Some(Ok(serializer)) = serializer else { return self.refuse(403) };
        let Ok(nonce) = self.polls.signer.nonce() else { return self.refuse(500) };
        let wire = Wire::from(serializer);
        let shard = self.polls.next_shard();
        let headers = &self.parts.headers;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let auth_token = text(AUTH_TOKEN_HEADER).filter(|_| self.user_socket.parts().auth_token);
        let forwarded_for = lines(headers, "x-forwarded-for");
        let peer = real_peer(self.client.peer, &forwarded_for, &server.config.trusted_proxies);
        let (answer, opened) = oneshot::channel();
        let opening = Opening {
            head: write_head(&self.parts).into(),
            user_socket: self.at,
            wire,
            params,
            auth_token: auth_token.map(str::to_owned),
            opener: Opener { nonce, peer, answer },
        };
        server.post_to(shard, Mail::LongPoll(Box::new(PollCommand::Open(opening))));
        let node = server.id;
        match opened.await {
            Ok(Ok(key)) => {
                let (user_socket, issued_s) = (self.at, now_s());
                let claim =
                    Claim { node, shard, user_socket, wire, key, nonce, issued_s, heard: 0 };
                Reply::poll(410, &self.polls.signer.sign(&claim), &[]).into()
            }
            // The shard has counted it.
            Ok(Err(status)) => Reply::status(status.min(500)).into(),
            Err(_) => self.refuse(503),
        }
    }

    async fn post(self, body: Body) -> Served {
        // Checked before the body is read, so that no other client makes the server buffer one.
        let Some((claim, token)) = self.claim() else { return Reply::status(410).into() };
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Served::Now(bare(status_of(&error))),
        };
        let is_many = self.parts.headers.get(header::CONTENT_TYPE).is_some_and(is_ndjson);
        let (polls, window) = (self.polls, self.longpoll.window_time());
        let status = match self.elsewhere(&claim) {
            Some(node) => {
                polls.elsewhere.fetch_add(1, Relaxed);
                other_node::post(&polls.server, node, &token, is_many, &body, window).await
            }
            None => SessionRequest { polls, window, claim, token }.post(is_many, body).await,
        };
        match status {
            Some(status) => Reply::status(status).into(),
            None => Served::Now(bare(StatusCode::BAD_REQUEST)),
        }
    }
}

fn status_of(error: &axum::Error) -> StatusCode {
    let mut cause = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return StatusCode::PAYLOAD_TOO_LARGE;
        }
        cause = error.source();
    }
    StatusCode::BAD_REQUEST
}

/// A request's head, as it may have been received.
pub(crate) fn write_head(request: &Parts) -> Vec<u8> {
    let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut head = format!("{} {target} {:?}\r\n", request.method, request.version).into_bytes();
    for (name, value) in &request.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Browsers send a preflight before pages of other origins may send custom headers.
fn preflight(headers: &HeaderMap) -> Response<Body> {
    let mut response = bare(StatusCode::OK);
    let command = lines(headers, header::ACCESS_CONTROL_REQUEST_HEADERS.as_str());
    let own = response.headers_mut();
    if let Ok(command) = HeaderValue::from_bytes(&command.join(&b", "[..])) {
        own.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, command);
    }
    let methods = HeaderValue::from_static("get, post, options");
    own.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    own.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("3600"));
    response
}

fn query_token(query: &str) -> Option<String> {
    let params = params::decode(query).ok()?;
    params.get("token")?.as_str().map(str::to_owned)
}

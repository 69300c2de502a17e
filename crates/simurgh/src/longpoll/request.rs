//! The requests of long polling: who may ask, what is asked, and what a shard is told of it.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http_body_util::{BodyExt as _, LengthLimitError};
use simurgh_core::{Received, Wire};
use simurgh_proto::origin::Own;
use simurgh_proto::params;
use simurgh_proto::serializer::{Frame, Serializer};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::answer::bare;
use super::token::{Claim, now_s};
use super::{
    Answered, Asked, Given, Heard, Line, LongPoll, Messages, Opener, Opening, Post, Reply,
};
use crate::hub::Hub;
use crate::mail::Mail;
use crate::socket::{Mount, real_peer};
use crate::websocket::{Long, TEXT_BYTES_MAX, receive};

/// Lines of one POST that are handled; what comes behind is dropped, as in Phoenix.
const LINES_MAX: usize = 100;
/// Longest line of base64, characters.
const BASE64_MAX: usize = 10_000_000;
/// Where newer clients have their token; it counts before the one in the address.
const TOKEN_HEADER: &str = "x-phoenix-longpoll-token";
/// The auth token of a first request, where the mount takes one.
const AUTH_TOKEN_HEADER: &str = "x-phoenix-authtoken";
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How a request is answered.
pub(crate) enum Served {
    Now(Response<Body>),
    /// A poll for which there is nothing yet.
    Waits(Box<Waiting>),
}

impl From<Reply<'_>> for Served {
    fn from(reply: Reply<'_>) -> Self {
        Self::Now(reply.into())
    }
}

/// What is known of a request from the beginning.
struct Asks<'a> {
    hub: &'a Arc<Hub>,
    at: u8,
    mount: &'a Mount,
    longpoll: LongPoll,
    /// The other end of the connection: the client, or a proxy.
    hop: SocketAddr,
    parts: Parts,
    /// The head as it came, for the application's connect.
    head: fn(&Parts) -> Vec<u8>,
}

/// Serves a request to the path that polls a mount. `head` writes a request's head out.
pub(crate) async fn serve(
    hub: &Arc<Hub>,
    (at, longpoll): (u8, LongPoll),
    request: Request<Body>,
    hop: SocketAddr,
    head: fn(&Parts) -> Vec<u8>,
) -> Served {
    let Some(mount) = hub.mounts.get(usize::from(at)) else {
        return Served::Now(bare(StatusCode::NOT_FOUND));
    };
    let (parts, body) = request.into_parts();
    let asks = Asks { hub, at, mount, longpoll, hop, parts, head };
    if !asks.origin_is_allowed() {
        return asks.refuse(403);
    }
    match asks.parts.method {
        Method::OPTIONS => Served::Now(preflight(&asks.parts.headers)),
        Method::GET => asks.poll().await,
        Method::POST => asks.post(body).await,
        _ => Served::Now(bare(StatusCode::BAD_REQUEST)),
    }
}

impl Asks<'_> {
    fn origin_is_allowed(&self) -> bool {
        let text = |name: &str| self.parts.headers.get(name).and_then(|it| it.to_str().ok());
        let origin = self.parts.headers.get(header::ORIGIN);
        let origin = origin.map(|origin| origin.to_str().unwrap_or_default());
        let trusted = &self.hub.config.trusted_proxies;
        let is_trusted = trusted.iter().any(|net| net.contains(&self.hop.ip()));
        let is_https = is_trusted && text("x-forwarded-proto") == Some("https");
        let scheme = if is_https { "https" } else { "http" };
        let own = Own::from_host_header(scheme, text("host").unwrap_or_default());
        let own = own.unwrap_or(Own { scheme, host: "", port: 0 });
        let policy = self.mount.check_origin.as_ref().unwrap_or(&self.hub.origin_policy);
        policy.allows(origin, own)
    }

    /// A session is refused. Clients know no status over 499 but 500, and go on with any other as
    /// if nothing were to be done: after 500 they try again.
    fn refuse(&self, status: u16) -> Served {
        self.hub.longpolls.refused.fetch_add(1, Relaxed);
        Reply::status(status.min(500)).into()
    }

    /// The session that a request is about, and the token that names it.
    fn claim(&self) -> Option<(Claim, String)> {
        let token = match self.parts.headers.get(TOKEN_HEADER) {
            Some(token) => token.to_str().ok()?.to_owned(),
            None => query_token(self.parts.uri.query().unwrap_or_default())?,
        };
        let signer = &self.hub.longpolls.signer;
        let claim = signer.verify(&token)?;
        (claim.node == signer.node && claim.mount == self.at).then_some((claim, token))
    }

    async fn poll(self) -> Served {
        let Some((claim, token)) = self.claim() else {
            return self.open().await;
        };
        let Claim { shard, key, nonce, heard, .. } = claim;
        let (answer, answered) = oneshot::channel();
        let poll = Asked::Poll { key, nonce, heard, answer };
        self.hub.post_to(shard, Mail::LongPoll(Box::new(poll)));
        match answered.await {
            Ok(Answered::Messages(Given { number, messages })) => {
                let token = token_of(self.hub, &claim, token, number);
                Reply::poll(200, &token, &messages).into()
            }
            Ok(Answered::Waits(heard)) => {
                let window = self.longpoll.window_time();
                Served::Waits(Box::new(Waiting::new(self.hub, heard, claim, token, window)))
            }
            // After this one clients of all versions begin anew, and join again.
            Ok(Answered::Lost) => Reply::status(500).into(),
            // So they do if that answer was lost, too. A new session would be none to versions
            // before 1.8: they poll it and think that they are joined.
            Ok(Answered::Gone) | Err(_) if heard > 0 => Reply::status(500).into(),
            Ok(Answered::Gone) | Err(_) => self.open().await,
        }
    }

    /// A session begins, if the application lets it in.
    async fn open(self) -> Served {
        let hub = self.hub;
        if hub.drain_began.get().is_some() {
            return self.refuse(503);
        }
        let query = self.parts.uri.query().unwrap_or_default();
        let params = match &self.mount.connect {
            Some(_) => match params::decode(query) {
                Ok(params) => params,
                Err(_) => return Served::Now(bare(StatusCode::BAD_REQUEST)),
            },
            None => serde_json::Value::Null,
        };
        let serializer = params::vsn(query).ok().map(|vsn| Serializer::for_vsn(vsn.as_deref()));
        let Some(Ok(serializer)) = serializer else { return self.refuse(403) };
        let Ok(nonce) = hub.longpolls.signer.nonce() else { return self.refuse(500) };
        let wire = Wire::from(serializer);
        let shard = hub.longpolls.next_shard(hub.mailboxes.len());
        let headers = &self.parts.headers;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let auth_token = text(AUTH_TOKEN_HEADER).filter(|_| self.mount.auth_token);
        let forwarded = text("x-forwarded-for");
        let (answer, opened) = oneshot::channel();
        let opening = Opening {
            head: (self.head)(&self.parts).into(),
            mount: self.at,
            wire,
            params,
            auth_token: auth_token.map(str::to_owned),
            peer: real_peer(self.hop, forwarded, &hub.config.trusted_proxies),
            opener: Opener { nonce, answer },
        };
        hub.post_to(shard, Mail::LongPoll(Box::new(Asked::Open(opening))));
        let node = hub.longpolls.signer.node;
        match opened.await {
            Ok(Ok(key)) => {
                let (mount, issued_s) = (self.at, now_s());
                let claim = Claim { node, shard, mount, wire, key, nonce, issued_s, heard: 0 };
                Reply::poll(410, &hub.longpolls.signer.sign(&claim), &[]).into()
            }
            // The shard has counted it.
            Ok(Err(status)) => Reply::status(status.min(500)).into(),
            Err(_) => self.refuse(503),
        }
    }

    async fn post(self, body: Body) -> Served {
        // Before the body is read: nobody else may make the server hold one.
        let Some((claim, _)) = self.claim() else { return Reply::status(410).into() };
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Served::Now(bare(status_of(&error))),
        };
        let mut lines = Vec::new();
        let mut is_wrong = false;
        for frame in frames(&self.parts.headers, body) {
            match frame {
                Some(frame) => lines.push(self.line(&claim, frame).await),
                None => {
                    is_wrong = true;
                    break;
                }
            }
        }
        let Claim { shard, key, nonce, .. } = claim;
        let bytes = lines.iter().map(weight).sum();
        let (answer, handled) = oneshot::channel();
        let post = Post { lines: lines.into_iter(), bytes, answer };
        let say = Asked::Say { key, nonce, post };
        self.hub.post_to(shard, Mail::LongPoll(Box::new(say)));
        match timeout(self.longpoll.window_time(), handled).await {
            Ok(Ok(200)) if is_wrong => Served::Now(bare(StatusCode::BAD_REQUEST)),
            Ok(Ok(status)) => Reply::status(status).into(),
            Ok(Err(_)) => Reply::status(410).into(),
            Err(_) => Reply::status(408).into(),
        }
    }

    /// Reads one message; a long one where nobody waits for it.
    async fn line(&self, claim: &Claim, frame: Said) -> Line {
        let limits = self.mount.limits.unwrap_or(self.hub.config.limits);
        let most = limits.message_bytes_max.min(self.hub.limits.broadcast_bytes_max());
        let Some(serializer) = claim.wire.serializer() else { return Line::Malformed };
        let received = match frame {
            Said::Text(text) if text.len() > most => return Line::TooBig,
            Said::Binary(bytes) if bytes.len() > most => return Line::TooBig,
            Said::Text(text) if text.len() > TEXT_BYTES_MAX => {
                self.read_long(serializer, Long::Text(text)).await
            }
            Said::Binary(bytes) if self.mount.speaks_supabase() => {
                self.read_long(serializer, Long::Binary(bytes)).await
            }
            Said::Text(text) => serializer.decode_owned(text).ok().map(Received::from),
            Said::Binary(bytes) => {
                let message = serializer.decode(Frame::Binary(&bytes)).ok();
                message.map(|message| Received::from(message.into_owned()))
            }
            Said::Nonsense => None,
        };
        received.map_or(Line::Malformed, |received| Line::Message(Box::new(received)))
    }

    async fn read_long(&self, serializer: Serializer, long: Long) -> Option<Received<'static>> {
        let (hub, at) = (Arc::clone(self.hub), usize::from(self.at));
        // As many at once as there are cores: others wait here and not on a thread each.
        let _permit = self.hub.readers.acquire().await;
        let read = move || receive(hub.mounts.get(at), serializer, long);
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

/// What a client says in one frame.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Text(String),
    Binary(Vec<u8>),
    /// No UTF-8.
    Nonsense,
}

/// The frames of a body; `None`, and no more, where a line is no base64.
fn frames(headers: &HeaderMap, body: Bytes) -> impl Iterator<Item = Option<Said>> {
    let is_many = headers.get(header::CONTENT_TYPE).is_some_and(is_ndjson);
    let whole = (!is_many).then(|| Some(text(&body)));
    let lines = is_many.then(|| Lines { body, at: 0 }).into_iter().flatten().take(LINES_MAX);
    whole.into_iter().chain(lines)
}

fn is_ndjson(content_type: &HeaderValue) -> bool {
    let essence = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/x-ndjson")
}

/// The lines of a body that are not empty.
struct Lines {
    body: Bytes,
    at: usize,
}

impl Iterator for Lines {
    type Item = Option<Said>;

    fn next(&mut self) -> Option<Option<Said>> {
        loop {
            let rest = self.body.get(self.at..).filter(|rest| !rest.is_empty())?;
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            self.at += end + 1;
            let line = rest.get(..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match line.first() {
                None => {}
                Some(b'[') => return Some(Some(text(line))),
                Some(_) if line.len() > BASE64_MAX => return Some(None),
                Some(_) => return Some(BASE64.decode(line).ok().map(Said::Binary)),
            }
        }
    }
}

fn text(bytes: &[u8]) -> Said {
    std::str::from_utf8(bytes).map_or(Said::Nonsense, |text| Said::Text(text.to_owned()))
}

fn weight(line: &Line) -> usize {
    match line {
        Line::Message(received) => size_of::<Received<'_>>() + received.message.payload.len(),
        Line::Malformed | Line::TooBig => 0,
    }
}

/// Why a body did not come.
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

/// Other origins' pages ask before they send headers of their own.
fn preflight(headers: &HeaderMap) -> Response<Body> {
    let mut response = bare(StatusCode::OK);
    let asked: Vec<&[u8]> = headers
        .get_all(header::ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let own = response.headers_mut();
    if let Ok(asked) = HeaderValue::from_bytes(&asked.join(&b", "[..])) {
        own.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
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

/// The token that goes with the answer of this number: the one that the poll had, unless answers
/// are counted.
fn token_of(hub: &Hub, claim: &Claim, token: String, number: u32) -> String {
    if number == claim.heard {
        return token;
    }
    hub.longpolls.signer.sign(&Claim { heard: number, ..*claim })
}

/// A poll that waits.
pub(crate) struct Waiting {
    hub: Arc<Hub>,
    heard: oneshot::Receiver<Heard>,
    claim: Claim,
    token: String,
    window: Duration,
}

impl Waiting {
    fn new(
        hub: &Arc<Hub>,
        heard: oneshot::Receiver<Heard>,
        claim: Claim,
        token: String,
        window: Duration,
    ) -> Self {
        hub.longpolls.waiting.fetch_add(1, Relaxed);
        Self { hub: Arc::clone(hub), heard, claim, token, window }
    }

    /// Waits until there is something to answer: what was said, or that nothing was said in the
    /// window, or until the client has gone, `left`. Then nothing is taken from the session.
    pub(crate) async fn answer(
        &mut self,
        mut left: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Vec<u8> {
        let mut window = pin!(sleep(self.window));
        let over = poll_fn(|context| {
            if let Poll::Ready(heard) = Pin::new(&mut self.heard).poll(context) {
                return Poll::Ready(Some(heard));
            }
            let is_over = window.as_mut().poll(context).is_ready();
            let has_left = left.as_mut().poll(context).is_ready();
            if is_over || has_left { Poll::Ready(None) } else { Poll::Pending }
        });
        let heard = match over.await {
            Some(heard) => Some(heard),
            None => {
                // From here on the shard keeps what it has; what it had sent before is taken.
                self.heard.close();
                self.heard.try_recv().ok().map(Ok)
            }
        };
        let nothing = |status| (status, self.claim.heard, Messages::new());
        let (status, number, messages) = match heard {
            Some(Ok(Heard::Messages(Given { number, messages }))) => (200, number, messages),
            Some(Ok(Heard::Newer)) | None => nothing(204),
            // The session has ended: its client is to begin anew.
            Some(Err(_)) => nothing(410),
        };
        let token = std::mem::take(&mut self.token);
        let token = token_of(&self.hub, &self.claim, token, number);
        Reply::poll(status, &token, &messages).body()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.hub.longpolls.waiting.fetch_sub(1, Relaxed);
    }
}

//! One handed-over connection: served by hyper, or given back when it asks for an upgrade.
#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use simurgh_reactor::HandOffEnd;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::hub::Hub;

/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long, and for how many bytes, a client may go on sending after its answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 8 << 20;

/// Takes connections from one shard until the shard ends.
pub(super) async fn take_all(hub: Arc<Hub>, router: Router, end: HandOffEnd) {
    #[allow(deprecated, reason = "sound here: the end owns its descriptor and never changes it")]
    let end = match AsyncFd::new(end) {
        Ok(end) => Arc::new(end),
        Err(error) => return tracing::error!(%error, "no hand-off from a shard"),
    };
    loop {
        let Ok(mut ready) = end.readable().await else { return };
        match ready.get_inner().recv() {
            Ok(Some((descriptor, read_ahead))) => {
                let (hub, router, end) = (Arc::clone(&hub), router.clone(), Arc::clone(&end));
                tokio::spawn(async move {
                    if let Err(error) = serve(&hub, router, &end, descriptor, read_ahead).await {
                        tracing::debug!(%error, "an HTTP connection broke");
                    }
                });
            }
            Ok(None) => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return tracing::debug!(%error, "hand-off ended"),
        }
    }
}

/// Serves one connection to its end, or to the upgrade that leads it back.
async fn serve(
    hub: &Arc<Hub>,
    router: Router,
    end: &AsyncFd<HandOffEnd>,
    descriptor: OwnedFd,
    read_ahead: Vec<u8>,
) -> io::Result<()> {
    let stream = StdTcpStream::from(descriptor);
    stream.set_nonblocking(true)?;
    let peer = ConnectInfo(stream.peer_addr()?);
    let stream = Rewound { read_ahead, at: 0, stream: TcpStream::from_std(stream)? };
    // The head of an upgrade request, once there is one: the connection is then ours again.
    let upgrade: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
    let service = {
        let (hub, upgrade) = (Arc::clone(hub), Arc::clone(&upgrade));
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            answer(&hub, &upgrade, router.clone(), request)
        })
    };
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let taken = poll_fn(|context| {
        // With its shutdown, which alone waits for an answer to be written whose request's body was
        // not wanted.
        let served = Pin::new(&mut connection).poll(context);
        match upgrade.lock().map(|mut head| head.take()) {
            Ok(Some(head)) => Poll::Ready(Ok(Some(head))),
            _ => served.map_ok(|()| None),
        }
    })
    .await
    .map_err(io::Error::other)?;
    let parts = connection.into_parts();
    let stream = parts.io.into_inner();
    let Some(mut head) = taken else { return linger(stream).await };
    head.extend_from_slice(&parts.read_buf);
    head.extend_from_slice(stream.read_ahead.get(stream.at..).unwrap_or_default());
    let descriptor = OwnedFd::from(stream.stream.into_std()?);
    end.get_ref().send(descriptor, &head).map_err(|(error, _)| io::Error::other(error))
}

/// Closes a connection that has its answer. What the client may still be sending, such as a body
/// that nobody wanted, is read for a while: left unread it would turn the close into a reset, which
/// can destroy the answer.
async fn linger(mut stream: Rewound) -> io::Result<()> {
    stream.shutdown().await?;
    let read_to_end = async {
        let mut scratch = vec![0; 16 << 10];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match stream.stream.read(&mut scratch).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        Ok(())
    };
    tokio::time::timeout(LINGER, read_to_end).await.unwrap_or(Ok(()))
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A response of the router; or nothing ever, for a request that belongs to a mount.
fn answer(
    hub: &Hub,
    upgrade: &Mutex<Option<Vec<u8>>>,
    mut router: Router,
    request: Request<Incoming>,
) -> Answer {
    let wants_upgrade = request
        .headers()
        .get(header::UPGRADE)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let path = request.uri().path();
    if hub.mounts.iter().any(|mount| mount.takes(path, wants_upgrade)) {
        if let Ok(mut head) = upgrade.lock() {
            *head = Some(write_head(&request));
        }
        return Box::pin(std::future::pending());
    }
    Box::pin(async move {
        use tower_service::Service;
        router.call(request.map(Body::new)).await
    })
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

/// A stream whose first bytes were read by somebody else.
struct Rewound {
    read_ahead: Vec<u8>,
    at: usize,
    stream: TcpStream,
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let rest = this.read_ahead.get(this.at..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..count).unwrap_or_default());
        this.at += count;
        if this.at == this.read_ahead.len() {
            (this.read_ahead, this.at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

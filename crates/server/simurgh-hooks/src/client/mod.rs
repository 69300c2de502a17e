//! HTTP/1.1 to one application: a pool of connections, one request at a time on each.
//!
//! The pool is ours, over hyper's connections: a request is repeated only if a reused connection
//! broke before the first byte of the answer, and only the pool can see that.

#![allow(
    clippy::disallowed_types,
    reason = "made and used in the runtime whose thread has the main table of descriptors"
)]

mod address;
mod tls;

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{DATE, HeaderName, LOCATION, RETRY_AFTER};
use http::response::Parts;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_util::io::InspectReader;

use self::address::Addresses;
use crate::answer::outcome::{BODY_MAX, Response};
use crate::config::HookConfig;
use crate::shared::lock;

/// A connection in steady use ends after this time, so that new addresses of a name are found.
const AGE_MAX: Duration = Duration::from_secs(30);
/// Largest head of an answer.
const HEAD_MAX: usize = 64 * 1024;

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No connection: the application is away, or has too much to do.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// The connection broke, or carried something else than HTTP.
    #[error("{0}")]
    Http(#[from] hyper::Error),
}

/// TCP, TLS or a Unix socket.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Connections to one application.
pub(crate) struct Client {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    idle: Mutex<Vec<Connection>>,
    idle_timeout: Duration,
}

enum Target {
    Tcp(Addresses),
    Unix(PathBuf),
}

type Driver = dyn Future<Output = hyper::Result<()>> + Send;

/// It does its work only while a question is in flight on it, in the task of that question.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// `None`: it has ended.
    driver: Option<Pin<Box<Driver>>>,
    /// Whether a byte of an answer has come.
    answered: Arc<AtomicBool>,
    opened: Instant,
    used: Instant,
}

/// The head of an answer, and its body unless that is too long.
type Answered = (Parts, Option<Vec<u8>>);

impl Client {
    /// A client without connections, or the mistake in its settings.
    pub(crate) fn new(config: &HookConfig) -> Result<Self, String> {
        let host = config.url.host().unwrap_or_default();
        let is_tls = config.url.scheme_str() == Some("https") && config.unix_socket.is_none();
        let port = config.url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let target = match &config.unix_socket {
            Some(path) => Target::Unix(path.clone()),
            None => Target::Tcp(Addresses::new(host, port)),
        };
        let tls = match &target {
            Target::Tcp(addresses) if is_tls => {
                let name = ServerName::try_from(addresses.host().to_owned());
                let name =
                    name.map_err(|_| "url: TLS needs a host name or an address".to_owned())?;
                Some((tls::connector(&config.tls)?, name))
            }
            Target::Tcp(_) | Target::Unix(_) => None,
        };
        let idle_timeout = config.idle_timeout.min(AGE_MAX);
        Ok(Self { target, tls, idle: Mutex::default(), idle_timeout })
    }

    /// Sends what `request` builds: once, or a second time if a reused connection broke before the
    /// first byte of the answer.
    pub(crate) async fn send(
        &self,
        request: impl Fn() -> http::Request<Full<Bytes>>,
    ) -> Result<Response, Error> {
        if let Some(mut reused) = self.reuse() {
            match reused.exchange(request()).await {
                Ok(answered) => return Ok(self.finish(reused, answered)),
                Err(error) if reused.answered.load(Relaxed) => return Err(error.into()),
                Err(error) => tracing::debug!(%error, "a reused connection broke"),
            }
        }
        // In a box, because most questions find a connection, and each has room for this.
        let mut fresh = Box::pin(self.connect()).await?;
        let answered = fresh.exchange(request()).await?;
        Ok(self.finish(fresh, answered))
    }

    /// Closes connections that were idle for too long. Returns when the next one will have been.
    pub(crate) fn close_idle(&self, now: Instant) -> Option<Instant> {
        let mut idle = self.idle();
        idle.retain(|connection| self.is_usable(connection, now));
        // The newest is used first, so the others are in the order of their last use.
        idle.first().map(|oldest| oldest.used + self.idle_timeout)
    }

    /// Whether [`Self::close_idle`] may have found none.
    pub(crate) fn has_one_idle(&self) -> bool {
        self.idle().len() == 1
    }

    fn finish(&self, mut connection: Connection, (head, body): Answered) -> Response {
        let text = |name: HeaderName| {
            let value = head.headers.get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let (location, retry_after) = (text(LOCATION), text(RETRY_AFTER));
        let date = head.headers.get(DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
        if body.is_some() && connection.driver.is_some() {
            connection.used = Instant::now();
            self.idle().push(connection);
        }
        Response { status: head.status.as_u16(), location, retry_after, date, body }
    }

    fn reuse(&self) -> Option<Connection> {
        let newest = self.idle().pop()?;
        self.is_usable(&newest, Instant::now()).then_some(newest)
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let io: Box<dyn Io> = match &self.target {
            Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Target::Tcp(addresses) => match &self.tls {
                None => Box::new(addresses.connect().await?),
                Some((tls, name)) => {
                    Box::new(tls.connect(name.clone(), addresses.connect().await?).await?)
                }
            },
        };
        let answered = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&answered);
        // Under TLS only bytes of the application count.
        let io = InspectReader::new(io, move |bytes| {
            noted.fetch_or(!bytes.is_empty(), Relaxed);
        });
        let io = TokioIo::new(io);
        let (sender, driver) = http1::Builder::new().max_buf_size(HEAD_MAX).handshake(io).await?;
        let driver: Pin<Box<Driver>> = Box::pin(driver);
        let now = Instant::now();
        Ok(Connection { sender, driver: Some(driver), answered, opened: now, used: now })
    }

    fn is_usable(&self, connection: &Connection, now: Instant) -> bool {
        let (idle, age) = (now - connection.used, now - connection.opened);
        idle < self.idle_timeout && age < AGE_MAX
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        lock(&self.idle)
    }
}

impl Connection {
    /// Sends a request and reads its whole answer.
    async fn exchange(
        &mut self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<Answered, hyper::Error> {
        let Self { sender, driver, answered, .. } = self;
        answered.store(false, Relaxed);
        let mut exchange = pin!(async {
            sender.ready().await?;
            let (head, body) = sender.send_request(request).await?.into_parts();
            Ok((head, read(body).await?))
        });
        poll_fn(|context| {
            if let Poll::Ready(done) = exchange.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            drive(driver, context);
            exchange.as_mut().poll(context)
        })
        .await
    }
}

fn drive(driver: &mut Option<Pin<Box<Driver>>>, context: &mut Context<'_>) {
    let polled = driver.as_mut().map(|driver| driver.as_mut().poll(context));
    if let Some(Poll::Ready(ended)) = polled {
        *driver = None;
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to an application ended");
        }
    }
}

/// Reads a body. `None`: it is too long, and its connection must close.
async fn read(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let announced = body.size_hint().lower();
    if announced > BODY_MAX as u64 {
        return Ok(None);
    }
    let mut read = Vec::with_capacity(announced as usize);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            if data.len() > BODY_MAX - read.len() {
                return Ok(None);
            }
            read.extend_from_slice(&data);
        }
    }
    Ok(Some(read))
}

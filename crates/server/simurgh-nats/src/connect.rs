//! Making a link: address, TLS, credentials, the first answer.

#![allow(
    clippy::disallowed_types,
    reason = "made and used in the runtime whose thread has the main table of descriptors"
)]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use simurgh_cluster::adapter::Down;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::config::{Config, Credentials, Secret, Server};
use crate::nkey::{self, Nkey};
use crate::tls;
use crate::wire::{Decoder, Op};

const ADDRESS_TIME_MAX: Duration = Duration::from_secs(5);
/// The most addresses of one server that are tried.
const ADDRESSES_MAX: usize = 8;
/// The largest payload, which is the default limit of servers.
pub(crate) const ENVELOPE_BYTES_MAX: usize = 1 << 20;
/// The most servers that one may list.
const KNOWN_SERVERS_MAX: usize = 64;

/// A connection, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A link after the server's first answer.
pub(crate) struct Established {
    pub(crate) stream: Box<dyn Stream>,
    /// The decoder, with the bytes that followed the answer.
    pub(crate) decoder: Decoder,
    pub(crate) known_servers: Vec<Server>,
    pub(crate) server: Server,
    pub(crate) version: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Info {
    version: String,
    max_payload: Option<usize>,
    tls_required: bool,
    tls_available: bool,
    nonce: String,
    connect_urls: Vec<String>,
}

pub(crate) fn servers_of(by: &Server, json: &[u8]) -> Vec<Server> {
    let info: Info = serde_json::from_slice(json).unwrap_or_default();
    info.connect_urls.iter().take(KNOWN_SERVERS_MAX).filter_map(|it| by.listed(it)).collect()
}

/// A client's CONNECT. Not `Debug`: it has secrets.
#[derive(Serialize)]
struct Connect<'a> {
    verbose: bool,
    pedantic: bool,
    /// Whether it receives its own messages.
    echo: bool,
    headers: bool,
    no_responders: bool,
    protocol: u8,
    tls_required: bool,
    lang: &'a str,
    version: &'a str,
    name: &'a str,
    #[serde(flatten)]
    user: User,
}

#[derive(Serialize)]
#[serde(untagged)]
enum User {
    None {},
    Password { user: String, pass: String },
    Token { auth_token: String },
    Nkey { nkey: String, sig: String },
    Jwt { jwt: String, sig: String },
}

impl User {
    fn of(credentials: &Credentials, nonce: &str) -> Result<Self, Down> {
        let read = |secret: &Secret| {
            secret
                .reveal()
                .map_err(|error| refused(format!("cannot read the credentials: {error}")))
        };
        Ok(match credentials {
            Credentials::None => Self::None {},
            Credentials::Password { user, password } => {
                Self::Password { user: user.clone(), pass: read(password)? }
            }
            Credentials::Token(token) => Self::Token { auth_token: read(token)? },
            Credentials::Nkey(seed) => {
                let key = Nkey::of_seed(&read(seed)?).map_err(refused)?;
                Self::Nkey { nkey: key.public(), sig: key.sign(nonce) }
            }
            Credentials::Creds(text) => {
                let text = read(text)?;
                let (token, seed) = nkey::parts_of_creds(&text).map_err(refused)?;
                let sig = Nkey::of_seed(seed).map_err(refused)?.sign(nonce);
                Self::Jwt { jwt: token.to_owned(), sig }
            }
        })
    }
}

/// Tries servers in this order until one answers.
/// # Errors
/// No server answers: the reasons of all, in the order of their names.
pub(crate) async fn connect(
    config: Arc<Config>,
    servers: Vec<Server>,
    name: String,
) -> Result<Established, Down> {
    let mut failures: Vec<(String, Down)> = Vec::new();
    for server in servers {
        let shown = server.to_string();
        match one(&config, server, &name).await {
            Ok(established) => return Ok(established),
            Err(down) => failures.push((shown, down)),
        }
    }
    failures.sort_by(|(one, _), (other, _)| one.cmp(other));
    let is_refused = failures.iter().any(|(_, down)| matches!(down, Down::Refused(_)));
    let whys = failures
        .iter()
        .map(|(server, Down::Broken(why) | Down::Refused(why))| format!("{server}: {why}"));
    let text = match whys.collect::<Vec<_>>().join("; ") {
        text if text.is_empty() => "no server is configured".to_owned(),
        text => text,
    };
    Err(if is_refused { refused(text) } else { broken(text) })
}

async fn one(config: &Config, server: Server, name: &str) -> Result<Established, Down> {
    let addresses = timeout(ADDRESS_TIME_MAX, lookup_host((server.host.as_str(), server.port)));
    let addresses = match addresses.await {
        Ok(found) => found.map_err(|error| broken(format!("cannot resolve its name: {error}")))?,
        Err(_) => return Err(broken("resolving its name took too long")),
    };
    let mut last = broken("its name has no address");
    for address in addresses.take(ADDRESSES_MAX) {
        let greeted = async {
            let stream = TcpStream::connect(address).await.map_err(broken)?;
            stream.set_nodelay(true).map_err(broken)?;
            // A closed link must not deliver what is left in its buffers: the next link sends it
            // again.
            stream.set_zero_linger().map_err(broken)?;
            greet(config, &server, stream, name).await
        };
        match timeout(ADDRESS_TIME_MAX, greeted).await {
            Ok(Ok(established)) => return Ok(established),
            Ok(Err(down)) => last = down,
            Err(_) => last = broken("it does not respond"),
        }
    }
    Err(last)
}

async fn greet(
    config: &Config,
    server: &Server,
    stream: TcpStream,
    name: &str,
) -> Result<Established, Down> {
    let is_tls_necessary = config.tls.is_necessary() || server.is_tls;
    let mut stream: Box<dyn Stream> = Box::new(stream);
    if config.tls.is_first {
        stream = encrypt(config, server, stream).await?;
    }
    let mut decoder = Decoder::default();
    let json = match read(&mut stream, &mut decoder).await? {
        Op::Info(json) => json,
        Op::Error(text) => return Err(of_error(&text)),
        _ => return Err(broken("it is not a NATS server: its first message is not INFO")),
    };
    let info: Info = serde_json::from_slice(&json)
        .map_err(|error| broken(format!("its INFO cannot be read: {error}")))?;
    if let Some(most) = info.max_payload.filter(|it| *it < ENVELOPE_BYTES_MAX) {
        let why = format!("its max_payload is {most}: raise it to at least {ENVELOPE_BYTES_MAX}");
        return Err(refused(why));
    }
    if !config.tls.is_first && (is_tls_necessary || info.tls_required) {
        if !info.tls_required && !info.tls_available {
            return Err(refused("this node requires TLS, but the server does not offer it"));
        }
        // Anything after INFO without encryption could come from an attacker.
        if !decoder.buffer.is_empty() {
            return Err(broken("it sent more than INFO before TLS"));
        }
        stream = encrypt(config, server, stream).await?;
    }
    let hello = Connect {
        verbose: false,
        pedantic: false,
        echo: false,
        headers: true,
        no_responders: true,
        protocol: 1,
        tls_required: is_tls_necessary,
        lang: "rust",
        version: env!("CARGO_PKG_VERSION"),
        name,
        user: User::of(&config.credentials, &info.nonce)?,
    };
    let hello = serde_json::to_string(&hello).map_err(broken)?;
    let hello = format!("CONNECT {hello}\r\nPING\r\n");
    stream.write_all(hello.as_bytes()).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut known_servers = servers_of(server, &json);
    loop {
        match read(&mut stream, &mut decoder).await? {
            Op::Pong => break,
            Op::Info(json) => known_servers = servers_of(server, &json),
            Op::Error(text) => return Err(of_error(&text)),
            _ => {}
        }
    }
    let (server, version) = (server.clone(), info.version);
    Ok(Established { stream, decoder, known_servers, server, version })
}

async fn encrypt(
    config: &Config,
    server: &Server,
    stream: Box<dyn Stream>,
) -> Result<Box<dyn Stream>, Down> {
    let client = tls::client(&config.tls).map_err(|error| refused(format!("TLS: {error}")))?;
    let name = ServerName::try_from(server.certificate_name().to_owned())
        .map_err(|error| broken(format!("TLS: {error}")))?;
    let encrypted = TlsConnector::from(client).connect(name, stream).await;
    Ok(Box::new(encrypted.map_err(|error| broken(format!("TLS: {error}")))?))
}

async fn read(stream: &mut Box<dyn Stream>, decoder: &mut Decoder) -> Result<Op, Down> {
    loop {
        if let Some(op) = decoder.next().map_err(broken)? {
            return Ok(op);
        }
        if stream.read_buf(&mut decoder.buffer).await.map_err(broken)? == 0 {
            return Err(broken("it closed the connection"));
        }
    }
}

/// The reason to end a link after this `-ERR`: a refusal by the broker, or a failure.
pub(crate) fn of_error(text: &str) -> Down {
    const REFUSALS: &[&str] = &[
        "authorization",
        "authentication",
        "permissions violation",
        "maximum subscriptions",
        "maximum payload",
        "maximum account",
        "invalid",
        "secure connection",
    ];
    let lower = text.to_ascii_lowercase();
    let is_refused = REFUSALS.iter().any(|it| lower.contains(it));
    if is_refused { refused(text) } else { broken(text) }
}

pub(crate) fn broken(why: impl ToString) -> Down {
    Down::Broken(why.to_string().into())
}

fn refused(why: impl ToString) -> Down {
    Down::Refused(why.to_string().into())
}

pub(crate) fn poll_read(
    stream: &mut Box<dyn Stream>,
    buffer: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut read = std::pin::pin!(stream.read_buf(buffer));
    std::future::Future::poll(read.as_mut(), context)
}

pub(crate) fn poll_write(
    stream: &mut Box<dyn Stream>,
    out: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut stream = Pin::new(stream);
    while !out.is_empty() {
        match stream.as_mut().poll_write(context, out) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(bytes)) => bytes::Buf::advance(out, bytes),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
    }
    stream.poll_flush(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_server_are_distinguished() {
        let is_refused = |text: &str| matches!(of_error(text), Down::Refused(it) if *it == *text);
        assert!(is_refused("Authorization Violation"));
        assert!(is_refused("User Authentication Expired"));
        assert!(is_refused("Permissions Violation for Publish to \"p.b.0.1c.a\""));
        assert!(!is_refused("Stale Connection"));
        assert!(!is_refused("Slow Consumer"));
        assert!(!is_refused("Maximum Connections Exceeded"));
    }

    #[test]
    fn announced_servers_are_bounded_and_malformed_ones_are_ignored() {
        let by: Server = "tls://nats.example".parse().unwrap();
        let urls: Vec<String> = (0..100).map(|it| format!("10.0.0.{it}:4222")).collect();
        let json = serde_json::json!({ "connect_urls": urls }).to_string();
        assert_eq!(servers_of(&by, json.as_bytes()).len(), KNOWN_SERVERS_MAX);
        assert!(servers_of(&by, b"{").is_empty());
        assert!(servers_of(&by, b"{\"connect_urls\":[\"a b\",\"http://x\"]}").is_empty());
    }
}

//! An application: HTTP/1.1 by hand, so that it can break at any byte.
#![allow(clippy::disallowed_types, reason = "a test has no reactor")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simurgh_hooks::HookConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// What the application does with a request.
pub(crate) enum Reply {
    /// Answers, and reads the next request.
    Answer(String),
    /// Writes this, and closes.
    Last(String),
    /// Answers after this time.
    Slow(Duration, String),
    /// Answers after [`App::release`].
    Held(String),
    /// Never answers.
    Silence,
    /// Writes this, and then zeros without end.
    Endless(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) connection: usize,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

type Script = dyn Fn(usize, &Request) -> Reply + Send + Sync;

pub(crate) struct App {
    script: Box<Script>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    /// Connections that the server has closed.
    closed: AtomicUsize,
    /// Bytes of endless answers.
    written: AtomicUsize,
    released: Semaphore,
}

impl App {
    /// An application that does with each request as `script` says, which knows its number.
    pub(crate) fn new(
        script: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            released: Semaphore::new(0),
        })
    }

    /// Starts it at a free port, and returns the settings of a hook that asks it.
    pub(crate) async fn listen(self: &Arc<Self>) -> HookConfig {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/simurgh", listener.local_addr().unwrap());
        let app = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&app).talk(stream));
            }
        });
        patient(HookConfig::new("app", url.parse().unwrap()))
    }

    pub(crate) async fn talk(self: Arc<Self>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let connection = self.connections.fetch_add(1, SeqCst);
        let mut buffer = Vec::new();
        while let Some(request) = read(&mut stream, &mut buffer, connection).await {
            let number = {
                let mut requests = self.requests.lock().unwrap();
                requests.push(request.clone());
                requests.len() - 1
            };
            let goes_on = match (self.script)(number, &request) {
                Reply::Answer(text) => stream.write_all(text.as_bytes()).await.is_ok(),
                Reply::Last(text) => {
                    let _ = stream.write_all(text.as_bytes()).await;
                    return;
                }
                Reply::Slow(time, text) => {
                    tokio::time::sleep(time).await;
                    stream.write_all(text.as_bytes()).await.is_ok()
                }
                Reply::Held(text) => {
                    self.released.acquire().await.unwrap().forget();
                    stream.write_all(text.as_bytes()).await.is_ok()
                }
                Reply::Silence => true,
                Reply::Endless(text) => {
                    let _ = stream.write_all(text.as_bytes()).await;
                    while stream.write_all(&[b'0'; 4096]).await.is_ok() {
                        self.written.fetch_add(4096, SeqCst);
                    }
                    false
                }
            };
            if !goes_on {
                break;
            }
        }
        self.closed.fetch_add(1, SeqCst);
    }

    /// Lets one held answer go.
    pub(crate) fn release(&self) {
        self.released.add_permits(1);
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn asked(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    pub(crate) fn closed(&self) -> usize {
        self.closed.load(SeqCst)
    }

    pub(crate) fn written(&self) -> usize {
        self.written.load(SeqCst)
    }
}

/// Times that a loaded machine keeps.
pub(crate) fn patient(config: HookConfig) -> HookConfig {
    HookConfig {
        answer_timeout: Duration::from_secs(40),
        total_timeout: Duration::from_secs(80),
        idle_timeout: Duration::from_secs(20),
        ..config
    }
}

/// 200 with a body.
pub(crate) fn ok(body: &str) -> String {
    status(200, "", body)
}

/// An answer with further lines of its head.
pub(crate) fn status(status: u16, lines: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\n{lines}content-length: {}\r\n\r\n{body}", body.len())
}

async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    connection: usize,
) -> Option<Request> {
    loop {
        if let Some((request, length)) = parse(buffer, connection) {
            buffer.drain(..length);
            return Some(request);
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

fn parse(buffer: &[u8], connection: usize) -> Option<(Request, usize)> {
    let text = std::str::from_utf8(buffer).ok()?;
    let (head, rest) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let (method, path) = lines.next()?.strip_suffix(" HTTP/1.1")?.split_once(' ')?;
    let path = path.to_owned();
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length: usize = match method {
        "GET" => 0,
        _ => headers.get("content-length")?.parse().ok()?,
    };
    let body = rest.get(..length)?.to_owned();
    let used = head.len() + 4 + length;
    Some((Request { connection, path, headers, body }, used))
}

/// A port at which nothing listens.
pub(crate) async fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A connection in TIME_WAIT keeps the port from other tests.
    let connection = TcpStream::connect(address).await.unwrap();
    drop((listener.accept().await.unwrap(), listener, connection));
    address.port()
}

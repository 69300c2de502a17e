//! The threads of HTTP connections: each has its own event loop, and a connection stays on one.
//!
//! With one scheduler for all threads, each request's wake-up would cross threads, which costs more
//! than preparing a short answer. In exchange, the load is not balanced, so a new connection goes
//! to the thread with the fewest.
#![allow(
    clippy::disallowed_types,
    reason = "these sockets came by SCM_RIGHTS and belong to the main table"
)]

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use simurgh_proto::ws::handshake;
use simurgh_reactor::HandOffEnd;
use simurgh_shard::connections::{ConnectionSlot, is_reserved};
use simurgh_shard::peer_limits::TOO_MANY_OF_ADDRESS;
use simurgh_shard::proxies::{is_trusted, read_proxy_line};
use simurgh_shard::server::Server;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

use super::Site;
use super::connection::{self, Back};
use super::repeated_warning::RepeatedWarning;
use crate::remote_waker;

/// Event loops that are not started yet, created before the shards split from the process's
/// descriptor table, so that shards can wake them.
pub(crate) struct Prepared(Vec<Runtime>);

/// Dropping this ends them.
pub(crate) struct Threads {
    _stop: Vec<oneshot::Sender<()>>,
}

struct Taken {
    stream: StdTcpStream,
    read_ahead: Vec<u8>,
    back: Back,
    slot: ConnectionSlot,
    counted: Arc<()>,
}

#[derive(Clone)]
struct Thread {
    inbox: mpsc::UnboundedSender<Taken>,
    /// Each connection has a clone.
    connections: Arc<()>,
}

pub(crate) fn prepare(threads: usize) -> io::Result<Prepared> {
    let make = |_| Builder::new_current_thread().enable_all().build();
    Ok(Prepared((0..threads).map(make).collect::<io::Result<_>>()?))
}

impl Prepared {
    pub(super) fn start(
        self,
        server: &Arc<Server>,
        site: &Arc<Site>,
        ends: Vec<Arc<HandOffEnd>>,
    ) -> io::Result<Threads> {
        let loops = self.0.len();
        if loops == 0 {
            // Only the admin address is served, on the runtime.
            return Ok(Threads { _stop: Vec::new() });
        }
        let (threads, inboxes): (Vec<_>, Vec<_>) = (0..loops)
            .map(|_| {
                let (inbox, taken) = mpsc::unbounded_channel();
                (Thread { inbox, connections: Arc::default() }, taken)
            })
            .unzip();
        let mut ends_of: Vec<Vec<Arc<HandOffEnd>>> = (0..loops).map(|_| Vec::new()).collect();
        for (shard, end) in ends.into_iter().enumerate() {
            if let Some(ends) = ends_of.get_mut(shard % loops) {
                ends.push(end);
            }
        }
        let mut stops = Vec::with_capacity(loops);
        for (index, ((runtime, taken), ends)) in
            self.0.into_iter().zip(inboxes).zip(ends_of).enumerate()
        {
            let (stop, stopped) = oneshot::channel();
            let (server, site, threads) = (Arc::clone(server), Arc::clone(site), threads.clone());
            std::thread::Builder::new().name(format!("simurgh-http-{index}")).spawn(move || {
                for end in ends {
                    runtime.spawn(take_all(Arc::clone(&server), end, threads.clone()));
                }
                if index == 0 {
                    runtime.spawn(Arc::clone(&server.http_connections).keep_room());
                    runtime.spawn(Arc::clone(&server.http_connections).purge_memory());
                }
                runtime.spawn(Arc::clone(&server.http_connections).give_back_memory());
                runtime.spawn(remote_waker::wake_all());
                runtime.spawn(serve_all(server, site, taken));
                // Ends when `stop` is dropped.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_background();
            })?;
            stops.push(stop);
        }
        Ok(Threads { _stop: stops })
    }
}

/// Gives each connection from one shard to the thread with the fewest.
async fn take_all(server: Arc<Server>, end: Arc<HandOffEnd>, threads: Vec<Thread>) {
    #[allow(deprecated, reason = "sound here: the end owns its descriptor and never changes it")]
    let end = match AsyncFd::new(end) {
        Ok(end) => Arc::new(end),
        Err(error) => return tracing::error!(%error, "cannot receive connections from a shard"),
    };
    let mut warning = RepeatedWarning::default();
    loop {
        let Ok(mut ready) = end.readable().await else { return };
        match ready.get_inner().recv() {
            Ok(Some((descriptor, read_ahead))) => {
                let mut slot = server.http_connections.slot();
                server.http_connections.make_room();
                let Some(descriptor) = descriptor else {
                    server.http_connections.lost.fetch_add(1, Relaxed);
                    if let Some(lost) = warning.count() {
                        tracing::warn!(
                            lost,
                            "no file descriptors left for HTTP connections: \
                            raise the limit (ulimit -n)"
                        );
                    }
                    continue;
                };
                let stream = StdTcpStream::from(descriptor);
                let named = read_proxy_line(&read_ahead);
                let head = named.map_or(&*read_ahead, |(_, head)| head);
                let is_reserved = is_reserved(path(head));
                let peer = stream.peer_addr().ok().or(named.map(|(named, _)| named.client));
                if !has_share(&server.now(), peer, is_reserved, &mut slot) {
                    refuse(&stream);
                    continue;
                }
                let fewest = |it: &&Thread| Arc::strong_count(&it.connections);
                let Some(thread) = threads.iter().min_by_key(fewest) else { return };
                let counted = Arc::clone(&thread.connections);
                let back = Arc::clone(&end);
                // Fails only when that thread has ended; this task is then about to end, too.
                let _ = thread.inbox.send(Taken { stream, read_ahead, back, slot, counted });
            }
            Ok(None) => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return tracing::debug!(%error, "hand-off from a shard failed"),
        }
    }
}

/// Whether the client's address may open one more connection. Connections of a trusted proxy belong
/// to many clients.
fn has_share(
    server: &Server,
    peer: Option<SocketAddr>,
    is_reserved: bool,
    slot: &mut ConnectionSlot,
) -> bool {
    let Some(address) = peer.map(|peer| peer.ip()) else { return true };
    if is_trusted(&server.config.trusted_proxies, address) {
        return true;
    }
    if is_reserved { slot.count_reserved(address) } else { slot.count_address(address) }
}

/// The path of a request, by its first line.
fn path(request: &[u8]) -> &str {
    let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    std::str::from_utf8(path).unwrap_or_default()
}

/// Tells a client that it has too many connections, as far as that is possible without blocking.
fn refuse(mut stream: &StdTcpStream) {
    let mut refusal = Vec::new();
    let headers = &[("retry-after", "1")];
    handshake::write_refusal(429, headers, TOO_MANY_OF_ADDRESS, &mut refusal);
    let _ = stream.write(&refusal);
}

async fn serve_all(
    server: Arc<Server>,
    site: Arc<Site>,
    mut taken: mpsc::UnboundedReceiver<Taken>,
) {
    while let Some(Taken { stream, read_ahead, back, slot, counted }) = taken.recv().await {
        let (server, site) = (server.now(), Arc::clone(&site));
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        match stream {
            Ok(stream) => {
                let served = connection::serve(server, site, Some(back), stream, read_ahead, slot);
                tokio::spawn(async move {
                    let _counted = counted;
                    if let Err(error) = served.await {
                        broke(&error);
                    }
                });
            }
            Err(error) => broke(&error),
        }
    }
}

fn broke(error: &io::Error) {
    tracing::debug!(%error, "an HTTP connection failed");
}

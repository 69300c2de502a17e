//! The control socket of a running server, and the process that hands over.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use simurgh_core::{HandedOverNumbers, SavedHistory};
use simurgh_shard::config::Config;
use simurgh_shard::mail::Mail;
use simurgh_shard::server::Server;
use simurgh_shard::takeover::{ProcessLink, ToOther};

use super::wire::{self, Head};
use super::{HandedOver, Peer, STEP_TIMEOUT, Stream, control_address, limit_steps, link, peer};
use crate::blocks;
use crate::handle::Handle;

/// How long the earlier process may still have the name of the control socket, or a link.
const BIND_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// The saved histories cross in parts of this size.
const PART_BYTES: usize = 1 << 20;

/// The control socket of a server; it ends when this is dropped.
pub(crate) struct Control {
    shared: Arc<Shared>,
    address: UnixAddress,
}

struct Shared {
    server: Arc<Server>,
    /// The program, as it was found at the start: an upgrade may have replaced it since.
    program: Option<PathBuf>,
    handed_over: Mutex<Option<HandedOver>>,
    /// The process that has taken over.
    successor: AtomicU32,
    /// A process is taking over.
    is_busy: AtomicBool,
    has_ended: AtomicBool,
}

impl Control {
    /// Listens, once an earlier process does not any more.
    pub(crate) fn start(
        server: &Arc<Server>,
        addresses: &[SocketAddr],
        handed_over: HandedOver,
    ) -> io::Result<Self> {
        let address = control_address(addresses, &server.config)?;
        let began = Instant::now();
        let listener = loop {
            match UnixListener::bind_addr(&address) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && began.elapsed() < BIND_TIMEOUT =>
                {
                    std::thread::sleep(PAUSE);
                }
                bound => break bound?,
            }
        };
        let shared = Arc::new(Shared {
            server: Arc::clone(server),
            program: std::env::current_exe().ok(),
            handed_over: Mutex::new(Some(handed_over)),
            successor: AtomicU32::new(0),
            is_busy: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        });
        let (of, own) = (Arc::clone(&shared), address.clone());
        link::start("simurgh-control", move || accept_all(&listener, &of, &own))?;
        Ok(Self { shared, address })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        end(&self.shared, &self.address);
    }
}

/// Has the thread that accepts end: a connection wakes it.
fn end(shared: &Shared, address: &UnixAddress) {
    if !shared.has_ended.swap(true, SeqCst) {
        // It may have failed before.
        let _ = UnixStream::connect_addr(address);
    }
}

fn accept_all(listener: &UnixListener, shared: &Arc<Shared>, address: &UnixAddress) {
    for stream in listener.incoming() {
        if shared.has_ended.load(SeqCst) {
            return;
        }
        let stream = stream.and_then(|stream| Ok((peer(&stream)?, stream)));
        // Other users are not worth a thread.
        let Ok((peer, stream)) = stream.inspect_err(|_| std::thread::sleep(PAUSE)) else {
            continue;
        };
        if !peer.is_same_user && !peer.is_root {
            continue;
        }
        let (of, address) = (Arc::clone(shared), address.clone());
        let served = link::start("simurgh-control", move || {
            if let Err(error) = serve(&of, &stream, peer, &address) {
                let _ = wire::write(&stream, &Head::Refused(error.to_string()), &[]);
                tracing::warn!(%error, "a request to the control socket failed");
            }
        });
        if let Err(error) = served {
            tracing::warn!(%error, "cannot serve the control socket");
        }
    }
}

fn serve(
    shared: &Arc<Shared>,
    stream: &Stream,
    peer: Peer,
    address: &UnixAddress,
) -> io::Result<()> {
    limit_steps(stream)?;
    match wire::read(stream)?.0 {
        Head::TakeOver { version, is_node } if peer.is_same_user => {
            let is_cluster = shared.server.cluster.is_some();
            if version != wire::VERSION || is_node != is_cluster {
                return Err(io::Error::other(
                    "the running server is of another version, or only one of both has [cluster]: \
                     stop it, then start the new one",
                ));
            }
            if shared.server.drain_began.get().is_some() || shared.is_busy.swap(true, SeqCst) {
                return Err(io::Error::other("the running server is already being replaced"));
            }
            let done = give(shared, stream, peer, address);
            shared.is_busy.store(false, SeqCst);
            done
        }
        Head::Restart => restart(shared, stream),
        _ => Err(io::Error::other("only a process of the server's user may take over")),
    }
}

/// Hands over to the process at the other end, and stays its link until one of both ends.
fn give(
    shared: &Arc<Shared>,
    stream: &Stream,
    peer: Peer,
    address: &UnixAddress,
) -> io::Result<()> {
    let server = &shared.server;
    // One that this one has taken over from may be about to end.
    let began = Instant::now();
    while server.takeover.link().is_some() && began.elapsed() < BIND_TIMEOUT {
        std::thread::sleep(PAUSE);
    }
    if server.takeover.link().is_some() {
        return Err(io::Error::other("the running server still takes over from another one"));
    }
    {
        let listening = server.takeover.listening.lock().unwrap_or_else(PoisonError::into_inner);
        let secret = server.takeover.secret.to_string();
        wire::write(stream, &Head::Offer { sockets: listening.len(), secret }, &[])?;
        listening.send(stream)?;
    }
    let Head::State = wire::read(stream)?.0 else {
        return Err(io::Error::other("the new process does not ask for the state"));
    };
    let (link, waiting) = ProcessLink::new(true);
    if server.cluster.is_none() {
        server.takeover.set_link(Some(Arc::clone(&link)));
    }
    let ended = send_state(server, stream)
        .and_then(|()| link::start_writing(stream.try_clone()?, &link, waiting))
        .and_then(|()| stream.set_read_timeout(None))
        .map_or_else(
            |error| error,
            |()| {
                link::read_all(stream, server, &link, |head| {
                    let Head::Ready = head else { return Some(head) };
                    retire(shared, &link, peer.pid);
                    end(shared, address);
                    None
                })
            },
        );
    server.takeover.set_link(None);
    link.end();
    for shard in 0..server.mailboxes.len() {
        server.post_to(shard as u16, Mail::TakeBack(false));
    }
    // At the end of this process the other one ends the link.
    if server.ended.iter().all(|shard| shard.load(SeqCst)) {
        return Ok(());
    }
    match server.takeover.is_handed_over.load(SeqCst) {
        true => tracing::warn!(error = %ended, "the process that took over has ended"),
        false => tracing::error!(error = %ended, "the new process ended before it served: this \
            one goes on"),
    }
    Ok(())
}

/// Sends what the later process needs before it listens.
fn send_state(server: &Arc<Server>, stream: &Stream) -> io::Result<()> {
    wire::write(stream, &Head::Blocks, &blocks::all(server))?;
    #[cfg(feature = "hooks")]
    wire::write(stream, &Head::Grants, &crate::hooked::all(server))?;
    let (mut histories, mut numbers) = (Vec::new(), HandedOverNumbers::default());
    if server.cluster.is_none() {
        let (sender, received) = mpsc::channel();
        for shard in 0..server.mailboxes.len() {
            let sender = sender.clone();
            let answer = Box::new(move |handed_over| drop(sender.send(handed_over)));
            server.post_to(shard as u16, Mail::HandOver(answer));
        }
        for _ in 0..server.mailboxes.len() {
            let of_shard: simurgh_core::HandedOver = received
                .recv_timeout(STEP_TIMEOUT)
                .map_err(|_| io::Error::other("a shard does not answer"))?;
            numbers = numbers.and(of_shard.numbers);
            histories.push(of_shard.history);
        }
    }
    let mut part = Vec::new();
    SavedHistory::encode(histories, |bytes| {
        part.extend_from_slice(bytes);
        if part.len() < PART_BYTES {
            return Ok(());
        }
        wire::write(stream, &Head::History, &std::mem::take(&mut part))
    })?;
    wire::write(stream, &Head::History, &part)?;
    wire::write(stream, &numbers.into(), &[])
}

/// The later process serves: this one drains.
fn retire(shared: &Shared, link: &ProcessLink, pid: u32) {
    tracing::info!(pid, "another process has taken over: draining");
    let server = &shared.server;
    server.takeover.is_handed_over.store(true, SeqCst);
    shared.successor.store(pid, SeqCst);
    let handed_over = shared.handed_over.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(handed_over) = handed_over {
        handed_over(pid);
    }
    link.post(ToOther::Draining);
    Handle(Arc::clone(server)).drain();
}

/// Starts this program again, with the same flags, and answers when it has taken over.
fn restart(shared: &Arc<Shared>, stream: &Stream) -> io::Result<()> {
    let program = shared.program.as_ref();
    let program = program.ok_or_else(|| io::Error::other("the program's path is unknown"))?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1).filter(|flag| flag != "--take-over"));
    // They are about this process.
    let mut child = command
        .arg("--take-over")
        .env_remove("WATCHDOG_PID")
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .stdin(Stdio::null())
        .spawn()?;
    let began = Instant::now();
    while shared.successor.load(SeqCst) != child.id() {
        if let Some(status) = child.try_wait()? {
            let why = format!("the new process ended ({status}): see the server's log");
            return Err(io::Error::other(why));
        }
        if began.elapsed() > STEP_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("the new process was not ready in time"));
        }
        std::thread::sleep(PAUSE);
    }
    wire::write(stream, &Head::Restarted(child.id()), &[])
}

/// Has the running server with these settings start a process that takes over. Returns its id.
///
/// # Errors
/// There is none, it belongs to another user, or the new process has failed.
pub(crate) fn ask_for_restart(config: &Config) -> io::Result<u32> {
    let addresses: Vec<_> = config.addresses().collect();
    let address = control_address(&addresses, config)?;
    let stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(2 * STEP_TIMEOUT))?;
    wire::write(&stream, &Head::Restart, &[])?;
    match wire::read(&stream)?.0 {
        Head::Restarted(pid) => Ok(pid),
        Head::Refused(why) => Err(io::Error::other(why)),
        other => Err(wire::unexpected(&other)),
    }
}

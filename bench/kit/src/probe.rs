//! Joins during a broadcast, timed by a thread that the clients' own bulk reader cannot delay.
//!
//! The thread shares the client's core. It runs under SCHED_FIFO (set by `chrt`, as rustix has no
//! safe call for it), else at nice −20, and blocks on one socket at a time, so its wake-up preempts
//! the reader at once. The connections are upgraded before the broadcast starts, and closed after.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::process::{self, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::clients::Script;
use crate::frames::{self, Kind};
use crate::net::{self, check_upgrade, head_length};
use crate::wait;

const WAIT_MAX: Duration = Duration::from_secs(10);

/// When to join: on each connection at its offset from `start`, while fewer than `delivered`
/// deliveries are counted.
struct Plan {
    start: Instant,
    offsets: Vec<Duration>,
    delivered: u64,
}

/// The thread of one broadcast, and its upgraded connections.
pub struct Probe {
    plan: Sender<Plan>,
    /// Dropped when the broadcast has reached every client.
    running: Sender<()>,
    thread: JoinHandle<Result<Vec<Duration>>>,
    /// How the thread was given priority over the reader.
    pub priority: &'static str,
}

impl Probe {
    /// Upgrades `count` connections and starts the thread on the caller's core; `progress` counts
    /// deliveries.
    pub fn start(server: SocketAddrV4, count: usize, progress: Arc<AtomicU64>) -> Result<Self> {
        let script = Script::lobby(server);
        let streams = (0..count).map(|at| upgraded(server, at, &script));
        let mut streams: Vec<TcpStream> = streams.collect::<Result<_>>()?;
        let (plan, plans): (_, Receiver<Plan>) = mpsc::channel();
        let (started, has_started) = mpsc::channel();
        let (running, ended) = mpsc::channel();
        let thread = thread::Builder::new().name("probe".into()).spawn(move || {
            // Fails only if the caller has given up.
            let _ = started.send(raise_priority());
            let plan = plans.recv().context("the broadcast was given up")?;
            let took = joins(&mut streams, &plan, &script, &progress)?;
            // Closing is work for the server: not while the broadcast runs.
            let _ = ended.recv();
            Ok(took)
        })?;
        let priority = has_started.recv_timeout(WAIT_MAX).context("the probe did not start")?;
        Ok(Self { plan, running, thread, priority })
    }

    /// Starts the joins; [`Probe::finish`] ends them.
    pub fn go(&self, start: Instant, offsets: Vec<Duration>, delivered: u64) -> Result<()> {
        let plan = Plan { start, offsets, delivered };
        self.plan.send(plan).map_err(|_| anyhow!("the probe has ended"))
    }

    /// How long each join since [`Probe::go`] took until its reply; call it once the broadcast has
    /// reached every client.
    pub fn finish(self) -> Result<Vec<Duration>> {
        drop(self.running);
        self.thread.join().map_err(|_| anyhow!("the probe has panicked"))?
    }
}

/// Gives the calling thread the highest priority on its core that it is allowed to have.
pub fn raise_priority() -> &'static str {
    let thread = rustix::thread::gettid();
    let chrt = process::Command::new("chrt")
        .args(["--fifo", "--pid", "10", &thread.as_raw_pid().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if chrt.is_ok_and(|status| status.success()) {
        return "SCHED_FIFO 10";
    }
    match rustix::process::setpriority_process(Some(thread), -20) {
        Ok(()) => "nice -20",
        Err(_) => "none: latencies include waiting for the client's own reader",
    }
}

/// Connects, and upgrades to a WebSocket.
pub fn upgraded(server: SocketAddrV4, at: usize, script: &Script) -> Result<TcpStream> {
    let mut stream = TcpStream::from(net::dial(server, at, true)?);
    upgrade(&mut stream, &script.upgrade)?;
    Ok(stream)
}

/// Upgrades a connection to a WebSocket with this request.
pub fn upgrade(stream: &mut TcpStream, request: &[u8]) -> Result<()> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.write_all(request)?;
    let mut head = Vec::new();
    let mut byte = [0];
    while head_length(&head).is_none() {
        ensure!(stream.read(&mut byte)? == 1, "the server closed instead of upgrading");
        head.extend_from_slice(&byte);
        ensure!(head.len() < 16_384, "no end of the response head");
    }
    check_upgrade(&head)
}

/// Makes one join after the other, each at its time or as soon as the one before is answered, while
/// the broadcast runs.
fn joins(
    streams: &mut [TcpStream],
    plan: &Plan,
    script: &Script,
    progress: &AtomicU64,
) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    let latest = plan.offsets.last().copied().unwrap_or_default();
    for (stream, offset) in streams.iter_mut().zip(&plan.offsets) {
        wait::sleep_until(plan.start + *offset);
        let is_over = progress.load(Ordering::Relaxed) >= plan.delivered;
        if is_over || plan.start.elapsed() > latest + Duration::from_millis(1) {
            break;
        }
        let sent = Instant::now();
        stream.write_all(&script.join)?;
        until_reply(stream)?;
        took.push(sent.elapsed());
    }
    Ok(took)
}

/// Reads up to the join's reply, before which broadcasts may come.
fn until_reply(stream: &mut TcpStream) -> Result<()> {
    let mut input = Vec::new();
    let mut buf = [0; 4096];
    loop {
        let mut rest = input.as_slice();
        while let Some(frame) = frames::frame(rest) {
            if let Kind::Reply(ok) = frames::classify(frame.payload) {
                ensure!(ok, "a join during a broadcast was refused");
                return Ok(());
            }
            rest = rest.get(frame.len..).unwrap_or_default();
        }
        let count = stream.read(&mut buf).context("no reply to a join during a broadcast")?;
        ensure!(count > 0, "closed instead of answering a join during a broadcast");
        input.extend_from_slice(buf.get(..count).unwrap_or_default());
    }
}

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

/// One measured join.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time from the write of the join to its reply.
    pub latency: Duration,
    /// Broadcasts that this newcomer received although they were published before it joined.
    pub strays: u32,
}

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
    thread: JoinHandle<Result<(Vec<TcpStream>, Vec<Sample>)>>,
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
        let thread = thread::Builder::new().name("probe".into()).spawn(move || {
            // Fails only if the caller has given up.
            let _ = started.send(raise_priority());
            let plan = plans.recv().context("the broadcast was given up")?;
            let samples = joins(&mut streams, &plan, &script, &progress)?;
            Ok((streams, samples))
        })?;
        let priority = has_started.recv_timeout(WAIT_MAX).context("the probe did not start")?;
        Ok(Self { plan, thread, priority })
    }

    /// Starts the joins; [`Probe::finish`] ends them.
    pub fn go(&self, start: Instant, offsets: Vec<Duration>, delivered: u64) -> Result<()> {
        let plan = Plan { start, offsets, delivered };
        self.plan.send(plan).map_err(|_| anyhow!("the probe has ended"))
    }

    /// The joins made since [`Probe::go`]; call it once the broadcast has reached every client.
    pub fn finish(self) -> Result<Vec<Sample>> {
        let done = self.thread.join().map_err(|_| anyhow!("the probe has panicked"))?;
        let (mut streams, mut samples) = done?;
        for (sample, stream) in samples.iter_mut().zip(&mut streams) {
            sample.strays += strays(stream);
        }
        Ok(samples)
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
/// the broadcast runs. Sample `n` belongs to stream `n`. Closing waits until later: it would be
/// work for the server during the next join.
fn joins(
    streams: &mut [TcpStream],
    plan: &Plan,
    script: &Script,
    progress: &AtomicU64,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let latest = plan.offsets.last().copied().unwrap_or_default();
    for (stream, offset) in streams.iter_mut().zip(&plan.offsets) {
        wait::sleep_until(plan.start + *offset);
        let is_over = progress.load(Ordering::Relaxed) >= plan.delivered;
        if is_over || plan.start.elapsed() > latest + Duration::from_millis(1) {
            break;
        }
        let sent = Instant::now();
        stream.write_all(&script.join)?;
        let strays = until_reply(stream)?;
        samples.push(Sample { latency: sent.elapsed(), strays });
    }
    Ok(samples)
}

/// The number of broadcasts waiting on a connection whose join was answered.
fn strays(stream: &mut TcpStream) -> u32 {
    let mut input = vec![0; 65_536];
    let count = stream.set_nonblocking(true).and_then(|()| stream.read(&mut input)).unwrap_or(0);
    let mut rest = input.get(..count).unwrap_or_default();
    let mut strays = 0;
    while let Some(frame) = frames::frame(rest) {
        strays += u32::from(matches!(frames::classify(frame.payload), Kind::Broadcast(_)));
        rest = rest.get(frame.len..).unwrap_or_default();
    }
    strays
}

/// Reads up to the join's reply; returns the number of broadcasts read with it.
fn until_reply(stream: &mut TcpStream) -> Result<u32> {
    let mut input = Vec::new();
    let mut buf = [0; 4096];
    loop {
        let (mut strays, mut answered) = (0, false);
        let mut rest = input.as_slice();
        while let Some(frame) = frames::frame(rest) {
            match frames::classify(frame.payload) {
                Kind::Reply(ok) => {
                    ensure!(ok, "a join during a broadcast was refused");
                    answered = true;
                }
                Kind::Broadcast(_) => strays += 1,
                Kind::Event(_) | Kind::Odd => {}
            }
            rest = rest.get(frame.len..).unwrap_or_default();
        }
        if answered {
            return Ok(strays);
        }
        let count = stream.read(&mut buf).context("no reply to a join during a broadcast")?;
        ensure!(count > 0, "closed instead of answering a join during a broadcast");
        input.extend_from_slice(buf.get(..count).unwrap_or_default());
    }
}

//! The CPU time of a message at a node, compared with a bare socket in the same run, which writes
//! prepared bytes or reads and counts them. Medians of five.
//!
//! ```text
//! cargo run --release -p simurgh-nats --example ratio -- target/engine/nats-server
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "nothing here has a reactor")]

use std::env;
use std::fs;
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use simurgh_cluster::adapter::Adapter as _;
use simurgh_cluster::{Event, Interest, NodeId, Prefix, Space, Wanted};
use simurgh_nats::{Config, NatsAdapter};
use tokio::runtime::Runtime;

/// Messages of one measurement.
const MESSAGES: usize = 200_000;
/// Bytes of an envelope.
const BYTES: usize = 200;
const RUNS: usize = 5;

fn main() {
    let mut arguments = env::args().skip(1);
    let server = arguments.next().expect("the path of nats-server");
    if server == "feed" {
        let mut number = || -> usize { arguments.next().unwrap().parse().unwrap() };
        return feed(number() as u16, number());
    }
    let engine = Engine::start(Path::new(&server));
    let runtime = runtime();
    // First, while nothing has been freed that could be used again.
    for interests in [8_192, 100_000] {
        let bytes = memory(&runtime, &engine, interests);
        println!("{interests} interests: {} B each", bytes / interests);
    }
    for topics in [1, 4_096] {
        let bare = median(|| receive_bare(&engine, topics));
        let ours = median(|| receive(&runtime, &engine, topics));
        report(&format!("receive, {topics} subscriptions"), ours, "a bare socket", bare);
    }
    let bare = median(|| publish_bare(&engine));
    let ours = median(|| publish(&runtime, &engine));
    report("publish", ours, "a bare socket", bare);
}

fn report(what: &str, ours: f64, whose: &str, bare: f64) {
    println!("{what}: {ours:.3} µs; {whose}: {bare:.3} µs; ratio {:.2}", ours / bare);
}

/// The median of several runs, in microseconds a message.
fn median(run: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = std::iter::repeat_with(run).take(RUNS).collect();
    all.sort_by(f64::total_cmp);
    all[RUNS / 2]
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// CPU time of this process for `work`, in microseconds a message.
fn cost(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let before = now();
    work();
    (now() - before) / MESSAGES as f64
}

struct Engine {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Engine {
    fn start(server: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // No client is to be cut for being slow.
        fs::write(directory.path().join("conf"), "max_pending: 1GB").unwrap();
        let child = Command::new(fs::canonicalize(server).unwrap())
            .args(["-c", "conf", "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", "."])
            .current_dir(directory.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ports = directory.path().join(format!("nats-server_{}.ports", child.id()));
        let port = loop {
            let text = fs::read_to_string(&ports).unwrap_or_default();
            if let Some((_, port)) = text.rsplit_once(':') {
                break port.trim_end_matches(|it: char| !it.is_ascii_digit()).parse().unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        };
        Self { child, port, _directory: directory }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn prefix() -> Prefix {
    Prefix::new("ratio").unwrap()
}

/// The subjects that messages are published to.
fn subjects(topics: usize) -> Vec<String> {
    let subject = |it| prefix().topic(Space::Broadcast, &format!("topic:{it}"));
    (0..topics).map(|it| subject(it).as_str().to_owned()).collect()
}

fn envelope(n: u64) -> Bytes {
    let mut bytes = vec![0; BYTES];
    bytes[..2].copy_from_slice(&[1, 1]);
    bytes[12..20].copy_from_slice(&n.to_le_bytes());
    bytes.into()
}

/// Everything that is published in one measurement.
fn published(topics: usize) -> Vec<u8> {
    let subjects = subjects(topics);
    let mut bytes = Vec::new();
    for n in 0..MESSAGES {
        write!(bytes, "PUB {} {BYTES}\r\n", subjects[n % topics]).unwrap();
        bytes.extend_from_slice(&envelope(n as u64 + 1));
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A client that has connected.
fn raw(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let hello = "CONNECT {\"verbose\":false,\"echo\":false,\"protocol\":1}\r\n";
    stream.write_all(hello.as_bytes()).unwrap();
    synchronise(&mut stream);
    stream
}

fn synchronise(stream: &mut TcpStream) {
    stream.write_all(b"PING\r\n").unwrap();
    let (mut received, mut part) = (Vec::new(), [0; 4096]);
    while !received.windows(6).any(|it| it == b"PONG\r\n") {
        let count = stream.read(&mut part).unwrap();
        received.extend_from_slice(&part[..count]);
    }
}

/// The other process: publishes everything, then ends.
fn feed(port: u16, topics: usize) {
    let bytes = published(topics);
    let mut stream = raw(port);
    stream.write_all(&bytes).unwrap();
    synchronise(&mut stream);
}

/// Another process that publishes to so many topics.
fn feeder(engine: &Engine, topics: usize) -> Child {
    let arguments = ["feed".to_owned(), engine.port.to_string(), topics.to_string()];
    Command::new(env::current_exe().unwrap()).args(arguments).spawn().unwrap()
}

fn receive_bare(engine: &Engine, topics: usize) -> f64 {
    let mut stream = raw(engine.port);
    let mut text = String::new();
    for (sid, subject) in subjects(topics).iter().enumerate() {
        text.push_str(&format!("SUB {subject} {}\r\n", sid + 1));
    }
    stream.write_all(text.as_bytes()).unwrap();
    synchronise(&mut stream);
    let all = subjects(topics);
    let bytes =
        |n| format!("MSG {} {} {BYTES}\r\n\r\n", all[n % topics], n % topics + 1).len() + BYTES;
    let mut left: usize = (0..MESSAGES).map(bytes).sum();
    let mut child = feeder(engine, topics);
    let cost = cost(|| {
        let mut part = vec![0; 64 << 10];
        while left > 0 {
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "the engine ended the link");
            left -= count;
        }
    });
    child.wait().unwrap();
    cost
}

fn adapter(runtime: &Runtime, engine: &Engine) -> NatsAdapter {
    let server = format!("127.0.0.1:{}", engine.port).parse().unwrap();
    let config = Config::new(vec![server], prefix(), "ratio");
    let mut adapter = NatsAdapter::new(config, runtime.handle().clone());
    adapter.start(NodeId(1));
    poll_until(runtime, &mut adapter, |event| matches!(event, Event::Up { .. }));
    adapter
}

fn poll_until(runtime: &Runtime, adapter: &mut NatsAdapter, is_it: impl Fn(&Event) -> bool) {
    runtime
        .block_on(async { while !is_it(&poll_fn(|context| adapter.poll_event(context)).await) {} });
}

fn receive(runtime: &Runtime, engine: &Engine, topics: usize) -> f64 {
    let mut adapter = adapter(runtime, engine);
    want(runtime, &mut adapter, topics);
    let mut child = feeder(engine, topics);
    let cost = cost(|| {
        runtime.block_on(async {
            let mut received = 0;
            while received < MESSAGES {
                let event = poll_fn(|context| adapter.poll_event(context)).await;
                assert!(!matches!(event, Event::Down(_)), "{event:?}");
                received += usize::from(matches!(event, Event::Received(_)));
            }
        });
    });
    child.wait().unwrap();
    cost
}

fn want(runtime: &Runtime, adapter: &mut NatsAdapter, topics: usize) {
    let interest = |it| Interest::Exact(Space::Broadcast, format!("topic:{it}").into());
    let all: Vec<_> = (0..topics).map(|it| (interest(it), Wanted::Yes)).collect();
    let generation = adapter.interest(&all);
    poll_until(runtime, adapter, |event| *event == Event::InForce(generation));
}

fn publish_bare(engine: &Engine) -> f64 {
    let bytes = published(1);
    let mut stream = raw(engine.port);
    cost(|| {
        stream.write_all(&bytes).unwrap();
        synchronise(&mut stream);
    })
}

fn publish(runtime: &Runtime, engine: &Engine) -> f64 {
    let mut adapter = adapter(runtime, engine);
    let subject = prefix().topic(Space::Broadcast, "topic:0");
    let all: Vec<Bytes> = (0..MESSAGES).map(|n| envelope(n as u64 + 1)).collect();
    cost(|| {
        for envelope in all {
            while adapter.publish(&subject, envelope.clone()).is_err() {
                poll_until(runtime, &mut adapter, |event| *event == Event::Room);
            }
        }
        let start = Instant::now();
        runtime.block_on(poll_fn(|context| {
            assert!(start.elapsed() < Duration::from_secs(20));
            while adapter.poll_event(context).is_ready() {}
            match adapter.in_flight() {
                0 => std::task::Poll::Ready(()),
                _ => std::task::Poll::Pending,
            }
        }));
    })
}

/// Bytes by which this process grows.
fn memory(runtime: &Runtime, engine: &Engine, interests: usize) -> usize {
    let resident = || -> usize {
        let status = fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let mut adapter = adapter(runtime, engine);
    let before = resident();
    want(runtime, &mut adapter, interests);
    resident().saturating_sub(before)
}

//! Hundreds of waiting handlers over real sockets: however their channels end, nothing remains of
//! them and other clients are not affected; the queue behind a handler is bounded.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::{Client, WAIT_MAX, start};
use rustix::net::sockopt::set_socket_linger;
use simurgh::asynchronous::BEHIND_MAX;
use simurgh::metrics::ShardMetrics;
use simurgh::{
    Channel, ChannelRoute, Context, Endpoint, Handle, JoinContext, Outcome, Payload, Reject,
    UserSocket, json,
};
use tokio::sync::Semaphore;
use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket};

const SOCKETS: usize = 300;
const WITNESSES: usize = 8;

struct Ledger {
    gate: Semaphore,
    /// Futures that began to wait, and that were dropped.
    begun: AtomicUsize,
    dropped: AtomicUsize,
    /// Steps after the wait.
    afterwards: AtomicUsize,
}

struct Guard(Arc<Ledger>);

impl Guard {
    fn new(ledger: &Arc<Ledger>) -> Self {
        ledger.begun.fetch_add(1, SeqCst);
        Self(Arc::clone(ledger))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, SeqCst);
    }
}

struct Room(Arc<Ledger>);

impl Channel for Room {
    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        match event {
            "wait" => {
                let _guard = Guard::new(&self.0);
                ctx.push("waits", json!({}));
                self.0.gate.acquire().await?.forget();
                self.0.afterwards.fetch_add(1, SeqCst);
                ctx.broadcast("afterwards", json!({}));
                Ok(Outcome::ok(json!("waited")))
            }
            "link" => {
                let (guard, ledger) = (Guard::new(&self.0), Arc::clone(&self.0));
                ctx.spawn_linked(async move {
                    let _guard = guard;
                    if ledger.gate.acquire().await.is_ok() {
                        ledger.afterwards.fetch_add(1, SeqCst);
                    }
                });
                Ok(Outcome::NoReply)
            }
            "behind" => {
                self.0.afterwards.fetch_add(1, SeqCst);
                Ok(Outcome::NoReply)
            }
            // Its payload is a text of any length.
            "number" => {
                let text: String = payload.parse()?;
                Ok(Outcome::ok(json!(text.trim_start_matches(' '))))
            }
            _ => Err(Reject::unknown_event()),
        }
    }
}

fn stage(shards: usize, drain_time: Duration) -> (Endpoint, Arc<Ledger>) {
    let ledger = Arc::new(Ledger {
        gate: Semaphore::new(0),
        begun: AtomicUsize::new(0),
        dropped: AtomicUsize::new(0),
        afterwards: AtomicUsize::new(0),
    });
    let rooms = Arc::clone(&ledger);
    let join = move |_: JoinContext, _: Payload<'static>| {
        let room = Room(Arc::clone(&rooms));
        async { Ok(room) }
    };
    let user_socket = UserSocket::new("/socket").channel(ChannelRoute::new("room:*", join));
    let endpoint = start(Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = shards;
        config.drain_time = drain_time;
    }));
    (endpoint, ledger)
}

fn joined(endpoint: &Endpoint, topic: &str) -> Client {
    let mut client = Client::v2(endpoint);
    assert_eq!(client.join(topic)[4]["status"], "ok");
    client
}

fn waiting(endpoint: &Endpoint) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..SOCKETS).map(|_| joined(endpoint, "room:1")).collect();
    for client in &mut clients {
        client.push("2", "room:1", "link", json!({}));
        client.push("3", "room:1", "wait", json!({}));
        client.push("4", "room:1", "behind", json!({}));
        assert_eq!(client.recv()[3], "waits");
    }
    clients
}

fn witnesses(endpoint: &Endpoint) -> Vec<Client> {
    (0..WITNESSES).map(|_| joined(endpoint, "room:2")).collect()
}

fn asks(client: &mut Client) {
    client.push("9", "room:2", "number", json!("7"));
    let answer = client.recv();
    assert_eq!((&answer[1], &answer[4]["response"]), (&json!("9"), &json!("7")));
}

fn gauge(server: &Handle, name: &str) -> u64 {
    let reader = ShardMetrics::ALL.iter().find(|it| it.0 == name).expect("it is a metric").3;
    server.metrics().iter().map(|it| reader(it)).sum()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while !is_so() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn nothing_is_left_of_them(server: &Handle, ledger: &Ledger) {
    let dropped = || ledger.dropped.load(SeqCst);
    until("all futures are dropped", || dropped() >= 2 * SOCKETS);
    ledger.gate.add_permits(4 * SOCKETS);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((ledger.begun.load(SeqCst), dropped()), (2 * SOCKETS, 2 * SOCKETS));
    assert_eq!(ledger.afterwards.load(SeqCst), 0);
    assert_eq!(gauge(server, "errors_callback_panic"), 0);
}

fn gauges_are_zero(server: &Handle) {
    let gauges = || ShardMetrics::ALL.iter().filter(|it| it.1 == "gauge");
    assert!(gauges().any(|it| it.0 == "sockets"));
    for (name, ..) in gauges() {
        until(&format!("{name} is zero"), || gauge(server, name) == 0);
    }
}

#[test]
fn handlers_that_wait_are_dropped_once_when_their_channels_are_left() {
    let (endpoint, ledger) = stage(2, Duration::ZERO);
    let (mut witnesses, mut clients) = (witnesses(&endpoint), waiting(&endpoint));
    for (at, client) in clients.iter_mut().enumerate() {
        client.push("5", "room:1", "phx_leave", json!({}));
        asks(&mut witnesses[at % WITNESSES]);
    }
    for client in &mut clients {
        assert_eq!(
            (client.recv()[1].clone(), client.recv()[3].clone()),
            ("5".into(), "phx_close".into())
        );
    }
    nothing_is_left_of_them(&endpoint.handle(), &ledger);
    // They receive nothing more, and may join again.
    for client in &mut clients {
        assert_eq!(client.join("room:1")[4], json!({"status": "ok", "response": {}}));
    }
    assert_eq!(gauge(&endpoint.handle(), "channels"), (SOCKETS + WITNESSES) as u64);
    drop((clients, witnesses));
    gauges_are_zero(&endpoint.handle());
}

#[test]
fn handlers_that_wait_are_dropped_once_when_their_connections_are_reset() {
    let (endpoint, ledger) = stage(2, Duration::ZERO);
    let (mut witnesses, clients) = (witnesses(&endpoint), waiting(&endpoint));
    for (at, client) in clients.into_iter().enumerate() {
        set_socket_linger(client.0.get_ref(), Some(Duration::ZERO)).unwrap();
        drop(client);
        asks(&mut witnesses[at % WITNESSES]);
    }
    nothing_is_left_of_them(&endpoint.handle(), &ledger);
    witnesses.iter_mut().for_each(asks);
    until("their channels are gone", || gauge(&endpoint.handle(), "channels") == WITNESSES as u64);
    drop(witnesses);
    gauges_are_zero(&endpoint.handle());
}

/// Sockets that are not closed yet are answered.
#[test]
fn handlers_that_wait_are_dropped_once_when_their_server_is_drained() {
    let (endpoint, ledger) = stage(2, Duration::from_secs(1));
    let (witnesses, mut clients) = (witnesses(&endpoint), waiting(&endpoint));
    let server = endpoint.handle();
    server.drain();
    let ended: Vec<_> =
        witnesses.into_iter().map(|it| std::thread::spawn(|| asks_to_the_end(it))).collect();
    for client in &mut clients {
        assert_eq!(client.recv_close(), 1012);
    }
    let answers: usize = ended.into_iter().map(|it| it.join().unwrap()).sum();
    assert!(answers > 0, "nobody was answered in a second");
    drop(clients);
    nothing_is_left_of_them(&server, &ledger);
    gauges_are_zero(&server);
    endpoint.wait().unwrap();
}

fn asks_to_the_end(mut client: Client) -> usize {
    let mut answers = 0;
    loop {
        let asked = json!(["1", "9", "room:2", "number", "7"]).to_string();
        // Messages after the server's close are not received any more.
        let _ = client.0.send(Message::text(asked));
        match client.0.read().unwrap() {
            Message::Text(_) => answers += 1,
            Message::Close(frame) => {
                assert_eq!(u16::from(frame.unwrap().code), 1012);
                return answers;
            }
            other => panic!("{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn p99(client: &mut Client, asked: usize) -> Duration {
    let once = |_| {
        let began = Instant::now();
        asks(client);
        began.elapsed()
    };
    let mut all: Vec<Duration> = (0..asked).map(once).collect();
    all.sort();
    all[asked * 99 / 100 - 1]
}

/// Counts the messages that the system has accepted; another thread reads the answers.
fn sends(stream: TcpStream, messages: usize, padding: usize, sent: &AtomicUsize) {
    stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
    let mut socket = WebSocket::from_raw_socket(stream, Role::Client, None);
    for n in 0..messages {
        let text = format!("{}{n}", " ".repeat(padding));
        let message = json!(["1", n.to_string(), "room:1", "number", text]).to_string();
        match socket.send(Message::text(message)) {
            Ok(()) => _ = sent.fetch_add(1, SeqCst),
            Err(Error::Io(error)) => panic!("message {n}: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The client's own window closes: neither the server nor the system takes more than a part.
#[test]
fn a_thousand_messages_behind_one_fill_the_window_and_are_answered_in_order() {
    const MESSAGES: usize = 1_000;
    const PADDING: usize = 40 << 10;
    let (endpoint, ledger) = stage(1, Duration::ZERO);
    let server = endpoint.handle();
    let mut client = joined(&endpoint, "room:1");
    let mut witnesses: Vec<Client> = witnesses(&endpoint);
    let before: Vec<Duration> = witnesses.iter_mut().map(|it| p99(it, 100)).collect();
    client.push("0", "room:1", "wait", json!({}));
    assert_eq!(client.recv()[3], "waits");

    let (sent, handled) = (Arc::new(AtomicUsize::new(0)), gauge(&server, "messages_in"));
    let (stream, counter) = (client.0.get_ref().try_clone().unwrap(), Arc::clone(&sent));
    let sender = std::thread::spawn(move || sends(stream, MESSAGES, PADDING, &counter));
    let stands = || {
        let before = sent.load(SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        before > 0 && sent.load(SeqCst) == before
    };
    until("the sender's window is closed", stands);
    let (sent_meanwhile, taken) = (sent.load(SeqCst), gauge(&server, "messages_in") - handled);
    assert!(sent_meanwhile < MESSAGES, "all of them were taken");
    assert!(taken <= BEHIND_MAX as u64, "the server has taken {taken}");
    let bound = 10 * before.into_iter().max().unwrap() + Duration::from_millis(100);
    // Another program may delay them for a while.
    until("witnesses are served as before", || witnesses.iter_mut().all(|it| p99(it, 100) < bound));
    assert_eq!(sent.load(SeqCst), sent_meanwhile, "the socket was read meanwhile");

    ledger.gate.add_permits(1);
    assert_eq!(client.recv()[3], "afterwards");
    assert_eq!(client.recv()[4]["response"], "waited");
    for n in 0..MESSAGES {
        let answer = client.recv();
        let n = n.to_string();
        assert_eq!((&answer[1], &answer[4]["response"]), (&json!(n), &json!(n)));
    }
    sender.join().unwrap();
    drop((client, witnesses));
    gauges_are_zero(&server);
}

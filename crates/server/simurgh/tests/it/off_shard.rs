//! Values of an asynchronous application are never dropped on a shard's thread, which has its own
//! descriptor table: a descriptor in them would close a different one.

use std::fmt;
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::raw::Raw;
use crate::support::until;
use simurgh::driver::{Driver, SocketId, What};
use simurgh::{
    Async, Channel, ChannelHandle, ChannelRoute, Connect, ConnectRequest, Context, Endpoint,
    HandleInfo, Join, JoinContext, Outcome, Payload, Reason, Reject, ShardChannel, ShardContext,
    UserSocket, json,
};
use tokio::sync::Semaphore;

/// The owners that were created, and the threads that dropped them.
struct Ledger {
    made: AtomicUsize,
    dropped: Mutex<Vec<(&'static str, String)>>,
    /// Asynchronous code waits for this.
    gate: Semaphore,
    /// Blocking code waits for this; and whether it has begun to.
    blocks: AtomicBool,
    is_open: AtomicBool,
    handle: Mutex<Option<ChannelHandle<Async<Room>>>>,
}

impl Ledger {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            made: AtomicUsize::new(0),
            dropped: Mutex::default(),
            gate: Semaphore::new(0),
            blocks: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            handle: Mutex::default(),
        })
    }

    fn owner(self: &Arc<Self>, what: &'static str) -> Owner {
        self.made.fetch_add(1, SeqCst);
        Owner(what, Arc::clone(self))
    }

    fn block(&self) {
        self.blocks.store(true, SeqCst);
        until("it is let go", || self.is_open.load(SeqCst));
    }
}

/// Stands for a value that owns a descriptor.
struct Owner(&'static str, Arc<Ledger>);

impl Drop for Owner {
    fn drop(&mut self) {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        self.1.dropped.lock().unwrap().push((self.0, thread));
    }
}

struct Failed(#[allow(dead_code, reason = "it is owned")] Owner);

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Failed")
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

struct Room {
    _owner: Owner,
    ledger: Arc<Ledger>,
}

impl Room {
    fn new(ledger: Arc<Ledger>) -> Self {
        Self { _owner: ledger.owner("channel"), ledger }
    }
}

impl Channel for Room {
    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        _: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        let local = self.ledger.owner("local of a handler");
        match event {
            "handle" => *self.ledger.handle.lock().unwrap() = Some(ctx.handle::<Self>()),
            "wait" => {
                ctx.push("waits", json!({}));
                self.ledger.gate.acquire().await?.forget();
            }
            "block" => self.ledger.block(),
            "fail" => Err(Failed(local))?,
            "panic" => panic_any(local),
            _ => return Err(Reject::unknown_event()),
        }
        Ok(Outcome::ok(json!({})))
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, _: &Reason) {
        assert!(ctx.subtopic() != "panics", "as asked");
    }
}

impl HandleInfo<Owner> for Room {
    async fn handle_info(&mut self, _: &mut Context, _: Owner) -> Result<Outcome, Reject> {
        Ok(Outcome::NoReply)
    }
}

struct Blocks(Arc<Ledger>);

impl ShardChannel for Blocks {
    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, event: &str, _: Payload<'_>) -> Outcome {
        match event {
            "block" => self.0.block(),
            _ => *self.0.handle.lock().unwrap() = Some(ctx.handle()),
        }
        Outcome::ok(json!({}))
    }
}

struct Stage {
    endpoint: Option<Endpoint>,
    driver: Driver,
    ledger: Arc<Ledger>,
}

fn user_socket(ledger: &Arc<Ledger>) -> UserSocket {
    let (rooms, others, connects) = (Arc::clone(ledger), Arc::clone(ledger), Arc::clone(ledger));
    let join = move |ctx: JoinContext, _: Payload<'static>| {
        let (ledger, local) = (Arc::clone(&rooms), rooms.owner("local of a join"));
        async move {
            match ctx.subtopic() {
                "later" => ledger.gate.acquire().await?.forget(),
                "fails" => Err(Failed(local))?,
                "panics_at_once" => panic_any(local),
                _ => {}
            }
            Ok(Room::new(ledger))
        }
    };
    let connect = move |_: ConnectRequest| {
        let local = connects.owner("local of a connect");
        async move {
            let _local = local;
            Ok(Connect::ok())
        }
    };
    UserSocket::new("/socket").connect(connect).channel(ChannelRoute::new("room:*", join)).channel(
        ChannelRoute::on_shard("blocks", move |_, _| Join::ok(Blocks(Arc::clone(&others)))),
    )
}

impl Stage {
    fn new() -> Self {
        let ledger = Ledger::new();
        let endpoint = Endpoint::builder().socket(user_socket(&ledger)).configure(|config| {
            config.shards = 1;
            config.decision_timeout = Duration::from_secs(2);
        });
        let endpoint = endpoint.start_local().unwrap();
        let driver = Driver::start(&endpoint);
        Self { endpoint: Some(endpoint), driver, ledger }
    }

    fn connected(&mut self) -> SocketId {
        self.driver.connect("/socket", json!({})).unwrap()
    }

    fn joined(&mut self, topic: &str) -> SocketId {
        let socket = self.connected();
        let joined = self.driver.join(socket, topic, json!({})).unwrap();
        assert_eq!(&*self.driver.reply(joined).unwrap().status, "ok");
        socket
    }

    fn push(&mut self, socket: SocketId, topic: &str, event: &str) {
        self.driver.push(socket, topic, event, json!({})).unwrap();
    }

    fn asks(&mut self, socket: SocketId, topic: &str, event: &str) {
        let said = self.driver.push(socket, topic, event, json!({})).unwrap();
        self.driver.reply(said).unwrap();
    }

    fn handle(&self) -> ChannelHandle<Async<Room>> {
        self.ledger.handle.lock().unwrap().clone().unwrap()
    }

    fn hears(&mut self, is_it: impl Fn(&What) -> bool) {
        while !is_it(&self.driver.recv_timeout(Duration::from_secs(20)).expect("it comes").what) {}
    }

    /// None was dropped on a shard's thread.
    fn all_is_dropped(self, these: &[&'static str]) {
        let Self { endpoint, driver, ledger } = self;
        drop((driver, endpoint));
        *ledger.handle.lock().unwrap() = None;
        let dropped = || ledger.dropped.lock().unwrap().clone();
        until("all is dropped", || dropped().len() == ledger.made.load(SeqCst));
        for what in these {
            assert!(dropped().iter().any(|(it, _)| it == what), "no {what} was made");
        }
        let here = std::thread::current().name().unwrap().to_owned();
        for (what, thread) in dropped() {
            assert!(["simurgh-work", &here].contains(&&*thread), "{what} was dropped on {thread}");
        }
    }
}

fn is_reply(what: &What) -> bool {
    matches!(what, What::Reply(_))
}

#[test]
fn left_or_panicking_channel_is_dropped_on_tokio() {
    let mut it = Stage::new();
    for topic in ["room:1", "room:panics"] {
        let socket = it.joined(topic);
        it.driver.leave(socket, topic).unwrap();
        it.hears(|what| matches!(what, What::ChannelClosed { .. }));
    }
    it.all_is_dropped(&["channel"]);
}

#[test]
fn pending_handler_and_its_queue_are_dropped_on_tokio() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    it.asks(socket, "room:1", "handle");
    it.push(socket, "room:1", "wait");
    it.hears(|what| matches!(what, What::Message(_)));
    it.handle().send(it.ledger.owner("message behind a handler"));
    it.driver.leave(socket, "room:1").unwrap();
    it.hears(|what| matches!(what, What::ChannelClosed { .. }));
    it.handle().send(it.ledger.owner("message for a channel that has ended"));
    it.driver.settle().unwrap();
    it.all_is_dropped(&["local of a handler", "message behind a handler"]);
}

/// Its result reaches a shard that has no such channel any more.
#[test]
fn handler_finished_after_its_channel_is_dropped_on_tokio() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    it.push(socket, "room:1", "block");
    until("it blocks", || it.ledger.blocks.load(SeqCst));
    it.driver.leave(socket, "room:1").unwrap();
    it.hears(|what| matches!(what, What::ChannelClosed { .. }));
    it.ledger.is_open.store(true, SeqCst);
    until("it is done", || !it.ledger.dropped.lock().unwrap().is_empty());
    it.driver.settle().unwrap();
    it.all_is_dropped(&["channel"]);
}

#[test]
fn late_join_is_dropped_on_tokio() {
    let mut it = Stage::new();
    let socket = it.connected();
    it.driver.join(socket, "room:later", json!({})).unwrap();
    // The handler has finished.
    it.hears(is_reply);
    let gone = it.connected();
    it.driver.join(gone, "room:later", json!({})).unwrap();
    it.driver.close(gone).unwrap();
    it.driver.settle().unwrap();
    it.ledger.gate.add_permits(2);
    let channels = || ledger_of(&it).iter().filter(|it| **it == "channel").count();
    until("both are decided", || channels() == 2);
    it.all_is_dropped(&["channel", "local of a join"]);
}

#[test]
fn undecided_join_is_dropped_at_the_end() {
    let mut it = Stage::new();
    let socket = it.connected();
    it.driver.join(socket, "room:later", json!({})).unwrap();
    it.hears(is_reply);
    let dropped = || ledger_of(&it).contains(&"local of a join");
    until("it is dropped", dropped);
    it.all_is_dropped(&["local of a join"]);
}

fn ledger_of(it: &Stage) -> Vec<&'static str> {
    it.ledger.dropped.lock().unwrap().iter().map(|(what, _)| *what).collect()
}

#[test]
fn errors_and_panics_are_dropped_on_tokio() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    it.asks(socket, "room:1", "fail");
    it.push(socket, "room:1", "panic");
    it.hears(|what| matches!(what, What::ChannelCrashed { .. }));
    for topic in ["room:fails", "room:panics_at_once"] {
        let joined = it.driver.join(socket, topic, json!({})).unwrap();
        assert_eq!(&*it.driver.reply(joined).unwrap().status, "error");
    }
    it.all_is_dropped(&["local of a handler", "local of a join", "local of a connect"]);
}

#[test]
fn a_message_for_a_channel_of_another_type_is_dropped_on_tokio() {
    let mut it = Stage::new();
    let socket = it.joined("blocks");
    it.asks(socket, "blocks", "handle");
    it.handle().send(it.ledger.owner("message of another type"));
    it.driver.settle().unwrap();
    it.all_is_dropped(&["message of another type"]);
}

/// Idle channels, a waiting one, and mail that the shard never takes.
#[test]
fn state_of_a_stopped_shard_is_dropped_on_tokio() {
    let mut it = Stage::new();
    let (blocks, waits, idles) = (it.joined("blocks"), it.joined("room:1"), it.joined("room:1"));
    it.asks(idles, "room:1", "handle");
    it.push(waits, "room:1", "wait");
    it.hears(|what| matches!(what, What::Message(_)));
    it.push(blocks, "blocks", "block");
    until("it blocks", || it.ledger.blocks.load(SeqCst));
    it.endpoint.as_ref().unwrap().handle().stop();
    for _ in 0..100 {
        it.handle().send(it.ledger.owner("message that is not taken"));
    }
    it.ledger.is_open.store(true, SeqCst);
    it.all_is_dropped(&["channel", "message that is not taken"]);
}

/// An invalid request is refused without waiting for its connect function.
#[test]
fn cancelled_connect_is_dropped_on_tokio() {
    let ledger = Ledger::new();
    let endpoint = crate::support::start(Endpoint::builder().socket(user_socket(&ledger)));
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    raw.send("GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nhost: here\r\n\r\n");
    assert_eq!(raw.answer().status, 400);
    let driver = Driver::start(&endpoint);
    let it = Stage { endpoint: Some(endpoint), driver, ledger };
    it.all_is_dropped(&["local of a connect"]);
}

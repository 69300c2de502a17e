//! Handles and contexts that outlive their channel have no effect, also on its successors.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::support::until;
use simurgh::driver::{Driver, Event, SocketId, What};
use simurgh::{
    Async, Channel, ChannelHandle, ChannelRoute, CloseCode, Connect, Context, Endpoint, HandleInfo,
    JoinContext, Outcome, Payload, Reject, Reply, ReplyRef, Stop, UserSocket, json,
};

const TOPIC: &str = "room:1";

#[derive(Default)]
struct Ledger {
    handle: Mutex<Option<(ChannelHandle<Async<Room>>, ReplyRef)>>,
    /// For the handler that cannot be dropped: it blocks its thread.
    blocks: AtomicBool,
    is_open: AtomicBool,
    is_done: AtomicBool,
    dropped: AtomicUsize,
}

struct Counted(Arc<Ledger>);

impl Drop for Counted {
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
            "handle" => {
                let handle = (ctx.handle::<Self>(), ctx.reply_ref().expect("it is a message"));
                *self.0.handle.lock().unwrap() = Some(handle);
                ctx.push("handed", json!({}));
                Ok(Outcome::NoReply)
            }
            "echo" => Ok(Outcome::ok(payload)),
            "outlive" => {
                self.0.blocks.store(true, SeqCst);
                until("it is let go", || self.0.is_open.load(SeqCst));
                ctx.push("late", json!({}));
                ctx.broadcast("late", json!({}));
                ctx.broadcast_from("late", json!({}));
                ctx.broadcast_to("room:2", "late", json!({}));
                ctx.reply(Reply::ok(json!("late")));
                ctx.assign(String::from("late"));
                ctx.subscribe("room:2");
                ctx.disconnect("users:other");
                ctx.close_socket(CloseCode::RESTART);
                let counted = Counted(Arc::clone(&self.0));
                ctx.spawn_linked(async move {
                    let _counted = counted;
                    std::future::pending::<()>().await;
                });
                let ledger = Arc::clone(&self.0);
                ctx.spawn(async move { ledger.is_done.store(true, SeqCst) });
                Ok(Outcome::Stop(Stop::Abnormal))
            }
            "assigned" => Ok(Outcome::ok(json!(ctx.assigns::<String>()))),
            _ => Err(Reject::unknown_event()),
        }
    }
}

impl HandleInfo<Counted> for Room {
    async fn handle_info(&mut self, ctx: &mut Context, _: Counted) -> Result<Outcome, Reject> {
        ctx.push("told", json!({}));
        Ok(Outcome::NoReply)
    }
}

struct Stage {
    endpoint: Endpoint,
    driver: Driver,
    ledger: Arc<Ledger>,
}

impl Stage {
    fn new() -> Self {
        let ledger = Arc::new(Ledger::default());
        let rooms = Arc::clone(&ledger);
        let join = move |_: JoinContext, _: Payload<'static>| {
            let room = Room(Arc::clone(&rooms));
            async { Ok(room) }
        };
        let user_socket = UserSocket::new("/socket")
            .connect_on_shard(|info| Connect::ok().maybe_id(info.param("id")))
            .channel(ChannelRoute::new("room:*", join));
        let builder = Endpoint::builder().socket(user_socket).configure(|config| config.shards = 1);
        let endpoint = builder.start_local().unwrap();
        let driver = Driver::start(&endpoint);
        Self { endpoint, driver, ledger }
    }

    fn connected(&mut self) -> SocketId {
        self.driver.connect("/socket", json!({"id": "users:other"})).unwrap()
    }

    fn joins(&mut self, socket: SocketId, topic: &str) {
        let joined = self.driver.join(socket, topic, json!({})).unwrap();
        assert_eq!(&*self.driver.reply(joined).unwrap().status, "ok");
    }

    fn joined(&mut self) -> SocketId {
        let socket = self.connected();
        self.joins(socket, TOPIC);
        socket
    }

    fn handle_of(&mut self, socket: SocketId) -> (ChannelHandle<Async<Room>>, ReplyRef) {
        self.driver.push(socket, TOPIC, "handle", json!({})).unwrap();
        self.driver.message(socket, "handed").unwrap();
        self.ledger.handle.lock().unwrap().take().expect("it was handed out")
    }

    fn asks(&mut self, socket: SocketId, event: &str) -> Payload<'static> {
        let said = self.driver.push(socket, TOPIC, event, json!({"n": 1})).unwrap();
        self.driver.reply(said).unwrap().response
    }

    /// All events since, once all that was sent has been handled.
    fn heard(&mut self) -> Vec<Event> {
        self.driver.settle().unwrap();
        std::iter::from_fn(|| self.driver.try_recv()).collect()
    }

    /// Uses a handle in all ways; none has an effect.
    fn reaches_nobody(
        &mut self,
        handle: &ChannelHandle<Async<Room>>,
        to: &ReplyRef,
        ears: &[SocketId],
    ) {
        self.heard();
        let before = self.ledger.dropped.load(SeqCst);
        uses(handle, to, &self.ledger);
        assert_eq!(self.heard().len(), 0);
        for socket in ears {
            assert_eq!(self.asks(*socket, "echo"), json!({"n": 1}).into());
        }
        assert_eq!(self.heard().len(), 0);
        until("the message is dropped", || self.ledger.dropped.load(SeqCst) == before + 1);
    }
}

fn uses(handle: &ChannelHandle<Async<Room>>, to: &ReplyRef, ledger: &Arc<Ledger>) {
    handle.send(Counted(Arc::clone(ledger)));
    handle.push("late", json!({}));
    handle.reply(to.clone(), Reply::ok(json!("late")));
    assert_eq!(handle.broadcast("late", json!({})), Ok(()));
    assert_eq!(handle.broadcast_from("late", json!({})), Ok(()));
    handle.stop(Stop::Abnormal);
}

fn slot(handle: &ChannelHandle<Async<Room>>) -> String {
    let text = format!("{handle:?}");
    text.split(", generation").next().unwrap().to_owned()
}

/// Control for the other tests.
#[test]
fn async_handle_reaches_its_live_channel() {
    let mut it = Stage::new();
    let (other, socket) = (it.joined(), it.joined());
    let (handle, to) = it.handle_of(socket);
    it.heard();
    uses(&handle, &to, &it.ledger);
    let own = |event: &Event| event.socket == socket;
    // The message is handled on tokio, after the channel has ended.
    until("it is dropped", || it.ledger.dropped.load(SeqCst) == 1);
    // Broadcasts arrive before this answer.
    it.asks(other, "echo");
    let heard = it.heard();
    let is_push = |what: &What| matches!(what, What::Message(it) if it.event() == "late");
    assert_eq!(heard.iter().filter(|it| own(it) && is_push(&it.what)).count(), 2, "{heard:?}");
    assert_eq!(heard.iter().filter(|it| !own(it) && is_push(&it.what)).count(), 2, "{heard:?}");
    assert!(heard.iter().any(|it| own(it) && matches!(it.what, What::Reply(_))), "{heard:?}");
    let is_crash = |what: &What| matches!(what, What::ChannelCrashed { .. });
    assert!(heard.iter().any(|it| own(it) && is_crash(&it.what)), "{heard:?}");
    it.reaches_nobody(&handle, &to, &[other]);
}

#[test]
fn async_handle_reaches_no_channel_after_a_leave() {
    let mut it = Stage::new();
    let (other, socket) = (it.joined(), it.joined());
    let (handle, to) = it.handle_of(socket);
    it.driver.leave(socket, TOPIC).unwrap();
    it.reaches_nobody(&handle, &to, &[other]);
    // The new channel has the topic, and perhaps the slot.
    it.joins(socket, TOPIC);
    it.reaches_nobody(&handle, &to, &[other, socket]);
}

#[test]
fn async_handle_reaches_no_channel_after_a_rejoin() {
    let mut it = Stage::new();
    let (other, socket) = (it.joined(), it.joined());
    let (handle, to) = it.handle_of(socket);
    it.joins(socket, TOPIC);
    it.reaches_nobody(&handle, &to, &[other, socket]);
    let (new, _) = it.handle_of(socket);
    assert_eq!(slot(&new), slot(&handle), "the slot was to be used again");
}

#[test]
fn async_handle_reaches_no_channel_after_its_slots_are_reused() {
    let mut it = Stage::new();
    let socket = it.joined();
    let (handle, to) = it.handle_of(socket);
    it.driver.close(socket).unwrap();
    it.reaches_nobody(&handle, &to, &[]);
    let newcomers: Vec<SocketId> = (0..4).map(|_| it.joined()).collect();
    it.reaches_nobody(&handle, &to, &newcomers);
    let slots: Vec<String> = newcomers.into_iter().map(|new| slot(&it.handle_of(new).0)).collect();
    assert!(slots.contains(&slot(&handle)), "the slot was to be used again: {slots:?}");
}

#[test]
fn async_handle_does_nothing_after_the_server_stopped() {
    let mut it = Stage::new();
    let socket = it.joined();
    let (handle, to) = it.handle_of(socket);
    let Stage { endpoint, driver, ledger } = it;
    endpoint.stop();
    uses(&handle, &to, &ledger);
    assert_eq!(ledger.dropped.load(SeqCst), 1, "nobody is left to keep the message");
    drop(driver);
    uses(&handle.clone(), &to, &ledger);
    assert_eq!(ledger.dropped.load(SeqCst), 2);
}

/// A handler that blocks cannot be dropped: what it does later has no effect.
#[test]
fn handler_that_outlives_its_channel_has_no_effect() {
    let mut it = Stage::new();
    let (other, socket) = (it.joined(), it.joined());
    it.joins(other, "room:2");
    it.driver.push(socket, TOPIC, "outlive", json!({})).unwrap();
    until("it blocks", || it.ledger.blocks.load(SeqCst));
    it.joins(socket, TOPIC);
    it.heard();
    it.ledger.is_open.store(true, SeqCst);
    until("it is done", || it.ledger.is_done.load(SeqCst));
    until("its linked work is dropped", || it.ledger.dropped.load(SeqCst) == 1);
    assert_eq!(it.heard().len(), 0);
    assert_eq!(it.asks(socket, "assigned"), json!(null).into());
    it.endpoint.broadcast("room:2", "news", json!({})).unwrap();
    // Only the other one, which has joined, receives it.
    it.driver.message(other, "news").unwrap();
    assert_eq!(it.heard().len(), 0);
    assert_eq!(it.asks(other, "echo"), json!({"n": 1}).into());
}

//! Channels whose handlers wait: Phoenix' order within a channel, no delay for others, and nothing
//! remains of a handler whose channel has ended.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::until;
use serde::{Deserialize, Serialize};
use simurgh::driver::{Driver, DriverError, SocketId, What};
use simurgh::{
    Builder, Channel, ChannelRoute, Connect, ConnectRequest, Context, Endpoint, HandleInfo,
    JoinContext, Outcome, Payload, Reject, Stop, UserSocket, json,
};
use tokio::sync::Semaphore;
use tokio::time::sleep;

#[derive(Default)]
struct Db {
    posts: Mutex<Vec<String>>,
    /// Handlers that have waited for it, and that wait now.
    began: AtomicUsize,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct DbError;

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("password=hunter2")
    }
}

impl std::error::Error for DbError {}

#[derive(Deserialize)]
struct NewMsg {
    body: String,
}

#[derive(Serialize)]
struct Post {
    id: usize,
    body: String,
}

struct Guard(Arc<Db>);

impl Guard {
    fn new(db: &Arc<Db>) -> Self {
        db.began.fetch_add(1, SeqCst);
        db.waiting.fetch_add(1, SeqCst);
        Self(Arc::clone(db))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

impl Db {
    async fn post(&self, message: NewMsg) -> Result<Post, DbError> {
        sleep(Duration::from_millis(5)).await;
        if message.body == "fail" {
            return Err(DbError);
        }
        let mut posts = self.posts.lock().unwrap();
        posts.push(message.body.clone());
        Ok(Post { id: posts.len(), body: message.body })
    }
}

struct Room {
    db: Arc<Db>,
    gate: Arc<Semaphore>,
    handled: usize,
}

impl Channel for Room {
    const INTERCEPT: &'static [&'static str] = &["whispered"];

    async fn after_join(&mut self, ctx: &mut Context) -> Result<(), Reject> {
        if ctx.subtopic() == "greets" {
            sleep(Duration::from_millis(5)).await;
            ctx.push("hello", json!({"from": ctx.topic()}));
        }
        Ok(())
    }

    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        event: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        self.handled += 1;
        match event {
            "new_msg" => {
                let message: NewMsg = payload.parse()?;
                let post = self.db.post(message).await?;
                ctx.broadcast("new_msg", &post);
                Ok(Outcome::ok(json!({"id": post.id})))
            }
            "now" => Ok(Outcome::ok(payload)),
            "wait" => {
                let _guard = Guard::new(&self.db);
                ctx.push("waits", json!({}));
                self.gate.acquire().await?.forget();
                ctx.push("waited", json!({}));
                Ok(Outcome::ok(json!({"handled": self.handled})))
            }
            "panic" => {
                ctx.broadcast("before", json!({}));
                sleep(Duration::from_millis(1)).await;
                ctx.broadcast("meanwhile", json!({}));
                panic!("as asked");
            }
            "refuse" => {
                ctx.broadcast("before", json!({}));
                sleep(Duration::from_millis(1)).await;
                Err(Reject::new("no"))
            }
            "stop" => {
                sleep(Duration::from_millis(1)).await;
                Ok(Outcome::Stop(Stop::Normal))
            }
            "early" => {
                ctx.reply(simurgh::Reply::ok(json!("early")));
                sleep(Duration::from_millis(1)).await;
                ctx.push("late", json!({}));
                Ok(Outcome::NoReply)
            }
            "tell" => {
                ctx.handle::<Self>().send(7_u32);
                Ok(Outcome::NoReply)
            }
            "assign" => {
                ctx.assign(String::from("assigned"));
                Ok(Outcome::ok(json!(ctx.assigns::<String>())))
            }
            "assigned" => Ok(Outcome::ok(json!(ctx.assigns::<String>()))),
            "link" => {
                let guard = Guard::new(&self.db);
                ctx.spawn_linked(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
                Ok(Outcome::ok(json!({})))
            }
            "whisper" => {
                ctx.broadcast("whispered", payload);
                Ok(Outcome::NoReply)
            }
            _ => Err(Reject::unknown_event()),
        }
    }

    async fn handle_out(
        &mut self,
        ctx: &mut Context,
        _: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        sleep(Duration::from_millis(1)).await;
        ctx.push("heard", payload);
        Ok(Outcome::NoReply)
    }
}

impl HandleInfo<u32> for Room {
    async fn handle_info(&mut self, ctx: &mut Context, n: u32) -> Result<Outcome, Reject> {
        sleep(Duration::from_millis(1)).await;
        ctx.push("told", json!({"n": n}));
        Ok(Outcome::NoReply)
    }
}

async fn connect(request: ConnectRequest) -> Result<Connect, Reject> {
    sleep(Duration::from_millis(1)).await;
    match request.param("token") {
        Some("fail") => Err(DbError)?,
        Some("never") => std::future::pending().await,
        Some("panic") => panic!("as asked"),
        Some(name) => Ok(Connect::ok().id(format!("users:{name}"))),
        None => Err(Reject::new("no token")),
    }
}

struct Stage {
    endpoint: Endpoint,
    driver: Driver,
    db: Arc<Db>,
    gate: Arc<Semaphore>,
}

impl Stage {
    fn new() -> Self {
        Self::with(|builder| builder)
    }

    fn with(configure: impl FnOnce(Builder) -> Builder) -> Self {
        let (db, gate) = (Arc::new(Db::default()), Arc::new(Semaphore::new(0)));
        let (rooms, gates) = (Arc::clone(&db), Arc::clone(&gate));
        let join = move |ctx: JoinContext, payload: Payload<'static>| {
            let room = Room { db: Arc::clone(&rooms), gate: Arc::clone(&gates), handled: 0 };
            async move {
                match ctx.subtopic() {
                    "private" => Err(Reject::new("unauthorized")),
                    "broken" => Err(DbError)?,
                    "never" => std::future::pending().await,
                    "panics" => {
                        sleep(Duration::from_millis(1)).await;
                        panic!("as asked");
                    }
                    "shaped" => {
                        let message: NewMsg = payload.parse()?;
                        Ok((room, json!(message.body).into()))
                    }
                    _ => Ok((room, payload)),
                }
            }
        };
        let user_socket =
            UserSocket::new("/socket").connect(connect).channel(ChannelRoute::new("room:*", join));
        let builder = Endpoint::builder().socket(user_socket).configure(|config| config.shards = 1);
        let endpoint = configure(builder).start_local().unwrap();
        let driver = Driver::start(&endpoint);
        Self { endpoint, driver, db, gate }
    }

    fn joined(&mut self, topic: &str) -> SocketId {
        let socket = self.driver.connect("/socket", json!({"token": "me"})).unwrap();
        let joined = self.driver.join(socket, topic, json!({})).unwrap();
        assert_eq!(&*self.driver.reply(joined).unwrap().status, "ok");
        socket
    }

    fn asks(&mut self, socket: SocketId, event: &str, payload: serde_json::Value) -> String {
        let said = self.driver.push(socket, "room:1", event, payload).unwrap();
        let reply = self.driver.reply(said).unwrap();
        format!("{} {}", reply.status, reply.response.json().unwrap())
    }

    /// All events up to this one, without the topics.
    fn hears_until(&mut self, last: &str) -> Vec<String> {
        let mut heard = Vec::new();
        while heard.last().is_none_or(|it: &String| !it.starts_with(last)) {
            let event = self.driver.recv_timeout(Duration::from_secs(5));
            let event = event.unwrap_or_else(|| panic!("{last} has not come, but {heard:?}"));
            heard.push(match event.what {
                What::Reply(it) => format!("reply {} {}", it.status, it.response.json().unwrap()),
                What::Message(it) => format!("{} {}", it.event(), it.payload().json().unwrap()),
                What::ChannelClosed { .. } => "closed".into(),
                What::ChannelCrashed { .. } => "crashed".into(),
                What::Closed { code } => format!("socket {code:?}"),
                other => panic!("{other:?}"),
            });
        }
        heard
    }

    fn awaits(&self, waiting: usize) {
        until(&format!("{waiting} handlers wait"), || self.db.waiting.load(SeqCst) == waiting);
    }

    fn metric(&self, name: &str) -> u64 {
        let all = self.endpoint.handle();
        let all = all.metrics().iter();
        let of = |it: &Arc<simurgh::metrics::ShardMetrics>| {
            let all = simurgh::metrics::ShardMetrics::ALL.iter();
            all.clone().find(|it| it.0 == name).map(|counter| (counter.3)(it)).unwrap()
        };
        all.map(of).sum()
    }
}

#[test]
fn handlers_can_await_a_database() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    assert_eq!(it.asks(socket, "new_msg", json!({"body": "hi"})), r#"ok {"id":1}"#);
    let heard = it.driver.message(socket, "new_msg").unwrap();
    assert_eq!(heard.payload().json(), Some(r#"{"id":1,"body":"hi"}"#));
    // The client receives the error in its own message, and nothing of the server's errors.
    let wrong = it.asks(socket, "new_msg", json!({"text": "hi"}));
    assert!(
        wrong.starts_with(r#"error {"reason":"wrong payload: missing field `body`"#),
        "{wrong}"
    );
    assert_eq!(
        it.asks(socket, "new_msg", json!({"body": "fail"})),
        r#"error {"reason":"internal error"}"#
    );
    let said = it.driver.push(socket, "room:1", "new_msg", Payload::from_bytes(vec![1])).unwrap();
    assert_eq!(
        it.driver.reply(said).unwrap().response,
        json!({"reason": "wrong payload: binary instead of JSON"}).into()
    );
    assert_eq!(it.metric("errors_wrong_payload"), 2);
    assert_eq!(it.asks(socket, "refuse", json!({})), r#"error {"reason":"no"}"#);
    it.driver.message(socket, "before").unwrap();
    it.driver.push(socket, "room:1", "unheard_of", json!({})).unwrap();
    assert_eq!(it.hears_until("crashed"), ["crashed"]);
}

#[test]
fn joins_and_connects_are_decided_by_async_functions() {
    let mut it = Stage::with(|builder| {
        builder.configure(|config| config.decision_timeout = Duration::from_secs(2))
    });
    let refused = |status, body: &str| Err(DriverError::Refused { status, body: body.into() });
    assert_eq!(it.driver.connect("/socket", json!({})), refused(403, "no token"));
    let failed = it.driver.connect("/socket", json!({"token": "fail"}));
    assert_eq!(failed, refused(500, "internal error"));
    let socket = it.driver.connect("/socket", json!({"token": "me"})).unwrap();
    let mut join = |topic| {
        let joined = it.driver.join(socket, topic, json!({"n": 1})).unwrap();
        let reply = it.driver.reply(joined).unwrap();
        format!("{} {}", reply.status, reply.response.json().unwrap())
    };
    assert_eq!(join("room:private"), r#"error {"reason":"unauthorized"}"#);
    assert_eq!(join("room:broken"), r#"error {"reason":"internal error"}"#);
    assert_eq!(join("room:never"), r#"error {"reason":"join timed out"}"#);
    assert_eq!(join("room:1"), r#"ok {"n":1}"#);
    assert_eq!(it.metric("errors_decision_timeout"), 1);
}

/// A client receives an error about any malformed message, and the channel continues.
#[test]
fn payload_of_the_wrong_type_gets_an_error_reply() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    let wrong: [(Payload<'static>, &str); 9] = [
        (json!({}).into(), "missing field `body` at line 1 column 2"),
        (json!({"body": 7}).into(), "invalid type: integer `7`, expected a string at line 1"),
        (json!({"body": null}).into(), "invalid type: null, expected a string at line 1"),
        (json!({"body": ["hi"]}).into(), "invalid type: sequence, expected a string at line 1"),
        (json!([]).into(), "invalid length 0, expected struct NewMsg with 1 element at line 1"),
        (json!("hi").into(), "invalid type: string \"hi\", expected struct NewMsg at line 1"),
        (json!(null).into(), "invalid type: null, expected struct NewMsg at line 1"),
        (Payload::from_bytes(vec![]), "binary instead of JSON"),
        (Payload::from_bytes(br#"{"body": "hi"}"#.to_vec()), "binary instead of JSON"),
    ];
    let mut hears = |topic: &str, event: &str, payload: Payload<'static>| {
        let asked = match event {
            "phx_join" => it.driver.join(socket, topic, payload),
            _ => it.driver.push(socket, topic, event, payload),
        };
        let reply = it.driver.reply(asked.unwrap()).unwrap();
        let response: serde_json::Value = reply.response.parse().unwrap();
        (reply.status.to_string(), response["reason"].as_str().unwrap_or_default().to_owned())
    };
    for (payload, what) in &wrong {
        for (topic, event) in [("room:1", "new_msg"), ("room:shaped", "phx_join")] {
            let (status, reason) = hears(topic, event, payload.clone());
            let expected = format!("wrong payload: {what}");
            assert!(status == "error" && reason.starts_with(&expected), "{reason}, not {expected}");
        }
    }
    assert_eq!(hears("room:1", "new_msg", json!({"body": "hi", "more": 1}).into()).0, "ok");
    assert_eq!(it.metric("errors_wrong_payload"), wrong.len() as u64);
    assert_eq!(it.metric("joins_refused"), wrong.len() as u64);
    assert_eq!(*it.db.posts.lock().unwrap(), ["hi"]);
}

#[test]
fn undecided_connect_is_refused_in_time_and_a_panic_at_once() {
    let mut it = Stage::with(|builder| {
        builder.configure(|config| config.decision_timeout = Duration::from_secs(2))
    });
    let mut refused = |token: &str| match it.driver.connect("/socket", json!({"token": token})) {
        Err(DriverError::Refused { status, body }) => (status, body),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("panic"), (500, "".into()));
    let began = Instant::now();
    assert_eq!(refused("never"), (503, "".into()));
    let took = began.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&took), "{took:?}");
    let counted = |name| it.metric(name);
    assert_eq!(counted("errors_decision_timeout"), 1);
    assert_eq!((counted("errors_callback_panic"), counted("sockets")), (1, 0));
}

#[test]
fn panic_in_an_async_join_gets_a_reply_and_keeps_the_socket() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    let joined = it.driver.join(socket, "room:panics", json!({})).unwrap();
    it.driver.push(socket, "room:1", "now", json!("behind")).unwrap();
    let reply = it.driver.reply(joined).unwrap();
    assert_eq!(reply.response, json!({"reason": "join crashed"}).into());
    assert_eq!(it.hears_until("reply"), [r#"reply ok "behind""#]);
    let counted = |name| it.metric(name);
    assert_eq!((counted("errors_callback_panic"), counted("joins_refused")), (1, 1));
}

/// Without a queue behind it a handler may wait forever.
#[test]
fn endless_handler_delays_only_its_channel() {
    let mut it = Stage::with(|builder| {
        builder.configure(|config| config.decision_timeout = Duration::from_secs(1))
    });
    let (socket, other) = (it.joined("room:1"), it.joined("room:1"));
    it.driver.push(socket, "room:1", "wait", json!({})).unwrap();
    it.hears_until("waits");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(it.asks(other, "now", json!("other")), r#"ok "other""#);
    assert_eq!((it.metric("errors_decision_timeout"), it.metric("channels")), (0, 2));
    it.driver.leave(socket, "room:1").unwrap();
    assert_eq!(it.hears_until("closed"), ["reply ok {}", "closed"]);
    it.awaits(0);
}

/// As in Phoenix: a channel handles one message after the other, and no other channel waits for it.
#[test]
fn messages_queue_behind_a_handler_and_other_channels_continue() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    let joined = it.driver.join(socket, "room:2", json!({})).unwrap();
    it.driver.reply(joined).unwrap();
    it.driver.push(socket, "room:1", "wait", json!({})).unwrap();
    it.driver.push(socket, "room:1", "now", json!("behind")).unwrap();
    it.driver.push(socket, "room:1", "wait", json!({})).unwrap();
    assert_eq!(it.hears_until("waits"), ["waits {}"]);
    it.driver.push(socket, "room:2", "now", json!("other")).unwrap();
    assert_eq!(it.hears_until("reply"), [r#"reply ok "other""#]);
    it.gate.add_permits(1);
    assert_eq!(
        it.hears_until("waits"),
        ["waited {}", r#"reply ok {"handled":1}"#, r#"reply ok "behind""#, "waits {}"]
    );
    it.gate.add_permits(1);
    assert_eq!(it.hears_until("reply"), ["waited {}", r#"reply ok {"handled":3}"#]);
    it.awaits(0);
}

#[test]
fn effects_of_an_async_handler_stay_in_order() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    it.driver.push(socket, "room:1", "early", json!({})).unwrap();
    assert_eq!(it.hears_until("late"), [r#"reply ok "early""#, "late {}"]);
    it.driver.push(socket, "room:1", "tell", json!({})).unwrap();
    assert_eq!(it.hears_until("told"), [r#"told {"n":7}"#]);
    it.driver.push(socket, "room:1", "whisper", json!({"a": 1})).unwrap();
    assert_eq!(it.hears_until("heard"), [r#"heard {"a":1}"#]);
    assert_eq!(it.asks(socket, "assign", json!({})), r#"ok "assigned""#);
    assert_eq!(it.asks(socket, "assigned", json!({})), r#"ok "assigned""#);
    let greeted = it.driver.connect("/socket", json!({"token": "me"})).unwrap();
    it.driver.join(greeted, "room:greets", json!({})).unwrap();
    assert_eq!(it.hears_until("hello"), ["reply ok {}", r#"hello {"from":"room:greets"}"#]);
}

#[test]
fn panic_in_an_async_handler_ends_its_channel_and_keeps_broadcasts() {
    let mut it = Stage::new();
    let socket = it.joined("room:1");
    it.driver.push(socket, "room:1", "panic", json!({})).unwrap();
    it.driver.push(socket, "room:1", "now", json!({})).unwrap();
    assert_eq!(it.hears_until("crashed"), ["before {}", "meanwhile {}", "crashed"]);
    assert_eq!(it.metric("errors_callback_panic"), 1);
    let joined = it.driver.join(socket, "room:1", json!({})).unwrap();
    it.driver.reply(joined).unwrap();
    it.driver.push(socket, "room:1", "stop", json!({})).unwrap();
    it.driver.push(socket, "room:1", "now", json!({})).unwrap();
    assert_eq!(it.hears_until("closed"), ["closed"]);
}

#[test]
fn pending_handler_is_dropped_when_its_channel_ends() {
    type End = fn(&mut Stage, SocketId);
    let ends: [(End, &str); 5] = [
        (|it, socket| _ = it.driver.leave(socket, "room:1").unwrap(), "closed"),
        (|it, socket| _ = it.driver.join(socket, "room:1", json!({})).unwrap(), "closed"),
        (|it, _| it.endpoint.disconnect("users:me").unwrap(), "socket Some(1001)"),
        (|it, socket| it.driver.close(socket).unwrap(), "socket"),
        (|it, _| it.endpoint.handle().drain(), "socket Some(1012)"),
    ];
    for (end, last) in ends {
        for event in ["wait", "link"] {
            let mut it = Stage::with(|builder| {
                builder.configure(|config| config.drain_time = Duration::from_millis(10))
            });
            let socket = it.joined("room:1");
            it.driver.push(socket, "room:1", event, json!({})).unwrap();
            it.driver.push(socket, "room:1", "now", json!({})).unwrap();
            it.awaits(1);
            end(&mut it, socket);
            it.hears_until(last);
            it.awaits(0);
        }
    }
}

/// Beyond a number of waiting messages the socket is not read; all are handled in order later.
#[test]
fn thousand_messages_queue_behind_a_handler_without_loss() {
    let mut it = Stage::new();
    let (socket, other) = (it.joined("room:1"), it.joined("room:1"));
    it.driver.push(socket, "room:1", "wait", json!({})).unwrap();
    it.hears_until("waits");
    for n in 0..1000 {
        it.driver.push(socket, "room:1", "now", json!(n)).unwrap();
    }
    it.driver.settle().unwrap();
    assert_eq!(it.asks(other, "now", json!("other")), r#"ok "other""#);
    it.gate.add_permits(1);
    let mut heard = it.hears_until("reply ok 999");
    assert_eq!(heard.drain(..2).collect::<Vec<_>>(), ["waited {}", r#"reply ok {"handled":1}"#]);
    let expected: Vec<String> = (0..1000).map(|n| format!("reply ok {n}")).collect();
    assert_eq!(heard, expected);
}

/// The socket is not read, so a leave would never be, either: the channel is closed.
#[test]
fn endless_handler_ends_its_channel_when_its_queue_is_full() {
    let mut it = Stage::with(|builder| {
        builder.configure(|config| config.decision_timeout = Duration::from_secs(2))
    });
    let socket = it.joined("room:1");
    it.driver.push(socket, "room:1", "wait", json!({})).unwrap();
    for n in 0..40 {
        it.driver.push(socket, "room:1", "now", json!(n)).unwrap();
    }
    it.driver.join(socket, "room:2", json!({})).unwrap();
    let mut heard = it.hears_until("reply ok");
    // Messages that were not read when it ended are for a topic that is not joined.
    heard.retain(|it| it != r#"reply error {"reason":"unmatched topic"}"#);
    assert_eq!(heard, ["waits {}", "crashed", "reply ok {}"]);
    it.awaits(0);
    assert_eq!(it.metric("errors_decision_timeout"), 1);
}

//! What assertions find, how long they wait, and what their failures report.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use serde::Deserialize;
use simurgh::driver::Options;
use simurgh::{
    ChannelHandle, ChannelRoute, CloseCode, Connect, Endpoint, Join, Outcome, Payload, Serializer,
    ShardChannel, ShardContext, UserSocket, json,
};
use simurgh_testing::*;

struct Room;

static KEPT: Mutex<Vec<ChannelHandle<Room>>> = Mutex::new(Vec::new());

impl ShardChannel for Room {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        let payload = payload.into_owned();
        match event {
            "echo" => return Outcome::ok(payload),
            "refuse" => return Outcome::error(payload),
            "say" => ctx.broadcast("said", payload),
            "tell" => ctx.broadcast_from("told", payload),
            "hidden" => ctx.broadcast("intercepted", payload),
            "push" | "text" | "binary" => ctx.push(event, payload),
            "later" => {
                let handle = ctx.handle::<Self>();
                ctx.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(40)).await;
                    handle.push("late", payload);
                });
            }
            "give_away" => KEPT.lock().unwrap().push(ctx.handle::<Self>()),
            "kick" => ctx.close_socket(CloseCode::POLICY),
            _ => return Outcome::unknown_event(),
        }
        Outcome::NoReply
    }

    fn intercept(&self) -> &'static [&'static str] {
        &["intercepted"]
    }

    fn handle_out(&mut self, ctx: &mut ShardContext<'_>, _: &str, _: &Payload<'_>) -> Outcome {
        ctx.push("rewritten", json!({}));
        Outcome::NoReply
    }
}

fn user_socket() -> UserSocket {
    UserSocket::new("/socket")
        .connect_on_shard(|info| match info.param("token").as_deref() {
            Some("wrong") => Connect::refuse_with(403, "not you\n"),
            Some(name) => Connect::ok().id(format!("users:{name}")),
            None => Connect::ok(),
        })
        .count_members(true)
        .channel(ChannelRoute::on_shard("rooms:*", |ctx, payload| match ctx.subtopic() {
            "private" => Join::error(json!({"reason": "unauthorized"})),
            "slow" => Join::later(async {
                tokio::time::sleep(Duration::from_millis(40)).await;
                Join::ok(Room)
            }),
            _ => Join::ok(Room).reply(payload.into_owned()),
        }))
}

fn server() -> TestServer {
    TestServer::start(user_socket())
}

fn room() -> TestChannel {
    server().connect(()).join("rooms:1", json!({}))
}

thread_local! {
    /// The line at which this thread has panicked, while a test records it.
    static BLAMED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The message of a failing assertion, and the line that it reports.
fn failure<T>(assertion: impl FnOnce() -> T) -> (String, u32) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match BLAMED.get() {
            Some(_) => BLAMED.set(info.location().map(|it| it.line())),
            None => others(info),
        }));
    });
    BLAMED.set(Some(0));
    let outcome = catch_unwind(AssertUnwindSafe(assertion));
    let line = BLAMED.take();
    let Err(panic) = outcome else { panic!("it did not fail") };
    let text = panic.downcast_ref::<String>().expect("a panic with a text");
    (text.clone(), line.expect("a panic with a place"))
}

fn text<T>(assertion: impl FnOnce() -> T) -> String {
    failure(assertion).0
}

#[derive(Debug, Deserialize, PartialEq)]
struct Message {
    body: String,
    #[serde(default)]
    id: u32,
}

#[test]
fn message_is_found_after_others_and_only_once() {
    let room = room();
    for n in 1..=3 {
        room.push("push", json!({"n": n}));
    }
    assert_push!(room, "push", {"n": 2});
    for n in [1, 3] {
        assert_push!(room, "push", {"n": n});
    }
    refute_push!(room);
}

#[test]
fn expected_value_is_json_a_pattern_a_type_or_a_closure() {
    let room = room();
    let say = || room.push("push", json!({"body": "hi", "id": 7, "to": ["a", "b"]}));
    (0..12).for_each(|_| drop(say()));
    let value = assert_push!(room, "push", {"body": "hi", "to": ["a", ..], "id": _});
    assert_eq!(value["id"], 7);
    let id = 3;
    assert_push!(room, "push", {"id": id + 4}, timeout_ms = 1000);
    assert_push!(room, "push", Message { body, id: 7 });
    assert_eq!(body, "hi");
    assert_push!(room, "push", Message { body, id } if id > 5 && body.len() == 2);
    assert_eq!((body.as_str(), id), ("hi", 7));
    let message = assert_push!(room, "push", as Message);
    assert_eq!(message, Message { body: "hi".into(), id: 7 });
    let message = assert_push!(room, "push", |it: &Message| it.id == 7, timeout_ms = 500);
    assert_eq!(message.id, 7);
    let value = assert_push!(room, "push", |it| it["to"][1] == "b");
    assert_eq!(value["to"], json!(["a", "b"]));
    let payload = assert_push!(room, "push", == json!({"to": ["a", "b"], "id": 7, "body": "hi"}));
    assert!(payload.json().is_some());
    assert_push!(room, "pull" | "push");
    assert_push!(room, _, {"id": 7});
    assert_push!(room, String::from("push"));
    assert_push!(room.socket(), _);
    refute_push!(room, "push");
    for value in [json!(null), json!("hi"), json!(-3), json!([1, [2]]), json!(true)] {
        room.push("push", value);
    }
    assert_push!(room, "push", null);
    assert_push!(room, "push", "hi");
    assert_push!(room, "push", -3);
    assert_push!(room, "push", [1, [_]]);
    assert_push!(room, "push", true);
}

#[test]
fn replies_belong_to_their_push() {
    let room = room();
    let (first, second) = (room.push("echo", json!({"n": 1})), room.push("echo", json!({"n": 2})));
    assert_reply!(second, "ok", {"n": 2});
    assert_reply!(first, "ok", {"n": 1});
    refute_reply!(first);
    let refused = room.push("refuse", json!({"reason": "no"}));
    refute_reply!(refused, "ok");
    assert_reply!(refused, "error", {"reason": "no"});
    refute_reply!(room.push("push", json!({})));
    let bytes = assert_reply!(room.push("echo", vec![1, 2, 3]), "ok", == [1, 2, 3]);
    assert_eq!(bytes.binary(), Some(&[1, 2, 3][..]));
}

#[test]
fn joins_succeed_or_are_refused() {
    let server = server();
    let socket = server.connect(());
    let room = socket.join("rooms:1", json!({"as": "member"}));
    assert_joined!(room, {"as": "member"});
    assert_joined!(room, as serde_json::Value);
    let refused = socket.try_join("rooms:private", json!({})).unwrap_err();
    assert_eq!((&*refused.status, &*refused.topic), ("error", "rooms:private"));
    assert_eq!(refused.response, json!({"reason": "unauthorized"}).into());
    let slow = socket.begin_join("rooms:slow", json!({}));
    refute_reply!(slow, timeout_ms = 5);
    assert_joined!(slow);
    assert_reply!(socket.begin_join("rooms:private", json!({})), "error");
    let unmatched = text(|| socket.join("elsewhere", json!({})));
    assert_eq!(
        unmatched,
        "joining elsewhere was answered with status error: {\"reason\":\"unmatched topic\"}; \
         use try_join if a refusal is expected"
    );
}

#[test]
fn connections_are_accepted_or_refused() {
    let app = Endpoint::builder()
        .socket(user_socket())
        .socket(UserSocket::new("/of/:tenant").connect_on_shard(|info| {
            match info.param("tenant").as_deref() {
                Some("acme") => Connect::ok(),
                _ => Connect::refuse(404),
            }
        }))
        .configure(|config| config.shards = 2)
        .listen("127.0.0.1:1");
    let server = TestServer::start(app);
    assert_eq!(server.endpoint().addresses(), []);
    let refused = server.try_connect(json!({"token": "wrong"})).unwrap_err();
    assert_eq!((refused.status, refused.body.as_str()), (403, "not you\n"));
    server.connect_to("/of/acme", ());
    assert_eq!(server.try_connect_to("/of/other", ()).unwrap_err().status, 404);
    let text = text(|| server.connect(json!({"token": "wrong"})));
    assert_eq!(
        text,
        "connecting to /socket: the connection was refused with 403: not you; use try_connect if \
         a refusal is expected"
    );
}

#[test]
fn broadcasts_are_found_unchanged() {
    let server = TestServer::start(Endpoint::builder().socket(user_socket()).configure(|it| {
        it.shards = 2;
    }));
    let (ann, bob) = (server.connect(()), server.connect(()));
    let here = ann.subscribe_and_join("rooms:1", json!({}));
    let there = bob.join("rooms:1", json!({}));
    here.push("hidden", json!({"n": 1}));
    assert_broadcast!(here, "intercepted", {"n": 1});
    assert_push!(here, "rewritten");
    assert_push!(there, "rewritten");
    there.push("tell", json!({"n": 2}));
    assert_broadcast!(here, "told", {"n": 2});
    assert_push!(here, "told");
    refute_push!(there, "told");
    here.broadcast_from("news", json!({"n": 3}));
    assert_push!(here, "news", {"n": 3});
    assert_push!(there, "news", {"n": 3});
    refute_broadcast!(here);
    here.broadcast("news", json!({"n": 4}));
    assert_broadcast!(here, "news", {"n": 4});
    let blob = server.subscribe("blobs");
    server.broadcast("blobs", "blob", vec![0, 255]);
    assert_broadcast!(blob, "blob", == [0, 255]);
    refute_broadcast!(server.subscribe("rooms:2"));
}

#[test]
fn ends_of_channels_and_sockets_are_asserted() {
    let server = server();
    let ann = server.connect(json!({"token": "ann"}));
    let room = ann.join("rooms:1", json!({}));
    assert_reply!(room.leave(), "ok");
    assert_closed!(room);
    let room = ann.join("rooms:1", json!({}));
    room.push("no such event", json!({}));
    assert_crashed!(room);
    server.disconnect("users:ann");
    assert_closed!(ann, 1001);
    let bob = server.connect(());
    bob.join("rooms:1", json!({})).push("kick", json!({}));
    assert_closed!(bob, CloseCode::POLICY, timeout_ms = 1000);
    let eve = server.connect(());
    eve.close();
    assert_eq!(assert_closed!(eve), Some(1000));
}

#[test]
fn plain_sockets_exchange_texts_and_bytes() {
    let server = TestServer::start(UserSocket::plain("/plain", "plain", |_, _| Join::ok(Room)));
    let socket = server.connect(());
    socket.send_text("hello");
    socket.send_text("{\"n\":1}");
    socket.send_binary([1, 2]);
    assert_push!(socket, "binary", == [1, 2]);
    assert_push!(socket, "text", {"n": 1});
    assert_push!(socket, "text", "hello");
}

#[test]
fn assertions_work_with_each_serializer() {
    for serializer in [Serializer::V1, Serializer::V2] {
        let mut options = Options::default();
        options.serializer = Some(serializer);
        let server = TestServer::with(user_socket(), options);
        let room = server.connect(()).subscribe_and_join("rooms:1", json!({}));
        assert_reply!(room.push("echo", json!({"n": 1})), "ok", {"n": 1});
        room.push("say", json!({"n": 2}));
        assert_broadcast!(room, "said", {"n": 2});
        assert_push!(room, "said", {"n": 2});
        refute_push!(room);
    }
}

#[test]
fn refutations_end_early_if_nothing_can_arrive() {
    let room = room();
    room.push("later", json!({}));
    assert_push!(room, "late");
    let began = Instant::now();
    for _ in 0..20 {
        refute_push!(room, "late", timeout_ms = 60_000);
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?} for 20, with nothing under way");
    // A task still runs: the refutation waits for it.
    room.push("later", json!({}));
    let refuted = text(|| refute_push!(room, "late", timeout_ms = 60_000));
    assert!(refuted.starts_with("a push \"late\" to socket 1"));
    assert_push!(room, "late");
    room.push("later", json!({}));
    refute_push!(room, "late", timeout_ms = 1);
    assert_push!(room, "late");
    // The application has a handle, and may push at any time.
    let other = room.socket().join("rooms:2", json!({}));
    other.push("give_away", json!({}));
    let began = Instant::now();
    refute_push!(other, timeout_ms = 40);
    assert!(began.elapsed() >= Duration::from_millis(40));
    KEPT.lock().unwrap().clear();
    let began = Instant::now();
    refute_push!(other, timeout_ms = 60_000);
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn refutations_wait_for_broadcasts_between_shards() {
    let server = TestServer::start(Endpoint::builder().socket(user_socket()).configure(|it| {
        it.shards = 3;
    }));
    let rooms: Vec<TestChannel> =
        (0..6).map(|_| server.connect(()).join("rooms:1", json!({}))).collect();
    for n in 0..200 {
        let (from, to) = (&rooms[n % 6], &rooms[(n + 1 + n % 5) % 6]);
        from.push("tell", json!({"n": n}));
        let found = text(|| refute_push!(to, "told", {"n": n}));
        assert!(found.starts_with("a push \"told\""), "{found}");
    }
}

#[test]
fn asserts_wait_for_the_given_time() {
    let server = server();
    let room = server.connect(()).join("rooms:1", json!({}));
    let took = |assertion: &dyn Fn()| {
        let began = Instant::now();
        text(assertion);
        began.elapsed().as_millis()
    };
    assert!(took(&|| drop(assert_push!(room, "never"))) >= 100);
    assert!(took(&|| drop(assert_push!(room, "never", timeout_ms = 300))) >= 300);
    server.set_assert_timeout(Duration::from_millis(200));
    assert!(took(&|| drop(assert_push!(room, "never"))) >= 200);
    server.set_assert_timeout(Duration::from_secs(60));
    assert!(took(&|| drop(assert_push!(room, "never", timeout_ms = 30))) < 30_000);
    // A closed socket receives nothing: no wait.
    room.socket().close();
    assert_closed!(room.socket());
    assert!(took(&|| drop(assert_push!(room, "never"))) < 30_000);
}

#[test]
fn failure_shows_the_messages_that_arrived() {
    let room = room();
    room.push("push", json!({}));
    room.push("push", json!({"body": "hi"}));
    room.push("push", json!({"body": "ho", "by": {"name": "Ann"}}));
    assert_push!(room, "push", {"body": "hi"});
    let (text, line) = failure(|| {
        assert_push!(room, "push", {"body": "hi", "by": {"name": "Ann", "age": _}});
    });
    assert_eq!(line, line!() - 2);
    let expected = r#"no push "push" to socket 1 on rooms:1 arrived within 100 ms

expected: {"body": "hi", "by": {"name": "Ann", "age": _}}

closest match: message 4
  body: expected "hi", found "ho"
  by.age: expected _, found nothing

socket 1 received (* used by an earlier assertion):
  *  1. rooms:1 reply to phx_join: ok {}
     2. rooms:1 "push" {}
  *  3. rooms:1 "push" {"body":"hi"}
     4. rooms:1 "push" {"body":"ho","by":{"name":"Ann"}}
"#;
    assert_eq!(text, expected);
}

#[test]
fn failure_points_to_the_line_of_the_assertion() {
    let room = room();
    let blamed = [
        (failure(|| assert_push!(room, "x", timeout_ms = 1)).1, line!()),
        (failure(|| assert_push!(room, "x", as Message, timeout_ms = 1)).1, line!()),
        (failure(|| assert_reply!(room.push("push", json!({})), "ok")).1, line!()),
        (failure(|| assert_broadcast!(room, "x")).1, line!()),
        (failure(|| refute_push!(room, "push")).1, line!()),
        (failure(|| assert_closed!(room, timeout_ms = 1)).1, line!()),
        (failure(|| assert_closed!(room.socket(), 1000, timeout_ms = 1)).1, line!()),
        (failure(|| assert_crashed!(room, timeout_ms = 1)).1, line!()),
        (failure(|| assert_joined!(room, {"no": _})).1, line!()),
        (failure(|| room.socket().join("rooms:private", json!({}))).1, line!()),
        (failure(|| TestServer::start(Endpoint::builder())).1, line!()),
    ];
    for (at, (blamed, line)) in blamed.into_iter().enumerate() {
        assert_eq!(blamed, line, "assertion {at}");
    }
    let (_, line) = failure(|| {
        assert_push!(room, "x", Message { body, .. }, timeout_ms = 1);
        body
    });
    assert_eq!(line, line!() - 3);
}

fn hints(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("hint: ")).collect()
}

#[test]
fn failure_hints_at_a_possible_reason() {
    let server = server();
    let (ann, bob) = (server.connect(()), server.connect(()));
    let room = ann.join("rooms:1", json!({}));
    let (two, three) = (ann.join("rooms:2", json!({})), bob.join("rooms:1", json!({})));

    let status = text(|| assert_reply!(room.push("refuse", json!({"x": 1})), "ok", {"x": 1}));
    assert!(status.starts_with("no reply \"ok\" to refuse on rooms:1, of socket 1, arrived"));
    assert_eq!(hints(&status), ["the reply came with status error"]);

    let astray = text(|| assert_reply!(bob.push("rooms:9", "echo", json!({})), "ok"));
    let expected = ["the reply came with status error", "no channel is joined on rooms:9"];
    assert_eq!(hints(&astray), expected);

    room.push("push", json!({"n": 1}));
    assert_push!(room, "push");
    let taken = text(|| assert_push!(room, "push", {"n": 1}));
    assert_eq!(hints(&taken), ["message 4 matches, but an earlier assertion used it"]);

    two.push("push", json!({"n": 2}));
    let topic = text(|| assert_push!(room, "push", {"n": 2}));
    assert_eq!(hints(&topic), ["message 5 would match, but arrived on rooms:2, not on rooms:1"]);
    let event = text(|| assert_push!(two, "posh", {"n": 2}));
    assert_eq!(hints(&event), ["message 5 would match, but is \"push\""]);
    three.push("push", json!({"n": 3}));
    let socket = text(|| assert_push!(room, "push", {"n": 3}));
    assert_eq!(hints(&socket), ["socket 2 received one"]);

    two.leave();
    let closed = text(|| assert_push!(two, "never"));
    assert_eq!(hints(&closed), ["rooms:2 was closed (phx_close)"]);
    three.push("no such event", json!({}));
    let crashed = text(|| assert_push!(three, "never"));
    let why = "rooms:1 crashed (phx_error): a callback panicked, or did not know an event";
    assert_eq!(hints(&crashed), [why]);
    bob.close();
    let closed = text(|| assert_push!(bob, "never"));
    assert_eq!(hints(&closed), ["the socket is closed"]);
    let subscription = text(|| assert_broadcast!(room, "said"));
    assert!(subscription.contains("join with subscribe_and_join"), "{subscription}");
}

#[test]
fn failure_explains_why_a_payload_does_not_fit_a_type() {
    let room = room();
    room.push("push", json!({"body": 7}));
    let typed = text(|| assert_push!(room, "push", as Message));
    let why = "  it cannot be read as Message: invalid type: integer `7`, expected a string";
    assert!(typed.lines().any(|line| line.starts_with(why)), "{typed}");
    room.push("push", json!({"body": "hi", "id": 3}));
    let pattern = text(|| {
        assert_push!(room, "push", Message { id, .. } if id > 5);
        id
    });
    let expected = "\nexpected: Message { id, .. } if id > 5\n";
    assert!(pattern.contains(expected), "{pattern}");
    let closure = text(|| assert_push!(room, "push", |it: &Message| it.id == 4));
    assert!(closure.contains("expected: |it: &Message| it.id == 4"), "{closure}");
    room.push("push", vec![1, 255]);
    let binary = text(|| assert_push!(room, "push", == [1]));
    assert!(binary.contains("\nexpected: == <1 byte: 01>\n"), "{binary}");
    assert!(binary.contains("rooms:1 \"push\" <2 bytes: 01 ff>"), "{binary}");
}

#[test]
fn failed_refutation_shows_the_message() {
    let room = room();
    room.push("push", json!({"n": 1}));
    room.push("push", json!({"n": 2}));
    let (text, line) = failure(|| refute_push!(room, "push", {"n": 2}));
    assert_eq!(line, line!() - 1);
    let expected = r#"a push "push" to socket 1 on rooms:1 arrived unexpectedly: message 3

unwanted: {"n": 2}

socket 1 received (* used by an earlier assertion):
  *  1. rooms:1 reply to phx_join: ok {}
     2. rooms:1 "push" {"n":1}
     3. rooms:1 "push" {"n":2}
"#;
    assert_eq!(text, expected);
    refute_push!(room, "push", {"n": 3});
    refute_push!(room, "push", Message { .. });
    refute_push!(room, "push", |it| it["n"] == 3);
    refute_push!(room, "posh" | "pash");
}

#[test]
fn long_payloads_are_wrapped_and_long_mailboxes_truncated() {
    let room = room();
    for n in 0..100 {
        room.push("push", json!({"n": n}));
    }
    room.push("push", json!({"body": "x".repeat(100), "id": 7}));
    let text = text(|| assert_push!(room, "never"));
    assert!(text.contains("       ... 42 messages before these\n"), "{text}");
    let shown = "102. rooms:1 \"push\" \n         {\n           \"body\": \"xxx";
    assert!(text.contains(shown), "{text}");
    assert!(text.contains("\n           \"id\": 7\n         }\n"), "{text}");
}

#[test]
fn handles_work_across_threads_and_keep_their_server() {
    let room = room();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let room = room.clone();
            scope.spawn(move || {
                for m in 0..50 {
                    assert_reply!(room.push("echo", json!([n, m])), "ok", [n, m]);
                }
            });
        }
    });
    assert_eq!(format!("{room:?}"), "TestChannel(rooms:1 of socket 1)");
}

#[test]
fn test_listener_is_not_a_member() {
    let server = server();
    let room = server.connect(()).subscribe_and_join("rooms:1", json!({}));
    let counted = server.endpoint().handle();
    assert_eq!(room.topic(), "rooms:1");
    let joins: u64 = counted.metrics().iter().map(|shard| shard.joins.value()).sum();
    assert_eq!(joins, 2, "the member's and the listener's");
}

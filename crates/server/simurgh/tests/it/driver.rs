//! Driven sockets have the same channels, order, limits and ends, with each serializer.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::{Client, Handles, WAIT_MAX, handled, until};
use serde_json::Value;
use simurgh::driver::{Driver, DriverError, Event, Options, SocketId, What};
use simurgh::{
    Builder, ChannelRoute, CloseCode, Connect, Endpoint, Join, Outcome, Payload, Reason,
    Serializer, ShardChannel, ShardContext, Stop, UserSocket, json,
};

struct Room {
    pushed: u32,
}

impl Room {
    fn join(ctx: &mut ShardContext<'_>, payload: Payload<'_>) -> Join {
        match ctx.subtopic() {
            "private" => Join::error(json!({"reason": "unauthorized"})),
            "crash" => panic!("as asked"),
            "later" => {
                let payload = payload.into_owned();
                Join::later(async move {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    Join::ok(Room { pushed: 0 }).reply(payload)
                })
            }
            _ => Join::ok(Room { pushed: 0 }).reply(payload.into_owned()),
        }
    }
}

impl ShardChannel for Room {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "echo" => return Outcome::ok(payload.into_owned()),
            "ping" => {
                self.pushed += 1;
                ctx.push("pong", json!({"n": self.pushed}));
            }
            "shout" => ctx.broadcast("shouted", payload.into_owned()),
            "tell" => ctx.broadcast_from("told", payload.into_owned()),
            "hidden" => ctx.broadcast("intercepted", payload.into_owned()),
            "who" => return Outcome::ok(json!({"id": ctx.socket_id()})),
            "stop" => return Outcome::Stop(Stop::Normal),
            "panic" => panic!("as asked"),
            "kick" => ctx.close_socket(CloseCode::POLICY),
            _ => return Outcome::unknown_event(),
        }
        Outcome::NoReply
    }

    fn intercept(&self) -> &'static [&'static str] {
        &["intercepted"]
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        _: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        ctx.push("rewritten", payload);
        Outcome::NoReply
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        ctx.broadcast("gone", json!(format!("{reason:?}")));
    }
}

/// A channel without application code between its members and a broadcast.
fn listener(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "shout" => ctx.broadcast("shouted", payload.into_owned()),
        "tell" => ctx.broadcast_from("told", payload.into_owned()),
        _ => return Outcome::ok(payload.into_owned()),
    }
    Outcome::NoReply
}

fn server() -> Builder {
    let user_socket = UserSocket::new("/socket")
        .connect_on_shard(|info| match info.param("token").as_deref() {
            Some("no") => Connect::refuse_with(403, "not you\n"),
            Some("later") => Connect::later(async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                Connect::ok().id("users:late")
            }),
            Some("never") => Connect::later(async { Connect::refuse(401) }),
            Some("panic") => panic!("as asked"),
            Some(name) => Connect::ok().id(format!("users:{name}")),
            None => Connect::ok(),
        })
        .channel(ChannelRoute::on_shard("rooms:*", Room::join))
        .channel(handled("quiet:*", listener))
        .channels_max(3);
    Endpoint::builder()
        .socket(user_socket)
        .socket(UserSocket::plain("/plain", "plain", |_, _| Join::ok(Handles(listener))))
        .configure(|config| config.shards = 2)
}

fn start() -> Endpoint {
    server().start_local().unwrap()
}

fn ways() -> Vec<Options> {
    let with = |serializer| {
        let mut options = Options::default();
        options.serializer = serializer;
        options
    };
    vec![with(None), with(Some(Serializer::V2)), with(Some(Serializer::V1))]
}

fn heard(driver: &mut Driver) -> (SocketId, String) {
    let Event { socket, what } = driver.recv_timeout(WAIT_MAX).expect("something to be heard");
    let text = match what {
        What::Reply(reply) => {
            format!("{} {} {}", reply.topic, reply.status, reply.response.json().unwrap())
        }
        What::Message(it) => {
            format!("{} {} {}", it.topic(), it.event(), it.payload().json().unwrap())
        }
        What::ChannelClosed { topic } => format!("{topic} closed"),
        What::ChannelCrashed { topic } => format!("{topic} crashed"),
        What::Closed { code } => format!("closed {code:?}"),
        other => panic!("{other:?}"),
    };
    (socket, text)
}

fn expect(driver: &mut Driver, socket: SocketId, texts: &[&str]) {
    for text in texts {
        assert_eq!(heard(driver), (socket, (*text).to_owned()));
    }
}

fn quiet(driver: &mut Driver) {
    assert_eq!(driver.recv_timeout(Duration::from_millis(50)), None);
}

#[test]
fn driven_socket_receives_the_same_in_values_and_frames() {
    for options in ways() {
        let endpoint = start();
        let mut driver = Driver::with(&endpoint, options);
        let one = driver.connect("/socket", json!({"token": "a"})).unwrap();
        driver.join(one, "rooms:1", json!({"x": 1})).unwrap();
        expect(&mut driver, one, &[r#"rooms:1 ok {"x":1}"#]);
        for event in ["echo", "ping", "ping", "shout", "tell", "hidden", "who"] {
            driver.push(one, "rooms:1", event, json!({"y": "ü"})).unwrap();
        }
        let texts = [
            r#"rooms:1 ok {"y":"ü"}"#,
            r#"rooms:1 pong {"n":1}"#,
            r#"rooms:1 pong {"n":2}"#,
            r#"rooms:1 shouted {"y":"ü"}"#,
            r#"rooms:1 rewritten {"y":"ü"}"#,
            r#"rooms:1 ok {"id":"users:a"}"#,
        ];
        expect(&mut driver, one, &texts);
        driver.push(one, "rooms:9", "echo", json!({})).unwrap();
        driver.join(one, "elsewhere", json!({})).unwrap();
        driver.join(one, "rooms:private", json!({})).unwrap();
        driver.join(one, "rooms:crash", json!({})).unwrap();
        let texts = [
            r#"rooms:9 error {"reason":"unmatched topic"}"#,
            r#"elsewhere error {"reason":"unmatched topic"}"#,
            r#"rooms:private error {"reason":"unauthorized"}"#,
            r#"rooms:crash error {"reason":"join crashed"}"#,
        ];
        expect(&mut driver, one, &texts);
        driver.leave(one, "rooms:1").unwrap();
        expect(&mut driver, one, &["rooms:1 ok {}", "rooms:1 closed"]);
        driver.join(one, "rooms:2", json!({})).unwrap();
        driver.push(one, "rooms:2", "stop", json!({})).unwrap();
        driver.join(one, "rooms:3", json!({})).unwrap();
        driver.push(one, "rooms:3", "panic", json!({})).unwrap();
        let texts = ["rooms:2 ok {}", "rooms:2 closed", "rooms:3 ok {}", "rooms:3 crashed"];
        expect(&mut driver, one, &texts);
        driver.close(one).unwrap();
        expect(&mut driver, one, &["closed Some(1000)"]);
        driver.push(one, "rooms:1", "echo", json!({})).unwrap();
        quiet(&mut driver);
        assert_eq!(driver.counts().closed, 1);
    }
}

#[test]
fn driven_sockets_and_network_clients_receive_each_other() {
    let endpoint = crate::support::start(server());
    let mut client = Client::v2(&endpoint);
    client.join("quiet:1");
    let ways = ways();
    let mut drivers: Vec<Driver> =
        ways.iter().map(|way| Driver::with(&endpoint, way.clone())).collect();
    let mut sockets = Vec::new();
    for driver in &mut drivers {
        let socket = driver.connect("/socket", Value::Null).unwrap();
        let joined = driver.join(socket, "quiet:1", json!({})).unwrap();
        assert_eq!(&*driver.reply(joined).unwrap().status, "ok");
        sockets.push(socket);
    }
    drivers[0].push(sockets[0], "quiet:1", "shout", json!([1])).unwrap();
    drivers[0].push(sockets[0], "quiet:1", "tell", json!([2])).unwrap();
    for (driver, socket) in drivers.iter_mut().zip(&sockets) {
        assert_eq!(driver.message(*socket, "shouted").unwrap().payload(), &json!([1]).into());
    }
    for (driver, socket) in drivers.iter_mut().zip(&sockets).skip(1) {
        assert_eq!(driver.message(*socket, "told").unwrap().payload(), &json!([2]).into());
    }
    quiet(&mut drivers[0]);
    assert_eq!(client.recv()[3], "shouted");
    assert_eq!(client.recv(), json!([null, null, "quiet:1", "told", [2]]));
    client.push("2", "quiet:1", "shout", json!("hi"));
    for (driver, socket) in drivers.iter_mut().zip(&sockets) {
        assert_eq!(driver.message(*socket, "shouted").unwrap().payload(), &json!("hi").into());
    }
}

#[test]
fn connect_function_runs_for_driven_sockets() {
    let endpoint = start();
    let mut driver = Driver::start(&endpoint);
    let mut refusal = |path: &str, params: Value| match driver.connect(path, params) {
        Err(DriverError::Refused { status, body }) => (status, body),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal("/socket", json!({"token": "no"})), (403, "not you\n".to_owned()));
    assert_eq!(refusal("/socket", json!({"token": "never"})).0, 401);
    assert_eq!(refusal("/socket", json!({"token": "panic"})).0, 500);
    assert_eq!(refusal("/nothing", json!({})).0, 404);
    assert_eq!(refusal("/soc\r\nx: y", json!({})).0, 400);
    assert_eq!(refusal("/socket", json!(["token"])).0, 400);
    let late = driver.connect("/socket", json!({"token": "later"})).unwrap();
    driver.join(late, "rooms:1", json!({})).unwrap();
    let who = driver.push(late, "rooms:1", "who", json!({})).unwrap();
    assert_eq!(driver.reply(who).unwrap().response, json!({"id": "users:late"}).into());
    endpoint.disconnect("users:late").unwrap();
    let closed = loop {
        if let What::Closed { code } = driver.recv_timeout(WAIT_MAX).unwrap().what {
            break code;
        }
    };
    assert_eq!(closed, Some(1001));
}

#[test]
fn messages_during_a_pending_join_wait_in_order() {
    for options in ways() {
        let endpoint = start();
        let mut driver = Driver::with(&endpoint, options);
        let one = driver.connect("/socket", Value::Null).unwrap();
        driver.join(one, "rooms:later", json!({"n": 0})).unwrap();
        for n in 1..200 {
            driver.push(one, "rooms:later", "echo", json!({"n": n})).unwrap();
        }
        driver.close(one).unwrap();
        for n in 0..200 {
            expect(&mut driver, one, &[&format!("rooms:later ok {{\"n\":{n}}}")]);
        }
        expect(&mut driver, one, &["closed Some(1000)"]);
    }
}

#[test]
fn plain_sockets_can_be_driven() {
    let endpoint = start();
    let mut driver = Driver::start(&endpoint);
    let (one, two) = (driver.connect("/plain", Value::Null), driver.connect("/plain", Value::Null));
    let (one, two) = (one.unwrap(), two.unwrap());
    driver.push(one, "", "text", Payload::from_json("\"hello\"")).unwrap();
    expect(&mut driver, one, &[" text \"hello\""]);
    driver.push(two, "", "binary", vec![0, 255]).unwrap();
    let event = driver.message(two, "binary").unwrap();
    assert_eq!(event.payload().binary(), Some(&[0, 255][..]));
}

#[test]
fn binary_payloads_pass_if_the_serializer_allows_them() {
    for (options, passes) in ways().into_iter().zip([true, true, false]) {
        let endpoint = start();
        let mut driver = Driver::with(&endpoint, options);
        let one = driver.connect("/socket", Value::Null).unwrap();
        driver.join(one, "quiet:1", json!({})).unwrap();
        let echo = driver.push(one, "quiet:1", "any", vec![1, 2, 3]).unwrap();
        let last = driver.push(one, "quiet:1", "any", json!("end")).unwrap();
        if passes {
            let reply = driver.reply(echo).unwrap();
            assert_eq!(reply.response.binary(), Some(&[1, 2, 3][..]));
        }
        assert_eq!(driver.reply(last).unwrap().response, json!("end").into());
    }
}

#[test]
fn unread_driver_events_above_a_bound_are_dropped_and_counted() {
    let endpoint = start();
    let mut options = Options::default();
    options.queue_bytes_max = 10_000;
    let mut driver = Driver::with(&endpoint, options);
    let one = driver.connect("/socket", Value::Null).unwrap();
    driver.join(one, "quiet:1", json!({})).unwrap();
    for n in 0..1000 {
        driver.push(one, "quiet:1", "any", json!(n)).unwrap();
    }
    until("all are counted", || driver.counts().ok == 1001);
    let lost = driver.counts().lost;
    assert!(lost > 800, "{lost}");
    let taken = std::iter::from_fn(|| driver.try_recv()).count() as u64;
    assert_eq!(taken + lost, 1001);
    // There is room again.
    let echo = driver.push(one, "quiet:1", "any", json!("again")).unwrap();
    assert_eq!(driver.reply(echo).unwrap().response, json!("again").into());
    assert_eq!(driver.counts().lost, lost);
}

#[test]
fn hundred_thousand_driver_events_are_counted_exactly() {
    const SOCKETS: usize = 100_000;
    let endpoint = start();
    let mut options = Options::default();
    options.counts_only = true;
    let mut driver = Driver::with(&endpoint, options);
    let sockets = driver.connect_many(SOCKETS, "/socket", Value::Null).unwrap();
    let sockets: Vec<SocketId> = sockets.into_iter().map(Result::unwrap).collect();
    let mut shards: HashMap<usize, usize> = HashMap::new();
    for socket in &sockets {
        *shards.entry(socket.shard()).or_default() += 1;
    }
    assert_eq!(shards, HashMap::from([(0, SOCKETS / 2), (1, SOCKETS / 2)]));
    driver.join_many(&sockets, "quiet:all", json!({})).unwrap();
    until("all are counted", || driver.counts().ok == SOCKETS as u64);
    for n in 0..5 {
        endpoint.broadcast("quiet:all", "news", json!(n)).unwrap();
    }
    driver.push(sockets[0], "quiet:all", "tell", json!({})).unwrap();
    until("all are counted", || driver.counts().messages == 6 * SOCKETS as u64 - 1);
    driver.leave_many(&sockets, "quiet:all").unwrap();
    until("all are counted", || driver.counts().channels_closed == SOCKETS as u64);
    driver.close_many(&sockets[..10]).unwrap();
    until("all are counted", || driver.counts().closed == 10);
    let counts = driver.counts();
    assert_eq!((counts.ok, counts.not_ok, counts.lost), (2 * SOCKETS as u64, 0, 0));
    assert_eq!(counts.messages, 6 * SOCKETS as u64 - 1);
    assert_eq!(driver.try_recv(), None, "they are only counted");
}

#[test]
fn dropped_driver_closes_only_its_sockets() {
    let endpoint = start();
    let mut watcher = Driver::start(&endpoint);
    let one = watcher.connect("/socket", Value::Null).unwrap();
    let joined = watcher.join(one, "rooms:1", json!({})).unwrap();
    watcher.reply(joined).unwrap();
    for options in ways() {
        let mut driver = Driver::with(&endpoint, options);
        for socket in driver.connect_many(3000, "/socket", Value::Null).unwrap() {
            driver.join(socket.unwrap(), "quiet:1", json!({})).unwrap();
        }
        let last = driver.connect("/socket", Value::Null).unwrap();
        driver.join(last, "rooms:1", json!({})).unwrap();
        drop(driver);
        let gone = watcher.message(one, "gone").unwrap();
        assert_eq!(gone.payload(), &json!("Closed").into());
    }
    let echo = watcher.push(one, "rooms:1", "echo", json!(1)).unwrap();
    assert_eq!(watcher.reply(echo).unwrap().response, json!(1).into());
}

#[test]
fn limits_of_the_server_apply_to_driven_sockets() {
    let endpoint = server().configure(|it| it.max_connections = Some(5)).start_local().unwrap();
    let mut driver = Driver::start(&endpoint);
    let opened = driver.connect_many(8, "/socket", Value::Null).unwrap();
    let open: Vec<SocketId> = opened.iter().filter_map(|it| it.clone().ok()).collect();
    let full = Err(DriverError::Refused { status: 503, body: String::new() });
    assert_eq!((open.len(), opened.iter().filter(|it| **it == full).count()), (5, 3));
    let one = open[0];
    for n in 1..=4 {
        driver.join(one, &format!("quiet:{n}"), json!({})).unwrap();
    }
    for n in 1..=3 {
        expect(&mut driver, one, &[&format!("quiet:{n} ok {{}}")]);
    }
    expect(&mut driver, one, &[r#"quiet:4 error {"reason":"too many channels joined"}"#]);
    driver.close(one).unwrap();
    expect(&mut driver, one, &["closed Some(1000)"]);
    assert!(driver.connect("/socket", Value::Null).is_ok(), "a place is free again");
}

#[test]
fn silent_driven_sockets_stay_open() {
    let endpoint = server()
        .configure(|config| config.idle_timeout = Some(Duration::from_millis(200)))
        .start_local()
        .unwrap();
    let mut driver = Driver::start(&endpoint);
    let one = driver.connect("/socket", Value::Null).unwrap();
    assert_eq!(driver.recv_timeout(Duration::from_secs(1)), None);
    driver.join(one, "rooms:1", json!({})).unwrap();
    driver.push(one, "rooms:1", "kick", json!({})).unwrap();
    expect(&mut driver, one, &["rooms:1 ok {}", "closed Some(1008)"]);
}

#[test]
fn driver_receives_the_end_of_the_server() {
    let endpoint = start();
    let mut driver = Driver::start(&endpoint);
    let one = driver.connect("/socket", Value::Null).unwrap();
    let two = driver.connect("/socket", Value::Null).unwrap();
    endpoint.stop();
    let closed: Vec<_> = std::iter::from_fn(|| driver.recv()).collect();
    let what = What::Closed { code: None };
    assert_eq!(closed.len(), 2);
    assert!(closed.iter().all(|event| event.what == what));
    assert!(closed.iter().any(|it| it.socket == one) && closed.iter().any(|it| it.socket == two));
    assert_eq!(driver.connect("/socket", Value::Null), Err(DriverError::Ended));
    assert_eq!(driver.join(one, "rooms:1", json!({})), Err(DriverError::Ended));
}

#[test]
fn drain_closes_driven_sockets() {
    let endpoint = server().configure(|it| it.drain_time = Duration::ZERO).start_local().unwrap();
    let mut driver = Driver::start(&endpoint);
    let one = driver.connect("/socket", Value::Null).unwrap();
    endpoint.drain().unwrap();
    expect(&mut driver, one, &["closed Some(1012)"]);
}

#[test]
fn congested_driver_call_is_refused_and_succeeds_later() {
    let endpoint = server().configure(|it| it.mailbox_bytes_max = 100_000).start_local().unwrap();
    let mut driver = Driver::start(&endpoint);
    let one = driver.connect("/socket", Value::Null).unwrap();
    driver.join(one, "rooms:later", json!({})).unwrap();
    let mut pushed = 0;
    let refused = loop {
        match driver.push(one, "rooms:later", "echo", json!("x".repeat(1000))) {
            Ok(_) => pushed += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, DriverError::Congested);
    assert!((50..100).contains(&pushed), "{pushed}");
    until("all are counted", || driver.counts().ok == pushed + 1);
    assert!(driver.push(one, "rooms:later", "echo", json!({})).is_ok());
}

//! Long polling over real HTTP: client errors, full, slow or ending servers, and requests behind a
//! poll. `e2e/wire` tests the protocol row by row.

use std::time::{Duration, Instant};

use crate::support::raw::{Answer, Raw};
use crate::support::{Handles, metric, start, until};
use serde_json::{Value, json};
use simurgh::{
    Builder, ChannelRoute, Connect, ConnectRequest, Endpoint, Join, LongPoll, Outcome, Payload,
    Reject, ShardContext, UserSocket, history::History,
};

const WINDOW: Duration = Duration::from_secs(2);
/// Soon on a busy machine: much less than any timeout that is waited for.
const SOON: Duration = Duration::from_secs(4);
const NDJSON: &str = "application/x-ndjson";

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "shout" => {
            ctx.broadcast(event, payload.into_owned());
            Outcome::NoReply
        }
        _ => Outcome::ok(payload.into_owned()),
    }
}

fn join(ctx: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    match ctx.subtopic() {
        "slow" => Join::later(async {
            tokio::time::sleep(WINDOW * 2).await;
            Join::ok(Handles(room))
        }),
        _ => Join::ok(Handles(room)),
    }
}

fn user_socket(window: Duration) -> UserSocket {
    UserSocket::new("/socket")
        .longpoll(LongPoll::new().window(window))
        .channel(ChannelRoute::on_shard("room:*", join))
}

fn builder() -> Builder {
    Endpoint::builder().socket(user_socket(WINDOW)).configure(|config| config.shards = 2)
}

/// A server whose polls wait for longer than any test.
fn patient() -> Builder {
    Endpoint::builder().socket(user_socket(SOON * 5))
}

fn body(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

fn status(answer: &Answer) -> u64 {
    body(answer)["status"].as_u64().unwrap()
}

fn messages(answer: &Answer) -> Vec<Value> {
    let body = body(answer);
    let texts = body["messages"].as_array().unwrap().iter();
    texts.map(|text| serde_json::from_str(text.as_str().unwrap()).unwrap()).collect()
}

struct Session {
    raw: Raw,
    target: String,
}

impl Session {
    fn open(endpoint: &Endpoint) -> Self {
        Self::open_at(endpoint, "/socket/longpoll?vsn=2.0.0")
    }

    fn open_at(endpoint: &Endpoint, target: &str) -> Self {
        Self::open_with(Raw::connect(endpoint.addresses()[0]), target)
    }

    fn open_with(mut raw: Raw, target: &str) -> Self {
        let answer = raw.send(get(target)).answer();
        assert_eq!(status(&answer), 410, "{answer:?}");
        let token = body(&answer)["token"].as_str().unwrap().to_owned();
        Self { raw, target: format!("{target}&token={token}") }
    }

    fn joined(endpoint: &Endpoint, topic: &str) -> Self {
        let mut session = Self::open(endpoint);
        assert_eq!(session.post(&format!(r#"["1","1","{topic}","phx_join",{{}}]"#)), 200);
        // A poll may end without messages while the answers to others fill the budget.
        until("the reply comes", || messages(&session.poll()).len() == 1);
        session
    }

    fn poll(&mut self) -> Answer {
        self.raw.send(get(&self.target)).answer()
    }

    fn begin_poll(&self, endpoint: &Endpoint) -> Raw {
        let mut raw = Raw::connect(endpoint.addresses()[0]);
        let waiting = || metric_of_all(endpoint, "simurgh_longpoll_polls_waiting");
        // An earlier poll may have been answered a moment ago.
        until("earlier polls are over", || waiting() == 0);
        raw.send(get(&self.target));
        until("the poll waits", || waiting() > 0);
        raw
    }

    fn post(&mut self, lines: &str) -> u64 {
        status(&self.raw.send(post(&self.target, NDJSON, lines)).answer())
    }
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

fn post(target: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

fn metric_of_all(endpoint: &Endpoint, name: &str) -> u64 {
    let metrics = crate::support::metrics(endpoint);
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().parse().unwrap()
}

/// The newer of two polls gets the messages; the older one is answered at once.
#[test]
fn the_newer_of_two_polls_wins() {
    let endpoint = start(patient());
    let mut session = Session::joined(&endpoint, "room:two");
    let mut older = session.begin_poll(&endpoint);
    let began = Instant::now();
    let target = session.target.clone();
    let mut newer = Raw::connect(endpoint.addresses()[0]);
    newer.send(get(&target));
    let answer = older.answer();
    assert!(status(&answer) == 204 && messages(&answer).is_empty());
    assert!(began.elapsed() < SOON);
    assert_eq!(session.post(r#"["1","2","room:two","echo",{"n":1}]"#), 200);
    assert_eq!(messages(&newer.answer()).len(), 1);
}

fn keeping() -> Endpoint {
    let user_socket = user_socket(WINDOW)
        .channel(ChannelRoute::on_shard("kept:*", join).history(History::default()));
    start(Endpoint::builder().socket(user_socket))
}

fn token(answer: &Answer) -> String {
    body(answer)["token"].as_str().unwrap().to_owned()
}

/// A browser repeats a poll after a broken connection; its page would miss the lost answer.
#[test]
fn poll_after_a_lost_response_ends_a_session_with_positions() {
    let endpoint = keeping();
    for vsn in ["1.0.0", "2.0.0"] {
        let frame = |number: u32, event: &str, payload: &str| match vsn {
            "1.0.0" => format!(
                r#"{{"topic":"kept:lost","event":"{event}","payload":{payload},"ref":"{number}"}}"#
            ),
            _ => format!(r#"["1","{number}","kept:lost","{event}",{payload}]"#),
        };
        let lost = metric(&endpoint, "simurgh_longpoll_lost_total");
        let at = format!("/socket/longpoll?vsn={vsn}");
        let mut session = Session::open_at(&endpoint, &at);
        let say = |session: &mut Session, frame: &str| {
            status(&session.raw.send(post(&session.target, "application/json", frame)).answer())
        };
        assert_eq!(say(&mut session, &frame(1, "phx_join", r#"{"simurgh":{}}"#)), 200);
        for number in 2..5 {
            let answer = session.poll();
            assert_eq!(status(&answer), 200);
            assert!(!session.target.ends_with(&token(&answer)), "a token of its own");
            session.target = format!("{at}&token={}", token(&answer));
            assert_eq!(status(&session.poll()), 204, "as often as one likes");
            assert_eq!(say(&mut session, &frame(number, "shout", "{}")), 200);
        }
        // The messages in this answer are lost.
        assert_eq!(body(&session.poll())["messages"].as_array().unwrap().len(), 1);
        assert_eq!(say(&mut session, &frame(5, "shout", "{}")), 200);
        assert_eq!(status(&session.poll()), 500);
        assert_eq!(status(&session.poll()), 500, "that may be lost, too");
        assert_eq!(say(&mut session, &frame(6, "shout", "{}")), 410);
        assert_eq!(metric(&endpoint, "simurgh_longpoll_lost_total"), lost + 1);
    }
}

/// A client that leaves, or shuts its side, loses no message.
#[test]
fn polling_client_that_left_receives_nothing() {
    let endpoint = start(patient());
    let mut session = Session::joined(&endpoint, "room:left");
    let mut shut = session.begin_poll(&endpoint);
    shut.finish();
    let answers = shut.until_the_end();
    assert_eq!(answers.len(), 1);
    assert!(status(&answers[0]) == 204 && messages(&answers[0]).is_empty());
    drop(session.begin_poll(&endpoint));
    until("the server has noticed", || {
        metric_of_all(&endpoint, "simurgh_longpoll_polls_waiting") == 0
    });
    assert_eq!(session.post(r#"["1","2","room:left","echo",{"n":1}]"#), 200);
    assert_eq!(messages(&session.poll()).len(), 1);
}

/// After a waiting poll its connection continues with the requests that came meanwhile.
#[test]
fn connection_continues_after_its_poll() {
    let endpoint = start(builder());
    let mut session = Session::joined(&endpoint, "room:on");
    let target = session.target.clone();
    // In one write: a poll that waits, a message, and a poll that returns the reply.
    let said = post(&target, "text/plain", r#"["1","2","room:on","echo",{}]"#);
    session.raw.send(format!("{}{said}{}", get(&target), get(&target)));
    assert_eq!(status(&session.raw.answer()), 204);
    assert_eq!(status(&session.raw.answer()), 200);
    assert_eq!(messages(&session.raw.answer()).len(), 1);
    // Then any other page, and the close that was requested.
    session.raw.send(get("/healthz"));
    assert_eq!(session.raw.answer().text(), "ok\n");
    let last =
        get(&target).replace("host: localhost", "host: localhost\r\nConnection: keep-alive, Close");
    let answers = session.raw.send(last).until_the_end();
    assert_eq!(answers.len(), 1);
    assert_eq!((status(&answers[0]), answers[0].header("connection")), (204, Some("close")));
    let mut old = Raw::connect(endpoint.addresses()[0]);
    let answers = old.send(get(&target).replace("HTTP/1.1", "HTTP/1.0")).until_the_end();
    assert_eq!(status(&answers[0]), 204);
}

/// An invalid message ends the session: 408, further ones are not handled, then 410.
#[test]
fn invalid_message_ends_the_poll_session() {
    let endpoint = start(builder());
    let bad = [
        "[1,2",
        "[]",
        r#"["1","1","room:x"]"#,
        "[1,\"1\",\"room:x\",\"e\",{}]x",
        // A binary frame of an unknown kind, and a truncated one.
        "CQ==",
        "AAE=",
    ];
    for (n, line) in bad.into_iter().enumerate() {
        let mut session = Session::joined(&endpoint, "room:bad");
        let mut listener = session.begin_poll(&endpoint);
        let echo = r#"["1","2","room:bad","echo",{}]"#;
        assert_eq!(session.post(&format!("{echo}\n{line}\n{echo}")), 408, "{line}");
        // Replies to earlier messages are still sent.
        let heard = messages(&listener.answer());
        assert_eq!(heard.len(), 1, "{line}: {heard:?}");
        assert_eq!(session.post(echo), 410, "{line}");
        assert_eq!(metric(&endpoint, "simurgh_errors_bad_message_total"), n as u64 + 1);
    }
    let mut session = Session::open(&endpoint);
    let raw = session.raw.send(post(&session.target, "text/plain", "\u{feff}"));
    assert_eq!(status(&raw.answer()), 408);
    until("the server has noticed", || metric(&endpoint, "simurgh_longpoll_sessions") == 0);
    assert_eq!(metric(&endpoint, "simurgh_sockets"), 0);
}

/// Chunked, endless and too long bodies.
#[test]
fn post_bodies_of_every_form_are_accepted() {
    let endpoint = start(builder().configure(|config| {
        config.http.body_timeout = Duration::from_millis(300);
        config.http.body_bytes_max = 100_000;
        config.limits.message_bytes_max = 50_000;
    }));
    let mut session = Session::joined(&endpoint, "room:body");
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {NDJSON}\r\n\
         transfer-encoding: chunked\r\n\r\n",
        session.target
    );
    let connect = || Raw::connect(endpoint.addresses()[0]);
    let line = r#"["1","2","room:body","echo",{}]"#;
    let (one, two) = line.split_at(9);
    let chunked = format!("{head}9\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n", two.len());
    assert_eq!(status(&connect().send(chunked).answer()), 200);
    assert_eq!(messages(&session.poll()).len(), 1);
    // A truncated body, in either form: nothing of it is handled.
    let half = post(&session.target, NDJSON, &format!("{line}\n{line}"));
    let half = &half[..half.len() - line.len()];
    for half in [half, &format!("{head}9\r\n{one}\r\n")] {
        assert_eq!(connect().send(half).answer().status, 408, "it takes too long");
        let mut raw = connect();
        raw.send(half);
        drop(raw);
    }
    let long = "x".repeat(100_001);
    let chunked = format!("{head}{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    for request in [post(&session.target, NDJSON, &long), chunked] {
        let mut raw = connect();
        raw.try_send(request);
        assert_eq!(raw.answer_or_end().map(|answer| answer.status), Some(413));
    }
    assert_eq!(status(&session.poll()), 204, "none of these was a message, nor harmed any");
    // The body is within the limit, but the message is not.
    let long = format!(r#"["1","3","room:body","echo","{}"]"#, "x".repeat(60_000));
    assert_eq!(session.post(&long), 408);
    assert_eq!(metric(&endpoint, "simurgh_errors_too_big_total"), 1);
    assert_eq!(session.post(line), 410);
}

/// A long message is decoded on another thread; later ones wait for it.
#[test]
fn long_polled_messages_keep_their_order() {
    let endpoint = start(builder());
    let mut session = Session::joined(&endpoint, "room:long");
    let long = "x".repeat(300_000);
    let lines = format!(
        "[\"1\",\"2\",\"room:long\",\"echo\",{{\"long\":\"{long}\"}}]\n\
         [\"1\",\"3\",\"room:long\",\"echo\",{{}}]"
    );
    assert_eq!(session.post(&lines), 200);
    let heard = messages(&session.poll());
    assert_eq!((heard.len(), &heard[0][1], &heard[1][1]), (2, &json!("2"), &json!("3")));
    assert_eq!(heard[0][4]["response"]["long"], json!(long));
}

/// A join that takes longer than the window gives 408. It is still handled, but nothing after it.
#[test]
fn post_waits_for_its_join() {
    let endpoint = start(builder());
    let mut session = Session::open(&endpoint);
    let join = r#"["1","1","room:slow","phx_join",{}]"#;
    let echo = r#"["1","2","room:slow","echo",{}]"#;
    let began = Instant::now();
    assert_eq!(session.post(&format!("{join}\n{echo}")), 408);
    assert!(began.elapsed() >= WINDOW);
    // Polled, or the session would end before its join is decided.
    let mut polling = session.begin_poll(&endpoint);
    // Sent while the join is pending, and waits for it.
    assert_eq!(session.post(r#"["1","3","room:slow","echo",{}]"#), 200);
    assert!(began.elapsed() >= 2 * WINDOW);
    let mut heard = messages(&polling.answer());
    heard.extend(messages(&session.poll()));
    assert_eq!(heard.iter().map(|it| &it[1]).collect::<Vec<_>>(), ["1", "3"], "{heard:?}");
}

/// Too many unread messages end the session, as for a WebSocket that does not read.
#[test]
fn unpolled_session_is_closed_like_a_slow_reader() {
    let endpoint = start(builder().configure(|config| config.outbound_bytes_max = 100_000));
    let mut slow = Session::joined(&endpoint, "room:slow-reader");
    let mut quick = Session::joined(&endpoint, "room:slow-reader");
    let shout = format!(r#"["1","2","room:slow-reader","shout",{{"x":"{}"}}]"#, "x".repeat(1_000));
    let mut heard = 0;
    for n in 1..=150 {
        assert_eq!(quick.post(&shout), 200, "{n}");
        heard += messages(&quick.poll()).len();
        if metric(&endpoint, "simurgh_slow_peer_disconnects_total") > 0 {
            assert!(n > 80, "{n}");
            break;
        }
    }
    assert!(heard > 80);
    assert_eq!(metric(&endpoint, "simurgh_slow_peer_disconnects_total"), 1);
    assert_eq!(slow.post(&shout), 410);
    assert_eq!(quick.post(&shout), 200);
}

/// Sessions count as sockets; a client that finds no free slot is told to retry.
#[test]
fn sessions_are_counted_as_sockets() {
    let endpoint = start(builder().configure(|config| config.max_connections = Some(2)));
    let mut first = Session::open(&endpoint);
    let _second = Session::open(&endpoint);
    assert_eq!(metric(&endpoint, "simurgh_sockets"), 2);
    assert_eq!(metric(&endpoint, "simurgh_longpoll_sessions"), 2);
    let mut third = Raw::connect(endpoint.addresses()[0]);
    assert_eq!(status(&third.send(get("/socket/longpoll?vsn=2.0.0")).answer()), 500);
    assert_eq!(metric(&endpoint, "simurgh_refused_full_total"), 1);
    assert_eq!(first.post("[]"), 408);
    Session::open(&endpoint);
}

/// A drain ends sessions, and closes their connections after the answers to waiting polls.
#[test]
fn a_drain_ends_sessions_and_their_connections() {
    let drain_time = Duration::from_millis(200);
    let endpoint = start(patient().configure(|config| config.drain_time = drain_time));
    let mut session = Session::joined(&endpoint, "room:drain");
    let mut waiting = session.begin_poll(&endpoint);
    let began = Instant::now();
    endpoint.handle().drain();
    let answers = waiting.until_the_end();
    assert_eq!((answers.len(), status(&answers[0])), (1, 410));
    assert_eq!(answers[0].header("connection"), Some("close"));
    // New clients are told to retry later.
    let answers = session.raw.send(get("/socket/longpoll?vsn=2.0.0")).until_the_end();
    assert!(answers.is_empty() || status(&answers[0]) == 500, "{answers:?}");
    endpoint.wait().unwrap();
    assert!(began.elapsed() < SOON);
}

/// Path variables and params reach connect, and all its decisions reach the client.
#[test]
fn long_polling_is_enabled_per_user_socket() {
    async fn connect(request: ConnectRequest) -> Result<Connect, Reject> {
        tokio::task::yield_now().await;
        match request.param("tenant") {
            Some("acme") => Ok(Connect::ok().id("acme")),
            Some("nobody") => Err(Reject::new("nobody")),
            Some("panic") => panic!("as it was asked to"),
            _ => std::future::pending().await,
        }
    }
    let tenants = UserSocket::new("/sockets/:tenant").longpoll(LongPoll::new()).connect(connect);
    let off = UserSocket::new("/off").channel(ChannelRoute::on_shard("room:*", join));
    let builder = Endpoint::builder()
        .socket(off)
        .socket(tenants.channel(ChannelRoute::on_shard("room:*", join)));
    let endpoint = start(builder.configure(|config| {
        config.decision_timeout = Duration::from_secs(2);
    }));
    let mut raw = Raw::connect(endpoint.addresses()[0]);
    for target in ["/off/longpoll", "/sockets/longpoll", "/sockets/acme/longpoll/x", "/longpoll"] {
        assert_eq!(raw.send(get(target)).answer().status, 404, "{target}");
    }
    for (tenant, expected) in [("acme", 410), ("nobody", 403), ("panic", 500), ("never", 500)] {
        let answer = raw.send(get(&format!("/sockets/{tenant}/longpoll?vsn=2.0.0"))).answer();
        assert_eq!(status(&answer), expected, "{tenant}");
    }
    assert_eq!(raw.send(get("/sockets/acme/longpoll?vsn=2.0.0&a=%FF")).answer().status, 400);
    let mut session = Session::open_at(&endpoint, "/sockets/acme/longpoll?vsn=2.0.0");
    endpoint.disconnect("acme").unwrap();
    until("the server has noticed", || session.post("") == 410);
}

/// A node verifies tokens of another, and detects that the session is not its own.
#[test]
fn token_of_another_node_finds_no_local_session() {
    let secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let node = || start(builder().configure(|config| config.secret_key_base = Some(secret.into())));
    let (one, two) = (node(), node());
    let mut session = Session::joined(&one, "room:there");
    let mut raw = Raw::connect(two.addresses()[0]);
    assert_eq!(status(&raw.send(post(&session.target, NDJSON, "")).answer()), 410);
    assert_eq!(session.post(""), 200);
}

#[test]
fn session_that_is_polled_survives_an_address_whose_sessions_are_not() {
    let endpoint = start(builder().configure(|config| {
        config.shards = 1;
        config.outbound_budget_bytes = 1 << 20;
    }));
    let address = endpoint.addresses()[0];
    let echo =
        |bytes: usize| format!(r#"[null,"{}","phoenix","heartbeat",{{}}]"#, "x".repeat(bytes));
    let mut honest = Session::open(&endpoint);
    let mut unpolled = Vec::new();
    for _ in 0..60 {
        let raw = Raw::connect_from("127.66.0.1", address);
        let mut session = Session::open_with(raw, "/socket/longpoll?vsn=2.0.0");
        session.post(&echo(100_000));
        unpolled.push(session);
        // More than any other session holds.
        assert_eq!(honest.post(&echo(200_000)), 200);
        for session in unpolled.iter_mut().rev().take(3) {
            session.post(&echo(20_000));
        }
        assert_eq!(messages(&honest.poll()).len(), 1);
    }
    assert!(metric(&endpoint, "simurgh_slow_peer_disconnects_total") > 40);
}

/// Sessions need no descriptor, so nothing else limits how many one address opens.
#[test]
fn address_with_many_sessions_leaves_places_and_memory_for_others() {
    let kept = UserSocket::new("/kept").longpoll(LongPoll::new().window(SOON));
    let kept =
        kept.connect_on_shard(|_| Connect::ok()).channel(ChannelRoute::on_shard("room:*", join));
    let endpoint = start(builder().socket(kept).configure(|config| {
        config.shards = 1;
        config.inbound_budget_bytes = 1 << 20;
    }));
    let address = endpoint.addresses()[0];
    let target = format!("/kept/longpoll?vsn=2.0.0&token={}", "x".repeat(2_000));
    let open = |source: &str| {
        let mut raw = Raw::connect_from(source, address);
        (0..200).take_while(|_| status(&raw.send(get(&target)).answer()) == 410).count()
    };
    let opened = ["127.66.0.1", "127.66.0.2", "127.66.0.3"].map(open);
    // Each keeps 10 kB: half of what all may keep, then a quarter.
    assert_eq!(opened.map(|count| count / 8), [3, 1, 1], "{opened:?}");
    assert_eq!(metric(&endpoint, "simurgh_refused_full_total"), 3);
    let mut session = Session::joined(&endpoint, "room:honest");
    assert_eq!(session.post(""), 200);
}

/// Answers stay in memory until they are written, so together they have a budget.
#[test]
fn unread_responses_above_the_budget_are_closed() {
    let endpoint = start(builder().configure(|config| {
        config.shards = 1;
        config.outbound_budget_bytes = 24 << 20;
        config.outbound_bytes_max = 24 << 20;
        config.http.body_bytes_max = 10 << 20;
    }));
    let mut unread = Vec::new();
    let held = || metric_of_all(&endpoint, "simurgh_http_held_bytes{listener=\"main\"}");
    let shed = || metric_of_all(&endpoint, "simurgh_http_shed_total{listener=\"main\"}");
    // More than the system's own buffers take.
    let payload = "x".repeat(9 << 20);
    for n in 0..5 {
        let mut session = Session::joined(&endpoint, &format!("room:{n}"));
        let mut poll = Raw::connect(endpoint.addresses()[0]);
        poll.send(get(&session.target));
        unread.push(poll);
        let echo = format!(r#"["1","2","room:{n}","echo","{payload}"]"#);
        assert_eq!(session.post(&echo), 200);
        assert!(held() <= 36 << 20, "{} bytes are held", held());
        unread.push(session.raw);
    }
    until("the server has noticed", || shed() > 0 && held() <= 24 << 20);
    drop(unread);
    until("the server has noticed", || held() == 0);
}

//! Rows 109–115 of PROTOCOL §14: sockets and joins that are let in by tokens, of a server that
//! `simurgh.toml` declares. JSON Web Tokens are put together here, from RFC 7515 and HMAC alone;
//! those of Phoenix were made by its own plug_crypto.

use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;
use wire_tests::{Client, Head, Polled, Poller, Raw, Server, Vsn, both, eventually, post};

const SECRET: &str = "a secret of thirty-two bytes or more";

const ROOMS: &str = r#"
    longpoll = "10s"

    [token]
    kind = "jwt"
    key_file = "KEY"
    algorithms = "HS256"
    aud = "chat"
    leeway = "0s"
    on_expiry = "renew"

    [[channel]]
    topic = "own:*"
    join = "own:{sub}"
    join_token = "ticket"
    other_events = "ignore"

    [[channel]]
    topic = "news"
    publish = "claims.role = editor"

    [[channel.event]]
    name = "say"
    broadcast = "all"
    reply = {}
"#;

/// Tokens that Phoenix itself has signed: a name, what was signed, and the token in the last field.
const BY_PHOENIX: &str =
    include_str!("../../../../crates/server/simurgh-token/tests/vectors/phoenix.tsv");
const SECRET_KEY_BASE: &str = "jzC8A6PhPYq2PrSqDGjbUqmPoA0hV8Vb1c0nF9f3kM0QbZf1Zc0T1u6vN8tq2XyR";
const OF_PHOENIX: &str = r#"
    [token]
    kind = "phoenix"
    key_file = "KEY"
    salt = "user socket"
    max_age = "infinity"

    [[channel]]
    topic = "own:*"
    join = "own:{sub}"
"#;

/// A server with this `simurgh.toml`, in which `KEY` stands for the file of the key.
fn serve(toml: &str, key: &str) -> (Server, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let [config, file] = ["simurgh.toml", "key"].map(|name| dir.path().join(name));
    std::fs::write(&file, key).unwrap();
    std::fs::write(&config, toml.replace("KEY", file.to_str().unwrap())).unwrap();
    let server = Server::serve().args(&format!("--config {}", config.display())).start();
    (server, dir)
}

fn rooms() -> (Server, TempDir) {
    serve(ROOMS, SECRET)
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn sign(claims: &Value) -> String {
    sign_with(SECRET, r#"{"alg":"HS256","typ":"JWT"}"#, claims)
}

/// RFC 7515 §5.1 and §7.1.
fn sign_with(secret: &str, header: &str, claims: &Value) -> String {
    let input = [header, &claims.to_string()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = hmac::sign(&key, input.as_bytes());
    format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Of subject 7, good for so many seconds.
fn claims(seconds: u64) -> Value {
    json!({"sub": "7", "aud": "chat", "exp": now() + seconds})
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

fn path(vsn: Vsn, token: &str) -> String {
    format!("/socket/websocket?vsn={}&token={token}", vsn.param())
}

fn connect(server: &Server, vsn: Vsn, claims: &Value) -> Client {
    Client::connect(server, &path(vsn, &sign(claims)))
}

#[track_caller]
fn refused(server: &Server, target: &str) -> String {
    let response = Raw::connect(server.addr()).request(&Head::upgrade(target));
    assert_eq!(response.status, 403, "{response:?}");
    response.text().to_owned()
}

fn unauthorized() -> Value {
    json!({"reason": "unauthorized"})
}

#[track_caller]
fn join_refused(client: &mut Client, topic: &str, payload: Value, reason: &str) {
    client.send("1", "1", topic, "phx_join", payload);
    let replied = client.recv().replied();
    assert_eq!((&*replied.status, replied.response), ("error", json!({ "reason": reason })));
}

/// Row 109. A good token as param, or among the subprotocols: 101, and the topics that its claims
/// allow.
#[test]
fn row_109_valid_token_opens_the_socket_and_its_topics() {
    let (server, _dir) = rooms();
    both(|vsn| {
        let token = sign(&with(claims(60), "role", json!("editor")));
        let bearer = format!("phoenix, base64url.bearer.phx.{}", URL_SAFE_NO_PAD.encode(&token));
        let headers = [("sec-websocket-protocol", bearer.as_str())];
        for mut client in [
            Client::connect(&server, &path(vsn, &token)),
            Client::connect_with(&server, &vsn.path(), &headers),
        ] {
            client.join("own:7", json!({}));
            join_refused(&mut client, "own:8", json!({}), "unauthorized");
            client.join("news", json!({}));
            let msg_ref = client.push("news", "say", json!({"n": 1}));
            client.recv().expect_broadcast("news", "say", json!({"n": 1}));
            assert_eq!(client.recv().replied().status, "ok", "of {msg_ref}");
        }
        let mut reader = connect(&server, vsn, &claims(60));
        reader.join("news", json!({}));
        reader.ask("news", "say", json!({}), "error", unauthorized());
        // The payload comes before the rule (docs/BACKENDS.md).
        let found = json!({"reason": "wrong_payload", "expected": "object", "found": "number"});
        reader.ask("news", "say", json!(7), "error", found);
    });
}

/// Row 110. No token, or one that is not good: 403, with the reason as the body.
#[test]
fn row_110_invalid_token_is_refused_with_its_reason() {
    let (server, _dir) = rooms();
    let good = sign(&claims(60));
    let mut forged: Vec<_> = good.split('.').map(str::to_owned).collect();
    forged[1] = URL_SAFE_NO_PAD.encode(with(claims(60), "sub", json!("1")).to_string());
    let hs256 = r#"{"alg":"HS256"}"#;
    for (token, reason) in [
        (String::new(), "missing"),
        ("rubbish".to_owned(), "invalid"),
        (forged.join("."), "invalid"),
        (sign_with("another secret of thirty-two bytes", hs256, &claims(60)), "invalid"),
        (sign_with(SECRET, r#"{"alg":"none"}"#, &claims(60)), "invalid"),
        (sign_with("", r#"{"alg":"HS512"}"#, &claims(60)), "invalid"),
        (sign(&with(claims(60), "exp", json!(null))), "invalid"),
        (sign(&with(claims(60), "exp", json!(now() - 10))), "expired"),
        (sign(&with(claims(60), "nbf", json!(now() + 3600))), "not_yet_valid"),
        (sign(&with(claims(60), "aud", json!("mail"))), "wrong_audience"),
    ] {
        assert_eq!(refused(&server, &path(Vsn::V2, &token)), format!("{reason}\n"), "{token}");
    }
    assert_eq!(refused(&server, &Vsn::V1.path()), "missing\n");
    Client::connect(&server, &path(Vsn::V2, &good)).heartbeat();
}

/// Row 111. A `Phoenix.Token.sign` of a number, a text or a map: that is its subject.
#[test]
fn row_111_token_signed_by_phoenix_is_accepted() {
    let (server, _dir) = serve(OF_PHOENIX, SECRET_KEY_BASE);
    let token = |name: &str| {
        let line = BY_PHOENIX.lines().find(|line| line.split('\t').next() == Some(name)).unwrap();
        line.rsplit('\t').next().unwrap()
    };
    for (name, topic) in
        [("small integer", "own:42"), ("text", "own:user:1"), ("atoms as keys", "own:42")]
    {
        let mut client = Client::connect(&server, &path(Vsn::V2, token(name)));
        client.join(topic, json!({}));
        join_refused(&mut client, "own:43", json!({}), "unauthorized");
    }
    assert_eq!(refused(&server, &path(Vsn::V2, token("encrypted"))), "invalid\n");
    let (other, _dir) = serve(&OF_PHOENIX.replace("user socket", "other"), SECRET_KEY_BASE);
    assert_eq!(refused(&other, &path(Vsn::V2, token("small integer"))), "invalid\n");
}

/// Row 112. The token expires: 3000 `token expired`, and not before.
#[test]
fn row_112_a_socket_is_closed_when_its_token_expires() {
    let (server, _dir) = rooms();
    let end = now() + 3;
    let mut raw = Raw::websocket(server.addr(), &path(Vsn::V2, &sign(&claims(3))));
    let close = raw.next_frame(Instant::now() + Duration::from_secs(20)).expect("a close frame");
    assert_eq!((close.close_code(), &close.payload[2..]), (3000, "token expired".as_bytes()));
    assert!(now() > end, "the second in which it expires is over");
    assert_eq!(server.counter("simurgh_expirations_total"), 1.0);
}

/// Row 113. `access_token` with a fresh token of the same subject: the socket stays for as long as
/// that is good. With another's: `wrong_subject`, and nothing changes.
#[test]
fn row_113_fresh_token_of_the_same_subject_renews_the_socket() {
    let (server, _dir) = rooms();
    both(|vsn| {
        let renewal = |claims: Value| json!({"access_token": sign(&claims)});
        let began = Instant::now();
        let [mut renewed, mut foreign] = [3, 3].map(|s| connect(&server, vsn, &claims(s)));
        for client in [&mut renewed, &mut foreign] {
            client.join("own:7", json!({}));
        }
        let reason = |reason: &str| json!({ "reason": reason });
        let eight = renewal(with(claims(60), "sub", json!("8")));
        foreign.ask("own:7", "access_token", eight, "error", reason("wrong_subject"));
        foreign.ask("own:7", "access_token", json!({}), "error", reason("missing"));
        renewed.ask("own:7", "access_token", renewal(claims(6)), "ok", json!({}));
        assert_eq!(foreign.expect_close(), 3000);
        renewed.heartbeat();
        assert_eq!(renewed.expect_close(), 3000, "the fresh one expires, too");
        assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    });
}

/// Row 114. A token in the payload of a join counts for its topic, and ends the channel alone.
#[test]
fn row_114_join_may_have_its_own_token() {
    let (server, _dir) = rooms();
    both(|vsn| {
        let mut client = connect(&server, vsn, &claims(60));
        let ticket =
            |seconds: u64| json!({"ticket": sign(&with(claims(seconds), "sub", json!("8")))});
        client.join("own:7", json!({}));
        join_refused(&mut client, "own:8", json!({}), "unauthorized");
        join_refused(&mut client, "own:8", json!({"ticket": "x"}), "invalid");
        join_refused(&mut client, "own:9", ticket(60), "unauthorized");
        let join_ref = client.join("own:8", ticket(3));
        client.recv().expect_channel_error(&join_ref, "own:8");
        client.heartbeat();
        client.join("own:8", ticket(60));
    });
}

/// Row 115. Long polling obeys the same: 403 in the body, `x-phoenix-authtoken` or the param
/// `token` lets in, and with its token a session ends: 410, then 403.
#[test]
fn row_115_long_poll_session_ends_when_its_token_expires() {
    let (server, _dir) = rooms();
    let v2 = "/socket/longpoll?vsn=2.0.0";
    let open = |head: Head| Polled::of(&Raw::connect(server.addr()).request(&head));
    assert_eq!(open(Head::new("GET", v2)).status, 403);
    assert_eq!(open(Head::new("GET", &format!("{v2}&token={}", sign(&claims(60))))).status, 410);
    let by_header = Head::new("GET", v2).set("x-phoenix-authtoken", &sign(&claims(60)));
    assert_eq!(open(by_header).status, 410);
    let gauge = |name: &str| server.metrics(|it| it == name);
    assert_eq!(gauge("simurgh_sockets"), 2.0);

    // As the official client has it: its own params first, the session behind them.
    let params = format!("&token={}", sign(&claims(3)));
    let mut poller = Poller::open(server.addr(), "/socket", &params, Vsn::V2);
    poller.join("own:7", json!({}));
    let began = Instant::now();
    assert_eq!(poller.poll().status, 410, "the poll that waits");
    assert!(began.elapsed() < Duration::from_secs(8), "before its window is over");
    let heartbeat = poller.frame("1", "2", "phoenix", "heartbeat", json!({}));
    assert_eq!(poller.post(&heartbeat), 410);
    assert_eq!(poller.poll().status, 403, "no new session without a token that is good");
    eventually("its channel has ended", || gauge("simurgh_channels") == 0.0);
    let ended = post(server.addr(), &poller.target(), "application/json", heartbeat.as_bytes());
    assert_eq!(Polled::of(&ended).status, 410);
}

//! Sockets that authenticate with tokens, over real TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::raw::Raw;
use crate::support::{Client, WAIT_MAX, log, metric, start};
use serde_json::{Value, json};
use simurgh::driver::{Driver, What};
use simurgh::token::jwt::{Checks, SigningKey};
use simurgh::token::{
    Claims, JwtSettings, KeySource, OnExpiry, Rule, Settings, Signer, TokenPolicy,
};
use simurgh::{
    Channel, ChannelRoute, Context, Endpoint, Join, JoinContext, Outcome, Payload, Reject,
    ShardChannel, ShardContext, ShardHandleInfo, UserSocket,
};

const SECRET: &[u8] = b"a secret of thirty-two bytes or more";
/// The clock of these servers, in milliseconds since 1970, unless a test moves it.
const NOW_MS: u64 = 1_700_000_000_000;
const NOW: u64 = NOW_MS / 1000;

fn sign(claims: Value) -> String {
    sign_by(SECRET, claims)
}

fn sign_by(secret: &[u8], claims: Value) -> String {
    let signer = Signer::Jwt(SigningKey::from_secret(secret).unwrap());
    signer.mint(&claims, Duration::from_secs(NOW), None).unwrap()
}

fn settings() -> JwtSettings {
    let mut settings = JwtSettings::new(KeySource::Secret(SECRET.to_vec()));
    settings.checks.leeway = Duration::ZERO;
    settings.checks.audiences = vec!["chat".to_owned()];
    settings
}

fn policy() -> (TokenPolicy, Arc<AtomicU64>) {
    let ms = Arc::new(AtomicU64::new(NOW_MS));
    let read = Arc::clone(&ms);
    let policy = TokenPolicy::new(Settings::Jwt(settings())).unwrap();
    (policy.clock(move || Duration::from_millis(read.load(Ordering::Relaxed))), ms)
}

struct Room;

impl ShardChannel for Room {
    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, event: &str, _: Payload<'_>) -> Outcome {
        match event {
            "who" => {
                let claims = ctx.assigns::<Claims>().map(|it| it.claims().clone());
                Outcome::ok(json!({"id": ctx.socket_id(), "claims": claims}))
            }
            "tell" => {
                ctx.handle::<Self>().send("told");
                Outcome::NoReply
            }
            other => Outcome::ok(json!({ "event": other })),
        }
    }
}

impl ShardHandleInfo<&'static str> for Room {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, message: &'static str) -> Outcome {
        ctx.push(message, json!({}));
        Outcome::NoReply
    }
}

struct Slow;

impl Channel for Slow {
    async fn handle_in(
        &mut self,
        _: &mut Context,
        event: &str,
        _: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        tokio::task::yield_now().await;
        Ok(Outcome::ok(json!({ "slow": event })))
    }
}

async fn slow(_: JoinContext, _: Payload<'_>) -> Result<Slow, Reject> {
    Ok(Slow)
}

fn server(policy: TokenPolicy) -> Endpoint {
    let own: Rule = "own:{sub}".parse().unwrap();
    let user_socket = UserSocket::new("/socket")
        .tokens(policy)
        .channel(ChannelRoute::on_shard("own:*", move |ctx, _| match ctx.assigns::<Claims>() {
            Some(claims) if own.allows(ctx.topic(), claims) => Join::ok(Room),
            _ => Join::error(json!({"reason": "unauthorized"})),
        }))
        .channel(ChannelRoute::new("slow:*", slow))
        .channel(ChannelRoute::on_shard("room:*", |_, _| Join::ok(Room)));
    start(Endpoint::builder().socket(user_socket))
}

fn path(token: &str) -> String {
    format!("/socket/websocket?vsn=2.0.0&token={token}")
}

fn client(endpoint: &Endpoint, token: &str) -> Client {
    Client::connect(endpoint.addresses()[0], &path(token))
}

fn refusal(address: SocketAddr, path: &str) -> (u16, String) {
    let upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    answer(address, path, upgrade)
}

fn answer(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n\r\n");
    let answer = Raw::connect(address).send(request).answer();
    (answer.status, answer.text().to_owned())
}

fn reason(endpoint: &Endpoint, token: &str) -> String {
    let (status, body) = refusal(endpoint.addresses()[0], &path(token));
    assert_eq!(status, 403);
    body.trim_end().to_owned()
}

fn good() -> Value {
    json!({"sub": "7", "aud": "chat", "exp": NOW + 60})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = good();
    claims[name] = value;
    claims
}

/// The reply to an event, skipping other messages.
fn ask(client: &mut Client, topic: &str, event: &str, payload: Value) -> (String, Value) {
    client.push("9", topic, event, payload);
    loop {
        let message = client.recv();
        if message[1] == "9" {
            let answer = &message[4];
            return (answer["status"].as_str().unwrap().to_owned(), answer["response"].clone());
        }
    }
}

#[test]
fn valid_token_sets_id_claims_and_allowed_topics() {
    let endpoint = server(policy().0);
    let mut seven = client(&endpoint, &sign(good()));
    assert_eq!(seven.join("own:8")[4]["response"], json!({"reason": "unauthorized"}));
    assert_eq!(seven.join("own:7")[4]["status"], "ok");
    let (_, who) = ask(&mut seven, "own:7", "who", json!({}));
    assert_eq!((&who["id"], &who["claims"]["sub"]), (&json!("user_socket:7"), &json!("7")));
    endpoint.disconnect("user_socket:7").unwrap();
    assert_eq!(seven.recv_close(), 1001);
}

#[test]
fn wrong_clock_refuses_tokens_of_the_future() {
    let (policy, ms) = policy();
    let endpoint = server(policy);
    let token = sign(good());
    ms.store(NOW_MS - 3_600_000, Ordering::Relaxed);
    assert_eq!(reason(&endpoint, &token), "not_yet_valid", "iat is an hour away");
    ms.store(NOW_MS + 3_600_000, Ordering::Relaxed);
    assert_eq!(reason(&endpoint, &token), "expired");
    ms.store(0, Ordering::Relaxed);
    assert_eq!(reason(&endpoint, &token), "not_yet_valid", "there is no clock at all");
}

#[test]
fn only_a_fresh_token_of_the_same_subject_renews() {
    let endpoint = server(policy().0.on_expiry(OnExpiry::Renew));
    let began = Instant::now();
    let mut user = client(&endpoint, &sign(with("exp", json!(NOW + 3))));
    user.join("room:a");
    let mut renew = |token: Value| {
        let (status, answer) = ask(&mut user, "room:a", "access_token", token);
        (status, answer["reason"].as_str().unwrap_or_default().to_owned())
    };
    for (claims, reason) in [
        (with("sub", json!("8")), "wrong_subject"),
        (with("sub", Value::Null), "wrong_subject"),
        (with("iss", json!("elsewhere")), "wrong_subject"),
        (with("exp", json!(NOW - 5)), "expired"),
        (with("aud", json!("mail")), "wrong_audience"),
    ] {
        let answer = renew(json!({"access_token": sign(claims)}));
        assert_eq!(answer, ("error".to_owned(), reason.to_owned()));
    }
    assert_eq!(renew(json!({"access_token": "x"})).1, "invalid");
    assert_eq!(renew(json!({"access_token": 5})).1, "missing");
    let fresh = with("exp", json!(NOW + 5)).as_object().cloned().unwrap();
    let fresh = json!({"role": "new", "sub": "7", "aud": "chat", "exp": fresh["exp"]});
    assert_eq!(renew(json!({"access_token": sign(fresh)})), ("ok".to_owned(), String::new()));
    let (_, who) = ask(&mut user, "room:a", "who", json!({}));
    assert_eq!(who["claims"]["role"], "new");
    assert_eq!(user.recv_close(), 3000, "the fresh one has expired, too");
    assert!(began.elapsed() >= Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(metric(&endpoint, "simurgh_errors_unauthorized_total"), 7);
    assert_eq!(metric(&endpoint, "simurgh_expirations_total"), 1);
}

#[test]
fn renewable_channels_otherwise_behave_unchanged() {
    let endpoint = server(policy().0.on_expiry(OnExpiry::Renew));
    let mut user = client(&endpoint, &sign(good()));
    user.join("room:a");
    user.push("2", "room:a", "tell", json!({}));
    assert_eq!(user.recv()[3], "told", "a handle finds the channel behind");
    assert_eq!(user.join("slow:a")[4]["status"], "ok");
    assert_eq!(ask(&mut user, "slow:a", "x", json!({})).1, json!({"slow": "x"}));
    let renewal = json!({"access_token": sign(good())});
    assert_eq!(ask(&mut user, "slow:a", "access_token", renewal).0, "ok");
}

/// A room for clients with a token that names it: `{"token": …, "room": …}`.
fn ticketed(policy: TokenPolicy) -> Endpoint {
    #[derive(serde::Deserialize)]
    struct Ticket {
        token: Option<String>,
    }
    let named: Rule = "room:{claims.room}".parse().unwrap();
    let tickets = policy.clone();
    let user_socket = UserSocket::new("/socket")
        .tokens(policy)
        .channel(ChannelRoute::on_shard("room:*", move |ctx, payload| {
            let ticket = payload.parse::<Ticket>().unwrap();
            tickets.join(ctx, ticket.token.as_deref(), |ctx, claims| {
                match named.allows(ctx.topic(), &claims) {
                    true => Join::ok(Room),
                    false => Join::error(json!({"reason": "unauthorized"})),
                }
            })
        }))
        .channel(ChannelRoute::on_shard("open:*", |_, _| Join::ok(Room)));
    start(Endpoint::builder().socket(user_socket))
}

fn join_with(client: &mut Client, topic: &str, payload: Value) -> (String, Value) {
    client.send(json!(["1", "9", topic, "phx_join", payload]));
    let answer = &client.recv()[4];
    (answer["status"].as_str().unwrap().to_owned(), answer["response"]["reason"].clone())
}

#[test]
fn join_token_applies_to_its_channel_and_ends_it() {
    let endpoint = ticketed(policy().0.optional(true));
    assert_eq!(reason(&endpoint, "rubbish"), "invalid", "none at all is let in, a bad one is not");
    let mut user = Client::v2(&endpoint);
    let room = |room: &str, exp| sign(json!({"sub": "7", "aud": "chat", "exp": exp, "room": room}));
    let foreign = sign_by(b"another secret of thirty-two bytes", with("room", json!("a")));
    for (payload, reason) in [
        (json!({}), "missing"),
        (json!({"token": null}), "missing"),
        (json!({"token": ""}), "missing"),
        (json!({"token": "rubbish"}), "invalid"),
        (json!({"token": foreign}), "invalid"),
        (json!({"token": room("a", NOW - 1)}), "expired"),
        (json!({"token": room("b", NOW + 60)}), "unauthorized"),
    ] {
        assert_eq!(join_with(&mut user, "room:a", payload), ("error".to_owned(), json!(reason)));
    }
    let began = Instant::now();
    let ok = ("ok".to_owned(), Value::Null);
    assert_eq!(join_with(&mut user, "open:a", json!({})), ok);
    let brief = json!({"token": room("a", NOW + 3)});
    assert_eq!(join_with(&mut user, "room:a", brief), ok);
    user.push("2", "room:a", "tell", json!({}));
    assert_eq!(user.recv()[3], "told", "a handle finds the channel behind");
    let (_, who) = ask(&mut user, "room:a", "who", json!({}));
    assert_eq!(who, json!({"id": null, "claims": null}), "the socket stays as it was");
    let end = user.recv();
    assert_eq!((&end[2], &end[3]), (&json!("room:a"), &json!("phx_error")));
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    user.heartbeat();
    assert_eq!(ask(&mut user, "open:a", "x", json!({})).0, "ok");
    let fresh = json!({"token": room("a", NOW + 60)});
    assert_eq!(join_with(&mut user, "room:a", fresh), ok, "and joins again");
    assert_eq!(metric(&endpoint, "simurgh_expirations_total"), 1);
    assert_eq!(metric(&endpoint, "simurgh_errors_abnormal_stop_total"), 0);
    assert_eq!(metric(&endpoint, "simurgh_errors_unauthorized_total"), 6);
}

#[test]
fn tokens_apply_to_driven_sockets() {
    let endpoint = server(policy().0);
    let mut driver = Driver::start(&endpoint);
    assert!(driver.connect("/socket", json!({"token": sign(with("aud", json!("x")))})).is_err());
    assert!(driver.connect("/socket", json!({})).is_err());
    let token = sign(with("exp", json!(NOW + 3)));
    let socket = driver.connect("/socket", json!({ "token": token })).unwrap();
    let own = driver.join(socket, "own:7", json!({})).unwrap();
    assert_eq!(&*driver.reply(own).unwrap().status, "ok");
    let end = driver.recv_timeout(WAIT_MAX).expect("its token expires").what;
    assert_eq!(end, What::Closed { code: Some(3000) });
}

fn jwks(ids: &[&str]) -> String {
    // 32 bytes in base64url.
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let keys: Vec<_> =
        ids.iter().map(|id| json!({"kty": "oct", "alg": "HS256", "kid": id, "k": key})).collect();
    json!({ "keys": keys }).to_string()
}

#[test]
fn changed_jwks_file_is_reloaded_and_a_broken_one_ignored() {
    let dir = std::env::temp_dir().join(format!("simurgh-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("jwks.json");
    let open = || TokenPolicy::jwks_file(&file, Vec::new(), Checks::default());
    let error = open().unwrap_err().to_string();
    assert!(error.starts_with("cannot read it: No such file"), "{error}");
    std::fs::write(&file, "{\"keys\": [").unwrap();
    assert!(open().unwrap_err().to_string().contains("not JSON at line 1"));
    std::fs::write(&file, jwks(&["old"])).unwrap();
    let endpoint = server(open().unwrap().clock(|| Duration::from_secs(NOW)));
    let token = |kid: &str| {
        let secret: Vec<u8> = (0..32).collect();
        let key = SigningKey::from_secret(&secret).unwrap().with_id(kid);
        Signer::Jwt(key).mint(&good(), Duration::from_secs(NOW), None).unwrap()
    };
    client(&endpoint, &token("old")).heartbeat();
    std::fs::write(&file, jwks(&["old", "new"])).unwrap();
    client(&endpoint, &token("new")).heartbeat();
    std::fs::write(&file, jwks(&["newer"])).unwrap();
    assert_eq!(reason(&endpoint, &token("newer")), "unknown_key", "it was just read");
    client(&endpoint, &token("old")).heartbeat();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn tokens_in_addresses_are_not_logged() {
    log::start();
    let endpoint = server(policy().0);
    let (kept, expired) = (sign(with("sub", json!("x"))), sign(with("exp", json!(NOW - 77))));
    client(&endpoint, &kept).heartbeat();
    assert_eq!(reason(&endpoint, &expired), "expired");
    // The path of no socket: the HTTP side answers.
    let address = endpoint.addresses()[0];
    assert_eq!(answer(address, &format!("/elsewhere?token={kept}"), "connection: close").0, 404);
    let told = "the token expired 1m 17s ago";
    let since = Instant::now();
    while !log::text().contains(told) {
        assert!(since.elapsed() < WAIT_MAX, "{}", log::text());
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = log::text();
    for token in [kept, expired] {
        for part in token.split('.').skip(1) {
            assert!(!text.contains(part), "{text}");
        }
    }
}

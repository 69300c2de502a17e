//! Which tokens may join Supabase channels, and for how long (PROTOCOL §11.4).

use std::time::Duration;

use serde_json::{Value, json};
use simurgh::supabase::Settings;
use simurgh::token::jwt::SigningKey;
use simurgh::token::{JwtSettings, KeySource, OnExpiry, Signer, TokenPolicy};
use simurgh::{ChannelRoute, UserSocket};
use simurgh_testing::{
    TestChannel, TestServer, TestSocket, assert_closed, assert_push, assert_reply, refute_push,
};

const SECRET: &[u8] = b"a secret of thirty-two bytes or more";
const NOW: u64 = 1_700_000_000;

fn sign_by(secret: &[u8], claims: &Value) -> String {
    let signer = Signer::Jwt(SigningKey::from_secret(secret).unwrap());
    signer.mint(claims, Duration::from_secs(NOW), None).unwrap()
}

fn token(sub: &str) -> String {
    sign_by(SECRET, &json!({"sub": sub, "exp": NOW + 3600}))
}

/// Topics for single users, one in which editors publish, and open ones; it is always `NOW`.
fn server(on_expiry: OnExpiry) -> TestServer {
    server_by(|policy| policy.on_expiry(on_expiry))
}

fn server_by(policy_of: impl FnOnce(TokenPolicy) -> TokenPolicy) -> TestServer {
    let mut settings = JwtSettings::new(KeySource::Secret(SECRET.to_vec()));
    settings.checks.leeway = Duration::ZERO;
    let policy = TokenPolicy::new(simurgh::token::Settings::Jwt(settings)).unwrap();
    let policy = policy.clock(|| Duration::from_secs(NOW));
    let join = vec!["realtime:own-{sub}".parse().unwrap()];
    let own = Settings { join, ..Settings::default() };
    let publish = vec!["claims.role = editor".parse().unwrap()];
    let news = Settings { publish, ..Settings::default() };
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::supabase("realtime:own-*", own))
        .channel(ChannelRoute::supabase("realtime:news", news))
        .channel(ChannelRoute::supabase("realtime:*", Settings::default()))
        .tokens(policy_of(policy));
    TestServer::start(user_socket)
}

fn anon(server: &TestServer) -> TestSocket {
    server.connect(json!({"apikey": sign_by(SECRET, &json!({"exp": NOW + 7200}))}))
}

fn wanted(private: bool, token: Option<&str>) -> Value {
    json!({"config": {"private": private, "broadcast": {"ack": true, "self": true}},
        "access_token": token})
}

#[track_caller]
fn refused(socket: &TestSocket, topic: &str, wanted: Value, code: &str) {
    let reply = socket.try_join(topic, wanted).expect_err("it is refused");
    let response: Value = reply.response.parse().unwrap();
    let reason = response["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("{code}: ")), "{reason}");
}

#[track_caller]
fn speaks(channel: &TestChannel) {
    let said = channel.push("broadcast", json!({"event": "e", "payload": {}}));
    assert_reply!(said, "ok", {});
}

/// The channel reports the reason, and ends.
#[track_caller]
fn ends(channel: &TestChannel, why: &str) {
    let said = |it: &Value| it["message"].as_str().is_some_and(|message| message.contains(why));
    let it = assert_push!(channel, "system", |it: &Value| said(it), timeout_ms = 3000);
    assert_eq!((&it["status"], &it["extension"]), (&json!("error"), &json!("system")));
    assert_closed!(channel);
}

#[test]
fn connect_needs_a_token_or_apikey() {
    let server = server(OnExpiry::Close);
    assert!(server.try_connect(json!({})).is_err());
    assert!(server.try_connect(json!({"apikey": "anon"})).is_err());
    anon(&server).join("realtime:lobby", wanted(false, None));
    // The usual one takes precedence.
    let both = json!({"token": token("ann"), "apikey": "anon"});
    server.connect(both).join("realtime:own-ann", wanted(true, None));
}

/// So any client may join public topics, and one with a token those that it allows.
#[test]
fn tokens_can_be_required_for_private_topics_only() {
    let server = server_by(|policy| policy.optional(true));
    assert!(server.try_connect(json!({"apikey": "anon"})).is_err(), "it is no good one");
    for params in [json!({}), json!({"apikey": "sb_publishable_x"})] {
        let socket = server.connect(params);
        speaks(&socket.join("realtime:lobby", wanted(false, None)));
        refused(&socket, "realtime:own-ann", wanted(true, None), "Unauthorized");
        speaks(&socket.join("realtime:own-ann", wanted(true, Some(&token("ann")))));
    }
}

#[test]
fn private_topic_needs_a_token_that_allows_it() {
    let server = server(OnExpiry::Close);
    let socket = anon(&server);
    let ann = token("ann");
    speaks(&socket.join("realtime:own-ann", wanted(true, Some(&ann))));
    refused(&socket, "realtime:own-bob", wanted(true, Some(&ann)), "Unauthorized");
    refused(&socket, "realtime:own-bob", wanted(true, None), "Unauthorized");
    refused(&socket, "realtime:own-ann", wanted(false, Some(&ann)), "PrivateOnly");
    refused(&socket, "realtime:lobby", wanted(true, Some(&ann)), "Unauthorized");
    // A key of the project does not identify a user.
    refused(&socket, "realtime:own-ann", wanted(true, Some("sb_secret")), "Unauthorized");
    socket.join("realtime:lobby", wanted(false, Some("sb_secret")));
}

#[test]
fn bad_token_refuses_every_join() {
    let server = server(OnExpiry::Close);
    let socket = anon(&server);
    let foreign = sign_by(b"another secret of thirty-two bytes", &json!({"exp": NOW + 9}));
    let expired = sign_by(SECRET, &json!({"sub": "ann", "exp": NOW - 9}));
    let early = sign_by(SECRET, &json!({"sub": "ann", "exp": NOW + 9, "nbf": NOW + 5}));
    for (token, code) in [
        ("nonsense", "MalformedJWT"),
        (&*foreign, "MalformedJWT"),
        (&*expired, "InvalidJWTToken"),
        (&*early, "InvalidJWTToken"),
    ] {
        for topic in ["realtime:lobby", "realtime:own-ann"] {
            refused(&socket, topic, wanted(topic != "realtime:lobby", Some(token)), code);
        }
    }
}

#[test]
fn current_token_decides_about_publishing() {
    let server = server(OnExpiry::Close);
    let (reader, editor) = (anon(&server), anon(&server));
    let role = |role: &str| sign_by(SECRET, &json!({"role": role, "exp": NOW + 60}));
    let reads = reader.join("realtime:news", wanted(false, None));
    let edits = editor.join("realtime:news", wanted(false, Some(&role("editor"))));
    let said = json!({"event": "e", "payload": {}});
    let refused = assert_reply!(reads.push("broadcast", said), "error", {"reason": _});
    assert!(refused["reason"].as_str().unwrap().starts_with("Unauthorized: "), "{refused}");
    let track = json!({"event": "track", "payload": {}});
    assert_reply!(reads.push("presence", track.clone()), "error", {"reason": _});
    speaks(&edits);
    assert_reply!(edits.push("presence", track), "ok", {});
    // A new token changes it, and gets no reply.
    reads.push("access_token", json!({"access_token": role("editor")}));
    speaks(&reads);
    edits.push("access_token", json!({"access_token": role("reader")}));
    assert_reply!(edits.push("broadcast", json!({})), "error", {"reason": _});
}

#[test]
fn bad_fresh_token_ends_the_channel() {
    let server = server(OnExpiry::Close);
    let socket = anon(&server);
    let ann = token("ann");
    let expired = sign_by(SECRET, &json!({"sub": "ann", "exp": NOW - 9}));
    for (fresh, why) in [
        (json!({"access_token": "nonsense"}), "not a valid JWT"),
        (json!({"access_token": 7}), "not a valid JWT"),
        (json!([]), "not a valid JWT"),
        (json!({"access_token": expired}), "Token has expired"),
        (json!({"access_token": token("bob")}), "do not have permissions"),
    ] {
        let own = socket.join("realtime:own-ann", wanted(true, Some(&ann)));
        own.push("access_token", fresh);
        ends(&own, why);
    }
    let own = socket.join("realtime:own-ann", wanted(true, Some(&ann)));
    for nothing in [json!({"access_token": null}), json!({"access_token": "sb_x"}), json!({})] {
        own.push("access_token", nothing);
    }
    speaks(&own);
}

#[test]
fn channel_ends_when_its_current_token_expires() {
    let server = server(OnExpiry::Close);
    let socket = anon(&server);
    let until = |seconds: u64| sign_by(SECRET, &json!({"sub": "ann", "exp": NOW + seconds}));
    let (short, renewed) = ("realtime:own-ann", "realtime:renewed");
    let ends_soon = socket.join(short, wanted(true, Some(&until(1))));
    let lives = socket.join(renewed, wanted(false, Some(&until(1))));
    lives.push("access_token", json!({"access_token": until(3600)}));
    ends(&ends_soon, "Token has expired");
    refute_push!(lives, "system", timeout_ms = 300);
    speaks(&lives);
}

#[test]
fn token_of_the_same_subject_renews_the_socket_if_allowed() {
    for (on_expiry, renews) in [(OnExpiry::Renew, true), (OnExpiry::Close, false)] {
        let server = server(on_expiry);
        let until = |seconds: u64| sign_by(SECRET, &json!({"sub": "ann", "exp": NOW + seconds}));
        let socket = server.connect(json!({"apikey": until(1)}));
        let channel = socket.join("realtime:lobby", wanted(false, None));
        channel.push("access_token", json!({"access_token": until(3600)}));
        speaks(&channel);
        match renews {
            true => {
                std::thread::sleep(Duration::from_millis(3500));
                speaks(&channel);
            }
            false => assert_closed!(socket, 3000, timeout_ms = 10_000),
        }
    }
}

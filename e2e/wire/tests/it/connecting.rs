//! Rows 1–18 and 150–155 of PROTOCOL §14: which upgrades are accepted, which serializer they pick,
//! and what the connect callback gets to see.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::json;
use wire_tests::{Client, Head, Raw, Response, Server, Vsn, unique};

const V2: &str = "/socket/websocket?vsn=2.0.0";

/// The answer to a request.
#[track_caller]
fn answer(server: &Server, head: &Head) -> Response {
    Raw::connect(server.addr()).request(head)
}

/// The status an upgrade of this path gets.
#[track_caller]
fn status(server: &Server, path: &str) -> u16 {
    answer(server, &Head::upgrade(path)).status
}

/// The status an upgrade with this Origin gets.
#[track_caller]
fn origin(server: &Server, origin: &str) -> u16 {
    answer(server, &Head::upgrade(V2).set("origin", origin)).status
}

/// Joins with refs of its own and gives the text of the reply.
#[track_caller]
fn joined_text(client: &mut Client) -> String {
    let topic = unique("test:connect");
    client.send("1", "1", &topic, "phx_join", json!({}));
    let reply = client.recv();
    reply.expect_reply("1", "1", &topic, "ok", json!({}));
    reply.raw
}

/// Row 1. Connect `<user_socket>/websocket?vsn=2.0.0`: 101; frames are arrays of five.
#[test]
fn row_01_vsn_2_uses_arrays_of_five() {
    let server = Server::shared_conformance();
    let mut client = Client::connect(&server, V2);
    let text = joined_text(&mut client);
    assert!(text.starts_with(r#"["1","1","test:connect"#), "{text}");

    // Extensions that the server does not know are declined.
    let head = Head::upgrade(V2).set("sec-websocket-extensions", "x-webkit-deflate-frame");
    let response = answer(&server, &head);
    assert_eq!(response.status, 101, "{response:?}");
    let is = |name, value: &str| {
        response.header(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    assert!(is("upgrade", "websocket") && is("connection", "upgrade"), "{response:?}");
    assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(response.header("sec-websocket-extensions"), None);
    assert_eq!(response.header("sec-websocket-protocol"), None);
}

/// Row 2. vsn=1.0.0: frames are objects with exactly topic, event, payload, ref.
#[test]
fn row_02_vsn_1_uses_objects_with_four_keys() {
    let server = Server::shared_conformance();
    let mut client = Client::connect(&server, "/socket/websocket?vsn=1.0.0");
    let topic = unique("test:connect");
    // Msg::parse refuses a V1 message whose keys are not exactly the four.
    let join_ref = client.join(&topic, json!({}));
    client.push(&topic, "push_me", json!({"a": 1}));
    let pushed = client.recv();
    pushed.expect((), (), &topic, "pushed", json!({"a": 1}));
    assert!(pushed.raw.contains(r#""ref":null"#), "ref is null, not missing: {}", pushed.raw);
    client.push(&topic, "bcast", json!({"b": 2}));
    client.recv().expect_broadcast(&topic, "news", json!({"b": 2}));
    client.push(&topic, "stop", json!({}));
    client.recv_except("you_left").expect_channel_close(&join_ref, &topic);
}

/// Row 3. No vsn: V1.
#[test]
fn row_03_missing_vsn_means_v1() {
    let server = Server::shared_conformance();
    for path in ["/socket/websocket", "/socket/websocket?", "/socket/websocket?user_id=7"] {
        let mut client = Client::connect(&server, path);
        assert_eq!(client.vsn(), Vsn::V1);
        joined_text(&mut client);
    }
}

/// Row 4. vsn 2.0.9 / 1.0.3: V2 / V1.
#[test]
fn row_04_patch_versions_are_compatible() {
    let server = Server::shared_conformance();
    let text = joined_text(&mut Client::connect(&server, "/socket/websocket?vsn=2.0.9"));
    assert!(text.starts_with('['), "{text}");
    let text = joined_text(&mut Client::connect(&server, "/socket/websocket?vsn=1.0.3"));
    assert!(text.starts_with('{'), "{text}");
}

/// Row 5. vsn 2.1.0, 3.0.0, 123.1.1: HTTP 403.
#[test]
fn row_05_unknown_versions_are_refused() {
    let server = Server::shared_conformance();
    for vsn in ["2.1.0", "3.0.0", "4.0.0", "123.1.1"] {
        assert_eq!(status(&server, &format!("/socket/websocket?vsn={vsn}")), 403, "vsn={vsn}");
    }
}

/// Row 6. vsn "abc", "2", "2.0", "": HTTP 403.
#[test]
fn row_06_vsn_that_is_not_semver_is_refused() {
    let server = Server::shared_conformance();
    let long = "9".repeat(3000);
    for vsn in ["abc", "2", "2.0", "", "-1.0.0", "2.0.0.0", "%00", "2.0.0%20", &long] {
        assert_eq!(status(&server, &format!("/socket/websocket?vsn={vsn}")), 403, "vsn={vsn:?}");
    }
    // Bytes that are not UTF-8 make the whole query malformed, which may be answered with 400.
    assert!(matches!(status(&server, "/socket/websocket?vsn=%ff%fe"), 403 | 400));
}

/// Row 7. vsn[]=2.0.0: HTTP 403.
#[test]
fn row_07_vsn_that_is_not_a_string_is_refused() {
    let server = Server::shared_conformance();
    for query in ["vsn[]=2.0.0", "vsn%5B%5D=2.0.0", "vsn[a]=2.0.0"] {
        assert_eq!(status(&server, &format!("/socket/websocket?{query}")), 403, "{query}");
    }
}

/// Row 8. GET without upgrade: HTTP 400.
#[test]
fn row_08_get_without_upgrade_gets_400() {
    let server = Server::shared_conformance();
    assert_eq!(answer(&server, &Head::new("GET", V2)).status, 400);
    assert_eq!(answer(&server, &Head::upgrade(V2).without("upgrade")).status, 400);
    assert_eq!(answer(&server, &Head::upgrade(V2).set("connection", "keep-alive")).status, 400);
}

/// Row 9. POST to the websocket path: HTTP 400.
#[test]
fn row_09_post_gets_400() {
    let server = Server::shared_conformance();
    let post = format!("POST {V2} HTTP/1.1");
    assert_eq!(answer(&server, &Head::upgrade(V2).line(&post)).status, 400);
    let plain = Head::new("POST", V2).set("content-length", "0");
    assert_eq!(answer(&server, &plain).status, 400);
}

/// Row 10. Connect refuses: HTTP 403.
#[test]
fn row_10_refused_connect_gets_403() {
    let server = Server::shared_conformance();
    let response = answer(&server, &Head::upgrade(&format!("{V2}&reject=true")));
    assert_eq!((response.status, response.text()), (403, ""), "{response:?}");
    assert_eq!(status(&server, &format!("{V2}&reject=false")), 101);
}

/// Row 11. Connect refuses with a reason, handler set: the handler's status (429).
#[test]
fn row_11_refusal_with_its_own_status_gets_that_status() {
    let server = Server::shared_conformance();
    assert_eq!(status(&server, &format!("{V2}&ratelimit=true")), 429);
}

/// Row 12. Origin listed: 101.
#[test]
fn row_12_a_listed_origin_is_accepted() {
    let server = Server::shared_conformance();
    for listed in [
        "http://example.com",
        "https://example.com:8443",
        "http://localhost:3000",
        "https://127.0.0.1",
    ] {
        assert_eq!(origin(&server, listed), 101, "Origin: {listed}");
    }
}

/// Row 13. Origin not listed: HTTP 403.
#[test]
fn row_13_an_unlisted_origin_is_refused() {
    let server = Server::shared_conformance();
    for unlisted in [
        "http://evil.com",
        "http://x-example.com",
        "http://sub.example.com",
        "http://example.com.evil.com",
        "http://example.org",
        "http://example.com@evil.com",
    ] {
        assert_eq!(origin(&server, unlisted), 403, "Origin: {unlisted}");
    }
}

/// Row 14. No Origin: 101.
#[test]
fn row_14_missing_origin_is_accepted() {
    let server = Server::shared_conformance();
    assert_eq!(status(&server, V2), 101);
}

/// Row 15. Origin null, file://: HTTP 403.
#[test]
fn row_15_an_origin_without_a_host_is_refused() {
    let server = Server::shared_conformance();
    for hostless in ["null", "file://", ""] {
        assert_eq!(origin(&server, hostless), 403, "Origin: {hostless:?}");
    }
}

/// Row 16. auth_token on; subprotocols phoenix + token: 101 with `phoenix`; the token reaches
/// connect.
#[test]
fn row_16_connect_receives_the_auth_token() {
    let server = Server::shared_conformance();
    // Encodes with `+` and `/`, the two characters the alphabets differ in, and needs padding.
    let token = "a~~>b??c??>>d";
    let standard = STANDARD_NO_PAD.encode(token);
    assert!(standard.contains('+') && standard.contains('/'), "{standard}");
    let encodings = [standard, URL_SAFE_NO_PAD.encode(token), STANDARD.encode(token)];
    for encoded in encodings {
        let offer = format!("phoenix, base64url.bearer.phx.{encoded}");
        let headers = [("sec-websocket-protocol", offer.as_str())];
        let mut client = Client::connect_with(&server, V2, &headers);
        assert_eq!(client.subprotocol(), Some("phoenix"), "offered {offer}");
        let topic = unique("test:auth");
        client.join(&topic, json!({}));
        client.push(&topic, "whoami", json!({}));
        let replied = client.recv().replied();
        assert_eq!(replied.status, "ok");
        assert_eq!(replied.response["auth"], json!(token), "offered {offer}");
        assert_eq!(replied.response["transport"], json!("websocket"));
    }
    let mut client = Client::connect(&server, V2);
    let topic = unique("test:auth");
    client.join(&topic, json!({}));
    client.push(&topic, "whoami", json!({}));
    assert_eq!(client.recv().replied().response["auth"], json!(null));
}

/// Row 17. Subprotocols configured; only unknown offered: HTTP 403.
#[test]
fn row_17_only_unknown_subprotocols_are_refused() {
    let server = Server::shared_conformance();
    let offer = |protocols| {
        let head = Head::upgrade(V2).set("sec-websocket-protocol", protocols);
        answer(&server, &head)
    };
    assert_eq!(offer("graphql-ws").status, 403);
    assert_eq!(offer("graphql-ws, mqtt").status, 403);
    let response = offer("mqtt, phoenix");
    assert_eq!(response.status, 101);
    assert_eq!(response.header("sec-websocket-protocol"), Some("phoenix"));
    assert_eq!(status(&server, V2), 101, "offering none is no offence");
}

/// Row 18. Nested, escaped query params reach connect decoded.
#[test]
fn row_18_connect_receives_decoded_params() {
    let server = Server::shared_conformance();
    let query = "user[name]=J%C3%BCrgen+X&user[tags][]=a%26b&user[tags][]=c\
                 &deep%5Ba%5D%5Bb%5D=1&empty=&user_id=42&vsn=2.0.0";
    let mut client = Client::connect(&server, &format!("/socket/websocket?{query}"));
    let topic = unique("test:params");
    client.join(&topic, json!({}));
    client.push(&topic, "whoami", json!({}));
    let response = client.recv().replied().response;
    assert_eq!(
        response["params"],
        json!({
            "user": {"name": "Jürgen X", "tags": ["a&b", "c"]},
            "deep": {"a": {"b": "1"}},
            "empty": "",
            "user_id": "42",
            "vsn": "2.0.0",
        })
    );
    assert_eq!(response["user_id"], json!("42"));
}

/// Row 150. Another WebSocket version, or none: 400, and the one that is spoken.
#[test]
fn row_150_other_websocket_version_gets_400_with_version_13() {
    let server = Server::shared_conformance();
    for version in ["8", "12", "14", "13, 8", ""] {
        let response = answer(&server, &Head::upgrade(V2).set("sec-websocket-version", version));
        assert_eq!(response.status, 400, "{version}");
        assert_eq!(response.header("sec-websocket-version"), Some("13"), "{version}");
    }
    let response = answer(&server, &Head::upgrade(V2).without("sec-websocket-version"));
    assert_eq!(response.header("sec-websocket-version"), Some("13"));
    let response = answer(&server, &Head::upgrade(V2).set("sec-websocket-key", "short"));
    assert_eq!((response.status, response.header("sec-websocket-version")), (400, None));
}

/// Row 151. `Expect: 100-continue`: 100, then 101; a refusal comes without 100.
#[test]
fn row_151_expect_100_continue_is_answered_before_the_upgrade() {
    let server = Server::shared_conformance();
    let expecting = |path: &str| Head::upgrade(path).set("expect", "100-continue");
    let mut raw = Raw::connect(server.addr());
    assert_eq!(raw.request(&expecting(V2)).status, 100);
    assert_eq!(raw.answer().status, 101);
    let refused = format!("{V2}&reject=true");
    assert_eq!(answer(&server, &expecting(&refused)).status, 403);
}

/// Row 152. `Upgrade` and `Connection` are lists, on one line or more.
#[test]
fn row_152_upgrade_header_may_be_a_list() {
    let server = Server::shared_conformance();
    for path in [V2, "/echo"] {
        for upgrade in ["h2c, websocket", "WebSocket", "h2c\r\nupgrade: websocket", ",websocket,"] {
            let head = Head::upgrade(path)
                .set("upgrade", upgrade)
                .set("connection", "keep-alive\r\nconnection: Upgrade, HTTP2-Settings");
            assert_eq!(answer(&server, &head).status, 101, "{path}: {upgrade}");
        }
        // Also as a later request of a connection that is kept alive.
        let mut raw = Raw::connect(server.addr());
        assert_eq!(raw.request(&Head::new("GET", "/healthz")).status, 200);
        let head = Head::upgrade(path).set("upgrade", "h2c, websocket");
        assert_eq!(raw.request(&head).status, 101, "{path}");
    }
}

/// Row 153. Slashes at the end and doubled ones mean nothing.
#[test]
fn row_153_extra_slashes_reach_the_same_endpoint() {
    let server = Server::shared_conformance();
    for path in [
        "/socket//websocket",
        "//socket/websocket",
        "/socket/websocket/",
        "//socket///websocket//",
        "/realtime/v1//websocket",
        "/echo/",
    ] {
        assert_eq!(status(&server, &format!("{path}?vsn=2.0.0")), 101, "{path}");
        let mut raw = Raw::connect(server.addr());
        assert_eq!(raw.request(&Head::new("GET", "/healthz")).status, 200);
        let head = Head::upgrade(&format!("{path}?vsn=2.0.0"));
        assert_eq!(raw.request(&head).status, 101, "{path}, later");
    }
    for path in ["/socket//longpoll", "//socket/longpoll/"] {
        let response = answer(&server, &Head::new("GET", &format!("{path}?vsn=2.0.0")));
        assert!(response.text().contains("\"status\":410"), "{path}: {response:?}");
    }
    assert_eq!(status(&server, "/socketwebsocket?vsn=2.0.0"), 404);
}

/// Row 154. `Origin` or `Authorization` twice: 400.
#[test]
fn row_154_duplicate_origin_or_authorization_gets_400() {
    let server = Server::shared_conformance();
    for path in [V2, "/socket/longpoll?vsn=2.0.0", "/healthz"] {
        for twice in ["origin", "authorization"] {
            let value = format!("http://example.com\r\n{twice}: http://example.com");
            let head = Head::upgrade(path).set(twice, &value);
            assert_eq!(answer(&server, &head).status, 400, "{path}: {twice}");
        }
    }
}

/// Row 155. On loopback a foreign Host is no page's own.
#[test]
fn row_155_foreign_host_with_an_origin_is_refused_on_loopback() {
    let server = Server::shared_conformance();
    let connects = |host: &str, origin: &str| {
        let head = Head::upgrade("/echo").set("host", host).set("origin", origin);
        answer(&server, &head).status
    };
    assert_eq!(connects("rebound.example:4000", "http://rebound.example:4000"), 403);
    let rebound = Head::upgrade("/echo").set("host", "a.example").set("origin", "http://a.example");
    let told = answer(&server, &rebound).text().to_owned();
    assert!(told.contains("trusted_hosts") && told.contains("trusted_proxies"), "{told}");
    assert_eq!(connects("localhost:4000", "http://localhost:4000"), 101);
    assert_eq!(connects("127.0.0.1", "127.0.0.1"), 101, "Tsung");
    // A client that is no browser sends no Origin, and may use any name.
    let head = Head::upgrade("/echo").set("host", "rebound.example");
    assert_eq!(answer(&server, &head).status, 101);
}

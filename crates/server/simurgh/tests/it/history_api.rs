//! Histories of topics for a back end, by HTTP and by the library, agree with what members receive.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::raw::{self, Answer, Raw};
use crate::support::{Client, handled, serving, start};
use serde_json::{Value, json};
use simurgh::{
    BroadcastError, Builder, Endpoint, Outcome, Payload, ShardContext, UserSocket,
    history::{GapReason, History, HistoryError, NotKept},
};

const TOKEN: &str = "history-token";
const ASLEEP: Duration = Duration::from_millis(1_500);

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "say" => {
            ctx.broadcast("said", payload.into_owned());
            Outcome::ok(json!({}))
        }
        // Blocks its shard, as no channel should.
        "sleep" => {
            std::thread::sleep(ASLEEP);
            Outcome::NoReply
        }
        _ => Outcome::unknown_event(),
    }
}

fn builder() -> Builder {
    let user_socket = UserSocket::new("/socket").channel(handled("plain:*", room)).channel(
        handled("kept:*", room).history(History {
            count: 3_000,
            bytes: 16 << 20,
            ..History::default()
        }),
    );
    Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = 3;
        config.api_token = Some(TOKEN.to_owned());
    })
}

fn request(method: &str, target: &str, token: &str, body: &str) -> String {
    let bearer = format!("authorization: Bearer {token}\r\n");
    raw::request(&format!("{method} {target}"), &bearer, body)
}

fn ask(endpoint: &Endpoint, method: &str, target: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Raw::connect(endpoint.addresses()[0]).send(request(method, target, TOKEN, &body)).answer()
}

#[track_caller]
fn json_of(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    answer.json()
}

#[track_caller]
fn get(endpoint: &Endpoint, target: &str) -> Value {
    json_of(&ask(endpoint, "GET", target, &Value::Null), 200)
}

#[track_caller]
fn post(endpoint: &Endpoint, body: &Value) -> Value {
    json_of(&ask(endpoint, "POST", "/api/broadcast", body), 202)
}

fn message(topic: &str, n: usize, id: Option<&str>) -> Value {
    let mut message = json!({"topic": topic, "event": "said", "payload": {"n": n}});
    if let Some(id) = id {
        message["id"] = json!(id);
    }
    message
}

/// Opts in; also returns the missed messages, and the position.
fn joined(endpoint: &Endpoint, topic: &str, since: &Value) -> (Client, Value, Value) {
    let mut client = Client::v2(endpoint);
    client.send(json!(["1", "1", topic, "phx_join", {"simurgh": {"since": since}}]));
    assert_eq!(client.recv()[4]["status"], "ok");
    let resumed = client.recv();
    assert_eq!(resumed[3], "simurgh:resumed", "{resumed}");
    (client, resumed[4].clone(), resumed[1].clone())
}

/// The position and number of the next message.
#[track_caller]
fn heard(client: &mut Client) -> (Value, Value) {
    let message = client.recv();
    assert_eq!(message[3], "said", "{message}");
    (message[1].clone(), message[4]["n"].clone())
}

fn seq(position: &Value) -> u64 {
    position.as_str().unwrap().split_once('.').unwrap().1.parse().unwrap()
}

#[test]
fn same_id_published_twice_at_once_is_stored_and_delivered_once() {
    let server = start(builder());
    // Several topics, so that all shards are a home.
    for room in 0..6 {
        let topic = format!("kept:{room}");
        let (mut member, _, _) = joined(&server, &topic, &Value::Null);
        let body = message(&topic, room, Some("order 7"));
        let barrier = Barrier::new(2);
        let publish = || {
            barrier.wait();
            post(&server, &body)
        };
        let answers = std::thread::scope(|scope| {
            let both = [scope.spawn(publish), scope.spawn(publish)];
            both.map(|it| it.join().unwrap())
        });
        let (position, n) = heard(&mut member);
        assert_eq!(n, room);
        let duplicates: u64 = answers.iter().map(|it| it["duplicates"].as_u64().unwrap()).sum();
        assert_eq!(duplicates, 1, "{answers:?}");
        for answer in &answers {
            assert_eq!(answer["positions"], json!([position]), "{answer}");
        }
        // Once more, after both were received.
        let again = json!({"accepted": 1, "positions": [position], "duplicates": 1});
        assert_eq!(post(&server, &body), again);
        assert_eq!(get(&server, &format!("/api/history?topic={topic}"))["position"], position);
        member.heartbeat();
    }
}

#[test]
fn response_positions_match_the_delivered_ones() {
    let server = start(builder());
    let (mut a, _, at_a) = joined(&server, "kept:a", &Value::Null);
    let (mut b, _, at_b) = joined(&server, "kept:b", &Value::Null);
    let first = post(&server, &message("kept:a", 1, Some("x")));
    let at_1 = heard(&mut a).0;
    assert_eq!(first, json!({"accepted": 1, "positions": [at_1], "duplicates": 0}));
    let many = json!({"messages": [
        message("kept:a", 1, Some("x")),
        message("kept:b", 2, Some("x")),
        message("plain:a", 3, Some("x")),
        message("kept:a", 4, None),
        message("kept:b", 5, Some("y")),
        message("kept:b", 6, Some("y")),
    ]});
    let answer = post(&server, &many);
    let (at_4, at_2, at_5) = (heard(&mut a), heard(&mut b), heard(&mut b));
    assert_eq!((&at_4.1, &at_2.1, &at_5.1), (&json!(4), &json!(2), &json!(5)));
    let positions = json!([at_1, at_2.0, null, at_4.0, at_5.0, at_5.0]);
    assert_eq!(answer, json!({"accepted": 6, "positions": positions, "duplicates": 2}));
    // All topics of a home share one numbering.
    assert!([&at_a, &at_1, &at_4.0].map(seq).is_sorted_by(|a, b| a < b));
    assert!([&at_b, &at_2.0, &at_5.0].map(seq).is_sorted_by(|a, b| a < b));
    // Broadcasts of a channel are in the same order.
    a.push("2", "kept:a", "say", json!({"n": 7}));
    let at_7 = loop {
        let message = a.recv();
        if message[3] == "said" {
            break message[1].clone();
        }
    };
    assert!(seq(&at_7) > seq(&at_4.0));
    let kept = get(&server, "/api/history?topic=kept:a");
    let numbers: Vec<_> =
        kept["messages"].as_array().unwrap().iter().map(|it| &it["payload"]["n"]).collect();
    assert_eq!((json!(numbers), &kept["position"]), (json!([1, 4, 7]), &at_7));
}

#[test]
fn response_without_ids_and_histories_is_taken() {
    let server = start(builder());
    for (body, says) in [
        (message("plain:a", 1, None), r#"{"taken":1}"#),
        (
            json!({"messages": [message("plain:a", 1, None), message("plain:b", 2, None)]}),
            r#"{"taken":2}"#,
        ),
        (json!({"messages": []}), r#"{"taken":0}"#),
    ] {
        let answer = ask(&server, "POST", "/api/broadcast", &body);
        assert_eq!((answer.status, answer.text()), (202, says));
    }
    let bare = ask(&server, "POST", "/api/broadcast", &message("kept:a", 1, None));
    assert!(bare.text().starts_with(r#"{"accepted":1,"positions":[""#), "{}", bare.text());
}

#[test]
fn invalid_id_is_reported_with_its_message_and_nothing_is_stored() {
    let server = start(builder());
    for (id, says) in [
        (json!(""), "message 1: id: expected a string of 1 to 128 bytes, found 0"),
        (json!("é".repeat(65)), "message 1: id: expected a string of 1 to 128 bytes, found 130"),
        (json!("x".repeat(129)), "message 1: id: expected a string of 1 to 128 bytes, found 129"),
        (json!(7), "message 1: id: expected a string of 1 to 128 bytes, found no string"),
        (json!({"id": "a"}), "message 1: id: expected a string of 1 to 128 bytes, found no string"),
    ] {
        let mut second = message("kept:a", 2, None);
        second["id"] = id;
        let body = json!({"messages": [message("kept:a", 1, None), second]});
        let answer = json_of(&ask(&server, "POST", "/api/broadcast", &body), 400);
        assert_eq!(answer, json!({"error": says, "code": "invalid"}));
    }
    assert_eq!(get(&server, "/api/history?topic=kept:a")["messages"], json!([]));
    for id in ["x", &"x".repeat(128)] {
        assert_eq!(post(&server, &message("kept:a", 1, Some(id)))["duplicates"], 0);
    }
}

#[test]
fn history_is_read_in_pages_in_both_directions() {
    let server = start(builder());
    let before = now_ms();
    let messages: Vec<_> = (0..250).map(|n| message("kept:a", n, None)).collect();
    let answer = post(&server, &json!({"messages": messages}));
    let positions = answer["positions"].as_array().unwrap();
    let page = get(&server, "/api/history?topic=kept:a");
    assert_eq!((&page["first"], &page["position"]), (&positions[0], &positions[249]));
    assert_eq!(page["epoch"], positions[0].as_str().unwrap().split('.').next().unwrap());
    assert_eq!((page["recovered"].as_bool(), page.get("reason")), (Some(true), None));
    assert_eq!(page["messages"].as_array().unwrap().len(), 100, "unless asked otherwise");
    let first = &page["messages"][0];
    let at = first["at"].as_u64().unwrap();
    assert!((before..=now_ms()).contains(&at), "{at} after {before}");
    let said = json!({"n": 0});
    let expected = json!({"position": positions[0], "event": "said", "payload": said, "at": at});
    assert_eq!(*first, expected);

    for (reverse, order) in
        [("false", (0..250).collect::<Vec<_>>()), ("true", (0..250).rev().collect())]
    {
        let (mut all, mut since) = (Vec::new(), String::new());
        loop {
            let target = format!("/api/history?topic=kept:a&limit=60&reverse={reverse}{since}");
            let page = get(&server, &target);
            let messages = page["messages"].as_array().unwrap();
            let Some(last) = messages.last() else { break };
            assert!(page["recovered"] == true && messages.len() <= 60);
            since = format!("&since={}", last["position"].as_str().unwrap());
            all.extend(messages.iter().map(|it| it["payload"]["n"].as_i64().unwrap()));
        }
        assert_eq!(all, order);
    }
    let whole = get(&server, "/api/history?topic=kept:a&limit=1000");
    assert_eq!(whole["messages"].as_array().unwrap().len(), 250);
    let last = format!("/api/history?topic=kept:a&since={}", positions[249].as_str().unwrap());
    let nothing = get(&server, &last);
    assert_eq!((&nothing["recovered"], &nothing["messages"]), (&json!(true), &json!([])));
}

#[test]
fn unknown_position_is_a_gap() {
    let server = start(builder());
    let answer = post(
        &server,
        &json!({"messages": [
            message("kept:a", 0, None), message("kept:a", 1, None), message("kept:a", 2, None),
        ]}),
    );
    let head = answer["positions"][2].as_str().unwrap();
    let (epoch, number) = head.split_once('.').unwrap();
    let future = format!("{epoch}.{}", number.parse::<u64>().unwrap() + 1);
    for since in [future, "zzzzzz.1".to_owned(), format!("{epoch}.{}", u64::MAX)] {
        for (reverse, order) in [("false", [0, 1]), ("true", [2, 1])] {
            let target =
                format!("/api/history?topic=kept:a&limit=2&since={since}&reverse={reverse}");
            let page = get(&server, &target);
            assert_eq!((&page["recovered"], &page["reason"]), (&json!(false), &json!("epoch")));
            let numbers = [0, 1].map(|at| page["messages"][at]["payload"]["n"].as_i64().unwrap());
            assert_eq!(numbers, order, "from the end, as if it had not been given");
        }
    }
    let page = get(&server, "/api/history?topic=kept:nothing&since=zzzzzz.1");
    assert_eq!((&page["recovered"], &page["first"]), (&json!(false), &Value::Null));
}

#[test]
fn invalid_queries_get_an_explanation() {
    let server = start(builder());
    let long = "x".repeat(1_000);
    let history = "/api/history?topic=kept:a";
    let since = "since: expected a position, such as \"k7ku80.60\"";
    let limit = "limit: expected 1 to 1000";
    let after = "after: expected the value of \"next\" on the page before";
    for (target, says) in [
        (format!("{history}&since="), since),
        (format!("{history}&since={long}"), since),
        (format!("{history}&since=a00000.01"), since),
        (format!("{history}&since=a00000.18446744073709551616"), since),
        (format!("{history}&limit=0"), limit),
        (format!("{history}&limit=-1"), limit),
        (format!("{history}&limit="), limit),
        (format!("{history}&limit=1000000000"), limit),
        (format!("{history}&limit=99999999999999999999999"), limit),
        (format!("{history}&limit=1001"), limit),
        (format!("{history}&reverse=1"), "reverse: expected true or false"),
        (format!("{history}&x=1"), "expected ?topic=NAME, optionally with"),
        (format!("{history}&topic=b"), "expected ?topic=NAME, optionally with"),
        ("/api/history".to_owned(), "expected ?topic=NAME, optionally with"),
        ("/api/history/topics?limit=0".to_owned(), limit),
        ("/api/history/topics?after=".to_owned(), after),
        ("/api/history/topics?after=1".to_owned(), after),
        ("/api/history/topics?after=-1-1".to_owned(), after),
        ("/api/history/topics?after=65536-1".to_owned(), after),
        ("/api/history/topics?topic=a".to_owned(), "expected ?limit=NUMBER&after=NEXT"),
    ] {
        let answer = json_of(&ask(&server, "GET", &target, &Value::Null), 400);
        assert!(answer["error"].as_str().unwrap().starts_with(says), "{target}: {answer}");
    }
    for target in ["/api/history", "/api/history?topic=a&since=a00000.1"] {
        let answer = json_of(&ask(&server, "DELETE", target, &Value::Null), 400);
        assert_eq!(
            answer,
            json!({"error": "expected ?topic=NAME, and nothing else", "code": "invalid"})
        );
    }
    // Topics without a history.
    for method in ["GET", "DELETE"] {
        for topic in ["plain:a", "nobody's", ""] {
            let target = format!("/api/history?topic={topic}");
            let answer = json_of(&ask(&server, method, &target, &Value::Null), 404);
            let error = "no channel declares a history for this topic";
            assert_eq!(answer, json!({"error": error, "code": "no_history"}));
        }
    }
    assert_eq!(ask(&server, "POST", history, &json!({})).status, 405);
    let longer = format!("{history}&since={}", "x".repeat(10_000));
    assert_eq!(ask(&server, "GET", &longer, &Value::Null).status, 414, "as any target of 10 kB");
    // After the last shard there are none, as after a restart with fewer.
    let end = get(&server, "/api/history/topics?after=65535-4294967295");
    assert_eq!(end, json!({"topics": [], "next": null}));
}

#[test]
fn reading_and_deleting_need_the_token() {
    let server = start(builder());
    post(&server, &message("kept:a", 1, None));
    for (method, target) in [
        ("GET", "/api/history?topic=kept:a"),
        ("DELETE", "/api/history?topic=kept:a"),
        ("GET", "/api/history/topics"),
        ("GET", "/api/history?topic=plain:a"),
    ] {
        let bare = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        for request in [bare, request(method, target, "wrong", "")] {
            let mut raw = Raw::connect(server.addresses()[0]);
            let answer = raw.send(request).answer();
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            let error =
                "the API token is missing or wrong: send the header authorization: Bearer TOKEN";
            assert_eq!(json_of(&answer, 401), json!({"error": error, "code": "token"}));
        }
        // Nor a page of another site that resolves its own name to this machine.
        let mut raw = Raw::connect(server.addresses()[0]);
        let elsewhere = request(method, target, TOKEN, "").replace("localhost", "evil.example");
        assert_eq!(raw.send(elsewhere).answer().status, 421);
    }
    assert_eq!(get(&server, "/api/history?topic=kept:a")["messages"].as_array().unwrap().len(), 1);
    let without = start(builder().configure(|config| config.api_token = None));
    assert_eq!(ask(&without, "GET", "/api/history?topic=kept:a", &Value::Null).status, 404);
}

#[test]
fn client_that_resumes_after_a_purge_gets_a_gap() {
    let server = start(builder());
    let (mut member, _, _) = joined(&server, "kept:a", &Value::Null);
    post(
        &server,
        &json!({"messages": [message("kept:a", 1, None), message("kept:a", 2, Some("i"))]}),
    );
    let (first, last) = (heard(&mut member).0, heard(&mut member).0);
    let forgotten =
        json_of(&ask(&server, "DELETE", "/api/history?topic=kept:a", &Value::Null), 200);
    assert_eq!(forgotten, json!({"position": last}));
    let empty = get(&server, "/api/history?topic=kept:a");
    assert_eq!((&empty["first"], &empty["position"]), (&Value::Null, &last));
    assert_eq!((&empty["recovered"], &empty["messages"]), (&json!(true), &json!([])));
    // Ids are still remembered, and numbering continues.
    assert_eq!(post(&server, &message("kept:a", 2, Some("i")))["duplicates"], 1);
    let next = post(&server, &message("kept:a", 3, None))["positions"][0].clone();
    assert_eq!(seq(&next), seq(&last) + 1);
    let gap = get(&server, &format!("/api/history?topic=kept:a&since={}", first.as_str().unwrap()));
    assert_eq!((&gap["recovered"], &gap["reason"]), (&json!(false), &json!("purged")));
    assert_eq!((&gap["messages"][0]["position"], &gap["first"]), (&next, &next));

    let (mut back, resumed, _) = joined(&server, "kept:a", &first);
    assert_eq!(resumed, json!({"recovered": false, "reason": "purged", "count": 1}));
    assert_eq!(heard(&mut back), (next.clone(), json!(3)));
    let (mut fresh, resumed, _) = joined(&server, "kept:a", &last);
    assert_eq!(resumed, json!({"recovered": true, "count": 1}), "the last it has heard");
    assert_eq!(heard(&mut fresh), (next, json!(3)));
}

#[test]
fn each_topic_is_listed_once_over_all_shards() {
    let server = start(builder());
    assert_eq!(get(&server, "/api/history/topics"), json!({"topics": [], "next": null}));
    let mut expected = BTreeMap::new();
    for n in 0..40 {
        let topic = format!("kept:{n}");
        let messages = vec![message(&topic, 0, None); n % 3 + 1];
        let answer = post(&server, &json!({"messages": messages}));
        expected.insert(topic, (n % 3 + 1, answer["positions"][n % 3].clone()));
    }
    let (mut listed, mut after, mut pages) = (BTreeMap::new(), String::new(), 0);
    loop {
        let page = get(&server, &format!("/api/history/topics?limit=7{after}"));
        let topics = page["topics"].as_array().unwrap();
        assert!(topics.len() <= 7);
        for it in topics {
            let name = it["topic"].as_str().unwrap().to_owned();
            assert!(it["bytes"].as_u64().unwrap() > 0);
            let count = it["messages"].as_u64().unwrap() as usize;
            let known = listed.insert(name, (count, it["position"].clone()));
            assert_eq!(known, None, "twice");
        }
        pages += 1;
        // New topics do not disturb the others.
        post(&server, &message(&format!("kept:later {pages}"), 0, None));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    listed.retain(|name, _| !name.starts_with("kept:later"));
    assert_eq!((listed, pages >= 6), (expected, true));
}

#[test]
fn server_without_a_declared_history_returns_404() {
    let token = |config: &mut simurgh::Config| config.api_token = Some(TOKEN.to_owned());
    let server = start(serving(handled("plain:*", room)).configure(token));
    assert_eq!(get(&server, "/api/history/topics"), json!({"topics": [], "next": null}));
    assert_eq!(ask(&server, "GET", "/api/history?topic=plain:a", &Value::Null).status, 404);
    let answer = post(&server, &message("plain:a", 1, Some("x")));
    assert_eq!(answer, json!({"accepted": 1, "positions": [null], "duplicates": 0}));
}

#[test]
fn congested_server_sends_retry_after() {
    let server = start(builder().configure(|config| {
        config.shards = 1;
        config.mailbox_bytes_max = 2_000;
    }));
    let (mut member, _, _) = joined(&server, "kept:a", &Value::Null);
    let mut raw = Raw::connect(server.addresses()[0]);
    raw.send(request("GET", "/api/history?topic=kept:a", TOKEN, ""));
    assert_eq!(raw.answer().status, 200);
    member.push("2", "kept:a", "sleep", json!({}));
    std::thread::sleep(Duration::from_millis(200));
    let mut long = message("kept:a", 1, Some("x"));
    long["payload"]["long"] = json!("x".repeat(4_000));
    let body = json!({"messages": [long, message("kept:a", 2, Some("y"))]});
    let answer = raw.send(request("POST", "/api/broadcast", TOKEN, &body.to_string())).answer();
    assert_eq!(answer.header("retry-after"), Some("1"));
    let error = "too many bytes of broadcasts are in flight: try again later";
    assert_eq!(json_of(&answer, 503), json!({"error": error, "code": "unavailable", "taken": 1}));
    assert_eq!(heard(&mut member).1, 1);
    // Repeated as a whole whenever it is refused: earlier messages may still be queued.
    let again = || raw.send(request("POST", "/api/broadcast", TOKEN, &body.to_string())).answer();
    let answer = std::iter::repeat_with(again).take(10_000).find(|it| it.status != 503);
    let answer = json_of(&answer.expect("it is taken"), 202);
    assert_eq!((&answer["accepted"], &answer["duplicates"]), (&json!(2), &json!(1)));
    assert_eq!(heard(&mut member).1, 2);
}

#[test]
fn pubsub_returns_the_same_as_http() {
    let server = start(builder());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let pubsub = server.pubsub();
    runtime.block_on(async {
        let bytes = Payload::from_bytes(&[0, 159, 255][..]);
        let first = pubsub.broadcast_kept("kept:a", "bytes", bytes).await.unwrap();
        let once = || pubsub.broadcast_once("kept:a", "said", json!({"n": 1}), "x");
        let (new, old) = (once().await.unwrap(), once().await.unwrap());
        assert_eq!((new.is_duplicate, old.is_duplicate), (false, true));
        assert!(new.position == old.position && new.position != first);

        let all = server.handle().history("kept:a").await.unwrap();
        assert_eq!((all.first, all.position, all.gap), (Some(first), new.position, None));
        let events: Vec<_> = all.messages.iter().map(|it| it.event()).collect();
        assert_eq!(events, ["bytes", "said"]);
        assert_eq!(all.messages[0].payload().binary(), Some(&[0, 159, 255][..]));
        let newest = pubsub.history("kept:a").reverse().limit(1).await.unwrap();
        assert_eq!(newest.messages[0].position, new.position);
        let older = pubsub.history("kept:a").reverse().after(new.position).await.unwrap();
        let positions: Vec<_> = older.messages.iter().map(|it| it.position).collect();
        assert_eq!(positions, [first]);

        assert_eq!(pubsub.forget("kept:a").await, Ok(new.position));
        let gap = pubsub.history("kept:a").after(first).await.unwrap();
        assert_eq!((gap.gap, gap.messages.len()), (Some(GapReason::Purged), 0));

        let none = pubsub.broadcast_kept("plain:a", "e", json!({})).await;
        assert_eq!(none, Err(NotKept::NoHistory));
        assert_eq!(pubsub.forget("plain:a").await, Err(HistoryError::NoHistory));
        assert_eq!(pubsub.history("plain:a").await.unwrap_err(), HistoryError::NoHistory);
        let bad = pubsub.broadcast_once("kept:a", "e", json!({}), "").await;
        assert_eq!(bad, Err(NotKept::BadId));
        let long = Payload::from_bytes(vec![0; 13 << 20]);
        let refused = pubsub.broadcast_kept("kept:a", "e", long).await;
        let is_too_large =
            matches!(refused, Err(NotKept::Refused(BroadcastError::TooLarge { bytes, .. }))
                if bytes == 13 << 20);
        assert!(is_too_large, "{refused:?}");
    });
    // A payload that is not JSON is read as Base64.
    runtime
        .block_on(pubsub.broadcast_kept("kept:b", "e", Payload::from_bytes(&[0, 159, 255][..])))
        .unwrap();
    let page = get(&server, "/api/history?topic=kept:b");
    assert_eq!(page["messages"][0]["payload"], json!({"base64": "AJ//"}));
    server.stop();
    runtime.block_on(async {
        let ended = pubsub.broadcast_kept("kept:a", "e", json!({})).await;
        assert_eq!(ended, Err(NotKept::Ended));
        assert_eq!(pubsub.history("kept:a").await.unwrap_err(), HistoryError::Ended);
        assert_eq!(pubsub.forget("kept:a").await, Err(HistoryError::Ended));
    });
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

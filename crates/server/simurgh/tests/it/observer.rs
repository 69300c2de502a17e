//! The data of the observer, who may see it, and disconnecting a connection through it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::raw::{ask, get, wait_for};
use crate::support::{Client, WAIT_MAX, handled, start};
use serde_json::{Value, json};
use simurgh::{
    Builder, Connect, Endpoint, Outcome, Payload, ShardContext, UserSocket, history::History,
};
use simurgh::{Rate, SocketLimits};

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    if event == "all" {
        ctx.broadcast("news", &payload);
    }
    Outcome::NoReply
}

fn builder() -> Builder {
    let user_socket = UserSocket::new("/socket")
        .channels_max(20_000)
        .connect_on_shard(|info| match info.param("user") {
            Some(user) => Connect::ok().id(format!("users:{user}")),
            None => Connect::ok(),
        })
        .channel(handled("*", room));
    Endpoint::builder().socket(user_socket).configure(|config| config.shards = 2)
}

/// Status and body of a request with these headers; `host` is the server's own by default.
fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let host =
        if headers.contains("host:") { String::new() } else { format!("host: {address}\r\n") };
    let answer = ask(address, &format!("{method} {path}"), &format!("{host}{headers}"), body);
    (answer.status, answer.text().to_owned())
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn overview_shows_figures_per_shard() {
    let endpoint = start(builder());
    let mut clients: Vec<Client> = (0..6).map(|_| Client::v2(&endpoint)).collect();
    for client in &mut clients {
        client.join("rooms:a");
        client.push("2", "nobody:home", "x", json!({}));
        client.recv();
    }
    let path = "/observer/api/overview?history=true";
    let it = wait_for(&endpoint, path, |it| it["now"]["channels"] == 6);
    assert_eq!((&it["server"], &it["now"]["sockets"]), (&json!("simurgh"), &json!(6)));
    assert_eq!(it["can_disconnect"], false);
    assert_eq!(it["shards"].as_array().unwrap().len(), 2);
    let sum = |key: &str| -> u64 {
        it["shards"].as_array().unwrap().iter().map(|shard| shard[key].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("connections"), sum("channels"), sum("mailbox_mails")), (6, 6, 0));
    assert!(it["memory"]["resident"].as_u64().unwrap() > 1_000_000);
    assert_eq!(it["memory"]["connection_records"], 6 * 64);
    assert!(it["memory"]["tables"].as_u64().unwrap() > 6 * 88);
    let unmatched = it["errors"].as_array().unwrap().iter();
    let unmatched = unmatched.clone().find(|row| row["kind"] == "errors_unmatched_topic").unwrap();
    assert_eq!(unmatched["total"], 6);
    assert!(!it["history"].as_array().unwrap().is_empty());
    assert!(get(&endpoint, "/observer/api/overview").get("history").is_none());
}

#[test]
fn topics_are_summed_over_shards_sorted_and_searched() {
    let endpoint = start(builder());
    let mut clients: Vec<Client> = (0..8).map(|_| Client::v2(&endpoint)).collect();
    let odd = "<img src=x onerror=alert(1)>\u{1b}[31m\n\u{202e}";
    for (n, client) in clients.iter_mut().enumerate() {
        client.join("rooms:all");
        client.join(&format!("rooms:own:{n}"));
        if n < 3 {
            client.join(odd);
        }
    }
    let list = get(&endpoint, "/observer/api/topics?by=members&most=2");
    let named = |row: &Value| (row["topic"].clone(), row["members"].clone());
    let rows: Vec<_> = list["rows"].as_array().unwrap().iter().map(named).collect();
    assert_eq!(rows, [(json!("rooms:all"), json!(8)), (json!(odd), json!(3))]);
    assert_eq!(list["total"], 10, "a topic on both shards counts once");
    let path = format!("/observer/api/topics?search={}", percent("own:"));
    assert_eq!(get(&endpoint, &path)["rows"].as_array().unwrap().len(), 8);
    assert_eq!(get(&endpoint, "/observer/api/topics?search=nowhere")["total"], 0);
    let members = get(&endpoint, &format!("/observer/api/members?topic={}", percent(odd)));
    assert_eq!((&members["topic"], &members["total"]), (&json!(odd), &json!(3)));
    assert_eq!(members["rows"][0]["channels"], 3);

    // A rate needs two readings, with messages between them.
    for n in 0..10 {
        clients[0].push(&n.to_string(), "rooms:own:0", "all", json!({}));
    }
    let fastest = wait_for(&endpoint, "/observer/api/topics?by=deliveries", |list| {
        clients[0].push("x", "rooms:own:0", "all", json!({}));
        list["rows"][0]["deliveries_per_s"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    assert_eq!(fastest["rows"][0]["topic"], "rooms:own:0");
}

#[test]
fn connections_are_sorted_looked_up_and_disconnected() {
    let endpoint = start(builder().configure(|config| config.api_token = Some("secret".into())));
    let address = endpoint.addresses()[0];
    let bearer = "authorization: Bearer secret\r\n";
    let ask = |path: &str| {
        let (status, body) = request(address, "GET", path, bearer, "");
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let mut ada = Client::connect(address, "/socket/websocket?vsn=2.0.0&user=ada");
    let mut bob = Client::connect(address, "/socket/websocket?vsn=1.0.0");
    for topic in ["a", "b", "c", "d", "e"] {
        ada.join(topic);
    }
    bob.send(json!({"topic": "a", "event": "phx_join", "ref": "1", "payload": {}}));
    bob.recv();
    let (_, list) = ask("/observer/api/connections?by=channels");
    let row = &list["rows"][0];
    assert_eq!((&row["channels"], &row["socket_id"]), (&json!(5), &json!("users:ada")));
    assert_eq!((&row["state"], &row["wire"]), (&json!("open"), &json!("v2")));
    assert_eq!(row["topics"].as_array().unwrap().len(), 3);
    assert_eq!(list["rows"][1]["wire"], "v1");
    let id = row["id"].as_str().unwrap().to_owned();
    let (_, one) = ask(&format!("/observer/api/connection?id={id}"));
    assert_eq!(one["topics"].as_array().unwrap().len(), 5);
    let peer = row["peer"].as_str().unwrap();
    let (_, found) = ask(&format!("/observer/api/connections?peer={}", percent(peer)));
    assert_eq!((&found["total"], &found["rows"][0]["id"]), (&json!(1), &json!(id)));
    let (_, by_id) = ask("/observer/api/members?topic=users:ada");
    assert_eq!(by_id["rows"][0]["id"], json!(id));

    let order = json!({"id": id}).to_string();
    let post = |headers: &str| {
        let headers = format!("{headers}content-type: application/json\r\n");
        request(address, "POST", "/observer/api/disconnect", &headers, &order)
    };
    assert_eq!(post("").0, 401);
    assert_eq!(post(&format!("{bearer}origin: http://evil.example\r\n")).0, 403);
    let own = format!("{bearer}origin: http://{address}\r\n");
    assert_eq!(post(&own).0, 200);
    assert_eq!(ada.recv_close(), 1001);
    assert_eq!(post(&own).0, 404);
    let metrics = request(address, "GET", "/metrics", "", "").1;
    let counted: u32 = metrics
        .lines()
        .filter(|line| line.starts_with("simurgh_observer_disconnects_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u32>().unwrap())
        .sum();
    assert_eq!(counted, 1);
    for wrong in ["connection?id=7", "connections?by=size", "connections?peer=x", "topics?mots=1"] {
        let (status, said) = ask(&format!("/observer/api/{wrong}"));
        assert_eq!((status, said["error"].is_string()), (400, true), "{wrong}");
    }
}

#[test]
fn busiest_and_slowest_connections_are_listed_first() {
    let endpoint = start(builder().configure(|config| config.outbound_bytes_max = 64 << 20));
    let (mut talker, mut slow) = (Client::v2(&endpoint), Client::v2(&endpoint));
    talker.join("rooms:talk");
    slow.join("rooms:slow");
    let found = wait_for(&endpoint, "/observer/api/connections?by=rate", |list| {
        for n in 0..50 {
            talker.push(&n.to_string(), "rooms:talk", "hm", json!({}));
        }
        !list["rows"].as_array().unwrap().is_empty()
    });
    assert_eq!(found["rows"][0]["topics"], json!(["rooms:talk"]));
    assert!(found["rows"][0]["messages_per_s"].as_f64().unwrap() > 50.0);

    let body = "x".repeat(1_000_000);
    for _ in 0..12 {
        while endpoint.broadcast("rooms:slow", "news", json!({ "body": body })).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let path = "/observer/api/connections?by=queue";
    let list = wait_for(&endpoint, path, |list| list["rows"][0]["queued_bytes"].is_u64());
    assert_eq!(list["rows"].as_array().unwrap().len(), 1, "nothing waits for others");
    assert_eq!(list["rows"][0]["topics"], json!(["rooms:slow"]));
    assert!(list["rows"][0]["queued_bytes"].as_u64().unwrap() > 100_000);
    let overview = wait_for(&endpoint, "/observer/api/overview", |it| {
        it["now"]["queued_bytes"].as_u64().unwrap() > 100_000
    });
    assert_eq!(overview["memory"]["outbound_queues"], overview["now"]["queued_bytes"]);
}

#[test]
fn limited_connection_is_listed_with_its_limit() {
    let limits = SocketLimits {
        messages: Rate::every(3, Duration::from_secs(3_600)).ok().map(Into::into),
        ..SocketLimits::default()
    };
    let user_socket = UserSocket::new("/socket").socket_limits(limits).channel(handled("*", room));
    let endpoint =
        start(Endpoint::builder().socket(user_socket).configure(|config| config.shards = 1));
    let (mut talker, mut other) = (Client::v2(&endpoint), Client::v2(&endpoint));
    talker.join("rooms:talk");
    other.join("rooms:other");
    let list = wait_for(&endpoint, "/observer/api/connections?by=rate", |list| {
        for n in 0..20 {
            talker.push(&n.to_string(), "rooms:talk", "hm", json!({}));
        }
        list["rows"][0]["limited"].as_u64().unwrap_or_default() > 10
    });
    let row = &list["rows"][0];
    assert_eq!((&row["topics"], &row["limit"]), (&json!(["rooms:talk"]), &json!("messages")));
    wait_for(&endpoint, "/observer/api/overview", |it| {
        talker.push("more", "rooms:talk", "hm", json!({}));
        it["now"]["limited_per_s"].as_f64().unwrap_or_default() > 0.0
    });
    let all = get(&endpoint, "/observer/api/connections?by=age");
    let rows = all["rows"].as_array().unwrap();
    let quiet = rows.iter().find(|row| row["topics"] == json!(["rooms:other"])).unwrap();
    assert_eq!((&quiet["limit"], &quiet["limited"]), (&Value::Null, &json!(0)));
}

#[test]
fn observer_refuses_clients_without_access() {
    let endpoint = start(builder().configure(|config| config.api_token = Some("secret".into())));
    Client::v2(&endpoint).join("rooms:hidden");
    let address = endpoint.addresses()[0];
    let paths = ["overview", "topics", "members?topic=rooms:hidden", "connections", "feed"]
        .map(|path| format!("/observer/api/{path}"));
    for path in &paths {
        for (headers, status) in [
            ("", 401),
            ("authorization: Bearer wrong\r\n", 401),
            ("authorization: Bearer secret\r\norigin: http://evil.example\r\n", 403),
            ("authorization: Bearer secret\r\nhost: evil.example\r\n", 421),
            ("authorization: Bearer secret\r\nx-forwarded-for: 192.0.2.1\r\n", 403),
        ] {
            let (got, body) = request(address, "GET", path, headers, "");
            assert_eq!(got, status, "{path} {headers:?}");
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["error"]);
        }
    }
    // The page itself contains no figures, and asks for the token.
    assert_eq!(request(address, "GET", "/observer/", "", "").0, 200);
    assert_eq!(request(address, "GET", "/observer/", "host: evil.example\r\n", "").0, 421);

    let open = start(builder());
    let order = request(
        open.addresses()[0],
        "POST",
        "/observer/api/disconnect",
        "content-type: application/json\r\n",
        "{\"id\": \"0.0.0\"}",
    );
    assert_eq!(order.0, 403, "without a token nobody disconnects");
}

#[test]
fn observer_can_be_opened_to_others_and_is_on_the_admin_listener() {
    // Like behind a proxy on this machine.
    let named = || builder().configure(|config| config.trusted_hosts = vec!["chat.example".into()]);
    let token = |config: &mut simurgh::Config| config.api_token = Some("secret".into());
    let far = "host: chat.example\r\nauthorization: Bearer secret\r\n";
    let path = "/observer/api/overview";
    let opened = start(named().configure(token).configure(|config| config.observer = true));
    assert_eq!(request(opened.addresses()[0], "GET", path, far, "").0, 200);
    let without_token = start(named().configure(|config| config.observer = true));
    assert_eq!(request(without_token.addresses()[0], "GET", path, far, "").0, 403);
    let admin = start(named().configure(token).configure(|config| {
        config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    }));
    assert_eq!(request(admin.admin_address().unwrap(), "GET", path, far, "").0, 200);
    assert_eq!(request(admin.addresses()[0], "GET", path, far, "").0, 403);
}

#[test]
fn application_keeps_its_other_pages() {
    use simurgh::axum::Router;
    use simurgh::axum::routing::get;
    let pages = Router::new()
        .route("/", get(|| async { "mine" }))
        .route("/observer", get(|| async { "also mine" }))
        .fallback(|| async { "anything" });
    let endpoint = start(builder().http(pages));
    let address = endpoint.addresses()[0];
    assert_eq!(request(address, "GET", "/", "", ""), (200, "mine".to_owned()));
    assert_eq!(request(address, "GET", "/other", "", ""), (200, "anything".to_owned()));
    assert_eq!(request(address, "GET", "/observer", "", "").0, 307);
}

#[test]
fn the_front_page_shows_details_only_to_viewers() {
    let page = |builder: Builder, headers: &str| {
        let endpoint = start(builder.front_page("<p>ws://{{host}}/socket</p>"));
        let address = endpoint.addresses()[0];
        let (status, text) = request(address, "GET", "/", headers, "");
        assert_eq!(status, 200);
        (text.contains(&format!("<p>ws://{address}/socket</p>")), text)
    };
    assert!(page(builder(), "").0);
    let (has_details, text) = page(builder(), "x-forwarded-for: 192.0.2.1\r\n");
    assert!(!has_details && text.contains("has no page for visitors"), "{text}");
    assert!(!page(builder(), "host: evil.example\r\n").1.contains("evil.example"));
    let secret = || builder().configure(|config| config.api_token = Some("secret".into()));
    let (has_details, text) = page(secret(), "");
    assert!(!has_details && text.contains("enter the API token"), "{text}");
    assert!(page(secret(), "authorization: Bearer secret\r\n").0);
}

#[test]
fn feed_sends_figures_and_the_requested_list() {
    let endpoint = start(builder());
    let mut client = Client::v2(&endpoint);
    client.join("rooms:a");
    let address = endpoint.addresses()[0];
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let head = format!("GET /observer/api/feed?list=topics HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (mut overviews, mut lists) = (Vec::new(), Vec::new());
    let mut name = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.to_owned();
        }
        if let Some(data) = line.strip_prefix("data: ") {
            let value: Value = serde_json::from_str(data).unwrap();
            if name == "topics" { lists.push(value) } else { overviews.push(value) }
        }
        if overviews.len() >= 2 && lists.len() >= 2 {
            break;
        }
    }
    assert!(overviews[0].get("history").is_some() && overviews[1].get("history").is_none());
    assert_eq!(lists[1]["rows"][0]["topic"], "rooms:a");
    assert!(lists[1]["at_unix_s"].as_f64() > lists[0]["at_unix_s"].as_f64());
}

/// A long list comes in slices: the shard continues to serve meanwhile.
#[test]
fn many_topics_are_listed_in_slices() {
    let endpoint = start(builder().configure(|config| config.shards = 1));
    let mut client = Client::v2(&endpoint);
    let mut other = Client::v2(&endpoint);
    other.join("rooms:other");
    for n in 0..20_000 {
        client.send(json!(["1", "1", format!("many:{n}"), "phx_join", {}]));
        if n % 100 == 99 {
            for _ in 0..100 {
                client.recv();
            }
        }
    }
    let before = Instant::now();
    let list = get(&endpoint, "/observer/api/topics?search=many:1999");
    assert_eq!(list["total"], 11);
    let cost = Duration::from_secs_f64(list["cost_ms"].as_f64().unwrap() / 1e3);
    assert!(before.elapsed() > cost * 3, "{cost:?} in {:?}", before.elapsed());
    assert!(list["next_in_s"].as_f64().unwrap() >= 1.0);
    other.heartbeat();
}

#[test]
fn histories_are_listed_by_bytes_with_and_without_members() {
    let user_socket = UserSocket::new("/socket")
        .channel(handled("kept:*", room).history(History { count: 5, ..History::default() }))
        .channel(handled("*", room));
    for shards in [1, 3] {
        let user_socket = user_socket.clone();
        let endpoint = start(
            Endpoint::builder().socket(user_socket).configure(|config| config.shards = shards),
        );
        let mut member = Client::v2(&endpoint);
        member.join("kept:7");
        member.join("plain");
        let nothing = get(&endpoint, "/observer/api/topics?by=kept");
        assert_eq!((&nothing["rows"], &nothing["total"]), (&json!([]), &json!(0)));
        assert_eq!(get(&endpoint, "/observer/api/members?topic=kept:7")["kept"], Value::Null);
        // Topic n has n broadcasts, of which at most five are kept.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pubsub = endpoint.pubsub();
        for n in 1..=9 {
            for _ in 0..n {
                let topic = format!("kept:{n}");
                runtime.block_on(pubsub.broadcast_kept(&topic, "said", json!({"n": n}))).unwrap();
            }
        }
        let list =
            wait_for(&endpoint, "/observer/api/topics?by=kept&most=8", |it| it["total"] == 9);
        let rows = list["rows"].as_array().unwrap();
        let bytes: Vec<u64> = rows.iter().map(|it| it["kept"]["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [5, 5, 5, 5, 5, 4, 3, 2].map(|count| count * (96 + 7)));
        let seven = rows.iter().find(|row| row["topic"] == "kept:7").unwrap();
        assert_eq!((&seven["members"], &seven["deliveries_per_s"]), (&json!(1), &Value::Null));
        let kept = &seven["kept"];
        let epoch = kept["epoch"].as_str().unwrap();
        // All topics of a home share one numbering.
        let head = kept["head"].as_str().unwrap().strip_prefix(&format!("{epoch}.")).unwrap();
        let head: u64 = head.parse().unwrap();
        assert!((7..=28).contains(&head), "{head}");
        let expected = json!({
            "messages": 5, "bytes": 515, "epoch": epoch, "head": format!("{epoch}.{head}"),
            "floor": format!("{epoch}.{}", head - 5), "lost": "overwritten",
        });
        assert_eq!(kept, &expected);
        let two = rows.iter().find(|row| row["topic"] == "kept:2").unwrap();
        assert_eq!((&two["members"], &two["kept"]["lost"]), (&json!(0), &Value::Null));
        assert_eq!(two["kept"]["floor"], format!("{epoch}.0"));

        let found =
            wait_for(&endpoint, "/observer/api/topics?by=kept&search=t:7", |it| it["total"] == 1);
        assert_eq!(found["rows"], json!([seven]));
        let members = get(&endpoint, "/observer/api/members?topic=kept:7");
        assert_eq!((&members["total"], &members["kept"]), (&json!(1), &expected));
        let members = get(&endpoint, "/observer/api/members?topic=kept:2");
        assert_eq!((&members["total"], &members["kept"]), (&json!(0), &two["kept"]));
        // Lists in another order include it, too.
        let list = wait_for(&endpoint, "/observer/api/topics?by=members", |it| it["total"] == 2);
        let rows = list["rows"].as_array().unwrap();
        let told: Vec<_> = rows.iter().map(|row| (&row["topic"], &row["kept"])).collect();
        assert_eq!(told, [(&json!("kept:7"), &expected), (&json!("plain"), &Value::Null)]);
        // Each shard tells its part in its own time.
        let (messages, topics) = (1 + 2 + 3 + 4 + 5 * 5, 9);
        let bytes = messages * 103 + topics * 246;
        wait_for(&endpoint, "/observer/api/overview", |it| it["memory"]["kept"] == bytes);
    }
}

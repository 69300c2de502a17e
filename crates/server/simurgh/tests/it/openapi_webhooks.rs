//! docs/openapi.yaml has the questions of hooks and their answers (B20, B22), and notices (B41,
//! B43, B51, B56, B79).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use simurgh::declared::{ChannelSpec, Defaults, user_socket_with_hooks};
use simurgh::hooks::{Forward, HookConfig, HookSet, HookSpec, NoticeConfig};
use simurgh::token::TokenPolicy;
use simurgh::{Endpoint, SocketLimits, UserSocket};
use tungstenite::client::IntoClientRequest;

use crate::api_orders::{client, policy};
use crate::openapi::{ALL, Document};
use crate::support::raw::ask;
use crate::support::{Client, WAIT_MAX, log, start, until};

type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// An application that gives these answers and statuses, and keeps the questions.
fn application(
    answers: impl Fn(&str, &Value) -> (u16, Value) + Send + 'static,
) -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Asked::default();
    let kept = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut path, mut length) = (String::new(), 0);
            for line in reader.by_ref().lines().map(Result::unwrap) {
                match line.split_once(": ") {
                    Some(("content-length", bytes)) => length = bytes.parse().unwrap(),
                    None if line.is_empty() => break,
                    None => path = line.split(' ').nth(1).unwrap().to_owned(),
                    Some(_) => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let kind = path.trim_start_matches('/').to_owned();
            let body = serde_json::from_slice(&body).unwrap();
            let (status, answer) = answers(&kind, &body);
            let answer = answer.to_string();
            kept.lock().unwrap().push((kind, body));
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", answer.len());
            let answer = format!("{head}connection: close\r\n\r\n{answer}");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

/// Declared channels with the hook `app`.
pub(crate) fn user_socket(
    application: SocketAddr,
    channels: &Value,
    tokens: Option<TokenPolicy>,
    with: impl FnOnce(&mut HookSpec),
) -> UserSocket {
    let url = format!("http://{application}/").parse().unwrap();
    let mut config = HookConfig::new("app", url);
    (config.answer_timeout, config.total_timeout) = (WAIT_MAX, WAIT_MAX);
    let forward = Forward::default();
    let mut spec = HookSpec { config, asks_connect: false, asks_refresh: false, forward };
    with(&mut spec);
    let channels: Vec<ChannelSpec> = serde_json::from_value(channels.clone()).unwrap();
    let hooks = Arc::new(HookSet::new(vec![spec]));
    user_socket_with_hooks("/socket", &channels, Defaults::default(), tokens, hooks).unwrap()
}

fn answer(document: &Value, kind: &str) -> Value {
    let at = format!("/webhooks/{kind}/post/responses/200/content/application~1json/example");
    document.pointer(&at).unwrap().clone()
}

#[test]
fn questions_and_answers_are_as_documented() {
    log::start();
    let document = Document::read();
    let examples = document.0.clone();
    let (address, asked) = application(move |kind, _| {
        let mut answer = answer(&examples, kind);
        if kind == "connect" {
            answer.as_object_mut().unwrap().remove("expires_at");
            answer["expires_in"] = 3.into();
        }
        (200, answer)
    });
    let channels = json!([{"topic": "rooms:*", "join_hook": "app", "join_question": "always",
        "payload_shape": "any", "presence": true, "event": [{"name": "say", "hook": "app"}]}]);
    let socket = user_socket(address, &channels, None, |spec| {
        spec.config.limits = vec!["gold".to_owned()];
        (spec.asks_connect, spec.asks_refresh) = (true, true);
    });
    let socket =
        socket.auth_token(true).named_limits(vec![("gold".to_owned(), SocketLimits::default())]);
    let endpoint = start(Endpoint::builder().socket(socket));
    let server = endpoint.addresses()[0];
    let url = format!("ws://{server}/socket/websocket?vsn=2.0.0&device=phone");
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("origin", format!("http://{server}").parse().unwrap());
    // The auth token, in base64url.
    let protocols = "phoenix, base64url.bearer.phx.dG9rZW4".parse().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", protocols);
    let stream = std::net::TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let mut client = Client(tungstenite::client(request, stream).unwrap().0);
    client.join("rooms:7");
    client.push("2", "rooms:7", "say", json!({"body": "hi"}));
    // A binary push of V2: kind, four lengths, join ref, ref, topic, event, payload.
    let mut binary = vec![0, 1, 1, 7, 3];
    binary.extend_from_slice(b"13rooms:7say\x01\x02");
    client.0.send(tungstenite::Message::binary(binary)).unwrap();
    until("all questions", || asked.lock().unwrap().len() >= 5);

    until("the observer has them", || {
        let overview = ask(server, "GET /observer/api/overview", "", "").json();
        let hook = &overview["hooks"][0];
        let of = |n: usize| &hook["questions"][n];
        hook["name"] == "app"
            && hook["breaker"] == "closed"
            && (0..4).all(|n| of(n)["allowed"].as_u64() >= Some(1) && of(n)["mean_us"] != 0)
            && [of(0), of(3)].map(|it| it["question"].clone()) == ["connect", "refresh"]
    });

    let asked = asked.lock().unwrap().clone();
    for kind in ["connect", "join", "message", "refresh"] {
        let webhook = &document.0["webhooks"][kind]["post"];
        let schema = &webhook["requestBody"]["content"]["application/json"]["schema"];
        let mut seen = BTreeSet::new();
        for (_, question) in asked.iter().filter(|(asked, _)| asked == kind) {
            assert_eq!(document.misfit(schema, question, kind), None, "{question}");
            seen.extend(question["data"].as_object().unwrap().keys().cloned());
        }
        let fields = schema["properties"]["data"]["properties"].as_object().unwrap();
        assert_eq!(seen, fields.keys().cloned().collect(), "{kind}");
        let content = &webhook["responses"]["200"]["content"]["application/json"];
        let misfit = document.misfit(&content["schema"], &content["example"], kind);
        assert_eq!(misfit, None);
        let documented = document.resolve(&content["schema"])["properties"].as_object().unwrap();
        let of_example = content["example"].as_object().unwrap();
        if kind != "refresh" {
            let [documented, given] =
                [documented, of_example].map(|fields| fields.keys().collect::<BTreeSet<_>>());
            assert_eq!(documented, given, "{kind}: the example has all fields");
        }
    }
    assert!(!log::text().contains("keys without a meaning"), "{}", log::text());
    assert!(!log::text().contains("question failed"), "{}", log::text());
}

/// The fields that a schema has, and those of values.
fn fields<'v>(schema: &Value, values: impl Iterator<Item = &'v Value>) -> [BTreeSet<String>; 2] {
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    [names(&schema["properties"]).into_iter().collect(), values.flat_map(names).collect()]
}

/// Whether the schemas have exactly the types and fields of these notices.
fn check_notices(document: &Document, all: &[Value]) {
    let schemas = &document.0["components"]["schemas"];
    for (name, is_reset) in [("Notice", false), ("LogReset", true)] {
        let schema = &schemas[name]["properties"];
        let of = all.iter().filter(|notice| (notice["type"] == "log.reset") == is_reset);
        let types: BTreeSet<_> = of.clone().map(|notice| notice["type"].as_str()).collect();
        let documented = schema["type"]["enum"].as_array().unwrap();
        assert_eq!(types, documented.iter().map(Value::as_str).collect(), "{name}");
        let [documented, found] = fields(&schema["data"], of.map(|notice| &notice["data"]));
        assert_eq!(documented, found, "{name}");
    }
}

#[test]
fn notices_stays_and_dead_letters_are_as_documented() {
    let document = Document::read();
    // It accepts all but joins, which are dead letters at once.
    let (address, asked) = application(|_, body| {
        let notices = body["data"]["notices"].as_array().unwrap();
        let has_join = notices.iter().any(|notice| notice["type"] == "member.joined");
        (if has_join { 500 } else { 200 }, json!({"about": "joins"}))
    });
    let channels = json!([{"topic": "rooms:*"}]);
    let socket = user_socket(address, &channels, Some(policy()), |spec| {
        let (batch, retry_for) = (1, Duration::ZERO);
        let (batch_time, leave_grace) = (Duration::ZERO, Duration::from_millis(50));
        let notices = NoticeConfig::new(ALL);
        spec.config.notices =
            Some(NoticeConfig { batch, retry_for, batch_time, leave_grace, ..notices });
    });
    let endpoint = start(Endpoint::builder().socket(socket).configure(|config| {
        config.api_token = Some("s3cret".to_owned());
    }));
    let order = |line: &str, body: &str| {
        let header = "authorization: Bearer s3cret\r\n";
        let answer = ask(endpoint.addresses()[0], line, header, body);
        document.check(line, &answer);
        answer.json()
    };
    let resets = |asked: &Asked| {
        let asked = asked.lock().unwrap();
        asked.iter().filter(|(_, body)| body["data"]["notices"][0]["type"] == "log.reset").count()
    };
    until("16 resets", || resets(&asked) == 16);
    let mut ann = client(&endpoint, "ann");
    ann.join("rooms:7");
    let rows = |line: &str, key: &str| order(line, "")[key].as_array().map_or(0, Vec::len);
    until("stays of the topic", || rows("GET /api/stays?topic=rooms:7", "stays") == 2);
    until("stays of the user", || rows("GET /api/stays?user=ann", "stays") == 2);
    until("a dead letter", || rows("GET /api/notices/dead?hook=app", "dead") == 1);
    let stays = order("GET /api/stays?user=ann", "")["stays"].clone();
    let [documented, found] =
        fields(&document.0["components"]["schemas"]["Stay"], stays.as_array().unwrap().iter());
    assert_eq!(documented, found);
    let id = order("GET /api/notices/dead?hook=app", "")["dead"][0]["notice"]["id"].clone();
    let letters = json!({"hook": "app", "ids": [id, "other"]}).to_string();
    assert_eq!(order("POST /api/notices/replay", &letters)["found"], 1);
    assert_eq!(order("POST /api/notices/delete", &letters)["found"], 1);
    assert_eq!(order("GET /api/notices", "")["hooks"]["app"]["dead"], 1);
    drop(ann);
    let ends = ["member.left", "topic.vacated", "user.disconnected"];
    let notices = || -> Vec<Value> {
        let asked = asked.lock().unwrap();
        let all = asked.iter().flat_map(|(_, body)| body["data"]["notices"].as_array().unwrap());
        all.cloned().collect()
    };
    until("ends", || {
        order("POST /api/notices/resume", r#"{"hook":"app"}"#);
        ends.iter().all(|end| notices().iter().any(|notice| notice["type"] == *end))
    });

    let webhook = &document.0["webhooks"]["notices"]["post"];
    let schema = &webhook["requestBody"]["content"]["application/json"]["schema"];
    for (kind, body) in asked.lock().unwrap().iter() {
        assert_eq!(
            (kind.as_str(), document.misfit(schema, body, kind)),
            ("notices", None),
            "{body}"
        );
    }
    check_notices(&document, &notices());
}

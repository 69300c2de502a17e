//! docs/openapi.yaml has the questions of hooks and their answers (B20, B22).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use simurgh::declared::{ChannelSpec, Defaults, user_socket_with_hooks};
use simurgh::hooks::{Forward, HookConfig, HookSet, HookSpec};
use simurgh::{Endpoint, SocketLimits, UserSocket};
use tungstenite::client::IntoClientRequest;

use crate::openapi::Document;
use crate::support::raw::ask;
use crate::support::{Client, WAIT_MAX, log, start, until};

type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// An application that gives the documented answers, and keeps the questions.
fn application(answers: impl Fn(&str) -> Value + Send + 'static) -> (SocketAddr, Asked) {
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
            let answer = answers(&kind).to_string();
            kept.lock().unwrap().push((kind, serde_json::from_slice(&body).unwrap()));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", answer.len());
            let answer = format!("{head}connection: close\r\n\r\n{answer}");
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

fn user_socket(application: SocketAddr) -> UserSocket {
    let url = format!("http://{application}/").parse().unwrap();
    let mut config = HookConfig::new("app", url);
    config.limits = vec!["gold".to_owned()];
    (config.answer_timeout, config.total_timeout) = (WAIT_MAX, WAIT_MAX);
    let forward = Forward::default();
    let spec = HookSpec { config, asks_connect: true, asks_refresh: true, forward };
    let channels = json!([{"topic": "rooms:*", "join_hook": "app", "join_question": "always",
        "payload_shape": "any", "presence": true, "event": [{"name": "say", "hook": "app"}]}]);
    let channels: Vec<ChannelSpec> = serde_json::from_value(channels).unwrap();
    let hooks = Arc::new(HookSet::new(vec![spec]));
    let socket = user_socket_with_hooks("/socket", &channels, Defaults::default(), None, hooks);
    socket
        .unwrap()
        .auth_token(true)
        .named_limits(vec![("gold".to_owned(), SocketLimits::default())])
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
    let (address, asked) = application(move |kind| {
        let mut answer = answer(&examples, kind);
        if kind == "connect" {
            answer.as_object_mut().unwrap().remove("expires_at");
            answer["expires_in"] = 3.into();
        }
        answer
    });
    let endpoint = start(Endpoint::builder().socket(user_socket(address)));
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

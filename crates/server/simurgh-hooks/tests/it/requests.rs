//! Requests as the application receives them.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderName, HeaderValue};
use serde_json::Value;
use simurgh_hooks::{Kind, Question, Secret};

use crate::support::app::{App, Reply, ok};
use crate::support::{ask, question, start};

#[tokio::test]
async fn question_arrives_signed_with_its_headers_and_body() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let mut config = app.listen().await;
    let secret = Secret::parse(&Secret::generate().unwrap()).unwrap();
    config.secrets = vec![secret.clone()];
    let (_hooks, hook) = start(config);
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let cookie = (HeaderName::from_static("cookie"), HeaderValue::from_static("sessionid=1"));
    let question = Question {
        forwarded: Arc::new([cookie]),
        traceparent: Some(HeaderValue::from_static(traceparent)),
        ..question(Kind::Join)
    };
    ask(&hook, question).await;

    let [request] = <[_; 1]>::try_from(app.requests()).unwrap();
    assert_eq!(request.path, "/simurgh/join");
    let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
    assert_eq!(header("cookie"), "sessionid=1");
    assert_eq!(header("accept"), "application/json");
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("x-requested-with"), "XMLHttpRequest");
    assert_eq!(header("accept-encoding"), "");
    let (trace, span) = (&traceparent[..36], &traceparent[36..52]);
    assert!(header("traceparent").starts_with(trace) && !header("traceparent").contains(span));

    let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp").parse().unwrap());
    assert!(id.starts_with("q-") && !id.contains('.'), "{id}");
    let signature = secret.sign(id, timestamp, request.body.as_bytes());
    assert_eq!(header("webhook-signature"), signature);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(now - timestamp < 300);

    let body: Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!(body["type"], "question.join");
    assert_eq!(body["data"]["hook"], "app");
    assert_eq!(body["data"]["node"], "n1");
    assert_eq!(body["data"]["topic"], "rooms:7");
    let time = body["timestamp"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.len() == 24, "{time}");
}

#[tokio::test]
async fn each_kind_has_its_path() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let (_hooks, hook) = start(app.listen().await);
    for kind in Kind::ALL {
        ask(&hook, question(kind)).await;
    }
    let paths: Vec<_> = app.requests().into_iter().map(|request| request.path).collect();
    let expected = ["connect", "join", "message", "refresh"].map(|word| format!("/simurgh/{word}"));
    assert_eq!(paths, expected);
}

#[tokio::test]
async fn ids_differ() {
    let app = App::new(|_, _| Reply::Answer(ok("")));
    let (_hooks, hook) = start(app.listen().await);
    ask(&hook, question(Kind::Join)).await;
    ask(&hook, question(Kind::Join)).await;
    let [first, second] = <[_; 2]>::try_from(app.requests()).unwrap();
    assert_ne!(first.headers["webhook-id"], second.headers["webhook-id"]);
    assert!(!first.headers.contains_key("webhook-signature"), "there is no secret");
}

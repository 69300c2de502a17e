//! Tokens of the server API that may do only part of it.

use std::net::SocketAddr;

use serde_json::{Value, json};
use simurgh::api::{ApiToken, Pattern, Scope};
use simurgh::supabase::Settings;
use simurgh::{ChannelRoute, Endpoint, UserSocket};

use crate::support::raw::ask;
use crate::support::{metrics, start};

fn server() -> Endpoint {
    let supabase = ChannelRoute::supabase("realtime:*", Settings::default());
    let rooms = ChannelRoute::on_shard("*", crate::support::no_channel);
    let token = |name: &str, scope| ApiToken::new(name, ApiToken::hash(name.as_bytes()), [scope]);
    let orders = [Pattern::parse("orders:*").unwrap()];
    let builder =
        Endpoint::builder().socket(UserSocket::new("/socket").channel(supabase).channel(rooms));
    start(builder.configure(|config| {
        config.api_token = Some("whole".to_owned());
        config.api_tokens = vec![
            token("publisher", Scope::Publish),
            token("reader", Scope::Read),
            token("controller", Scope::Control),
            token("orders", Scope::Publish).topics(orders.clone()),
            token("order-reader", Scope::Read).topics(orders),
        ];
    }))
}

fn request(address: SocketAddr, line: &str, token: &str, body: &Value) -> (u16, Value) {
    let header = format!("authorization: Bearer {token}\r\n");
    let body = if line.starts_with("POST") { body.to_string() } else { String::new() };
    let answer = ask(address, line, &header, &body);
    (answer.status, answer.json())
}

#[test]
fn token_without_the_scope_gets_403_and_is_counted_by_its_name() {
    let server = server();
    let address = server.addresses()[0];
    let message = json!({"topic": "rooms:1", "event": "e", "payload": {}});
    let disconnect = json!({"id": "nobody"});
    let close = json!({"topic": "nobody", "event": "disconnect", "payload": {}});
    let (publish, presence) = ("POST /api/broadcast", "GET /api/presence?topic=a");
    for (line, body, token, status) in [
        (publish, &message, "whole", 202),
        (publish, &message, "publisher", 202),
        (publish, &message, "reader", 403),
        (publish, &message, "publishe", 401),
        (publish, &close, "publisher", 403),
        (publish, &close, "whole", 202),
        (presence, &message, "reader", 200),
        (presence, &message, "publisher", 403),
        ("POST /api/disconnect", &disconnect, "controller", 200),
        ("POST /api/disconnect", &disconnect, "publisher", 403),
        ("DELETE /api/history?topic=a", &message, "reader", 403),
    ] {
        let (found, answer) = request(address, line, token, body);
        assert_eq!(found, status, "{line} by {token}: {answer}");
        match status {
            401 => assert_eq!(answer["code"], "token"),
            403 => {
                assert_eq!(answer["code"], "scope");
                assert!(answer["error"].as_str().unwrap().contains(token), "{answer}");
            }
            _ => {}
        }
    }
    let metrics = metrics(&server);
    for line in [
        "simurgh_api_requests_total{verb=\"broadcast\",token=\"publisher\",status=\"202\"} 1",
        "simurgh_api_requests_total{verb=\"broadcast\",token=\"publisher\",status=\"403\"} 1",
        "simurgh_api_requests_total{verb=\"broadcast\",token=\"\",status=\"401\"} 1",
        "simurgh_api_requests_total{verb=\"disconnect\",token=\"controller\",status=\"200\"} 1",
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}");
    }
}

#[test]
fn token_with_patterns_may_use_only_their_topics() {
    let server = server();
    let address = server.addresses()[0];
    for (topics, status) in
        [(&["orders:1"][..], 202), (&["rooms:1"], 403), (&["orders:1", "rooms:1"], 403)]
    {
        let body = json!({"topics": topics, "event": "e", "payload": {}});
        let (found, answer) = request(address, "POST /api/broadcast", "orders", &body);
        assert_eq!(found, status, "{topics:?}: {answer}");
        if status == 403 {
            assert_eq!(answer["code"], "topic");
        }
    }
}

/// The name of the next page would be one that the token may not know.
#[test]
fn token_with_patterns_lists_only_topics_of_a_prefix_that_it_covers() {
    let server = server();
    let address = server.addresses()[0];
    for (query, status) in
        [("", 403), ("?prefix=order", 403), ("?prefix=orders:", 200), ("?prefix=orders:7", 200)]
    {
        let line = format!("GET /api/topics{query}");
        let (found, answer) = request(address, &line, "order-reader", &json!({}));
        assert_eq!(found, status, "{query}: {answer}");
    }
}

#[test]
fn further_tokens_do_not_open_the_observer() {
    let server = server();
    let address = server.addresses()[0];
    for (token, status) in [("whole", 200), ("reader", 401)] {
        let header = format!("authorization: Bearer {token}\r\n");
        let answer = ask(address, "GET /observer/api/overview", &header, "");
        assert_eq!(answer.status, status, "{token}");
    }
}

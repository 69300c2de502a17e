//! A back end of the nodes: publishes by HTTP, and reads histories.

use serde_json::{Value, json};

use crate::support::engine::until;
use crate::support::node::{Node, Plan};

pub(crate) const TOPIC: &str = "kept:a";
const MUCH: &str = "count = 20000, age = \"5m\", bytes = \"64MiB\"";

/// Broadcasts in order: position and text.
pub(crate) type Messages = Vec<(String, String)>;

/// Epoch, sequence number, and index.
#[track_caller]
pub(crate) fn position(text: &str) -> (String, u64, u64) {
    let (epoch, place) = text.split_once('.').unwrap_or_else(|| panic!("no position: {text}"));
    let (seq, item) = place.split_once('-').unwrap_or((place, "0"));
    (epoch.to_owned(), seq.parse().unwrap(), item.parse().unwrap())
}

/// Channels: `kept` with this history, `own` with `only_own` as well, `plain` without a history.
/// The event `say` is broadcast to all, `tell` to all but the sender.
pub(crate) fn channels(history: &str) -> String {
    let event = |name: &str, reach: &str| {
        format!("[[channel.event]]\nname = \"{name}\"\nbroadcast = \"{reach}\"\nreply = {{}}\n")
    };
    let events = event("say", "all") + &event("tell", "others");
    let channel =
        |topic: &str, more: &str| format!("[[channel]]\ntopic = \"{topic}:*\"\n{more}\n{events}");
    let own = format!("history = {{ {history}, only_own = true }}");
    let kept = format!("history = {{ {history} }}");
    channel("kept", &kept) + &channel("own", &own) + &channel("plain", "")
}

pub(crate) fn plan(name: &str, engine: &str) -> Plan {
    Plan { channels: channels(MUCH), ..Plan::new(name, engine) }
}

/// Waits until their histories are available.
#[track_caller]
pub(crate) fn nodes<const N: usize>(engine: &str, names: [&str; N]) -> [Node; N] {
    let nodes = names.map(|name| plan(name, engine).start());
    nodes.iter().for_each(keeps);
    nodes
}

/// Waits until a node can store a broadcast, with a separate topic.
#[track_caller]
pub(crate) fn keeps(node: &Node) {
    until(&format!("{} has something kept", node.name), || {
        let topic = format!("kept:probe of {}", node.name);
        (publish_to(node, &topic, "probe", None).0 == 202).then_some(())
    });
}

/// Publishes once; returns status and body.
pub(crate) fn publish_to(node: &Node, topic: &str, text: &str, id: Option<&str>) -> (u16, Value) {
    let mut message = json!({"topic": topic, "event": "say", "payload": {"text": text}});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    let (status, body) = node.ask("POST /api/broadcast", &message.to_string());
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// Publishes and expects the confirmation; returns the position.
#[track_caller]
pub(crate) fn publish(node: &Node, text: &str) -> String {
    let (status, body) = publish_to(node, TOPIC, text, None);
    assert_eq!(status, 202, "{body}");
    body["positions"][0].as_str().unwrap().to_owned()
}

/// Publishes with an id until it is confirmed; returns the position.
#[track_caller]
pub(crate) fn publish_surely(node: &Node, text: &str) -> String {
    until(&format!("{} has {text:?} kept", node.name), || {
        let (status, body) = publish_to(node, TOPIC, text, Some(text));
        assert!(matches!(status, 202 | 503 | 504), "{status} {body}");
        (status == 202).then(|| body["positions"][0].as_str().unwrap().to_owned())
    })
}

#[track_caller]
pub(crate) fn page(node: &Node, topic: &str, query: &str) -> Value {
    let topic = topic.replace(' ', "%20");
    let (status, body) = node.ask(&format!("GET /api/history?topic={topic}{query}"), "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

pub(crate) fn messages_of(page: &Value) -> Messages {
    let messages = page["messages"].as_array().unwrap().iter();
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    messages.map(|it| (text(&it["position"]), text(&it["payload"]["text"]))).collect()
}

/// The whole history of the topic.
#[track_caller]
pub(crate) fn history(node: &Node) -> Messages {
    let mut all = Messages::new();
    loop {
        let since = all.last().map(|(at, _)| format!("&since={at}")).unwrap_or_default();
        let page = page(node, TOPIC, &format!("&limit=1000{since}"));
        assert_eq!(page["recovered"], true, "{}: {}", node.name, page["reason"]);
        let some = messages_of(&page);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

/// Waits until the history is the same on all nodes.
#[track_caller]
pub(crate) fn histories<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Messages {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    until("all nodes have the same history", || {
        let mut found = nodes.iter().map(|node| history(node));
        let first = found.next()?;
        found.all(|it| it == first).then_some(first)
    })
}

pub(crate) fn texts(messages: &Messages) -> Vec<&str> {
    messages.iter().map(|it| &*it.1).collect()
}

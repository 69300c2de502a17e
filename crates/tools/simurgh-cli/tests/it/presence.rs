//! Presence by configuration only: what declared channels track, and the effect of settings.

use crate::support::{Client, Server};
use serde_json::{Map, Value, json};

const ANYWHERE: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// One channel with default keys, one with templates.
const ROOMS: &str = r#"
    shards = 2
    presence_key_bytes_max = 32
    presence_meta_bytes_max = "100B"

    [[channel]]
    topic = "by-default:*"
    presence = true
    [[channel.event]]
    name = "*"
    broadcast = "all"

    [[channel]]
    topic = "by-template:*"
    join_reply = { hello = "$user" }
    presence = { key = "$user", meta = { name = "$name", in = "$subtopic" } }
"#;

/// Expects this event next; returns its payload.
#[track_caller]
fn next(client: &mut Client, topic: &str, event: &str) -> Map<String, Value> {
    let message = client.receive();
    assert_eq!((&*message.1, &*message.2), (topic, event), "{message:?}");
    message.3.as_object().unwrap().clone()
}

/// A new member's own entry: its key and meta.
#[track_caller]
fn own(client: &mut Client, topic: &str) -> (String, Map<String, Value>) {
    let diff = next(client, topic, "presence_diff");
    assert_eq!(diff["leaves"], json!({}));
    let joins = diff["joins"].as_object().unwrap();
    assert_eq!(joins.len(), 1);
    let (key, entry) = joins.iter().next().unwrap();
    let mut meta = entry["metas"][0].as_object().unwrap().clone();
    assert!(meta.remove("phx_ref").is_some_and(|it| it.is_string()));
    (key.clone(), meta)
}

#[track_caller]
fn is_now(online_at: &Value) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let online_at: u64 = online_at.as_str().unwrap().parse().unwrap();
    assert!((now.as_secs() - 30..=now.as_secs()).contains(&online_at), "{online_at}");
}

#[test]
fn declared_channel_tracks_and_announces_its_members() {
    let server = Server::start(ROOMS, &ANYWHERE);
    let topic = "by-default:a";
    let (mut ann, mut bob) = (server.client(), server.client());
    ann.join(topic, json!({}));
    let (ann_key, meta) = own(&mut ann, topic);
    assert_eq!(meta.keys().collect::<Vec<_>>(), ["online_at"]);
    is_now(&meta["online_at"]);
    assert!(ann_key.len() == 32 && ann_key.chars().all(|it| it.is_ascii_hexdigit()), "{ann_key}");
    assert_eq!(next(&mut ann, topic, "presence_state").keys().collect::<Vec<_>>(), [&ann_key]);
    bob.join(topic, json!({}));
    let (bob_key, _) = own(&mut bob, topic);
    assert_ne!(ann_key, bob_key);
    assert_eq!(next(&mut bob, topic, "presence_state").len(), 2);
    assert_eq!(own(&mut ann, topic).0, bob_key);
    // Only the server sends presence events, even where members may push any event.
    for event in ["presence_diff", "presence_state", "presence_summary"] {
        let unknown = json!({"reason": "unknown event"});
        bob.ask(topic, event, json!({"joins": {}, "leaves": {}}), "error", unknown);
    }
    bob.send(topic, "phx_leave", json!({}));
    let diff = next(&mut ann, topic, "presence_diff");
    assert!(diff["leaves"].as_object().unwrap().contains_key(&bob_key), "{diff:?}");
    ann.expect_quiet();
    assert_eq!(server.metric("simurgh_presences"), 1);
}

#[test]
fn templates_set_key_and_meta_and_members_without_key_are_not_listed() {
    let server = Server::start(ROOMS, &ANYWHERE);
    let topic = "by-template:x";
    let (mut ann, mut bob, mut eve) = (server.client(), server.client(), server.client());
    ann.ask(topic, "phx_join", json!({"user": 7, "name": "Ann"}), "ok", json!({"hello": 7}));
    let (key, mut meta) = own(&mut ann, topic);
    is_now(&meta.remove("online_at").unwrap());
    assert_eq!((&*key, Value::from(meta)), ("7", json!({"name": "Ann", "in": "x"})));
    next(&mut ann, topic, "presence_state");

    bob.ask(topic, "phx_join", json!({"name": "Bob"}), "ok", json!({"hello": null}));
    bob.expect_quiet();
    ann.expect_quiet();

    let long = "a presence's key of 33 bytes is too long: the maximum is 32";
    let user = "u".repeat(33);
    eve.ask(topic, "phx_join", json!({"user": user}), "error", json!({"reason": long}));
    let named = json!({"user": "eve", "name": "n".repeat(100)});
    let refused = eve.send(topic, "phx_join", named);
    let answer = eve.receive();
    assert_eq!(answer.0, json!(refused));
    let reason = answer.3["response"]["reason"].as_str().unwrap();
    assert!(reason.ends_with("bytes is too long: the maximum is 100"), "{reason}");
    assert_eq!(server.metric("simurgh_presences"), 1);
}

/// The page joins with a user name; load generators join without, and have no presence.
#[test]
fn built_in_chat_lists_members_that_join_with_a_presence_name() {
    let flags = ["--presence-interval", "20ms", "--announce-joins-up-to", "0"];
    let server = Server::start("", &[&ANYWHERE[..], &flags].concat());
    let (mut ann, mut load) = (server.client(), server.client());
    load.join("rooms:a", json!({"user": "load"}));
    ann.join("rooms:a", json!({"user": "ann", "presence": "ann"}));
    let (key, meta) = own(&mut ann, "rooms:a");
    assert_eq!((&*key, meta.len()), ("ann", 1));
    assert_eq!(next(&mut ann, "rooms:a", "presence_state").len(), 1);
    assert_eq!(own(&mut load, "rooms:a").0, "ann");
    load.expect_quiet();
}

#[test]
fn presence_settings_take_effect() {
    let flags =
        ["--presence-list-max", "2", "--presence-sample", "1", "--presence-interval", "10ms"];
    let file = "presence_list_max = 9\npresence_summary_interval = \"30s\"\n\
                [[channel]]\ntopic = \"a\"\npresence = { key = \"$user\" }\n";
    let server = Server::start(file, &[&ANYWHERE[..], &flags].concat());
    let mut members: Vec<Client> = Vec::new();
    for n in 0..4 {
        let mut client = server.client();
        client.join("a", json!({"user": n}));
        members.push(client);
    }
    let last = members.last_mut().unwrap();
    let summary = loop {
        let message = last.receive();
        if message.2 == "presence_summary" {
            break message.3;
        }
    };
    assert!(summary["count"].as_u64().unwrap() > 2, "{summary}");
    assert_eq!(summary["sample"].as_object().unwrap().len(), 1);
}

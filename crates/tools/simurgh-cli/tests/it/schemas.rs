//! JSON Schemas of declared channels (B87, B88).

use serde_json::{Value, json};

use crate::support::{Server, directory, run, simurgh};

const SETTINGS: &str = r#"
    listen = ["127.0.0.1:0"]
    shards = 1
    [[channel]]
    topic = "rooms:*"
    join_schema = { required = ["name"], properties = { name = { type = "string" } } }
    join_reply = { you = "$name" }
    [[channel.event]]
    name = "say"
    schema_file = "say.json"
    broadcast = "all"
    reply = { said = "$body" }
    [[channel]]
    topic = "log"
    [[channel.event]]
    name = "*"
    schema = { maxProperties = 1 }
    reply = "$payload"
"#;
const SAY: &str = r#"{"type": "object", "required": ["body"], "additionalProperties": false,
    "properties": {"body": {"type": "string", "maxLength": 30000}}}"#;

fn server() -> Server {
    let dir = directory(&[("simurgh.toml", SETTINGS), ("say.json", SAY)]);
    Server::start_with_env(&simurgh(), dir, &[], 1, &[("SIMURGH_API_TOKEN", "s3cret")])
}

fn broken(at: &str, rule: &str) -> Value {
    json!({"reason": "wrong_payload", "expected": "schema", "at": at, "rule": rule})
}

/// Longer payloads than 16 KiB are checked outside the shard.
#[test]
fn payloads_that_break_a_schema_are_refused_and_counted_by_event() {
    let server = server();
    let mut ann = server.client();
    ann.ask("rooms:a", "phx_join", json!({}), "error", broken("", "required"));
    ann.ask("rooms:a", "phx_join", json!({"name": 7}), "error", broken("/name", "type"));
    let long = json!({"name": 7, "more": "x".repeat(20_000)});
    ann.ask("rooms:a", "phx_join", long, "error", broken("/name", "type"));
    let named = json!({"name": "ann", "more": "x".repeat(20_000)});
    ann.ask("rooms:a", "phx_join", named, "ok", json!({"you": "ann"}));
    ann.ask("rooms:a", "say", json!({"body": 7}), "error", broken("/body", "type"));
    let more = json!({"body": "", "user": "eve"});
    ann.ask("rooms:a", "say", more, "error", broken("", "additionalProperties"));
    for length in [1, 16_000, 20_000, 30_000] {
        let said = json!({"body": "x".repeat(length)});
        let msg_ref = ann.send("rooms:a", "say", said.clone());
        ann.expect("rooms:a", "say", said.clone());
        ann.expect_reply(msg_ref, "rooms:a", "ok", json!({"said": said["body"]}));
    }
    let long = json!({"body": "x".repeat(30_001)});
    ann.ask("rooms:a", "say", long, "error", broken("/body", "maxLength"));
    ann.join("log", json!({}));
    ann.ask("log", "any", json!({"a": 1}), "ok", json!({"a": 1}));
    ann.ask("log", "any", json!({"a": 1, "b": 2}), "error", broken("", "maxProperties"));
    let wrong = json!({"reason": "wrong_payload", "expected": "object", "found": "null"});
    ann.ask("log", "any", json!(null), "error", wrong);
    for (event, count) in [("rooms:*\",event=\"phx_join", 3), ("rooms:*\",event=\"say", 3)] {
        let name = format!("simurgh_schema_refused_total{{channel=\"{event}\"}}");
        assert_eq!(server.metric(&name), count, "{name}");
    }
    assert_eq!(server.metric("simurgh_errors_wrong_payload_total"), 8);
}

#[test]
fn wrong_schemas_are_refused_with_file_line_key_and_place() {
    let dir = directory(&[("broken.json", "{"), ("wrong.json", r#"{"items": {"type": "txt"}}"#)]);
    let event = "[[channel]]\ntopic = \"a\"\n[[channel.event]]\nname = \"b\"\n";
    for (more, says) in [
        (
            "schema = { properties = { a = { type = \"txt\" } } }",
            ":5: [[channel.event]] schema: no \
            JSON Schema, at \"/properties/a/type\"",
        ),
        ("schema_file = \"none.json\"", ":5: [[channel.event]] schema_file: cannot read none.json"),
        ("schema_file = \"broken.json\"", "schema_file: broken.json: not JSON: EOF"),
        (
            "schema_file = \"wrong.json\"",
            "schema_file: wrong.json: no JSON Schema, at \
            \"/items/type\"",
        ),
        (
            "schema = true\nschema_file = \"wrong.json\"",
            ":6: [[channel.event]] schema_file: schema \
            is set, too",
        ),
    ] {
        std::fs::write(dir.path().join("f.toml"), format!("{event}{more}\n")).unwrap();
        let ran = run(dir.path(), &["config", "--check", "f.toml"]);
        assert!(!ran.status.success() && ran.stderr.contains(says), "{says}\n{}", ran.stderr);
    }
    let join = "[[channel]]\ntopic = \"a\"\njoin_schema = 7\n";
    std::fs::write(dir.path().join("f.toml"), join).unwrap();
    let ran = run(dir.path(), &["config", "--check", "f.toml"]);
    assert!(ran.stderr.contains(":3: [[channel]] join_schema: no JSON Schema"), "{}", ran.stderr);
}

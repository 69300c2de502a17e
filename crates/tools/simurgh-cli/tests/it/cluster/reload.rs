//! Each node reloads its settings by itself. Meanwhile they differ, and lose no message.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{TOKEN, curl, joins, know_each_other, settings, start};
use crate::support::engine::{Engine, STORE};
use crate::support::{Client, Server, directory, run_with_env};

fn channel(topic: &str, more: &str) -> String {
    format!(
        "[[channel]]\ntopic = \"{topic}:*\"\nwait_for_interest = true\n{more}\
         [[channel.event]]\nname = \"say\"\nbroadcast = \"all\"\n"
    )
}

/// A node whose file can change.
struct Node {
    server: Server,
    name: &'static str,
    file: PathBuf,
}

impl Node {
    fn start(name: &'static str, engine: &Engine, channels: &str) -> Self {
        let dir = directory(&[("simurgh.toml", &settings(name, engine, "", channels))]);
        let file = dir.path().join("simurgh.toml");
        Self { server: start(dir), name, file }
    }

    /// Returns what the command printed.
    #[track_caller]
    fn reloads(&self, engine: &Engine, channels: &str) -> String {
        std::fs::write(&self.file, settings(self.name, engine, "", channels)).unwrap();
        let words = ["reload", "--url", &self.server.addresses[0]];
        let ran = run_with_env(directory(&[]).path(), &words, TOKEN);
        assert!(ran.status.success(), "{}", ran.stderr);
        ran.stdout
    }
}

#[test]
#[ignore = "needs nats-server"]
fn nodes_that_reload_one_after_the_other_lose_no_message() {
    let engine = Engine::start(STORE);
    let (rooms, news) = (channel("room", "history = true\n"), channel("news", ""));
    let both = format!("{rooms}{news}");
    let (one, two) = (Node::start("one", &engine, &rooms), Node::start("two", &engine, &rooms));
    know_each_other([&one.server, &two.server]);
    let (mut ann, mut bob) = (joins(&one.server, "room:a"), joins(&two.server, "room:a"));
    let mut said = 0;
    let mut talks = |ann: &mut Client, bob: &mut Client| {
        for of_ann in [true, false] {
            let by = if of_ann { &mut *ann } else { &mut *bob };
            by.send("room:a", "say", json!({"n": said}));
            ann.expect("room:a", "say", json!({"n": said}));
            bob.expect("room:a", "say", json!({"n": said}));
            said += 1;
        }
    };
    talks(&mut ann, &mut bob);
    // The channel that Bob has joined is gone on his node, and there is one that the other lacks.
    assert!(two.reloads(&engine, &news).contains("changed: [[channel]]\n"));
    talks(&mut ann, &mut bob);
    let mut carl = joins(&two.server, "news:a");
    let news =
        json!({"topic": "news:a", "event": "say", "payload": {"n": 0}, "allow_unserved": true});
    let body = news.to_string();
    assert_eq!(curl(&one.server, &["/api/broadcast", "-d", &body]), r#"{"taken":1}"#);
    carl.expect("news:a", "say", json!({"n": 0}));
    let unmatched = json!({"reason": "unmatched topic"});
    ann.ask("news:a", "phx_join", json!({}), "error", unmatched);

    one.reloads(&engine, &both);
    talks(&mut ann, &mut bob);
    let mut dan = joins(&one.server, "news:a");
    carl.send("news:a", "say", json!({"n": 1}));
    carl.expect("news:a", "say", json!({"n": 1}));
    dan.expect("news:a", "say", json!({"n": 1}));
    two.reloads(&engine, &both);
    talks(&mut ann, &mut bob);
    for server in [&one.server, &two.server] {
        let answer: Value =
            serde_json::from_str(&curl(server, &["/api/history?topic=room:a"])).unwrap();
        let messages = answer["messages"].as_array().unwrap().iter();
        let kept: Vec<_> = messages.map(|it| it["payload"]["n"].as_u64().unwrap()).collect();
        assert_eq!(kept, (0..said).collect::<Vec<_>>());
    }
    // Streams of histories are made at the start.
    let more = format!("{rooms}{}", channel("news", "history = true\n"));
    let needs = "needs a restart: [[channel]] history\n";
    assert!(two.reloads(&engine, &more).ends_with(needs));
}

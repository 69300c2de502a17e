//! The engine's streams are lost or restored from an old copy: all members are notified.

use std::time::Duration;

use serde_json::{Value, json};

use super::back_end::{
    TOPIC, histories, messages_of, nodes, page, position, publish, publish_surely, texts,
};
use super::member::Member;
use super::operator::{self, STREAM};
use crate::support::engine::{Engine, STORE};
use crate::support::engine::{until, within};
use crate::support::node::Node;

/// Two nodes with a member each, and a disconnected client that has missed a message.
struct Fixture {
    engine: Engine,
    nodes: [Node; 2],
    stay: [Member; 2],
    gone: Member,
}

impl Fixture {
    fn new() -> Self {
        let engine = Engine::start(STORE);
        let nodes = nodes(&engine.address(), ["one", "two"]);
        let stay = [("stays-0", &nodes[0]), ("stays-1", &nodes[1])]
            .map(|(name, node)| Member::joins(name, node, TOPIC));
        let gone = Member::joins("goes", &nodes[0], TOPIC);
        Self { engine, nodes, stay, gone }
    }

    /// Publishes three messages, of which the disconnected client misses the last; returns the
    /// position of the second.
    fn publishes(&self) -> String {
        publish(&self.nodes[0], "lost 0");
        let before = publish(&self.nodes[1], "lost 1");
        self.gone.receives(0, &["lost 0", "lost 1"]);
        self.gone.disconnects();
        publish(&self.nodes[1], "lost 2");
        self.stay.iter().for_each(|it| it.receives(0, &["lost 0", "lost 1", "lost 2"]));
        before
    }

    /// Checks that the history restarted with only these texts, and that all were notified.
    #[track_caller]
    fn is_another(&self, before: &str, left: &[&str]) {
        let Self { nodes, stay, gone, .. } = self;
        let notice = stay.each_ref().map(|it| it.is_notified_of_gap("epoch"));
        for notice in &notice {
            assert_eq!(
                (&*notice.event, &notice.payload["recovered"]),
                ("simurgh:gap", &json!(false))
            );
        }
        let received = gone.texts().len();
        let resumed = gone.resumes_at(&nodes[1]);
        let (event, payload) = (&*resumed.event, &resumed.payload);
        assert_eq!((event, &payload["reason"]), ("simurgh:resumed", &json!("epoch")));
        assert_eq!(payload["recovered"], false);
        gone.receives(received, left);
        for node in nodes {
            let page = page(node, TOPIC, &format!("&since={before}"));
            assert_eq!((&page["recovered"], &page["reason"]), (&json!(false), &json!("epoch")));
            assert_eq!(texts(&messages_of(&page)), left, "{}", node.name);
        }
        let new = ["after 0", "after 1", "after 2", "after 3"];
        for (n, text) in new.into_iter().enumerate() {
            let (node, member) = (&nodes[n / 2], &stay[n / 2]);
            match n % 2 {
                0 => assert_ne!(position(&publish(node, text)).0, position(before).0),
                _ => assert_eq!(member.is_answered(text), "ok"),
            }
        }
        let history = histories(nodes);
        assert_eq!(texts(&history), [left, &new].concat());
        let marks = [
            (&stay[0], notice[0].received),
            (&stay[1], notice[1].received),
            (gone, resumed.received),
        ];
        for (member, received) in marks {
            until(&format!("{} hears what is new", member.name), || {
                (member.texts().last()? == "after 3").then_some(())
            });
            let all = member.received();
            let since = &all.messages[received..];
            assert!(since.len() >= new.len() && history.ends_with(since), "{since:?}");
            assert_eq!(all.wrong, [""; 0], "{}", member.name);
            // No new message was delivered as the successor of an old one.
            let epoch = |at: &str| position(at).0;
            let is_new = |(at, _): &(String, String)| epoch(at) != epoch(before);
            assert_eq!(all.messages.iter().position(is_new), Some(received), "{}", member.name);
        }
        // A client that reconnects now has no gap.
        stay[0].disconnects();
        publish(&nodes[0], "missed");
        let notice = stay[0].resumes_at(&nodes[1]);
        assert_eq!(notice.payload, json!({"recovered": true, "count": 1}));
    }
}

#[test]
#[ignore = "needs nats-server"]
fn restored_old_store_starts_a_new_history_and_notifies_clients() {
    let mut fixture = Fixture::new();
    for n in 0..4 {
        publish(&fixture.nodes[n % 2], &format!("old {n}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let yesterday = directory.path().join("yesterday");
    fixture.engine.kill();
    fixture.engine.copies_store(&yesterday);
    fixture.engine.restart();
    publish_surely(&fixture.nodes[0], "lost 0");
    let before = publish_surely(&fixture.nodes[1], "lost 1");
    let all = ["old 0", "old 1", "old 2", "old 3", "lost 0", "lost 1"];
    fixture.gone.receives(0, &all);
    fixture.gone.disconnects();
    publish_surely(&fixture.nodes[1], "lost 2");
    let all = [&all[..], &["lost 2"]].concat();
    for member in &fixture.stay {
        member.receives(0, &all);
        // The engine's absence caused no gap.
        member.has_no_gap();
    }
    fixture.engine.kill();
    fixture.engine.sets_store_back(&yesterday);
    fixture.engine.restart();
    fixture.is_another(&before, &all[..4]);
}

#[test]
#[ignore = "needs nats-server"]
fn lost_store_starts_a_new_history_and_notifies_clients() {
    let mut fixture = Fixture::new();
    let before = fixture.publishes();
    fixture.engine.kill();
    fixture.engine.lose_store();
    fixture.engine.restart();
    fixture.is_another(&before, &[]);
}

#[test]
#[ignore = "needs nats-server"]
fn recreated_stream_starts_a_new_history_and_notifies_clients() {
    let fixture = Fixture::new();
    let before = fixture.publishes();
    operator::must(fixture.engine.port(), &format!("STREAM.DELETE.{STREAM}"), &Value::Null);
    // The next message has no local members. The other node receives a sequence number that it has
    // seen before, and notifies its members before it delivers later messages.
    publish_surely(&fixture.nodes[0], "finds nobody");
    let noticed = || {
        let received = fixture.stay[1].received();
        received.notices.iter().any(|it| it.payload["reason"] == "epoch").then_some(())
    };
    within(Duration::from_secs(10), "both nodes know", noticed);
    fixture.is_another(&before, &["finds nobody"]);
}

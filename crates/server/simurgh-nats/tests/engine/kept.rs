//! Stored envelopes, while the engine is killed, restored from a copy, emptied, or full.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use simurgh_cluster::adapter::NotStored;
use simurgh_cluster::{Adapter as _, Event};
use simurgh_nats::{Config, Credentials, Permissions, Secret, StreamsConfig};

use crate::support::{Engine, JETSTREAM, Node, operator, prefix};

fn engine() -> Engine {
    Engine::start(JETSTREAM)
}

#[test]
#[ignore = "needs nats-server"]
fn what_was_confirmed_is_there_after_the_engine_was_killed_under_load() {
    let mut engine = engine();
    let keeping = StreamsConfig { count_max: 10_000, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping);
    let epoch = node.keeps();
    let mut tickets = Vec::new();
    for n in 0..1_500 {
        tickets.push((format!("{n}"), node.store("t", &format!("{n}"))));
        if n == 900 {
            engine.kill();
            node.wait("down", |it| !it.is_up);
            engine.restart();
        }
    }
    assert_eq!(node.keeps(), epoch);
    let mut confirmed = Vec::new();
    for (text, ticket) in tickets {
        match node.answer(ticket) {
            Event::Stored { seq, .. } => confirmed.push((seq, text)),
            Event::NotStored { why: NotStored::Unconfirmed, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(confirmed.len() > 900, "{} are confirmed", confirmed.len());
    let kept = node.all("t", false);
    let mut texts: Vec<&String> = kept.iter().map(|it| &it.1).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), kept.len(), "none is there twice");
    for it in &confirmed {
        assert!(kept.contains(it), "{it:?} was confirmed");
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[test]
#[ignore = "needs nats-server"]
fn a_store_that_is_set_back_to_an_old_copy_has_another_epoch_on_every_node() {
    let mut engine = engine();
    let mut one = Node::keeping(1, &engine.address(), StreamsConfig::default());
    let epoch = one.keeps();
    one.stored("t", "old");
    engine.kill();
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    copy(&engine.kept(), &old);
    engine.restart();
    one.wait("down", |it| it.downs.len() == 1);
    assert_eq!(one.keeps(), epoch, "it is what it was");
    for n in 0..5 {
        one.stored("t", &format!("new {n}"));
    }
    engine.kill();
    copy(&old, &engine.kept());
    engine.restart();
    one.wait("down", |it| it.ups == 2 && !it.is_up);
    let other_epoch = one.keeps();
    assert_ne!(other_epoch, epoch);
    assert_eq!(one.all("t", false).len(), 1);
    // A new node, which has not seen the lost messages.
    assert_eq!(Node::keeping(2, &engine.address(), StreamsConfig::default()).keeps(), other_epoch);
    // The new epoch stays.
    engine.kill();
    one.wait("down", |it| it.ups == 3 && !it.is_up);
    engine.restart();
    assert_eq!(one.keeps(), other_epoch);
}

#[test]
#[ignore = "needs nats-server"]
fn a_stream_that_is_made_anew_while_the_link_stands_has_another_epoch() {
    let engine = engine();
    let mut node = Node::keeping(1, &engine.address(), StreamsConfig::default());
    let epoch = node.keeps();
    node.stored("t", "lost");
    operator::must(engine.port, "STREAM.DELETE.P_H0", &Value::Null);
    // The stream has no responder: that is detected, and the stream is created again.
    let ticket = node.store("t", "kept");
    node.wait("another link", |it| it.ups == 2);
    assert_ne!(node.keeps(), epoch);
    assert!(matches!(node.answer(ticket), Event::Stored { is_duplicate: false, .. }));
    let texts: Vec<String> = node.all("t", false).into_iter().map(|it| it.1).collect();
    assert_eq!(texts, ["kept"]);
    let [simurgh_cluster::adapter::Down::Broken(why)] = &node.downs[..] else {
        panic!("{:?}", node.downs);
    };
    assert!(why.contains("P_H0 is not there: stream not found"), "{why}");
}

#[test]
#[ignore = "needs nats-server and root"]
fn what_a_full_disk_does_not_take_is_not_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(directory.path());
    let configuration = format!("jetstream {{ store_dir: {:?} }}", mounted.0);
    let engine = Engine::start(&configuration);
    let keeping = StreamsConfig { count_max: 10_000, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping);
    node.keeps();
    let mut confirmed = Vec::new();
    let mut refused = None;
    for n in 0..2_000 {
        let text = format!("{n:08}{}", "x".repeat(20_000));
        let ticket = node.store_envelope("t", &format!("{n}"), &text);
        match node.answer(ticket) {
            Event::Stored { seq, .. } => confirmed.push((seq, text)),
            other => {
                refused = Some(other);
                break;
            }
        }
    }
    let Some(Event::NotStored { why, .. }) = refused else { panic!("never full: {refused:?}") };
    println!("{} are stored, then {why:?}", confirmed.len());
    assert!(confirmed.len() > 50, "{}", confirmed.len());
    let kept = node.all("t", false);
    assert!(confirmed.iter().all(|it| kept.contains(it)), "one was confirmed, and is not there");
    // The link still serves topics without a history.
    node.wait("up", |it| it.is_up);
    Node::plain(2, &engine.address()).is_of_use();
}

/// A small file system in memory; mounting it needs root.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(directory: &Path) -> Self {
        let path = directory.join("small");
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"])
            .arg(&path)
            .output();
        assert!(mount.is_ok_and(|it| it.status.success()), "only root can mount a file system");
        Self(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn with_permissions(permissions: &Permissions) -> Engine {
    let user = format!("{{ user: \"a\", password: \"b\", {permissions} }}");
    let configuration =
        format!("{JETSTREAM}\naccounts {{ A {{ jetstream: enabled, users = [{user}] }} }}\n");
    Engine::start(&configuration)
}

fn node(engine: &Engine, keeping: StreamsConfig) -> Node {
    let mut config = Config::new(vec![engine.address().parse().unwrap()], prefix(), "test");
    let password = Secret::Text("b".to_owned());
    config.credentials = Credentials::Password { user: "a".to_owned(), password };
    config.streams = Some(keeping);
    Node::start(1, config)
}

fn permissions() -> Permissions {
    let names = StreamsConfig::default().stream_names(&prefix());
    Permissions::of(&prefix(), &names.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
#[ignore = "needs nats-server"]
fn what_is_kept_needs_exactly_the_permissions_that_are_named() {
    let engine = with_permissions(&permissions());
    let few = StreamsConfig { count_max: 10, ..StreamsConfig::default() };
    node(&engine, few).keeps();
    // This one changes the stream.
    let mut node = node(&engine, StreamsConfig::default());
    node.keeps();
    node.want("t");
    let seqs: Vec<u64> = (0..5).map(|n| node.stored("t", &format!("{n}"))).collect();
    node.wait("all", |it| it.stored.len() == 5);
    assert_eq!(node.all("t", false).len(), 5);
    assert_eq!(node.all("t", true).len(), 5);
    assert!(matches!(node.purge("t", seqs[3]), Event::Purged { why: None, .. }));
    assert_eq!(node.all("t", true).len(), 2);
    assert_eq!(node.downs, []);
}

#[test]
#[ignore = "needs nats-server"]
fn a_missing_permission_of_histories_is_named_and_plain_topics_work() {
    for missing in [
        "$JS.API.STREAM.INFO.P_H0",
        "$JS.API.STREAM.CREATE.P_H0",
        "$JS.API.STREAM.MSG.GET.P_H0",
        "$JS.API.DIRECT.GET.P_H0",
        "p.h.>",
        "_INBOX_p.>",
    ] {
        let mut permissions = permissions();
        let all = permissions.publish.len() + permissions.subscribe.len();
        permissions.publish.retain(|it| it != missing);
        permissions.subscribe.retain(|it| it != missing);
        assert_eq!(permissions.publish.len() + permissions.subscribe.len(), all - 1);
        let engine = with_permissions(&permissions);
        let mut node = node(&engine, StreamsConfig::default());
        let why = node.why_nothing_is_kept();
        let named = missing.trim_end_matches('>');
        assert!(why.contains("Permissions Violation") && why.contains(named), "{missing}: {why}");
        node.is_of_use();
    }
}

#[test]
#[ignore = "needs nats-server"]
fn a_change_that_is_not_allowed_is_named() {
    let mut permissions = permissions();
    permissions.publish.retain(|it| !it.contains("UPDATE"));
    let engine = with_permissions(&permissions);
    node(&engine, StreamsConfig { count_max: 10, ..StreamsConfig::default() }).keeps();
    let mut node = node(&engine, StreamsConfig::default());
    let why = node.why_nothing_is_kept();
    assert!(why.contains("Permissions Violation for Publish to \"$JS.API.STREAM.UPDATE"), "{why}");
}

#[test]
#[ignore = "needs nats-server"]
fn a_purge_without_permission_is_refused_and_all_else_works() {
    let mut permissions = permissions();
    permissions.publish.retain(|it| !it.contains("PURGE"));
    let engine = with_permissions(&permissions);
    let mut node = node(&engine, StreamsConfig::default());
    node.keeps();
    let seq = node.stored("t", "id");
    let Event::Purged { why: Some(NotStored::Refused(why)), .. } = node.purge("t", seq + 1) else {
        panic!("it was purged");
    };
    assert!(why.contains("Permissions Violation for Publish to \"$JS.API.STREAM.PURGE"), "{why}");
    node.stored("t", "next");
    assert_eq!(node.all("t", false).len(), 2);
    assert_eq!(node.downs, []);
}

#[test]
#[ignore = "needs nats-server"]
fn an_answer_of_many_pages_is_one() {
    let engine = engine();
    let mut node = Node::keeping(1, &engine.address(), StreamsConfig::default());
    node.keeps();
    let topics: Vec<String> = (0..100).map(|n| format!("t:{n}")).collect();
    // More than fits into a page.
    let large = "x".repeat(60_000);
    let tickets: Vec<_> = topics
        .iter()
        .map(|topic| node.store_envelope(topic, topic, &format!("{topic} {large}")))
        .collect();
    let mut seqs = Vec::new();
    for ticket in tickets {
        let Event::Stored { seq, .. } = node.answer(ticket) else { panic!("not stored") };
        seqs.push(seq);
    }
    let subjects =
        topics.iter().map(|it| prefix().topic(simurgh_cluster::Space::Store, it)).collect();
    let ticket = node.ask(simurgh_cluster::adapter::Fetch::LastOf { subjects });
    let Event::Fetched { kept: Some(kept), .. } = node.answer(ticket) else { panic!("none") };
    let found: Vec<u64> = kept.messages.iter().map(|it| it.stored.unwrap().seq).collect();
    assert_eq!((found, kept.is_all, kept.head), (seqs, true, 100));
}

/// By the clock of the engine, at the time of the request.
#[test]
#[ignore = "needs nats-server"]
fn a_stream_gives_a_bound_of_age_unless_its_size_is_limited() {
    let engine = engine();
    let young = |node: &mut Node, seconds| {
        let subject = prefix().topic(simurgh_cluster::Space::Store, "any");
        let age = Duration::from_secs(seconds);
        let ticket = node.ask(simurgh_cluster::adapter::Fetch::Since { subject, age });
        match node.answer(ticket) {
            Event::Since { behind, .. } => behind,
            other => panic!("{other:?}"),
        }
    };
    let keeping = StreamsConfig { count_max: 3, ..StreamsConfig::default() };
    let mut node = Node::keeping(1, &engine.address(), keeping.clone());
    node.keeps();
    assert_eq!(young(&mut node, 60), Some(0));
    for n in 0..5 {
        node.stored("t", &format!("{n}"));
    }
    assert_eq!(young(&mut node, 60), Some(2), "two were too many");
    assert!(matches!(node.purge("t", 5), Event::Purged { why: None, .. }));
    assert_eq!(young(&mut node, 300), Some(4));
    assert_eq!(young(&mut node, 301), None, "nothing is kept for so long");
    let bounded = StreamsConfig { engine_bytes: Some(1 << 20), ..keeping };
    Node::keeping(2, &engine.address(), bounded).keeps();
    assert_eq!(young(&mut node, 60), None);
}

#[test]
#[ignore = "needs nats-server"]
fn what_a_frozen_engine_does_not_confirm_is_sent_again_and_stored_once() {
    let engine = engine();
    let mut node = Node::keeping(1, &engine.address(), StreamsConfig::default());
    let epoch = node.keeps();
    node.stored("t", "first");
    engine.freeze();
    let tickets: Vec<_> = (0..50).map(|n| node.store("t", &format!("{n}"))).collect();
    node.wait("all sent again", |it| it.adapter.measures().repeated >= 50);
    engine.thaw();
    for ticket in tickets {
        assert!(matches!(node.answer(ticket), Event::Stored { .. }));
    }
    let texts: Vec<String> = node.all("t", true).into_iter().map(|it| it.1).collect();
    let expected: Vec<String> =
        ["first".to_owned()].into_iter().chain((0..50).map(|n| format!("{n}"))).collect();
    assert_eq!(texts, expected, "in the order of the calls, each once");
    assert_eq!(node.kept, Some(epoch));
}

//! The permissions that a node needs, and the reason it reports without one.

use simurgh_cluster::adapter::{Adapter as _, Down};
use simurgh_cluster::{Bucket, Interest, NodeId, Space, Wanted};
use simurgh_nats::{Config, Credentials, Permissions, Secret};

use crate::support::{Engine, Node, prefix};

fn engine(permissions: &str) -> Engine {
    let user = format!("{{ user: \"a\", password: \"b\", {permissions} }}");
    Engine::start(&format!("authorization {{ users = [{user}] }}"))
}

fn node(id: u64, engine: &Engine) -> Node {
    let mut config = Config::new(vec![engine.address().parse().unwrap()], prefix(), "test");
    let password = Secret::Text("b".to_owned());
    config.credentials = Credentials::Password { user: "a".to_owned(), password };
    Node::start(id, config)
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_runs_with_exactly_the_permissions_it_names() {
    let engine = engine(&Permissions::of(&prefix(), &[]).to_string());
    let (mut one, mut other) = (node(1, &engine), node(2, &engine));
    let all = [
        Interest::Nodes,
        Interest::Node(NodeId(2)),
        Interest::Exact(Space::Broadcast, "odd topic.*.>".into()),
        Interest::Exact(Space::Presence, "odd topic.*.>".into()),
        Interest::Whole(Space::Broadcast, Bucket::new(0x123)),
        Interest::Whole(Space::Presence, Bucket::new(0xfff)),
    ];
    let generation = other.adapter.interest(&all.map(|it| (it, Wanted::Yes)));
    other.wait("all in force", |it| it.in_force >= generation);
    one.wait("up", |it| it.is_up);
    let topic = "odd topic.*.>";
    let subjects = [
        prefix().topic(Space::Broadcast, topic),
        prefix().topic(Space::Presence, topic),
        prefix().nodes(),
        prefix().node(NodeId(2)),
    ];
    for subject in &subjects {
        one.adapter.publish(subject, vec![1; 20].into()).unwrap();
    }
    one.wait("nothing under way", |it| it.adapter.in_flight() == 0);
    other.wait("all four", |it| it.received.len() == subjects.len());
    assert_eq!((one.downs, other.downs), (vec![], vec![]));
}

#[test]
#[ignore = "needs nats-server"]
fn a_permission_that_is_missing_is_named() {
    let permissions = "permissions { publish = [\"p.p.>\"], subscribe = [\"p.n\"] }";
    let engine = engine(permissions);
    let mut listens = node(1, &engine);
    listens.wait("up", |it| it.is_up);
    let interest = Interest::Exact(Space::Broadcast, "a".into());
    listens.adapter.interest(&[(interest, Wanted::Yes)]);
    let Down::Refused(why) = listens.why_down() else { panic!("{:?}", listens.downs) };
    assert!(why.contains("Permissions Violation for Subscription to \"p.b."), "{why}");

    let mut publishes = node(2, &engine);
    publishes.wait("up", |it| it.is_up);
    publishes.publish("a", 1);
    let Down::Refused(why) = publishes.why_down() else { panic!("{:?}", publishes.downs) };
    assert!(why.contains("Permissions Violation for Publish to \"p.b."), "{why}");
}

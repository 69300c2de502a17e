//! The reason that a node reports if a permission is missing.

use simurgh_cluster::adapter::{Adapter as _, Down};
use simurgh_cluster::{Interest, Space, Wanted};
use simurgh_nats::{Config, Credentials, Secret};

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
fn missing_permission_is_reported() {
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

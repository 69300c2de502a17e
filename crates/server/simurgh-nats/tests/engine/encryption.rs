//! TLS of links, with a test authority.

use std::path::Path;

use simurgh_cluster::adapter::{Adapter as _, Down};
use simurgh_nats::{Config, Identity, Tls};
use tempfile::TempDir;

use crate::support::authority::Authority;
use crate::support::{Engine, Node, prefix};

fn engine(more: &str) -> (Engine, Authority, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "authority");
    let (certificate, key) = authority.sign("server");
    let configuration = format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {:?}, {more} }}",
        authority.file
    );
    (Engine::start_at("127.0.0.1", &configuration), authority, directory)
}

fn config(address: &str, tls: Tls) -> Config {
    let mut config = Config::new(vec![address.parse().unwrap()], prefix(), "test");
    config.tls = tls;
    config
}

fn with_ca(path: &Path) -> Tls {
    Tls { ca: Some(path.into()), ..Tls::default() }
}

#[test]
#[ignore = "needs nats-server"]
fn link_is_encrypted_with_a_private_authority() {
    let (engine, authority, _directory) = engine("");
    for address in [engine.address(), format!("tls://localhost:{}", engine.port())] {
        let mut one = Node::start(1, config(&address, with_ca(&authority.file)));
        let mut other = Node::start(2, config(&address, with_ca(&authority.file)));
        one.is_of_use();
        other.want("t");
        one.publish("t", 2_000);
        one.wait("nothing under way", |it| it.adapter.in_flight() == 0);
        other.wait("all of them", |it| it.received.len() == 2_000);
        assert_eq!(other.numbers(), (2..=2_001).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "needs nats-server"]
fn server_of_another_authority_is_not_trusted() {
    let (engine, _authority, directory) = engine("");
    let stranger = Authority::new(directory.path(), "stranger");
    // Mozilla's list has no signature for it either.
    for tls in [with_ca(&stranger.file), Tls::default()] {
        let mut node = Node::start(1, config(&engine.address(), tls));
        let Down::Broken(why) = node.why_down() else { panic!("{:?}", node.downs) };
        assert!(why.contains("TLS: invalid peer certificate: UnknownIssuer"), "{why}");
    }
}

#[test]
#[ignore = "needs nats-server"]
fn node_sends_a_certificate_if_the_broker_requires_one() {
    let (engine, authority, _directory) = engine("verify: true");
    let (certificate, key) = authority.sign("node");
    let mut tls = with_ca(&authority.file);
    let mut node = Node::start(1, config(&engine.address(), tls.clone()));
    let Down::Broken(why) = node.why_down() else { panic!("{:?}", node.downs) };
    assert!(why.contains("alert") || why.contains("closed") || why.contains("reset"), "{why}");
    tls.identity = Some(Identity { certificate, key });
    Node::start(2, config(&engine.address(), tls)).is_of_use();
}

#[test]
#[ignore = "needs nats-server"]
fn tls_can_precede_info() {
    let (engine, authority, _directory) = engine("handshake_first: true");
    let tls = Tls { is_first: true, ..with_ca(&authority.file) };
    Node::start(1, config(&engine.address(), tls)).is_of_use();
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_that_requires_tls_never_connects_without() {
    let engine = Engine::start("");
    let required = Tls { is_required: true, ..Tls::default() };
    let address = format!("tls://{}", engine.address());
    for config in [config(&engine.address(), required), config(&address, Tls::default())] {
        let mut node = Node::start(1, config);
        let Down::Refused(why) = node.why_down() else { panic!("{:?}", node.downs) };
        assert!(why.contains("this node requires TLS, but the server does not offer it"), "{why}");
    }
}

#[test]
#[ignore = "needs nats-server"]
fn missing_file_is_reported() {
    let (engine, authority, directory) = engine("");
    let missing = directory.path().join("missing.pem");
    let identity = Identity { certificate: authority.file.clone(), key: missing.clone() };
    let with_identity = Tls { identity: Some(identity), ..with_ca(&authority.file) };
    for tls in [with_ca(&missing), with_identity] {
        let mut node = Node::start(1, config(&engine.address(), tls));
        let Down::Refused(why) = node.why_down() else { panic!("{:?}", node.downs) };
        assert!(why.contains("missing.pem: No such file"), "{why}");
    }
}

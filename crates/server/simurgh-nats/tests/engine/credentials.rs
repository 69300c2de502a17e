//! Credentials of a node: each kind, right and wrong.

use std::fs;

use serde_json::json;
use simurgh_cluster::adapter::Down;
use simurgh_nats::{Config, Credentials, Secret};

use crate::support::jwt::Key;
use crate::support::{Engine, Node, prefix};

fn config(engine: &Engine, credentials: Credentials) -> Config {
    let mut config = Config::new(vec![engine.address().parse().unwrap()], prefix(), "test");
    config.credentials = credentials;
    config
}

fn secret(text: &str) -> Secret {
    Secret::Text(text.to_owned())
}

/// Checks that a node is refused with the same reason each time, and that its error has no secret.
#[track_caller]
fn is_refused(engine: &Engine, credentials: Credentials, hidden: &str) {
    let mut node = Node::start(1, config(engine, credentials));
    let down = node.why_down();
    let Down::Refused(why) = &down else { panic!("{down:?}") };
    assert!(why.contains("Authorization Violation"), "{why}");
    let shown = format!("{down} {down:?} {:?}", node.adapter);
    assert!(!shown.contains(hidden), "{shown}");
    node.pass(std::time::Duration::from_millis(700));
    assert_eq!(node.downs, [down]);
    assert_eq!(node.ups, 0);
}

#[test]
#[ignore = "needs nats-server"]
fn password_is_sent_and_a_wrong_one_is_reported() {
    let configuration = r#"authorization { users = [{ user: "kane", password: "rosebud" }] }"#;
    let engine = Engine::start(configuration);
    let password = |text| Credentials::Password { user: "kane".to_owned(), password: secret(text) };
    Node::start(1, config(&engine, password("rosebud"))).is_of_use();
    is_refused(&engine, password("sled-of-wood"), "sled-of-wood");
    is_refused(&engine, Credentials::None, "rosebud");
}

#[test]
#[ignore = "needs nats-server"]
fn secret_file_is_read_for_each_link() {
    let configuration = r#"authorization { token: "rosebud" }"#;
    let engine = Engine::start(configuration);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let mut node = Node::start(1, config(&engine, Credentials::Token(Secret::File(file.clone()))));
    let Down::Refused(why) = node.why_down() else { panic!("{:?}", node.downs) };
    assert!(why.contains("token: No such file"), "{why}");
    fs::write(&file, "wrong").unwrap();
    node.wait("another reason", |it| it.downs.len() == 2);
    fs::write(&file, "rosebud\n").unwrap();
    node.wait("up", |it| it.is_up);
}

#[test]
#[ignore = "needs nats-server"]
fn token_is_sent() {
    let engine = Engine::start(r#"authorization { token: "rosebud" }"#);
    Node::start(1, config(&engine, Credentials::Token(secret("rosebud")))).is_of_use();
    is_refused(&engine, Credentials::Token(secret("sled-of-wood")), "sled-of-wood");
}

#[test]
#[ignore = "needs nats-server"]
fn nkey_signs_and_stays_on_the_node() {
    let user = Key::user(7);
    let configuration = format!("authorization {{ users = [{{ nkey: {} }}] }}", user.public());
    let engine = Engine::start(&configuration);
    Node::start(1, config(&engine, Credentials::Nkey(secret(&user.seed())))).is_of_use();
    let other = Key::user(8).seed();
    is_refused(&engine, Credentials::Nkey(secret(&other)), &other);
    let mut node = Node::start(2, config(&engine, Credentials::Nkey(secret("SUXX"))));
    let Down::Refused(why) = node.why_down() else { panic!("{:?}", node.downs) };
    assert!(why.contains("the nkey's seed is invalid"), "{why}");
    assert!(!engine.log().contains(&user.seed()));
}

#[test]
#[ignore = "needs nats-server"]
fn creds_file_is_used() {
    let (operator, account, user) = (Key::operator(1), Key::account(2), Key::user(3));
    let of_operator = json!({ "type": "operator", "version": 2 });
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1,
    });
    let of_account = json!({ "type": "account", "version": 2, "limits": limits });
    let of_user = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    let configuration = format!(
        "operator: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {} }}\n",
        operator.token(&operator, "operator", of_operator),
        account.public(),
        operator.token(&account, "account", of_account),
    );
    let engine = Engine::start(&configuration);
    let creds = |token: &str, key: &Key| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            key.seed()
        )
    };
    let token = account.token(&user, "user", of_user);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("user.creds");
    fs::write(&file, creds(&token, &user)).unwrap();
    Node::start(1, config(&engine, Credentials::Creds(Secret::File(file)))).is_of_use();
    let other = Key::user(4);
    is_refused(&engine, Credentials::Creds(secret(&creds(&token, &other))), &other.seed());
}

//! The list of blocks and revocations over restarts (B80): in `state_dir`, and from other nodes.

use std::fs;

use serde_json::json;
use simurgh::Endpoint;

use crate::api_access::{refusal, user};
use crate::api_orders::{builder, client, order};
use crate::support::nodes::Engine;
use crate::support::{start, until};

fn block(endpoint: &Endpoint, name: &str) {
    assert_eq!(order(endpoint, "block", &json!({ "user": name })).0, 200);
}

#[test]
fn block_list_survives_a_crash_in_the_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let started = || {
        let state_dir = Some(dir.path().to_owned());
        start(builder().configure(|config| config.state_dir = state_dir))
    };
    let one = started();
    block(&one, "ann");
    block(&one, "bob");
    assert_eq!(order(&one, "revoke", &json!({"user": "eve"})).0, 200);
    assert_eq!(order(&one, "unblock", &json!({"user": "bob"})).0, 200);
    one.stop();
    let two = started();
    let refused = ["ann", "bob", "eve"].map(|name| refusal(&two, &user(name)));
    assert_eq!(refused, [Some("blocked".to_owned()), None, Some("revoked".to_owned())]);
    two.stop();
    fs::write(dir.path().join("blocks.jsonl"), "damaged").unwrap();
    let three = started();
    assert_eq!(refusal(&three, &user("ann")), None, "it starts with an empty list");
    block(&three, "ann");
    three.stop();
    assert!(refusal(&started(), &user("ann")).is_some());
}

#[test]
fn restarted_node_takes_over_the_block_list_of_another() {
    let engine = Engine::start();
    let one = start(engine.node(builder(), "one"));
    let two = start(engine.node(builder(), "two"));
    let (_here, _there) = (client(&one, "a"), client(&two, "b"));
    crate::api_lists::know_each_other(&one, &two);
    block(&two, "ann");
    two.stop();
    block(&one, "bob");
    let two = start(engine.node(builder(), "two"));
    for name in ["ann", "bob"] {
        until("the list of the other node", || refusal(&two, &user(name)).is_some());
    }
}

//! Rows 86–91 of PROTOCOL §14: presence, as members see it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wire_tests::{Client, Head, Msg, Raw, Server, Vsn, both, frame, opcode, unique};

/// A member that has been told all of its own join: the join_ref, its own `phx_ref`.
#[track_caller]
fn member(server: &Server, vsn: Vsn, topic: &str, user: &str) -> (Client, String, String) {
    let mut client = Client::open(server, vsn);
    let join_ref = client.join(topic, json!({"user": user}));
    let diff = presence(&mut client, topic, "presence_diff");
    let metas = diff["joins"][user]["metas"].as_array().expect("the own entry").clone();
    let own = phx_ref(metas.last().expect("one meta"));
    presence(&mut client, topic, "presence_state");
    (client, join_ref, own)
}

/// The payload of the next message, which is this event of this topic.
#[track_caller]
fn presence(client: &mut Client, topic: &str, event: &str) -> Value {
    let message = client.recv();
    assert_eq!((&*message.topic, &*message.event), (topic, event), "{}", message.raw);
    assert_eq!(message.msg_ref, Value::Null, "{}", message.raw);
    message.payload
}

/// The ref of a meta, which has 16 characters of base64url.
#[track_caller]
fn phx_ref(meta: &Value) -> String {
    let phx_ref = meta["phx_ref"].as_str().unwrap_or_else(|| panic!("no phx_ref in {meta}"));
    let is_base64url = |c: char| c.is_ascii_alphanumeric() || "-_=".contains(c);
    assert!(phx_ref.len() == 16 && phx_ref.chars().all(is_base64url), "{phx_ref}");
    phx_ref.to_owned()
}

/// The one meta of the one key of a part of a diff.
#[track_caller]
fn only(part: &Value, key: &str) -> Value {
    let entries = part.as_object().expect("an object");
    assert_eq!(entries.keys().collect::<Vec<_>>(), [key], "{part}");
    let metas = entries[key]["metas"].as_array().expect("a list");
    assert_eq!(metas.len(), 1, "{part}");
    metas[0].clone()
}

/// Row 86. both; presence join: presence_state push with own entry and phx_ref.
#[test]
fn row_86_newcomer_receives_the_list_including_itself() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("presence:room");
        let mut client = Client::open(&server, vsn);
        let join_ref = client.join(&topic, json!({"user": "ann"}));
        let diff: Msg = client.recv();
        let meta = only(&diff.payload["joins"], "ann");
        let online_at = meta["online_at"].as_str().expect("a text");
        assert!(online_at.parse::<u64>().expect("seconds") > 1_500_000_000, "{online_at}");
        let own = json!({"ann": {"metas": [{"online_at": online_at, "phx_ref": phx_ref(&meta)}]}});
        diff.expect_broadcast(&topic, "presence_diff", json!({"joins": own, "leaves": {}}));
        client.recv().expect(&*join_ref, (), &topic, "presence_state", own);
        client.expect_quiet();
    });
}

/// Row 87. Member present; a newcomer: presence_diff joins, leaves `{}`, refs null.
#[test]
fn row_87_members_receive_the_diff_of_a_newcomer() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("presence:room");
        let (mut ann, _, ann_ref) = member(&server, vsn, &topic, "ann");
        let mut bob = Client::open(&server, vsn);
        let join_ref = bob.join(&topic, json!({"user": "bob"}));
        let diff = ann.recv();
        let meta = only(&diff.payload["joins"], "bob");
        let told = json!({"joins": {"bob": {"metas": [meta]}}, "leaves": {}});
        diff.expect_broadcast(&topic, "presence_diff", told.clone());
        // The newcomer hears it too, and then has both in its list.
        bob.recv().expect_broadcast(&topic, "presence_diff", told);
        let state = bob.recv();
        let ann_meta = state.payload["ann"]["metas"][0].clone();
        assert_eq!(phx_ref(&ann_meta), ann_ref);
        let list = json!({"ann": {"metas": [ann_meta]}, "bob": {"metas": [meta]}});
        state.expect(&*join_ref, (), &topic, "presence_state", list);
        ann.expect_quiet();
        bob.expect_quiet();
    });
}

/// Row 88. Same key twice; one leaves: only its meta leaves.
#[test]
fn row_88_leave_removes_one_of_two_metas_of_a_key() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("presence:room");
        let (mut desk, _, desk_ref) = member(&server, vsn, &topic, "ann");
        let (mut phone, _, phone_ref) = member(&server, vsn, &topic, "ann");
        assert_ne!(desk_ref, phone_ref);
        presence(&mut desk, &topic, "presence_diff");
        phone.push(&topic, "phx_leave", json!({}));
        let diff = presence(&mut desk, &topic, "presence_diff");
        assert_eq!(diff["joins"], json!({}));
        assert_eq!(phx_ref(&only(&diff["leaves"], "ann")), phone_ref);
        // Whoever comes then finds the other one.
        let mut newcomer = Client::open(&server, vsn);
        newcomer.join(&topic, json!({"user": "bob"}));
        presence(&mut newcomer, &topic, "presence_diff");
        let state = presence(&mut newcomer, &topic, "presence_state");
        let metas = state["ann"]["metas"].as_array().expect("a list");
        assert_eq!(metas.iter().map(phx_ref).collect::<Vec<_>>(), [desk_ref]);
    });
}

/// Row 89. Tracked; update: one diff with the new meta, phx_ref_prev, and the old one in leaves.
#[test]
fn row_89_an_update_is_one_diff() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("presence:room");
        let (mut ann, _, _) = member(&server, vsn, &topic, "ann");
        let (mut bob, _, old_ref) = member(&server, vsn, &topic, "bob");
        presence(&mut ann, &topic, "presence_diff");
        bob.ask(&topic, "status", json!({"status": "away ☕"}), "ok", json!({}));
        for client in [&mut ann, &mut bob] {
            let diff = presence(client, &topic, "presence_diff");
            let (new, old) = (only(&diff["joins"], "bob"), only(&diff["leaves"], "bob"));
            assert_eq!(phx_ref(&old), old_ref);
            assert_eq!(old.get("status"), None);
            assert_ne!(phx_ref(&new), old_ref);
            assert_eq!(new["phx_ref_prev"], json!(old_ref));
            assert_eq!((&new["status"], &new["online_at"]), (&json!("away ☕"), &old["online_at"]));
            client.expect_quiet();
        }
    });
}

/// Row 90. Tracked; TCP reset: leave diff.
#[test]
fn row_90_connection_reset_removes_presences() {
    let server = Server::shared_conformance();
    let topic = unique("presence:room");
    let (mut ann, _, _) = member(&server, Vsn::V2, &topic, "ann");
    let mut raw = Raw::connect(server.addr());
    let upgraded = raw.request(&Head::upgrade("/socket/websocket?vsn=2.0.0"));
    assert_eq!(upgraded.status, 101);
    let join = json!(["1", "1", topic, "phx_join", {"user": "bob"}]).to_string();
    raw.send_frame(&frame(opcode::TEXT, join));
    let joined = presence(&mut ann, &topic, "presence_diff");
    let bob_ref = phx_ref(&only(&joined["joins"], "bob"));
    raw.reset();
    let diff = presence(&mut ann, &topic, "presence_diff");
    assert_eq!(diff["joins"], json!({}));
    assert_eq!(phx_ref(&only(&diff["leaves"], "bob")), bob_ref);
    ann.expect_quiet();
}

/// Row 91. Keys `__proto__`, `constructor`, é, and more: ordinary keys; numbers are texts.
#[test]
fn row_91_unusual_presence_keys_work() {
    let server = Server::shared_conformance();
    let keys = ["__proto__", "constructor", "é", "", "metas", "a\"b\\c\u{1}", "toString", "7"];
    both(|vsn| {
        let topic = unique("presence:room");
        let (mut members, mut state): (Vec<Client>, Value) = (Vec::new(), Value::Null);
        for key in keys {
            let mut client = Client::open(&server, vsn);
            let user = if key == "7" { json!(7) } else { json!(key) };
            client.join(&topic, json!({"user": user}));
            let diff = presence(&mut client, &topic, "presence_diff");
            only(&diff["joins"], key);
            for other in &mut members {
                assert_eq!(presence(other, &topic, "presence_diff"), diff);
            }
            state = presence(&mut client, &topic, "presence_state");
            members.push(client);
        }
        let named: BTreeSet<_> = state.as_object().expect("an object").keys().collect();
        assert_eq!(named.iter().map(|key| &***key).collect::<BTreeSet<_>>(), BTreeSet::from(keys));
        for (key, entry) in state.as_object().expect("an object") {
            only(&json!({key: entry}), key);
        }
    });
}

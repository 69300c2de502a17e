//! A server reports members and users, whose ends have reasons.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use simurgh_core::SightingSink;
use simurgh_notices::{HookRule, Kind, Settings, Sighting};

use crate::api_orders::{builder, client, order};
use crate::support::{Client, start, until};

#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Vec<Sighting>>>);

impl Reported {
    /// The next report: begin or reason, kind, topic, user.
    fn next(&self) -> (&'static str, Kind, String, String) {
        until("something is reported", || !self.0.lock().unwrap().is_empty());
        let Sighting { key, ended } = self.0.lock().unwrap().remove(0);
        let what = ended.map_or("begins", |why| why.name());
        (what, key.kind(), key.topic().to_owned(), key.user().to_owned())
    }

    fn next_of(&self, what: &str, kind: Kind, topic: &str, user: &str) {
        let (is, of, on, by) = self.next();
        assert_eq!((is, of, &*on, &*by), (what, kind, topic, user));
    }
}

/// B43: each way in which a back end or a client ends a membership has its reason.
#[test]
fn members_and_users_are_reported_with_the_reason_of_their_end() {
    let types = HookRule::bit(Kind::User, false) | HookRule::bit(Kind::Member, true);
    let hooks = vec![HookRule::new("app", types)];
    let reported = Reported::default();
    let to = reported.clone();
    let sink = SightingSink {
        settings: Arc::new(Settings { hooks, ..Settings::default() }),
        take: Arc::new(move |seen| to.0.lock().unwrap().extend(seen)),
    };
    let endpoint = start(builder().configure(|config| config.sighting_sink = Some(sink)));

    let mut ann = client(&endpoint, "ann");
    reported.next_of("begins", Kind::User, "", "ann");
    ann.join("a");
    reported.next_of("begins", Kind::Member, "a", "ann");
    ann.push("2", "a", "phx_leave", json!({}));
    reported.next_of("left", Kind::Member, "a", "ann");
    ann.recv();
    ann.recv();
    let ends: [(&str, Value, &str); 5] = [
        ("kick", json!({"user": "ann", "topic": "a", "rejoin": true}), "kicked"),
        ("kick", json!({"user": "ann", "topic": "a"}), "kicked"),
        ("disconnect", json!({"user": "ann"}), "kicked"),
        ("revoke", json!({"user": "ann", "issued_before": 9_999_999_999_u64}), "blocked"),
        ("block", json!({"user": "bob"}), "blocked"),
    ];
    let mut user = "ann";
    for (verb, body, why) in ends {
        ann.join("a");
        reported.next_of("begins", Kind::Member, "a", user);
        assert_eq!(order(&endpoint, verb, &body).1["closed"], 1, "{verb}");
        let is_over = verb != "kick";
        if is_over {
            reported.next_of(why, Kind::User, "", user);
            assert_eq!(ann.recv_close(), 1001);
        } else {
            ann.recv();
        }
        reported.next_of(why, Kind::Member, "a", user);
        if is_over && verb != "block" {
            user = if verb == "revoke" { "bob" } else { "ann" };
            ann = client(&endpoint, user);
            reported.next_of("begins", Kind::User, "", user);
        }
    }
    without_user(&endpoint, &reported);
    endpoint.drain().unwrap();
    assert!(reported.0.lock().unwrap().is_empty(), "each end once");
}

/// B40: the key is the id of the connection, as the API shows it.
fn without_user(endpoint: &simurgh::Endpoint, reported: &Reported) {
    let mut nobody = Client::v2(endpoint);
    nobody.join("a");
    let (what, kind, topic, connection) = reported.next();
    assert_eq!((what, kind, &*topic, connection.len()), ("begins", Kind::Member, "a", 24));
    let closed = order(endpoint, "disconnect", &json!({"connection": connection}));
    assert_eq!(closed.1["closed"], 1);
    reported.next_of("kicked", Kind::Member, "a", &connection);
    let mut gone = Client::v2(endpoint);
    gone.join("a");
    let (_, _, _, connection) = reported.next();
    drop(gone);
    reported.next_of("closed", Kind::Member, "a", &connection);
}

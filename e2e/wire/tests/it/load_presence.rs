//! What the load generator measures of presence, against the conformance application.

use crate::ran::{Ran, of, run, run_with};
use simurgh_load::record::{Count, Metric};
use wire_tests::{Server, Vsn, both, unique};

const USERS: u64 = 10;

fn protocol(vsn: Vsn) -> &'static str {
    match vsn {
        Vsn::V1 => "phoenix-v1",
        Vsn::V2 => "phoenix",
    }
}

#[track_caller]
fn users_do(server: &Server, vsn: Vsn, steps: &str) -> Ran {
    let steps = format!("steps = [{{ connect = \"/socket/websocket\" }}, {steps}]");
    run(&of(server.addr(), USERS as u32, protocol(vsn), "", &steps))
}

/// A join under a key that the load generator is told of, or not.
fn join(topic: &str, key: &str, told: bool) -> String {
    let told = if told { format!(", presence = \"{key}\"") } else { String::new() };
    format!("{{ join = \"{topic}\", payload = {{ user = \"{key}\" }}{told} }}")
}

#[test]
fn each_join_is_timed_until_its_presence_list() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("presence:load");
        let join = join(&topic, "é\\\"{{user_id}}", true);
        let wait = "{ wait = { presence = \"state\", key = \"é\\\"{{user_id}}\" } }";
        let ran = users_do(&server, vsn, &format!("{join}, {wait}, {{ close = true }}"));
        ran.errors_are(&[]);
        ran.users_are(USERS, 0);
        assert_eq!(ran.timed(Metric::PresenceState), USERS, "{}", ran.text());
        assert_eq!(ran.count(Count::PresenceStates), USERS);
        // The own entry comes before the list, so each was told at least of itself.
        let told = ran.timed(Metric::PresenceDiff);
        assert!((USERS..=USERS * USERS).contains(&told), "{}", ran.text());
    });
}

#[test]
fn a_join_and_a_leave_are_timed_at_every_member() {
    let server = Server::shared_conformance();
    both(|vsn| {
        let topic = unique("presence:load");
        // Only the comer's presence is followed. It comes when all are there, and stays for 2 s.
        let wait = |list: &str| {
            format!(
                "{{ wait = {{ presence = \"{list}\", key = \"comer\", topic = \"{topic}\" }} }}"
            )
        };
        let text = format!(
            "[target]\nurl = \"ws://{}\"\n\
             [[phase]]\nduration = \"100ms\"\nrate = 100\nweights = {{ comer = 0 }}\n\
             [[appointment]]\nat = \"100ms\"\nsession = \"comer\"\n\
             [[session]]\nname = \"member\"\nprotocol = \"{protocol}\"\nsteps = [\
               {{ connect = \"/socket/websocket\" }}, {stays}, {{ gather = 11 }}, \
               {joins}, {leaves}, {{ close = true }}]\n\
             [[session]]\nname = \"comer\"\nprotocol = \"{protocol}\"\nsteps = [\
               {{ connect = \"/socket/websocket\" }}, {{ gather = 11 }}, {comes}, {joins}, \
               {{ think = \"2s\" }}, {{ leave = \"{topic}\", presence = \"comer\" }}, \
               {{ close = true }}]\n",
            server.addr(),
            protocol = protocol(vsn),
            stays = join(&topic, "member{{user_id}}", false),
            comes = join(&topic, "comer", true),
            joins = wait("joins"),
            leaves = wait("leaves"),
        );
        let ran = run_with(&text, 3);
        ran.errors_are(&[]);
        ran.users_are(USERS + 1, 0);
        // The join is told to all and the comer, the leave to all but the comer.
        let times = ran.record.times(Metric::PresenceDiff).unwrap();
        assert_eq!(times.count(), USERS + 1 + USERS, "{}", ran.text());
        assert!(times.max() < 1_500_000, "from the leave, not from the join: {} µs", times.max());
        assert_eq!(ran.timed(Metric::PresenceState), 1, "{}", ran.text());
    });
}

#[test]
fn presence_update_is_timed_if_the_push_declares_it() {
    let server = Server::shared_conformance();
    both(|vsn| {
        for (told, times) in [(", presence = \"one\"", 2), ("", 1)] {
            // Each user is alone at its topic.
            let topic = unique("presence:load") + "-{{user_id}}";
            let join = join(&topic, "one", true);
            let steps = format!(
                "{join}, {{ wait = {{ event = \"presence_state\" }} }}, \
                 {{ push = \"status\", payload = {{ status = \"away\" }}{told} }}, \
                 {{ wait = {{ presence = \"leaves\", key = \"one\" }} }}, {{ close = true }}"
            );
            let ran = users_do(&server, vsn, &steps);
            ran.errors_are(&[]);
            ran.users_are(USERS, 0);
            assert_eq!(ran.timed(Metric::PresenceDiff), times * USERS, "{}", ran.text());
            assert_eq!(ran.count(Count::PresenceDiffs), 2 * USERS, "{}", ran.text());
        }
    });
}

//! Which members receive which presences, when, and what is left afterwards.

mod bounds;
mod held_leaves;
mod peers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use simurgh_channel::{PresenceCall, PresenceConfig};
use simurgh_data::Key;
use simurgh_presence::{Meta, Owner};
use simurgh_proto::message::Payload;

use crate::presence::home::{Home, MemberCall};
use crate::presence::output::Output;
use crate::testing::*;
use crate::*;

const BOTH: &str = "presence_state presence_summary";
const INTERVAL: Duration = Duration::from_millis(50);

/// Tracks joining clients under the topic's second word, and does what events request.
fn present() -> Scripted {
    scripted(|ctx, heard| {
        let (event, payload) = match heard {
            ChannelCall::In(event, payload) => (event, payload.into_owned()),
            _ => return Outcome::NoReply,
        };
        let text = || payload.parse::<String>().unwrap();
        let result = match event {
            "track" => ctx.presence().track(&text(), Payload::from_json(r#"{"at":1}"#)),
            "meta" => ctx.presence().track("k", payload),
            "with" => ctx.presence().track_with("k", Payload::from_json("{}"), payload),
            "update" => ctx.presence().update(&text(), Payload::from_json(r#"{"at":2}"#)),
            "untrack" => {
                ctx.presence().untrack(&text());
                Ok(())
            }
            "state" => {
                ctx.presence().push_state();
                Ok(())
            }
            _ => return Outcome::unknown_event(),
        };
        match result {
            Ok(()) => Outcome::NoReply,
            Err(error) => Outcome::error(Payload::from_json(format!("{:?}", error.to_string()))),
        }
    })
}

fn test_shard(presence: PresenceConfig) -> TestShard {
    let config = Config { presence, ..Config::default() };
    TestShard::with(config, vec![present().user_socket()])
}

fn turn(it: &mut TestShard) {
    it.advances(Duration::from_nanos(1));
    it.handles_mail();
    it.core.tick(&mut it.out);
    it.handles_mail();
    it.fans_out();
}

fn turn_after(it: &mut TestShard, time: Duration) {
    it.advances(time);
    turn(it);
}

fn sends(it: &mut TestShard, key: Key, event: &str, payload: &str) {
    it.sends(key, &format!(r#"[1,9,"t","{event}",{payload}]"#));
}

/// A member sends this, and what it changes is told.
fn says(it: &mut TestShard, key: Key, event: &str, payload: &str) {
    sends(it, key, event, payload);
    turn(it);
}

#[derive(Default)]
struct Client {
    metas: BTreeMap<String, Vec<Value>>,
    heard: Vec<&'static str>,
}

impl Client {
    fn receives_after(&mut self, it: &mut TestShard, key: Key, time: Duration) {
        turn_after(it, time);
        self.receives(it, key);
    }

    fn receives(&mut self, it: &mut TestShard, key: Key) {
        for text in it.receives(key) {
            let message: Value = serde_json::from_str(&text).unwrap();
            match message[3].as_str().unwrap() {
                "presence_state" => {
                    self.heard.push("state");
                    self.metas = metas(&message[4]);
                }
                "presence_diff" => {
                    self.heard.push("diff");
                    self.apply(&message[4]);
                }
                other => panic!("{other}: {text}"),
            }
        }
    }

    fn apply(&mut self, diff: &Value) {
        let refs = |part: &Value| -> Vec<Value> {
            metas(part).into_values().flatten().map(|meta| meta["phx_ref"].clone()).collect()
        };
        let (joins, leaves) = (refs(&diff["joins"]), refs(&diff["leaves"]));
        assert!(joins.iter().all(|it| !leaves.contains(it)), "{diff}");
        for (key, new) in metas(&diff["joins"]) {
            let all = self.metas.entry(key).or_default();
            all.retain(|it| !new.iter().any(|new| new["phx_ref"] == it["phx_ref"]));
            all.extend(new);
        }
        for (key, old) in metas(&diff["leaves"]) {
            let all = self.metas.entry(key).or_default();
            all.retain(|it| !old.iter().any(|old| old["phx_ref"] == it["phx_ref"]));
        }
        self.metas.retain(|_, metas| !metas.is_empty());
    }

    fn keys(&self) -> Vec<&str> {
        self.metas.keys().map(String::as_str).collect()
    }
}

fn metas(part: &Value) -> BTreeMap<String, Vec<Value>> {
    let all = part.as_object().unwrap().iter();
    all.map(|(key, it)| (key.clone(), it["metas"].as_array().unwrap().clone())).collect()
}

fn heard(it: &mut TestShard, key: Key) -> Vec<String> {
    let event = |text: String| serde_json::from_str::<Value>(&text).unwrap()[3].to_string();
    it.receives(key).into_iter().map(event).collect()
}

fn heard_after(it: &mut TestShard, key: Key, time: Duration) -> Vec<String> {
    turn_after(it, time);
    heard(it, key)
}

/// Its own entry is in the list, behind the diff that all others receive.
#[test]
fn tracked_member_gets_its_diff_and_is_in_the_list() {
    let (mut it, [key]) = test_shard(PresenceConfig::default()).members();
    sends(&mut it, key, "track", r#""a""#);
    says(&mut it, key, "state", "0");
    let texts = it.receives(key);
    assert!(texts[0].starts_with(r#"[null,null,"t","presence_diff",{"joins":{"a":{"metas":[{"#));
    assert!(texts[0].ends_with(r#"},"leaves":{}}]"#), "both are always there: {}", texts[0]);
    assert!(texts[1].starts_with(r#"[1,null,"t","presence_state",{"a":{"metas":[{"at":1,"phx"#));
    assert_eq!(texts.len(), 2);
}

/// PROTOCOL §10.
#[test]
fn members_agree_on_presences_after_any_changes() {
    let (mut it, [one, two, three]) = test_shard(PresenceConfig::default()).members();
    let mut client = Client::default();
    sends(&mut it, one, "state", "0");
    for (key, name) in [(one, r#""a""#), (two, r#""b""#), (three, r#""b""#)] {
        sends(&mut it, key, "track", name);
    }
    turn(&mut it);
    client.receives(&mut it, one);
    assert_eq!((client.keys(), client.metas["b"].len()), (vec!["a", "b"], 2));
    let before = client.metas["b"][0]["phx_ref"].clone();
    says(&mut it, two, "update", r#""b""#);
    client.receives(&mut it, one);
    assert_eq!(client.metas["b"].len(), 2, "nothing is told before the interval is over");
    client.receives_after(&mut it, one, INTERVAL);
    let updated = client.metas["b"].iter().find(|meta| meta["at"] == 2).unwrap();
    assert_eq!(updated["phx_ref_prev"], before);
    // One leaves, one is cut off.
    it.sends(two, r#"[1,5,"t","phx_leave",{}]"#);
    client.receives_after(&mut it, one, INTERVAL);
    assert_eq!(client.metas["b"].len(), 1);
    it.disconnects(three);
    client.receives_after(&mut it, one, INTERVAL);
    assert_eq!(client.keys(), ["a"]);
    assert_eq!(client.heard, ["diff", "state", "diff", "diff", "diff"]);
    it.core.close(&mut it.out, one, simurgh_proto::ws::CloseCode::GOING_AWAY);
    turn_after(&mut it, INTERVAL);
    turn_after(&mut it, INTERVAL);
    assert!(it.core.presences().topics == 0, "nothing is left");
    assert_eq!(it.core.metrics().presences.value(), 0);
    assert_eq!(it.node.log().bytes, [0]);
}

#[test]
fn joins_of_one_interval_share_a_list_and_a_diff() {
    let (mut it, [first]) = test_shard(PresenceConfig::default()).members();
    says(&mut it, first, "track", r#""first""#);
    let crowd: Vec<Key> = (0..20).map(|_| it.joined(&["t"])).collect();
    for (number, key) in crowd.iter().enumerate() {
        sends(&mut it, *key, "track", &format!("\"{number}\""));
        sends(&mut it, *key, "state", "0");
        turn_after(&mut it, Duration::from_millis(2));
    }
    turn_after(&mut it, Duration::from_millis(20));
    let mut first_client = Client::default();
    first_client.receives(&mut it, first);
    assert_eq!(first_client.heard, ["diff", "diff"], "its own, and one for the whole crowd");
    for key in crowd {
        let mut client = Client::default();
        client.receives(&mut it, key);
        assert_eq!(client.heard, ["diff", "state"]);
        assert_eq!(client.metas.len(), 21);
    }
    assert_eq!(it.core.metrics().presence_events.value(), 3);
}

#[test]
fn extra_fields_of_a_key_are_in_diffs_and_lists() {
    let (mut it, [ann, bob]) =
        test_shard(PresenceConfig { meta_bytes_max: 60, ..PresenceConfig::default() }).members();
    says(&mut it, ann, "with", r#"{"user":{"name":"Ann"},"metas":1}"#);
    let diff = it.receives(bob).join("");
    let is_told = |text: &str| text.contains(r#"{"k":{"metas":[{"phx_ref":"#);
    assert!(is_told(&diff) && diff.contains(r#"],"user":{"name":"Ann"}}"#), "{diff}");
    sends(&mut it, bob, "state", "0");
    turn_after(&mut it, INTERVAL);
    let state = it.receives(bob).join("");
    assert!(is_told(&state) && state.contains(r#"],"user":{"name":"Ann"}}"#), "{state}");
    for wrong in ["[]", "7", &format!("{{\"a\":\"{}\"}}", "x".repeat(60))] {
        says(&mut it, bob, "with", wrong);
        assert!(it.receives(bob).join("").contains("a presence's meta"), "{wrong}");
    }
    assert_eq!(it.core.presences().entries, 1);
}

#[test]
fn long_list_is_sent_in_parts_before_the_next_diff() {
    let config = PresenceConfig { meta_bytes_max: 1 << 20, ..PresenceConfig::default() };
    let mut it = test_shard(config);
    let members: Vec<Key> = (0..5).map(|_| it.joined(&["t"])).collect();
    let meta = format!("{{\"text\":\"{}\"}}", "x".repeat(600_000));
    sends(&mut it, members[0], "meta", &meta);
    members.iter().for_each(|key| sends(&mut it, *key, "state", "0"));
    turn(&mut it);
    let mut clients: Vec<Client> = members.iter().map(|_| Client::default()).collect();
    let hear = |it: &mut TestShard, clients: &mut Vec<Client>| {
        clients.iter_mut().zip(&members).for_each(|(client, key)| client.receives(it, *key));
        clients.iter().filter(|client| client.heard.contains(&"state")).count()
    };
    assert_eq!(hear(&mut it, &mut clients), 1, "600 kB each, a megabyte a turn");
    turn(&mut it);
    assert_eq!(hear(&mut it, &mut clients), 2);
    sends(&mut it, members[1], "track", r#""late""#);
    sends(&mut it, members[2], "state", "0");
    sends(&mut it, members[4], "state", "0");
    it.advances(INTERVAL);
    for _ in 0..5 {
        turn(&mut it);
    }
    assert_eq!(hear(&mut it, &mut clients), 5);
    assert!(clients.iter().all(|client| client.keys() == ["k", "late"]));
    let states = |client: &Client| client.heard.iter().filter(|it| **it == "state").count();
    assert!(clients.iter().all(|client| states(client) == 1));
    // Two diffs, and the list as it was at each: another portion is not counted.
    assert_eq!(it.core.metrics().presence_events.value(), 4);
}

#[test]
fn request_for_a_long_list_gets_both_answers_in_one_write() {
    let config = PresenceConfig { list_max: 1, ..PresenceConfig::default() };
    let (mut home, ns) = (Home::new(Owner(1), 0, false, 1), INTERVAL.as_nanos() as u64);
    let channel = |membership| ChannelId { shard: 0, membership, generation: 1 };
    let meta = || Meta::parse("{}").unwrap();
    for (at, key) in ["a", "b"].into_iter().enumerate() {
        let call = PresenceCall::Track(key.into(), meta(), None);
        let call = MemberCall::uncharged(channel(at as u32), call);
        assert!(home.call("t", call, &config, 0));
    }
    let output = home.tell("t", &config, 1 << 20, 0);
    let [
        Output::Keep(Some(_)),
        Output::All("presence_state", _),
        Output::All("presence_summary", _),
    ] = output.as_slice()
    else {
        panic!("{output:?}")
    };
    for membership in [0, 1] {
        let call = MemberCall::uncharged(channel(membership), PresenceCall::PushState);
        home.call("t", call, &config, ns);
    }
    let output = home.tell("t", &config, 1 << 20, ns);
    let [say @ Output::Some(events, channels)] = output.as_slice() else { panic!("{output:?}") };
    assert_eq!(events.iter().map(|it| it.0).collect::<Vec<_>>().join(" "), BOTH);
    assert_eq!((channels.len(), say.events()), (2, 2));
    let call = |home: &mut Home, call| {
        home.call("t", MemberCall::uncharged(channel(2), call), &config, ns * 2)
    };
    assert!(call(&mut home, PresenceCall::Track("c".into(), meta(), None)));
    call(&mut home, PresenceCall::PushState);
    assert!(matches!(home.tell("t", &config, 1 << 20, ns * 2).as_slice(), [Output::Some(..)]));
    assert!(call(&mut home, PresenceCall::Untrack("c".into())));
    let due_ns = Duration::from_secs(5).as_nanos() as u64;
    let output = home.tell("t", &config, 1 << 20, due_ns);
    assert!(matches!(output.as_slice(), [Output::Keep(Some(_)), Output::All(..)]), "{output:?}");
}

#[test]
fn topic_above_the_list_limit_sends_a_summary() {
    let config = PresenceConfig { list_max: 10, sample: 3, ..PresenceConfig::default() };
    let mut it = test_shard(config);
    let members: Vec<Key> = (0..11).map(|_| it.joined(&["t"])).collect();
    for (number, key) in members.iter().enumerate().take(10) {
        sends(&mut it, *key, "track", &format!("\"{number}\""));
    }
    turn(&mut it);
    assert_eq!(heard(&mut it, members[0]), ["\"presence_diff\""]);
    sends(&mut it, members[10], "track", r#""10""#);
    sends(&mut it, members[10], "state", "0");
    turn_after(&mut it, INTERVAL);
    let texts = it.receives(members[0]);
    assert_eq!(texts[0], r#"[null,null,"t","presence_state",{}]"#, "nobody keeps an old one");
    let summary: Value = serde_json::from_str(&texts[1]).unwrap();
    assert_eq!((&summary[3], &summary[4]["count"]), (&json!("presence_summary"), &json!(11)));
    assert_eq!(summary[4]["sample"].as_object().unwrap().len(), 3);
    assert_eq!(heard(&mut it, members[10])[1..], ["\"presence_state\"", "\"presence_summary\""]);
    sends(&mut it, members[1], "state", "0");
    sends(&mut it, members[10], "untrack", r#""10""#);
    turn_after(&mut it, INTERVAL);
    assert_eq!(it.receives(members[0]), [""; 0]);
    assert_eq!(heard(&mut it, members[1])[3..], ["\"presence_state\"", "\"presence_summary\""]);
    assert_eq!(it.core.presences().answers, 1);
    assert_eq!(heard_after(&mut it, members[0], Duration::from_secs(5)), ["\"presence_summary\""]);
    // A tenth less than the list takes, and all have it again.
    for number in [8, 9] {
        sends(&mut it, members[number], "untrack", &format!("\"{number}\""));
    }
    turn_after(&mut it, Duration::from_secs(5));
    let mut client = Client::default();
    client.receives(&mut it, members[0]);
    assert_eq!((client.heard, client.metas.len()), (vec!["state"], 8));
    assert_eq!(it.core.presences().answers, 0, "who asks from now on gets the list");
}

/// A reader that cannot take the list in one piece would be cut for being slow.
#[test]
fn list_above_the_byte_limit_is_a_sample() {
    let presence = PresenceConfig { meta_bytes_max: 3000, sample: 1, ..PresenceConfig::default() };
    let config = Config { presence, outbound_bytes_max: 20_000, ..Config::default() };
    let mut it = TestShard::with(config, vec![present().user_socket()]);
    let members: Vec<Key> = (0..4).map(|_| it.joined(&["t"])).collect();
    let meta = format!("{{\"text\":\"{}\"}}", "x".repeat(2900));
    for key in &members[..3] {
        sends(&mut it, *key, "meta", &meta);
    }
    says(&mut it, members[0], "state", "0");
    assert_eq!(heard(&mut it, members[0]), ["\"presence_diff\"", "\"presence_state\""]);
    sends(&mut it, members[3], "meta", &meta);
    assert_eq!(
        heard_after(&mut it, members[0], INTERVAL),
        ["\"presence_state\"", "\"presence_summary\""]
    );
    sends(&mut it, members[3], "untrack", r#""k""#);
    assert_eq!(heard_after(&mut it, members[0], Duration::from_secs(5)), ["\"presence_state\""]);
}

/// A ref is never used again, although nothing is kept of past presences.
#[test]
fn refs_continue_after_the_last_presence() {
    let (mut it, [key]) = test_shard(PresenceConfig::default()).members();
    let mut refs = std::collections::BTreeSet::new();
    for _ in 0..3 {
        sends(&mut it, key, "track", r#""a""#);
        it.handles_mail();
        it.core.tick(&mut it.out);
        says(&mut it, key, "untrack", r#""a""#);
        turn_after(&mut it, INTERVAL);
        assert!(it.core.presences().topics == 0);
        for text in it.receives(key) {
            let message: Value = serde_json::from_str(&text).unwrap();
            let joins = metas(&message[4]["joins"]).into_values().flatten();
            refs.extend(joins.map(|it| it["phx_ref"].to_string()));
        }
        // The time is the same for the next.
        it.out.turn_ns = 0;
    }
    assert_eq!(refs.len(), 3);
}

#[test]
fn track_that_fails_is_refused_with_an_error() {
    let config = PresenceConfig {
        key_bytes_max: 9,
        meta_bytes_max: 30,
        channel_entries_max: 2,
        ..PresenceConfig::default()
    };
    let (mut it, [key]) = test_shard(config).members();
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(30));
    for (event, payload, says) in [
        ("track", r#""1234567890""#, "key of 10 bytes is too long: the maximum is 9"),
        ("meta", &long, "meta of 38 bytes is too long: the maximum is 30"),
        ("meta", "[1]", "meta"),
        ("meta", "null", "meta"),
    ] {
        self::sends(&mut it, key, event, payload);
        let answer = it.receives(key).concat();
        assert!(answer.contains("error") && answer.contains(says), "{answer}");
    }
    it.counts();
    for payload in [r#""""#, r#""""#, r#""__proto__""#, r#""third""#] {
        sends(&mut it, key, "track", payload);
    }
    sends(&mut it, key, "update", r#""nobody""#);
    says(&mut it, key, "untrack", r#""nobody""#);
    let mut client = Client::default();
    client.receives(&mut it, key);
    assert_eq!(client.keys(), ["", "__proto__"]);
    let counts = it.counts().concat();
    assert!(counts.contains("errors_presence_refused +4"), "{counts}");
    assert!(counts.contains("presences +2"), "{counts}");
}

/// The same in a topic of which nothing is kept.
#[test]
fn untrack_is_refused_in_a_topic_without_presences() {
    let (mut it, [key]) = test_shard(PresenceConfig::default()).members();
    sends(&mut it, key, "untrack", r#""a""#);
    sends(&mut it, key, "update", r#""a""#);
    it.handles_mail();
    assert!(it.core.presences().topics == 0);
    let counts = it.counts().concat();
    assert!(counts.contains("errors_presence_refused +2"), "{counts}");
    turn(&mut it);
    assert_eq!(it.receives(key), [""; 0]);
}

#[test]
fn presence_changes_wait_while_too_much_is_in_flight() {
    let (mut it, [key]) = test_shard(PresenceConfig::default()).members();
    sends(&mut it, key, "track", r#""a""#);
    it.handles_mail();
    let bytes = it.node.config().mailbox_bytes_max + 1;
    it.node.charge(0, bytes);
    it.core.tick(&mut it.out);
    it.handles_mail();
    assert_eq!(it.receives(key), [""; 0]);
    it.node.discharge(0, bytes);
    assert_eq!(heard_after(&mut it, key, Duration::from_millis(5)), ["\"presence_diff\""]);
}

#[test]
fn presences_can_be_listed_from_outside() {
    let mut it = test_shard(PresenceConfig { list_max: 2, sample: 1, ..PresenceConfig::default() });
    let asked = Arc::new(Mutex::new(Vec::new()));
    let ask = |it: &mut TestShard| {
        let asked = Arc::clone(&asked);
        let answer = move |list: PresenceList| asked.lock().unwrap().push(list);
        it.node.list_presences("t", Box::new(answer));
        it.handles_mail();
    };
    ask(&mut it);
    let key = it.joined(&["t"]);
    sends(&mut it, key, "track", r#""a""#);
    sends(&mut it, key, "track", r#""b""#);
    ask(&mut it);
    sends(&mut it, key, "track", r#""c""#);
    ask(&mut it);
    let lists = std::mem::take(&mut *asked.lock().unwrap());
    let keys = |list: &PresenceList| metas(&serde_json::from_str(&list.json).unwrap()).len();
    let seen: Vec<_> = lists.iter().map(|it| (it.entries, it.keys, keys(it))).collect();
    assert_eq!(seen, [(0, 0, 0), (2, 2, 2), (3, 3, 1)]);
}

/// PROTOCOL §10: presences that came and went meanwhile are in no diff, whatever was listed.
#[test]
fn list_requests_from_outside_send_nothing_to_members() {
    let (mut it, [one, two]) = test_shard(PresenceConfig::default()).members();
    says(&mut it, one, "track", r#""a""#);
    it.receives(one);
    sends(&mut it, two, "track", r#""b""#);
    it.handles_mail();
    it.node.list_presences("t", Box::new(|list| assert_eq!(list.entries, 2)));
    it.handles_mail();
    sends(&mut it, two, "untrack", r#""b""#);
    turn_after(&mut it, INTERVAL);
    assert_eq!(it.receives(one), [""; 0]);
}

/// A client without a list keeps diffs for the first one: entries in those that have left by a diff
/// that is sent as a list must not stay with it.
#[test]
fn list_instead_of_a_long_diff_follows_an_empty_list() {
    let presence = PresenceConfig::default();
    let config = Config { outbound_bytes_max: 1000, presence, ..Config::default() };
    let (mut it, [one, two]) = TestShard::with(config, vec![present().user_socket()]).members();
    sends(&mut it, one, "track", r#""stays""#);
    says(&mut it, two, "meta", &format!("{{\"text\":\"{}\"}}", "x".repeat(300)));
    assert_eq!(heard(&mut it, one), ["\"presence_diff\""]);
    sends(&mut it, two, "update", r#""k""#);
    sends(&mut it, one, "meta", &format!("{{\"text\":\"{}\"}}", "x".repeat(300)));
    turn_after(&mut it, INTERVAL);
    let texts = it.receives(one);
    assert_eq!(texts[0], r#"[null,null,"t","presence_state",{}]"#);
    assert!(texts[1].contains(r#""stays":{"metas""#), "{texts:?}");
    assert_eq!(texts.len(), 2);
}

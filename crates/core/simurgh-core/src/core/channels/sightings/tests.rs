//! A shard reports members and users: the keys, the reasons, and one end for each begin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use simurgh_data::Key;
use simurgh_notices::{HookRule, Key as StayKey, Kind as StayKind, Reason as Why, Settings};
use simurgh_notices::{Sighting, Time};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;
use simurgh_proto::ws::CloseCode;

use crate::testing::*;
use crate::*;

const USERS: [&str; 3] = ["", "ann", "bob"];
const TOPICS: [&str; 4] = ["t", "u", "hidden", "counted"];

fn rule(kinds: &[StayKind], topics: &[&str]) -> HookRule {
    let types = kinds.iter().map(|kind| HookRule::bit(*kind, false)).sum();
    let topics = topics.iter().map(|topic| Pattern::parse(topic).unwrap()).collect();
    HookRule { topics, ..HookRule::new("app", types) }
}

/// Users, the members of `t` and `u`, and whether `counted` has members.
fn settings() -> Settings {
    let users = rule(&[StayKind::User, StayKind::Member], &["t", "u"]);
    Settings {
        hooks: vec![users, rule(&[StayKind::Topic], &["counted", "t"])],
        ..Default::default()
    }
}

fn shard(user_sockets: Vec<UserSocket>) -> TestShard {
    let mut node = TestNode::new(1, Config::default(), user_sockets);
    node.notices = Some((Arc::new(settings()), Arc::default()));
    TestShard::with_node(node)
}

/// The standard channel, which also sets its socket's user.
fn naming() -> UserSocket {
    let channel = scripted(|ctx, heard| match heard {
        ChannelCall::In("as", payload) => {
            let user = payload.parse::<usize>().unwrap();
            ctx.assign(USERS[user]);
            Outcome::NoReply
        }
        heard => standard(ctx, heard),
    });
    channel.user_socket()
}

fn state(user: &'static str) -> SocketState {
    SocketState { id: Some("id".into()), assigns: Some(Arc::new(user)), lifetime: None }
}

impl TestShard {
    /// The end of a turn. Returns what was seen in it.
    fn seen(&mut self) -> Vec<Sighting> {
        self.core.settle(&mut self.out);
        let (_, seen) = self.node.notices.as_ref().unwrap();
        std::mem::take(&mut *seen.lock().unwrap())
    }

    /// The same as texts: begin or reason, kind, topic, user.
    fn notes(&mut self) -> Vec<String> {
        let note = |Sighting { key, ended }: Sighting| {
            let what = ended.map_or("begins", Why::name);
            format!("{what} {:?} {} {}", key.kind(), key.topic(), key.user()).replace("  ", " ")
        };
        self.seen().into_iter().map(note).collect()
    }

    /// Ann's socket, which has joined `t` and `hidden`.
    fn ann(&mut self) -> Key {
        let key = self.opens_with(Wire::V2, state("ann"));
        self.asks(key, r#"[1,1,"t","phx_join",{}]"#);
        self.asks(key, r#"[1,1,"hidden","phx_join",{}]"#);
        assert_eq!(self.notes(), ["begins User ann", "begins Member t ann"]);
        key
    }

    /// How many memberships and connections each key has, by the sockets themselves.
    fn present(&self, keys: &[Key]) -> BTreeMap<StayKey, i64> {
        let mut present = BTreeMap::new();
        for key in keys {
            let socket = self.out.socket(*key).filter(|socket| socket.is_open());
            let Some(socket) = socket else { continue };
            let assigns = socket.state().and_then(|state| state.assigns.as_ref());
            let user = assigns.and_then(|it| self.node.user_of(it));
            if let Some(user) = user {
                *present.entry(StayKey::user_of(user)).or_default() += 1;
            }
            for topic in self.core.topics_of(socket).filter(|topic| &**topic != "hidden") {
                let own = self.node.connection_id(0, *key);
                let user = if &*topic == "counted" { "" } else { user.unwrap_or(&own) };
                *present.entry(StayKey::member(&topic, user)).or_default() += 1;
            }
        }
        present
    }
}

/// A way to end a membership, its reason, and whether the session ends, too.
type Ended = (fn(&mut TestShard, Key), Why, bool);

/// B43.
#[test]
fn reason_says_how_a_membership_ended() {
    let ends: [Ended; 16] = [
        (|it, key| it.sends(key, r#"[1,2,"t","phx_leave",{}]"#), Why::Left, false),
        (|it, key| it.disconnects(key), Why::Closed, true),
        (|it, key| it.core.peer_closed(&mut it.out, key, None), Why::Closed, true),
        (|it, key| it.core.fail(&mut it.out, key, CloseCode::PROTOCOL), Why::Closed, true),
        (idles, Why::Closed, true),
        (drains, Why::Closed, true),
        (|it, key| it.sends(key, r#"[1,2,"t","crash",{}]"#), Why::Closed, false),
        (|it, key| it.core.close(&mut it.out, key, CloseCode::GOING_AWAY), Why::Kicked, true),
        (|it, key| it.sends(key, r#"[1,2,"hidden","disconnect","id"]"#), Why::Kicked, true),
        (|it, key| stops(it, key, Stop::Shutdown), Why::Kicked, false),
        (|it, key| stops(it, key, Stop::Kicked), Why::Kicked, false),
        (|it, key| stops(it, key, Stop::Normal), Why::Kicked, false),
        (|it, key| it.core.block(&mut it.out, key), Why::Blocked, true),
        (|it, key| stops(it, key, Stop::Expired), Why::Expired, false),
        (expires, Why::Expired, true),
        (|it, key| it.sends(key, r#"[1,2,"t","close",{}]"#), Why::Closed, true),
    ];
    for (at, (end, why, is_over)) in ends.into_iter().enumerate() {
        let mut it = shard(vec![naming()]);
        let key = it.ann();
        end(&mut it, key);
        it.fans_out();
        let mut notes = it.notes();
        notes.sort();
        let mut expected = vec![format!("{} Member t ann", why.name())];
        expected.extend(is_over.then(|| format!("{} User ann", why.name())));
        assert_eq!(notes, expected, "end {at}");
    }
}

fn stops(it: &mut TestShard, key: Key, how: Stop) {
    let channel = it.core.channel_on(key, it.out.socket(key).unwrap(), "t").unwrap();
    it.core.mail(&mut it.out, Mail::ToChannel(channel, ToChannel::Stop(how)));
}

fn idles(it: &mut TestShard, _: Key) {
    for _ in 0..100 {
        it.advances(Duration::from_secs(1));
        it.core.tick(&mut it.out);
    }
}

fn expires(it: &mut TestShard, key: Key) {
    let lifetime = Lifetime::from(Duration::from_secs(1));
    it.core.keep(&mut it.out, key, None, lifetime);
    idles(it, key);
}

fn drains(it: &mut TestShard, _: Key) {
    it.core.mail(&mut it.out, Mail::Drain(Duration::ZERO));
    it.advances(Duration::from_secs(1));
    it.core.tick(&mut it.out);
}

/// B40.
#[test]
fn member_without_user_is_its_resume_id_or_its_connection() {
    let mut it = shard(vec![keeping(scripted(standard), HistoryRule::default())]);
    let key = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    assert_eq!(it.notes(), ["begins Member t 0-0"]);
    it.sends(key, r#"[1,2,"t","phx_leave",{}]"#);
    assert_eq!(it.notes(), ["left Member t 0-0"]);
    let [a, b] = [(); 2].map(|()| {
        let key = it.joined_as(&format!(r#"[1,1,"t","phx_join",{ANN}]"#));
        let began = it.notes();
        it.disconnects(key);
        assert_eq!(it.notes(), [began[0].replace("begins", "closed")]);
        began
    });
    assert_eq!(a, b, "it is the same on each connection");
    assert_eq!((a.len(), a[0].len()), (1, "begins Member t ".len() + 16));
}

/// B45: such a topic's members are one key.
#[test]
fn members_of_a_topic_that_is_only_counted_have_no_user() {
    let mut it = shard(vec![naming()]);
    let key = it.opens_with(Wire::V2, state("ann"));
    it.asks(key, r#"[1,1,"counted","phx_join",{}]"#);
    assert_eq!(it.notes(), ["begins User ann", "begins Member counted "]);
}

/// A rejoin ends before it begins again, in the same turn, so the node's reporter nets it out.
#[test]
fn rejoin_ends_and_begins_in_one_turn() {
    let mut it = shard(vec![naming()]);
    let key = it.ann();
    it.asks(key, r#"[2,2,"t","phx_join",{}]"#);
    assert_eq!(it.notes(), ["left Member t ann", "begins Member t ann"]);
    let mut reporter = simurgh_notices::Reporter::new(7);
    let key = StayKey::member("t", "ann");
    let partition = key.partition();
    reporter.set_leader(partition, Some(1));
    let time = Time::default();
    reporter.begin(key.clone(), time);
    reporter.end(&key, Why::Left, time);
    reporter.begin(key, time);
    let (_, _, report) = reporter.next_report(time).unwrap();
    assert!(
        report.changes.iter().all(|change| change.ended.is_none()) && report.changes.len() == 1
    );
}

#[test]
fn socket_with_another_user_ends_what_the_old_one_began() {
    let mut it = shard(vec![naming()]);
    let key = it.ann();
    it.asks(key, r#"[1,2,"t","as",1]"#);
    assert_eq!(it.notes(), [""; 0], "the same user");
    it.asks(key, r#"[1,2,"t","as",2]"#);
    let both = ["closed User ann", "closed Member t ann", "begins User bob", "begins Member t bob"];
    assert_eq!(it.notes(), both);
    it.disconnects(key);
    assert_eq!(it.notes(), ["closed User bob", "closed Member t bob"]);
}

#[test]
fn plain_sockets_are_members_of_their_topic() {
    let mut it = shard(vec![plain("t", |_, _| Join::ok(scripted(standard)))]);
    let key = it.opens_with(Wire::Plain, state("ann"));
    assert_eq!(it.notes(), ["begins User ann", "begins Member t ann"]);
    it.disconnects(key);
    assert_eq!(it.notes(), ["closed User ann", "closed Member t ann"]);
    let mut it = shard(vec![plain("t", |_, _| Join::error(Payload::NULL))]);
    it.opens_with(Wire::Plain, state("ann"));
    assert_eq!(it.notes(), ["begins User ann", "closed User ann"]);
}

#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Send(usize, String),
    Close(usize, CloseCode),
    Disconnect(usize),
    Settle,
}

fn steps() -> impl Strategy<Value = Step> {
    let others = vec!["stop", "stop_bad", "stop_expired", "crash", "close", "echo"];
    let event = prop_oneof![
        6 => Just("phx_join"),
        3 => Just("phx_leave"),
        2 => Just("as"),
        2 => prop::sample::select(others),
    ];
    let sent = (0..6_usize, prop::sample::select(TOPICS.to_vec()), event, 0..USERS.len()).prop_map(
        |(at, topic, event, user)| {
            let payload = if event == "as" { user.to_string() } else { "{}".to_owned() };
            Step::Send(at, format!(r#"[1,1,"{topic}","{event}",{payload}]"#))
        },
    );
    let codes = vec![CloseCode::GOING_AWAY, CloseCode::RESTART];
    prop_oneof![
        2 => (0..USERS.len()).prop_map(Step::Open),
        12 => sent,
        1 => (0..6_usize, prop::sample::select(codes)).prop_map(|(at, code)| Step::Close(at, code)),
        1 => (0..6_usize).prop_map(Step::Disconnect),
        3 => Just(Step::Settle),
    ]
}

fn does(it: &mut TestShard, keys: &mut Vec<Key>, step: Step) {
    let at = match step {
        Step::Open(0) => return keys.push(it.opens(Wire::V2)),
        Step::Open(user) => return keys.push(it.opens_with(Wire::V2, state(USERS[user]))),
        Step::Send(at, _) | Step::Close(at, _) | Step::Disconnect(at) => at,
        Step::Settle => return,
    };
    let Some(key) = keys.get(at).copied() else { return };
    let Some(is_open) = it.out.socket(key).map(Socket::is_open) else { return };
    match step {
        Step::Send(_, text) if is_open => it.sends(key, &text),
        Step::Close(_, code) => it.core.close(&mut it.out, key, code),
        Step::Disconnect(_) => it.disconnects(key),
        _ => {}
    }
    it.out.end_turn();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// After each turn what has begun and has not ended is what is there.
    #[test]
    fn begins_without_ends_are_the_members(steps in prop::collection::vec(steps(), 0..80)) {
        let mut it = shard(vec![naming()]);
        let (mut keys, mut counts) = (Vec::new(), BTreeMap::<StayKey, i64>::new());
        for step in steps.into_iter().chain([Step::Settle]) {
            let is_turn = matches!(step, Step::Settle);
            does(&mut it, &mut keys, step);
            if !is_turn {
                continue;
            }
            for Sighting { key, ended } in it.seen() {
                let count = counts.entry(key.clone()).or_default();
                *count += if ended.is_none() { 1 } else { -1 };
                prop_assert!(*count >= 0, "{:?} ends more often than it begins", key);
            }
            counts.retain(|_, count| *count > 0);
            prop_assert_eq!(&counts, &it.present(&keys));
        }
    }
}

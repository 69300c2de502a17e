//! Presence over real sockets, with members on other shards than the topic's: members receive the
//! same list as code outside of channels, however others leave.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::raw::Raw;
use crate::support::{Client, WAIT_MAX, metric, start};
use rustix::net::sockopt::set_socket_linger;
use serde_json::{Map, Value, json};
use simurgh::{
    Builder, Channel, ChannelRoute, Context, Endpoint, Join, Outcome, Payload, Presence,
    PresenceListError, Reject, ShardChannel, ShardContext, UserSocket,
};

const SHARDS: usize = 4;
const TOKEN: &str = "presence-token";

/// Lets a client do what a channel may do.
struct Room {
    user: Value,
}

impl ShardChannel for Room {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        if let Some(user) = self.user.as_str() {
            ctx.presence().track(user, json!({"device": 1})).unwrap();
            ctx.presence().push_state();
        }
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        let asked: Value = payload.parse().unwrap_or_default();
        let key = asked["key"].as_str().unwrap_or("binary");
        let meta = || match payload.json() {
            Some(_) => Payload::from(asked["meta"].clone()),
            None => payload.borrow().into_owned(),
        };
        let done = match event {
            "track" => ctx.presence().track(key, meta()),
            "update" => ctx.presence().update(key, meta()),
            "untrack" => {
                ctx.presence().untrack(key);
                Ok(())
            }
            "state" => {
                ctx.presence().push_state();
                Ok(())
            }
            "crash" => panic!("the test asked for it"),
            _ => return Outcome::unknown_event(),
        };
        match done {
            Ok(()) => Outcome::ok(Payload::EMPTY_OBJECT),
            Err(error) => Outcome::error(json!({"reason": error.to_string()})),
        }
    }
}

struct Slow {
    user: String,
}

impl Channel for Slow {
    async fn after_join(&mut self, ctx: &mut Context) -> Result<(), Reject> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ctx.presence().track(&self.user, json!({"device": 1}))?;
        ctx.presence().push_state();
        Ok(())
    }

    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        _: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ctx.presence().update(&self.user, payload)?;
        Ok(Outcome::ok(Payload::EMPTY_OBJECT))
    }
}

fn builder() -> Builder {
    let user_socket = UserSocket::new("/socket")
        .channels_max(2_000)
        .channel(ChannelRoute::on_shard("room:*", |_, params| {
            let params: Value = params.parse().unwrap();
            Join::ok(Room { user: params["user"].clone() })
        }))
        .channel(ChannelRoute::new("slow:*", |_, params| async move {
            let params: Value = params.parse()?;
            Ok(Slow { user: params["user"].as_str().unwrap().to_owned() })
        }));
    Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = SHARDS;
        config.api_token = Some(TOKEN.to_owned());
        config.presence.interval = Duration::from_millis(20);
    })
}

/// Metas by their refs, by key.
type List = BTreeMap<String, BTreeMap<String, Value>>;

fn list_of(presences: &Map<String, Value>) -> List {
    let metas = |entry: &Value| entry["metas"].as_array().unwrap().clone();
    let by_ref = |meta: Value| (meta["phx_ref"].as_str().unwrap().to_owned(), meta);
    presences
        .iter()
        .map(|(key, entry)| (key.clone(), metas(entry).into_iter().map(by_ref).collect()))
        .collect()
}

/// A client that keeps the list as real clients do.
struct Member {
    client: Client,
    topic: String,
    join_ref: String,
    list: Option<List>,
    /// Messages besides presence.
    other: Vec<Value>,
}

impl Member {
    fn join(endpoint: &Endpoint, topic: &str, user: Value) -> Self {
        let client = Client::v2(endpoint);
        let (topic, join_ref, list) = (topic.to_owned(), "1".to_owned(), None);
        let mut member = Self { client, topic, join_ref, list, other: Vec::new() };
        member.send("phx_join", json!({"user": user}));
        assert_eq!(member.reply(), json!({"status": "ok", "response": {}}));
        member
    }

    fn joined(endpoint: &Endpoint, topic: &str, user: &str) -> Self {
        let mut member = Self::join(endpoint, topic, json!(user));
        member.until("its list", |list| list.contains_key(user));
        member
    }

    fn send(&mut self, event: &str, payload: Value) {
        self.client.send(json!([self.join_ref, "r", self.topic, event, payload]));
    }

    fn reply(&mut self) -> Value {
        loop {
            if let Some(at) = self.other.iter().position(|it| it[3] == json!("phx_reply")) {
                return self.other.remove(at)[4].clone();
            }
            self.hear();
        }
    }

    fn ask(&mut self, event: &str, payload: Value) -> Value {
        self.send(event, payload);
        self.reply()
    }

    fn refused(&mut self, event: &str, payload: Value) -> String {
        let reply = self.ask(event, payload);
        assert_eq!(reply["status"], json!("error"), "{reply}");
        reply["response"]["reason"].as_str().unwrap().to_owned()
    }

    fn hear(&mut self) {
        let message = self.client.recv();
        match message[3].as_str().unwrap() {
            "presence_state" => {
                assert_eq!(message[0], json!(self.join_ref));
                self.list = Some(list_of(message[4].as_object().unwrap()));
            }
            "presence_diff" => {
                let [joins, leaves] =
                    ["joins", "leaves"].map(|part| list_of(message[4][part].as_object().unwrap()));
                let refs = |part: &List| {
                    part.values().flat_map(BTreeMap::keys).cloned().collect::<BTreeSet<_>>()
                };
                assert!(refs(&joins).is_disjoint(&refs(&leaves)), "{message}");
                if let Some(list) = &mut self.list {
                    apply(list, joins, &leaves);
                }
            }
            _ => self.other.push(message),
        }
    }

    fn until(&mut self, what: &str, wanted: impl Fn(&List) -> bool) -> &List {
        let since = Instant::now();
        while !self.list.as_ref().is_some_and(&wanted) {
            assert!(since.elapsed() < WAIT_MAX, "{what}: {:?}", self.list);
            self.hear();
        }
        self.list.as_ref().unwrap()
    }

    fn only_ref(&self, key: &str) -> String {
        let metas = &self.list.as_ref().unwrap()[key];
        assert_eq!(metas.len(), 1, "{metas:?}");
        metas.keys().next().unwrap().clone()
    }

    fn reset(self) {
        set_socket_linger(self.client.0.get_ref(), Some(Duration::ZERO)).unwrap();
    }
}

fn apply(list: &mut List, joins: List, leaves: &List) {
    for (key, metas) in joins {
        list.entry(key).or_default().extend(metas);
    }
    for (key, metas) in leaves {
        if let Some(entry) = list.get_mut(key) {
            entry.retain(|phx_ref, _| !metas.contains_key(phx_ref));
            if entry.is_empty() {
                list.remove(key);
            }
        }
    }
}

/// The runtime has neither timers nor I/O, like a small one of a program.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn listed(presence: &Presence, topic: &str) -> List {
    let list = block_on(presence.list::<Value>(topic)).unwrap();
    let by_ref = |meta: Value| (meta["phx_ref"].as_str().unwrap().to_owned(), meta);
    list.into_iter().map(|(key, it)| (key, it.into_iter().map(by_ref).collect())).collect()
}

fn count_is(presence: &Presence, topic: &str, count: usize) {
    let since = Instant::now();
    while block_on(presence.count(topic)).unwrap() != count {
        assert!(since.elapsed() < WAIT_MAX, "{topic} has not come to {count}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn members_on_all_shards_agree_with_homes_on_all_shards() {
    const TOPICS: usize = 16;
    let endpoint = start(builder());
    let presence = endpoint.presence();
    let topics: Vec<String> = (0..TOPICS).map(|n| format!("room:{n}")).collect();
    let mut members: Vec<Member> = Vec::new();
    for round in 0..6 {
        for topic in &topics {
            members.push(Member::join(&endpoint, topic, json!(format!("user{}", round % 4))));
        }
    }
    // The third member leaves, in three ways.
    let mut stay = Vec::new();
    for (n, mut member) in members.into_iter().enumerate() {
        match n % 9 {
            2 => member.reset(),
            5 => assert_eq!(member.ask("phx_leave", json!({}))["status"], "ok"),
            8 => drop(member),
            _ => stay.push(member),
        }
    }
    for topic in &topics {
        let here = stay.iter().filter(|member| member.topic == *topic).count();
        count_is(&presence, topic, here);
        let list = listed(&presence, topic);
        assert_eq!(list.values().map(BTreeMap::len).sum::<usize>(), here);
        for member in stay.iter_mut().filter(|member| member.topic == *topic) {
            member.until("the server's list", |own| *own == list);
        }
    }
    let busy = |name: &str| -> Vec<usize> {
        let text = crate::support::metrics(&endpoint);
        let has = |shard: &usize| {
            let line = format!("{name}{{shard=\"{shard}\"}} ");
            text.lines().any(|it| it.strip_prefix(&*line).is_some_and(|value| value != "0"))
        };
        (0..SHARDS).filter(has).collect()
    };
    assert_eq!(busy("simurgh_presences"), [0, 1, 2, 3], "each shard is some topic's home");
    assert!(busy("simurgh_channels").len() > 1, "members are on several shards");
    assert_eq!(metric(&endpoint, "simurgh_errors_presence_refused_total"), 0);
    drop(stay);
    topics.iter().for_each(|topic| count_is(&presence, topic, 0));
    assert_eq!(metric(&endpoint, "simurgh_presences"), 0);
}

#[test]
fn two_members_of_one_key_are_two_metas_of_which_one_leaves() {
    let endpoint = start(builder());
    let mut desk = Member::joined(&endpoint, "room:key", "ann");
    let desk_ref = desk.only_ref("ann");
    let mut phone = Member::joined(&endpoint, "room:key", "ann");
    desk.until("both devices", |list| list["ann"].len() == 2);
    phone.until("both devices", |list| list["ann"].len() == 2);
    assert_eq!(listed(&endpoint.presence(), "room:key").len(), 1);
    phone.reset();
    desk.until("one device", |list| list["ann"].len() == 1);
    assert_eq!(desk.only_ref("ann"), desk_ref);
}

#[test]
fn a_rejoin_on_the_same_socket_leaves_under_the_old_ref_and_joins_under_a_new_one() {
    let endpoint = start(builder());
    let mut witness = Member::joined(&endpoint, "room:again", "witness");
    let mut member = Member::joined(&endpoint, "room:again", "ann");
    let old = member.only_ref("ann");
    witness.until("ann", |list| list.contains_key("ann"));
    member.join_ref = "2".to_owned();
    member.list = None;
    assert_eq!(member.ask("phx_join", json!({"user": "ann"}))["status"], "ok");
    let is_new = |list: &List| list.get("ann").is_some_and(|it| it.keys().all(|it| *it != old));
    witness.until("the new ref alone", is_new);
    member.until("the new ref alone", is_new);
    assert_eq!(witness.only_ref("ann"), member.only_ref("ann"));
    assert!(member.other.iter().any(|it| it[3] == json!("phx_close") && it[0] == json!("1")));
    assert_eq!(block_on(endpoint.presence().count("room:again")).unwrap(), 2);
}

#[test]
fn a_crash_of_a_channel_is_a_leave_and_its_socket_may_come_again() {
    let endpoint = start(builder());
    let mut witness = Member::joined(&endpoint, "room:crash", "witness");
    let mut member = Member::joined(&endpoint, "room:crash", "ann");
    witness.until("ann", |list| list.contains_key("ann"));
    member.send("crash", json!({}));
    witness.until("ann is gone", |list| !list.contains_key("ann"));
    while !member.other.iter().any(|it| it[3] == json!("phx_error")) {
        member.hear();
    }
    member.join_ref = "2".to_owned();
    member.ask("phx_join", json!({"user": "ann"}));
    witness.until("ann is back", |list| list.contains_key("ann"));
}

#[test]
fn an_asynchronous_channel_tracks_updates_and_leaves() {
    let endpoint = start(builder());
    let mut witness = Member::joined(&endpoint, "slow:a", "witness");
    let mut member = Member::joined(&endpoint, "slow:a", "ann");
    let old = member.only_ref("ann");
    assert_eq!(member.ask("update", json!({"device": 2}))["status"], "ok");
    witness.until("the update", |list| {
        list.get("ann").is_some_and(|metas| {
            metas.values().all(|it| it["device"] == 2 && it["phx_ref_prev"] == json!(old))
        })
    });
    let reason = member.refused("update", json!([1]));
    assert_eq!(reason, "internal error", "an application's own errors are not told");
    member.reset();
    witness.until("ann is gone", |list| list.len() == 1);
}

#[test]
fn bad_input_is_refused_where_it_is_seen_and_odd_keys_are_keys() {
    let endpoint = start(builder());
    let mut member = Member::join(&endpoint, "room:odd", Value::Null);
    let keys = ["", "__proto__", "constructor", "a\"b\\c\u{1}", "\u{1f99c}"];
    for key in keys {
        let asked = json!({"key": key, "meta": {"phx_ref": "mine", "metas": [], "n": 1}});
        assert_eq!(member.ask("track", asked)["status"], "ok", "{key:?}");
    }
    for (meta, says) in [
        (json!([1]), "not a JSON object"),
        (json!(null), "not a JSON object"),
        (json!("text"), "not a JSON object"),
        (json!({"long": "x".repeat(5_000)}), "is too long: 4096 is the most"),
    ] {
        for event in ["track", "update"] {
            let reason = member.refused(event, json!({"key": "", "meta": meta}));
            assert!(reason.contains(says), "{reason}");
        }
    }
    let long = json!({"key": "k".repeat(10_240), "meta": {}});
    let reason = member.refused("track", long);
    assert_eq!(reason, "a presence's key of 10240 bytes is too long: 256 is the most");
    // A binary push (PROTOCOL §3): kind 0, sizes of join_ref, ref, topic, event; these; the data.
    let head = [0, 1, 1, 8, 5];
    let binary = [&head[..], b"1", b"b", b"room:odd", b"track", b"\x00\xff"].concat();
    member.client.0.send(tungstenite::Message::binary(binary)).unwrap();
    assert!(member.reply()["response"]["reason"].as_str().unwrap().contains("not binary"));

    member.send("state", json!({}));
    let list = member.until("the list", |list| list.len() == keys.len()).clone();
    for key in keys {
        let meta = list[key].values().next().unwrap();
        assert_ne!(meta["phx_ref"], json!("mine"), "{key:?}");
        assert_eq!(meta["n"], 1);
    }
    assert_eq!(list, listed(&endpoint.presence(), "room:odd"));
    assert_eq!(metric(&endpoint, "simurgh_errors_presence_refused_total"), 0);
    let wrong = block_on(endpoint.presence().list::<u32>("room:odd"));
    assert!(matches!(wrong, Err(PresenceListError::OtherMeta(_))), "{wrong:?}");
}

#[test]
fn a_thousand_tracks_of_one_channel_are_sixteen_and_of_a_thousand_channels_all() {
    const TRACKS: usize = 1_000;
    let endpoint = start(builder());
    let presence = endpoint.presence();
    let mut greedy = Member::join(&endpoint, "room:greedy", Value::Null);
    for n in 0..TRACKS {
        let asked = json!({"key": format!("key{n}"), "meta": {"n": n}});
        assert_eq!(greedy.ask("track", asked)["status"], "ok");
    }
    count_is(&presence, "room:greedy", 16);
    let refused = || metric(&endpoint, "simurgh_errors_presence_refused_total");
    assert_eq!(refused(), (TRACKS - 16) as u64);
    // A second meta for a key, and an update without one, are refused as well.
    greedy.ask("track", json!({"key": "key0", "meta": {}}));
    greedy.ask("update", json!({"key": "nobody", "meta": {}}));
    greedy.ask("untrack", json!({"key": "key1"}));
    count_is(&presence, "room:greedy", 15);
    assert_eq!(refused(), (TRACKS - 16) as u64 + 2);

    let mut client = Client::v2(&endpoint);
    for n in 0..TRACKS {
        client.send(json!(["1", "1", format!("room:of{n}"), "phx_join", {"user": "ann"}]));
    }
    let mut states = 0;
    while states < TRACKS {
        states += usize::from(client.recv()[3] == json!("presence_state"));
    }
    assert_eq!(metric(&endpoint, "simurgh_presences"), TRACKS as u64 + 15);
    drop((client, greedy));
    let since = Instant::now();
    while metric(&endpoint, "simurgh_presences") > 0 {
        assert!(since.elapsed() < WAIT_MAX, "presences of a closed socket");
    }
}

#[test]
fn a_drain_closes_members_and_ends_in_time_with_presences_to_tell() {
    let endpoint = start(builder().configure(|it| it.drain_time = Duration::from_millis(300)));
    let members: Vec<_> =
        (0..40).map(|n| Member::joined(&endpoint, "room:drain", &format!("user{n}"))).collect();
    let (presence, since) = (endpoint.presence(), Instant::now());
    let told: Vec<_> = members
        .into_iter()
        .map(|mut it| std::thread::spawn(move || it.client.recv_close()))
        .collect();
    endpoint.drain().unwrap();
    assert!(since.elapsed() < WAIT_MAX, "{:?}", since.elapsed());
    assert!(told.into_iter().all(|it| it.join().unwrap() == 1012));
    let error = block_on(presence.list::<Value>("room:drain")).unwrap_err();
    assert_eq!(error.to_string(), "the server has ended, or is about to");
    assert!(matches!(error, PresenceListError::Ended), "{error:?}");
    assert!(matches!(block_on(presence.count("room:1")), Err(PresenceListError::Ended)));
}

fn get(endpoint: &Endpoint, query: &str, token: Option<&str>) -> (u16, Value) {
    let bearer = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    let request = format!(
        "GET /api/presence{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n{bearer}connection: close\r\n\r\n"
    );
    let answer = Raw::connect(endpoint.addresses()[0]).send(request).answer();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

/// The code maps this to 503 (http/api.rs): over a socket, HTTP ends with the shards.
#[test]
fn back_ends_ask_by_http_with_a_token() {
    let endpoint = start(builder());
    let member = Member::joined(&endpoint, "room:é &", "ann");
    let _phone = Member::joined(&endpoint, "room:é &", "ann");
    let (status, body) = get(&endpoint, "?topic=room:%C3%A9%20%26", Some(TOKEN));
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["topic"], "room:é &");
    assert_eq!((&body["entries"], &body["keys"]), (&json!(2), &json!(1)));
    let list = list_of(body["presences"].as_object().unwrap());
    assert_eq!(list, listed(&endpoint.presence(), "room:é &"));
    assert!(list["ann"].contains_key(&member.only_ref("ann")));
    let (status, body) = get(&endpoint, "?topic=nobody", Some(TOKEN));
    assert_eq!(status, 200);
    assert_eq!(body, json!({"topic": "nobody", "entries": 0, "keys": 0, "presences": {}}));
    for query in ["", "?", "?topic=a&topic=b", "?topic=a&x=1", "?other=a"] {
        let (status, body) = get(&endpoint, query, Some(TOKEN));
        assert_eq!(status, 400, "{query}");
        assert_eq!(body, json!({"error": "expected ?topic=NAME, and nothing else"}));
    }
    for token in [None, Some("wrong"), Some("")] {
        assert_eq!(get(&endpoint, "?topic=a", token).0, 401);
        assert_eq!(get(&endpoint, "", token).0, 401, "who has no token learns nothing");
    }
}

/// Its tokio runtime is not the server's: shards must not wake it, because they lack the
/// descriptors of the main thread's table.
#[test]
fn a_list_is_awaited_on_a_runtime_of_the_applications_own() {
    let endpoint = start(builder());
    let _members: Vec<_> =
        (0..8).map(|n| Member::joined(&endpoint, "room:rt", &format!("user{n}"))).collect();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let presence = endpoint.presence();
            std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    for _ in 0..200 {
                        assert_eq!(presence.list::<Value>("room:rt").await.unwrap().len(), 8);
                        assert_eq!(presence.count("room:rt").await.unwrap(), 8);
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // The server's sockets still work.
    assert!(TcpStream::connect(endpoint.addresses()[0]).is_ok());
    assert_eq!(metric(&endpoint, "simurgh_presences"), 8);
}

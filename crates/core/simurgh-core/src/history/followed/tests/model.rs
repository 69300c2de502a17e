//! Random publishes, joins, drops and resumes on two nodes, late messages of the engine, and gaps:
//! what each client receives, on whichever node, is the stored order without a hole, or a gap was
//! sent before anything newer.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use simurgh_history::{Place, ReplayLimits};

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// A client broadcasts, to all or to all others.
    Says(usize, bool),
    /// The engine keeps the oldest that it was asked to, in the envelope of the one before it or
    /// not; and answers before the delivery, behind it, or never.
    Keeps(bool, u8),
    /// A client of another node has a broadcast kept.
    Elsewhere(bool),
    /// The node receives the next.
    Hears(usize),
    Unknown,
    Unavailable,
    Known,
    /// It begins again with what there is, of which so many are missing.
    BeginsAnew(usize),
    /// The next are lost to it.
    Loses(usize),
    Purges,
    /// So many of the oldest are too old; and by how much more the floor is raised for nodes that
    /// begin.
    Expires(usize, u64),
    /// Other topics have so many numbers.
    Others(u64),
    /// The engine begins a new epoch, if this is 0.
    OtherEpoch(u8),
    Ends,
    /// As a client that has received nothing, if the second is 0.
    Joins(usize, u8),
    Leaves(usize),
    Drops(usize),
    Passes(u64),
    Turn(bool),
    FansOut,
    Settles,
}

/// Steps, and on which node.
fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    prop::collection::vec((0..2usize, step()), 1..160)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4usize, any::<bool>()).prop_map(|(who, all)| Step::Says(who, all)),
        10 => (any::<bool>(), 0..8u8).prop_map(|(joined, how)| Step::Keeps(joined, how)),
        12 => any::<bool>().prop_map(Step::Elsewhere),
        16 => (1..4usize).prop_map(Step::Hears),
        1 => Just(Step::Unknown),
        1 => Just(Step::Unavailable),
        2 => Just(Step::Known),
        1 => (0..4usize).prop_map(Step::BeginsAnew),
        1 => (1..3usize).prop_map(Step::Loses),
        1 => Just(Step::Purges),
        2 => (0..4usize, 0..7u64).prop_map(|(count, by)| Step::Expires(count, by)),
        2 => (1..20u64).prop_map(Step::Others),
        1 => (0..4u8).prop_map(Step::OtherEpoch),
        1 => Just(Step::Ends),
        14 => (0..4usize, 0..10u8).prop_map(|(who, fresh)| Step::Joins(who, fresh)),
        2 => (0..4usize).prop_map(Step::Leaves),
        8 => (0..4usize).prop_map(Step::Drops),
        2 => (1..3_000u64).prop_map(Step::Passes),
        6 => any::<bool>().prop_map(Step::Turn),
        4 => Just(Step::FansOut),
        8 => Just(Step::Settles),
    ]
}

#[derive(Default)]
struct Client {
    key: Option<Key>,
    on: usize,
    is_joined: bool,
    is_opted_in: bool,
    position: Option<Position>,
    id: Option<&'static str>,
    wire: Option<Wire>,
    /// The position of the last broadcast that it received without its position.
    last: Option<Position>,
}

#[derive(Default)]
struct Stored {
    /// By the number in a broadcast: its epoch, its place in that, and which client sent it to
    /// others alone.
    by_n: HashMap<u64, (Position, Option<usize>)>,
}

impl Stored {
    /// Those that a client must have received between two places.
    fn between(&self, client: usize, from: Position, to: Place) -> Vec<u64> {
        let is_missed = |(position, but): &(Position, Option<usize>)| {
            position.epoch == from.epoch
                && position.place > from.place
                && position.place < to
                && *but != Some(client)
        };
        let missed = self.by_n.iter().filter(|(_, it)| is_missed(it));
        missed.map(|(n, _)| *n).collect()
    }
}

/// A node, and what the engine has sent there.
struct Side {
    it: Node,
    told: usize,
    has_begun: bool,
    owed: Vec<(u64, StoredAt)>,
}

struct Scenario {
    sides: Vec<Side>,
    at: usize,
    engine: Engine,
    topic: String,
    clients: Vec<Client>,
    stored: Stored,
    said: HashMap<u64, Option<usize>>,
    next: u64,
    old: u64,
    log_of: Vec<String>,
}

impl Scenario {
    fn new(is_here: bool, portion: usize) -> Self {
        let mut config = Config { idle_timeout: None, ..Config::default() };
        config.history.portion = ReplayLimits { count: portion, bytes: 64 << 10 };
        let rule = HistoryRule { count: 6, ..HistoryRule::default() };
        let side = |number| {
            let it = Node { number, ..Node::on(config.clone(), talking(), rule) };
            Side { it, told: 0, has_begun: false, owed: Vec::new() }
        };
        let sides = vec![side(0), side(1)];
        let topic = if is_here { sides[0].it.here.clone() } else { sides[0].it.there.clone() };
        let of = |id, wire| Client { id, wire: Some(wire), ..Client::default() };
        let clients = vec![
            of(Some("ann's tab"), Wire::V2),
            of(None, Wire::V2),
            of(Some("bob's tab"), Wire::V1),
            of(None, Wire::V1),
        ];
        Self {
            sides,
            at: 0,
            engine: Engine::new(),
            topic,
            clients,
            stored: Stored::default(),
            said: HashMap::new(),
            next: 0,
            old: 0,
            log_of: Vec::new(),
        }
    }

    fn note(&mut self, text: impl Into<String>) {
        self.log_of.push(text.into());
    }

    fn is_stored(&mut self) {
        let at = self.engine.log.len() - 1;
        let position = self.engine.position(at);
        let Some((_, payload)) = &self.engine.log[at].what else { return };
        let value: serde_json::Value = serde_json::from_str(payload.json().unwrap()).unwrap();
        let n = value["n"].as_u64().unwrap();
        let but = self.said.get(&n).copied().flatten();
        self.stored.by_n.insert(n, (position, but));
    }

    fn side(&mut self) -> &mut Side {
        &mut self.sides[self.at]
    }

    fn does(&mut self, on: usize, step: &Step) {
        self.note(format!("{on} {step:?}"));
        self.at = on;
        let topic = self.topic.clone();
        match *step {
            Step::Says(who, is_for_all) => self.sends(who, is_for_all),
            Step::Keeps(is_joined, how) => self.keeps(is_joined, how),
            Step::Elsewhere(is_joined) => {
                self.next += 1;
                let is_joined = is_joined && !self.is_cut();
                self.engine.receives(&topic, self.next, is_joined);
                self.is_stored();
            }
            Step::Hears(count) => (0..count).for_each(|_| self.hears_next()),
            Step::Unknown => self.tells(FromEngine::Unknown),
            Step::Unavailable => self.tells(FromEngine::Unavailable),
            Step::Known => {
                if self.side().has_begun {
                    while self.side().told < self.engine.log.len() {
                        self.hears_next();
                    }
                    self.tells(FromEngine::Known);
                }
            }
            Step::BeginsAnew(lost) => self.begins(lost),
            Step::Loses(count) => self.loses(count),
            Step::Purges => self.engine.purges(&topic, None),
            Step::Expires(count, by) => self.expires(count, by),
            Step::Others(by) => self.engine.seq += by,
            Step::OtherEpoch(1..) => {}
            Step::OtherEpoch(0) => self.lives_anew(),
            Step::Ends => {
                if self.clients.iter().all(|it| it.key.is_none() || it.on != on) {
                    self.side().has_begun = false;
                    self.tells(FromEngine::Ended);
                }
            }
            Step::Joins(who, fresh) => self.joins(who, fresh == 0),
            Step::Leaves(who) => {
                if let Some(key) = self.free(who).filter(|_| self.clients[who].is_joined) {
                    self.node_of(who).sends(key, &topic, "phx_leave", "{}");
                    self.clients[who].is_joined = false;
                }
            }
            Step::Drops(who) => {
                self.listens(who);
                if let Some(key) = self.clients[who].key.take() {
                    self.node_of(who).test_shard.disconnects(key);
                    (self.clients[who].is_joined, self.clients[who].last) = (false, None);
                }
            }
            Step::Passes(_) | Step::Turn(_) | Step::FansOut | Step::Settles => self.takes(step),
        }
        for on in 0..self.sides.len() {
            self.at = on;
            self.serves();
        }
        (0..self.clients.len()).for_each(|who| self.listens(who));
    }

    fn takes(&mut self, step: &Step) {
        match *step {
            Step::Passes(ms) => {
                for side in &mut self.sides {
                    side.it.advances(Duration::from_millis(ms));
                }
                self.engine.now_ms += ms;
            }
            Step::Turn(true) => self.side().it.test_shard.handles_mail(),
            Step::Turn(false) => {
                let it = &mut self.side().it;
                let mail = std::mem::take(&mut it.test_shard.node.log().mail[1]);
                mail.into_iter().for_each(|mail| it.other.mail(&mut it.out, mail));
            }
            Step::FansOut => drop(self.side().it.test_shard.fans_out()),
            _ => self.side().it.settles(),
        }
    }

    /// The engine has lost what it had, which all nodes receive at once.
    fn lives_anew(&mut self) {
        self.engine.epoch += 1;
        self.engine.log.clear();
        self.old = 0;
        for on in 0..self.sides.len() {
            self.at = on;
            self.side().told = 0;
            if self.side().has_begun {
                self.begins(0);
            }
        }
    }

    fn node_of(&mut self, who: usize) -> &mut Node {
        &mut self.sides[self.clients[who].on].it
    }

    /// Whether a node was sent all of the last envelope: nothing more is added to it.
    fn is_cut(&self) -> bool {
        self.sides.iter().any(|it| it.told == self.engine.log.len())
    }

    fn tells(&mut self, what: FromEngine) {
        let topic = self.topic.clone();
        self.side().it.test_shard.node.post_kept(&topic, what);
    }

    fn serves(&mut self) {
        let side = self.side();
        side.it.looks();
        let is_wanted = !std::mem::take(&mut side.it.follows).is_empty();
        if is_wanted && !side.has_begun {
            self.begins(0);
        }
    }

    fn sends(&mut self, who: usize, is_for_all: bool) {
        let Some(key) = self.free(who).filter(|_| self.clients[who].is_joined) else { return };
        self.next += 1;
        let n = self.next;
        self.said.insert(n, (!is_for_all).then_some(who));
        let event = if is_for_all { "bcast" } else { "bcast_from" };
        let topic = self.topic.clone();
        self.node_of(who).sends(key, &topic, event, &format!(r#"{{"n":{n}}}"#));
    }

    fn keeps(&mut self, is_joined: bool, how: u8) {
        let (is_joined, on) = (is_joined && !self.is_cut(), self.at);
        let Self { sides, engine, .. } = self;
        let Side { it, owed, .. } = &mut sides[on];
        let answers = |number, outcome| it.test_shard.node.post_stored(number, outcome);
        if let Some((number, at)) = (how > 5).then(|| owed.pop()).flatten() {
            return answers(number, Ok(at));
        }
        let Some(store) = it.stores.pop_front() else { return };
        let number = store.number;
        if how == 0 {
            return answers(number, Err(NotKept::Full));
        }
        let at = engine.keeps(on, store, is_joined);
        match how {
            1 => answers(number, Err(NotKept::Unconfirmed)),
            2 => answers(number, Ok(at)),
            3 => {}
            _ => owed.push((number, at)),
        }
        self.is_stored();
    }

    fn hears_next(&mut self) {
        let (on, told) = (self.at, self.side().told);
        if self.side().has_begun && told < self.engine.log.len() {
            self.side().told += 1;
            self.tells(self.engine.told(on, told));
        }
    }

    /// It begins with what there is, except for some of what it has not received yet.
    fn begins(&mut self, lost: usize) {
        let (end, told, on) = (self.engine.log.len(), self.side().told, self.at);
        let lost = (told + lost).min(end);
        let lost = self.engine.log[told.min(lost)..lost].last().map_or(0, |it| it.seq);
        let floor = lost.max(self.old);
        let begun = self.engine.begun(on, &self.topic, floor);
        let side = self.side();
        (side.told, side.has_begun) = (end, true);
        self.tells(begun);
    }

    /// Expired broadcasts are not sent to nodes that begin; the next number is seven higher.
    fn expires(&mut self, count: usize, by: u64) {
        let log = &self.engine.log;
        let young = log.iter().filter(|it| it.seq > self.old);
        let last = young.take(count).last().map_or(self.old, |it| it.seq);
        let next = log.iter().map(|it| it.seq).find(|it| *it > last);
        let most = next.map_or(self.engine.seq, |it| it - 1);
        self.old = (last + by).min(most);
    }

    fn loses(&mut self, count: usize) {
        let told = self.side().told;
        let last = (told + count).min(self.engine.log.len());
        if !self.side().has_begun || last == told {
            return;
        }
        let through = self.engine.log[last - 1].seq;
        let behind = self.engine.log.iter().position(|it| it.seq > through);
        self.side().told = behind.unwrap_or(self.engine.log.len());
        self.tells(FromEngine::Gap { through });
    }

    fn free(&self, who: usize) -> Option<Key> {
        let client = &self.clients[who];
        let (key, out) = (client.key?, &self.sides[client.on].it.test_shard.out);
        let is_open = out.find(key).is_some_and(|it| it.socket.is_open());
        (is_open && !out.is_held(key)).then_some(key)
    }

    fn joins(&mut self, who: usize, is_fresh: bool) {
        self.listens(who);
        if self.clients[who].key.is_none() {
            let wire = self.clients[who].wire.unwrap();
            self.clients[who].on = self.at;
            self.clients[who].key = Some(self.side().it.opens(wire));
        }
        let Some(key) = self.free(who) else { return };
        let client = &mut self.clients[who];
        // Over V1 a client that joins twice on a connection cannot tell the channels apart.
        if client.is_joined {
            return;
        }
        // The last, without an id, does not opt in.
        client.is_opted_in = who != 3;
        if is_fresh {
            client.position = None;
        }
        let since = client.position.map_or("null".to_owned(), |it| format!("\"{it}\""));
        let id = client.id.map_or(String::new(), |id| format!(r#""id":"{id}","#));
        let params = match client.is_opted_in {
            true => format!(r#"{{"simurgh":{{{id}"since":{since}}}}}"#),
            false => "{}".to_owned(),
        };
        client.is_joined = true;
        let topic = self.topic.clone();
        self.node_of(who).sends(key, &topic, "phx_join", &params);
    }

    fn listens(&mut self, who: usize) {
        let Some(key) = self.clients[who].key else { return };
        for text in self.node_of(who).receives(key) {
            self.note(format!("{who} hears {text}"));
            if text.starts_with("close") {
                continue;
            }
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let field = |at: usize, name: &str| match &value {
                serde_json::Value::Array(fields) => fields[at].clone(),
                object => object[name].clone(),
            };
            let (event, payload) = (field(3, "event"), field(4, "payload"));
            let place = field(1, "ref").as_str().and_then(Position::parse);
            let event = event.as_str().unwrap().to_owned();
            match place {
                Some(position) => self.is_at(who, position, &event, &payload),
                None => self.hears_plain(who, &event, &payload),
            }
        }
    }

    fn is_at(&mut self, who: usize, at: Position, event: &str, payload: &serde_json::Value) {
        let client = &self.clients[who];
        assert!(client.is_opted_in, "{}", self.story());
        let before = client.position;
        if event == "news" {
            let n = payload["n"].as_u64().unwrap();
            assert_eq!(self.stored.by_n.get(&n).map(|it| it.0), Some(at), "{}", self.story());
        }
        // A client accepts a gap as reported.
        let has_gap = payload.get("recovered") == Some(&serde_json::Value::Bool(false));
        let nowhere = Epoch::from_seed(crate::Node::id(&*self.sides[0].it.test_shard.node));
        let start = Position { epoch: at.epoch, place: Place::ZERO };
        if let Some(before) = before.filter(|_| !has_gap) {
            // It had no position, and nothing was sent before this.
            let is_first = before.epoch == nowhere && event == "simurgh:at";
            let before = if is_first { start } else { before };
            assert_eq!(before.epoch, at.epoch, "{}", self.story());
            let is_word = event == "simurgh:resumed";
            let is_same = is_word && at.place == before.place;
            // Two nodes report at two times up to where a topic without messages reaches.
            let is_of_nothing = is_word && before.place.item == Place::ITEM_MAX;
            let is_later = at.place > before.place || is_same || is_of_nothing;
            assert!(is_later, "{who} hears twice, or goes back: {}", self.story());
            let missed = self.stored.between(who, before, at.place);
            assert!(missed.is_empty(), "{who} has missed {missed:?} at {at}: {}", self.story());
        }
        self.clients[who].position = Some(at);
    }

    fn hears_plain(&mut self, who: usize, event: &str, payload: &serde_json::Value) {
        assert!(!event.starts_with("simurgh:"), "{}", self.story());
        if event != "news" {
            return;
        }
        assert!(!self.clients[who].is_opted_in, "{}", self.story());
        let n = payload["n"].as_u64().unwrap();
        let (position, _) = self.stored.by_n[&n];
        let before = self.clients[who].last.replace(position);
        let is_older = |it: &Position| it.epoch == position.epoch && it.place >= position.place;
        assert!(!before.is_some_and(|it| is_older(&it)), "{}", self.story());
    }

    /// Everything in flight arrives, and all clients are up to date.
    fn ends(&mut self) {
        self.note("the end");
        for on in [0, 1].repeat(4) {
            self.at = on;
            while !self.side().it.stores.is_empty() {
                self.keeps(false, 4);
            }
            for (number, at) in std::mem::take(&mut self.side().owed) {
                self.side().it.test_shard.node.post_stored(number, Ok(at));
            }
            if !self.side().has_begun {
                self.begins(0);
            }
            self.does(on, &Step::Known);
            self.does(on, &Step::Settles);
            self.does(on, &Step::Passes(2_500));
        }
        for who in 0..3 {
            let client = &self.clients[who];
            let (Some(key), true) = (client.key, client.is_joined) else { continue };
            let is_held = self.sides[client.on].it.test_shard.out.is_held(key);
            assert!(!is_held, "{who} waits: {}", self.story());
            let Some(at) = client.position else { panic!("{who}: nowhere: {}", self.story()) };
            let end = Place { seq: u64::MAX, item: 0 };
            let missed = self.stored.between(who, at, end);
            assert!(missed.is_empty(), "{who} is not told {missed:?}: {}", self.story());
            let now = Epoch::from_seed(self.engine.epoch);
            assert_eq!(at.epoch, now, "{who}: {}", self.story());
        }
        for who in 0..self.clients.len() {
            if let Some(key) = self.clients[who].key.take() {
                self.node_of(who).test_shard.disconnects(key);
            }
        }
        for on in 0..self.sides.len() {
            let it = &mut self.sides[on].it;
            it.settles();
            it.advances(Duration::from_secs(30));
            let left = (it.waits(), it.charged());
            assert_eq!(left, (0, [0; 2]), "{}", self.story());
        }
    }

    fn story(&self) -> String {
        self.log_of.join("\n")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_clients_hear_is_the_stored_order_or_a_gap_was_told_before(
        is_here in any::<bool>(),
        portion in 1..6usize,
        steps in steps(),
    ) {
        let mut world = Scenario::new(is_here, portion);
        steps.iter().for_each(|(on, step)| world.does(*on, step));
        world.ends();
    }
}

/// Otherwise the test above would prove little.
#[test]
fn random_steps_come_to_all_that_clients_can_be_told() {
    let mut runner = TestRunner::deterministic();
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..300 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut world = Scenario::new(n % 2 == 0, 1 + n % 5);
        steps.iter().for_each(|(on, step)| world.does(*on, step));
        world.ends();
        for text in world.log_of.iter().filter_map(|it| it.split_once(" hears ")) {
            let gist = said(text.1);
            let is_news = gist.starts_with("news");
            let is_full = !text.1.contains(r#""count":0"#) && gist.contains("resumed");
            let kind = if is_news { "news".to_owned() } else { gist };
            *told
                .entry(format!("{kind}{}", if is_full { " and more" } else { "" }))
                .or_default() += 1;
        }
    }
    for kind in [
        "news",
        "phx_reply ok",
        "simurgh:at",
        "simurgh:gap epoch",
        "simurgh:gap lost",
        "simurgh:gap unavailable",
        "simurgh:resumed epoch",
        "simurgh:resumed epoch and more",
        "simurgh:resumed expired",
        "simurgh:resumed lost and more",
        "simurgh:resumed overwritten and more",
        "simurgh:resumed purged",
        "simurgh:resumed true",
        "simurgh:resumed true and more",
        "simurgh:resumed unavailable",
        "simurgh:resumed unavailable and more",
    ] {
        assert!(told.get(kind).is_some_and(|count| *count > 1), "{kind}: {told:#?}");
    }
}

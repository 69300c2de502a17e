//! Random publishes, joins, drops and resumes, words of the engine that come late, and words that
//! something is missing: what each client hears is the stored order without a hole, or it was told
//! of a gap before anything newer.

use std::collections::HashMap;

use proptest::prelude::*;
use simurgh_history::{Place, ReplayLimits};

use super::*;

/// What happens; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    /// A client says something, to all or to all others.
    Says(usize, bool),
    /// The engine keeps the oldest that it was asked to, in the envelope of the one before it or
    /// not; and answers before it is heard, behind that, or never.
    Keeps(bool, u8),
    /// Somebody elsewhere has something kept.
    Elsewhere(bool),
    /// The node hears the next.
    Hears(usize),
    Unknown,
    Known,
    /// It is told anew what there is, of which so many are missing.
    BeginsAnew(usize),
    /// The next are lost to it.
    Loses(usize),
    Purges,
    OtherEpoch,
    Ends,
    Joins(usize, bool),
    Leaves(usize),
    Drops(usize),
    /// Milliseconds.
    Passes(u64),
    /// Only one shard has its turn.
    Turn(bool),
    FansOut,
    Settles,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4usize, any::<bool>()).prop_map(|(who, all)| Step::Says(who, all)),
        8 => (any::<bool>(), 0..8u8).prop_map(|(joined, how)| Step::Keeps(joined, how)),
        6 => any::<bool>().prop_map(Step::Elsewhere),
        12 => (1..4usize).prop_map(Step::Hears),
        1 => Just(Step::Unknown),
        2 => Just(Step::Known),
        1 => (0..4usize).prop_map(Step::BeginsAnew),
        1 => (1..3usize).prop_map(Step::Loses),
        1 => Just(Step::Purges),
        1 => Just(Step::OtherEpoch),
        1 => Just(Step::Ends),
        8 => (0..4usize, any::<bool>()).prop_map(|(who, fresh)| Step::Joins(who, fresh)),
        2 => (0..4usize).prop_map(Step::Leaves),
        2 => (0..4usize).prop_map(Step::Drops),
        2 => (1..3_000u64).prop_map(Step::Passes),
        6 => any::<bool>().prop_map(Step::Turn),
        4 => Just(Step::FansOut),
        6 => Just(Step::Settles),
    ]
}

/// A client: what it has heard up to, and what it makes of what it hears.
#[derive(Default)]
struct Client {
    key: Option<Key>,
    is_joined: bool,
    /// It is told positions.
    is_opted_in: bool,
    position: Option<Position>,
    /// Its id, or nothing.
    id: Option<&'static str>,
    wire: Option<Wire>,
    /// Where the last stands that it has heard without being told that.
    last: Option<Position>,
}

/// What is stored, of all epochs.
#[derive(Default)]
struct Stored {
    /// By the number that a broadcast bears: its epoch, its place in that, and who has said it to
    /// others alone.
    by_n: HashMap<u64, (Position, Option<usize>)>,
}

impl Stored {
    /// Those that a client must have heard between two places.
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

struct World {
    it: Node,
    engine: Engine,
    topic: String,
    clients: Vec<Client>,
    stored: Stored,
    /// Who has said what: the client, if others alone are to hear it.
    said: HashMap<u64, Option<usize>>,
    next: u64,
    /// How much of the log the node was told.
    told: usize,
    has_begun: bool,
    /// Answers that the engine owes.
    owed: Vec<(u64, StoredAt)>,
    log_of: Vec<String>,
}

impl World {
    fn new(is_here: bool, portion: usize) -> Self {
        let mut config = Config { idle_timeout: None, ..Config::default() };
        config.history.portion = ReplayLimits { count: portion, bytes: 64 << 10 };
        let rule = HistoryRule { count: 12, ..HistoryRule::default() };
        let it = Node::on(config, talking(), rule);
        let topic = if is_here { it.here.clone() } else { it.there.clone() };
        let of = |id, wire| Client { id, wire: Some(wire), ..Client::default() };
        let clients = vec![
            of(Some("ann's tab"), Wire::V2),
            of(None, Wire::V2),
            of(Some("bob's tab"), Wire::V1),
            of(None, Wire::V1),
        ];
        Self {
            it,
            engine: Engine::new(),
            topic,
            clients,
            stored: Stored::default(),
            said: HashMap::new(),
            next: 0,
            told: 0,
            has_begun: false,
            owed: Vec::new(),
            log_of: Vec::new(),
        }
    }

    fn note(&mut self, text: impl Into<String>) {
        self.log_of.push(text.into());
    }

    /// What is stored last, by what it bears.
    fn is_stored(&mut self) {
        let at = self.engine.log.len() - 1;
        let position = self.engine.position(at);
        let Some((_, payload)) = &self.engine.log[at].what else { return };
        let value: serde_json::Value = serde_json::from_str(payload.json().unwrap()).unwrap();
        let n = value["n"].as_u64().unwrap();
        let but = self.said.get(&n).copied().flatten();
        self.stored.by_n.insert(n, (position, but));
    }

    fn does(&mut self, step: &Step) {
        self.note(format!("{step:?}"));
        match *step {
            Step::Says(who, is_for_all) => self.says(who, is_for_all),
            Step::Keeps(is_joined, how) => self.keeps(is_joined, how),
            Step::Elsewhere(is_joined) => {
                self.next += 1;
                self.engine.hears(&self.topic.clone(), self.next, is_joined && !self.is_cut());
                self.is_stored();
            }
            Step::Hears(count) => (0..count).for_each(|_| self.hears_next()),
            Step::Unknown => self.tells(FromEngine::Unknown),
            Step::Known => {
                // It is known again when all that was missed has come.
                if self.has_begun {
                    while self.told < self.engine.log.len() {
                        self.hears_next();
                    }
                    self.tells(FromEngine::Known);
                }
            }
            Step::BeginsAnew(lost) => self.begins(lost),
            Step::Loses(count) => self.loses(count),
            Step::Purges => self.engine.purges(&self.topic.clone(), None),
            Step::OtherEpoch => {
                self.engine.epoch += 1;
                self.engine.log.clear();
                self.told = 0;
                if self.has_begun {
                    self.begins(0);
                }
            }
            Step::Ends => {
                if self.clients.iter().all(|it| it.key.is_none()) {
                    self.has_begun = false;
                    self.it.begun.clear();
                    self.tells(FromEngine::Ended);
                }
            }
            Step::Joins(who, is_fresh) => self.joins(who, is_fresh),
            Step::Leaves(who) => {
                if let Some(key) = self.free(who).filter(|_| self.clients[who].is_joined) {
                    let topic = self.topic.clone();
                    self.it.says(key, &topic, "phx_leave", "{}");
                    self.clients[who].is_joined = false;
                }
            }
            Step::Drops(who) => {
                self.listens(who);
                if let Some(key) = self.clients[who].key.take() {
                    self.it.stage.goes(key);
                    self.clients[who].is_joined = false;
                }
            }
            Step::Passes(ms) => {
                self.it.passes(Duration::from_millis(ms));
                self.engine.now_ms += ms;
            }
            Step::Turn(is_first) if is_first => self.it.stage.takes_mail(),
            Step::Turn(_) => {
                let mail = std::mem::take(&mut self.it.stage.node.told().mail[1]);
                mail.into_iter().for_each(|mail| self.it.other.mail(&mut self.it.out, mail));
            }
            Step::FansOut => drop(self.it.stage.fans_out()),
            Step::Settles => self.it.settles(),
        }
        self.serves();
        (0..self.clients.len()).for_each(|who| self.listens(who));
    }

    /// Whether the node was told all of the last envelope: nothing more comes into it.
    fn is_cut(&self) -> bool {
        self.told == self.engine.log.len()
    }

    fn tells(&mut self, what: FromEngine) {
        let topic = self.topic.clone();
        self.it.stage.node.post_kept(&topic, what);
    }

    /// The topic is followed when that is asked for.
    fn serves(&mut self) {
        self.it.looks();
        let is_wanted = !std::mem::take(&mut self.it.follows).is_empty();
        if is_wanted && !self.has_begun {
            self.begins(0);
        }
    }

    fn says(&mut self, who: usize, is_for_all: bool) {
        let Some(key) = self.free(who).filter(|_| self.clients[who].is_joined) else { return };
        self.next += 1;
        let n = self.next;
        self.said.insert(n, (!is_for_all).then_some(who));
        let event = if is_for_all { "bcast" } else { "bcast_from" };
        let topic = self.topic.clone();
        self.it.says(key, &topic, event, &format!(r#"{{"n":{n}}}"#));
    }

    fn keeps(&mut self, is_joined: bool, how: u8) {
        if let Some((number, at)) = (how > 5).then(|| self.owed.pop()).flatten() {
            return self.it.stage.node.post_stored(number, Ok(at));
        }
        let Some(store) = self.it.stores.pop_front() else { return };
        let number = store.number;
        if how == 0 {
            return self.it.stage.node.post_stored(number, Err(NotKept::Full));
        }
        let is_joined = is_joined && !self.is_cut();
        let at = self.engine.keeps(0, store, is_joined);
        self.is_stored();
        match how {
            1 => self.it.stage.node.post_stored(number, Err(NotKept::Unconfirmed)),
            2 => self.it.stage.node.post_stored(number, Ok(at)),
            3 => {}
            _ => self.owed.push((number, at)),
        }
    }

    fn hears_next(&mut self) {
        if self.has_begun && self.told < self.engine.log.len() {
            let next = self.engine.told(0, self.told);
            self.told += 1;
            self.tells(next);
        }
    }

    /// It is told what there is, but for some of what it has not heard of yet.
    fn begins(&mut self, lost: usize) {
        let end = self.engine.log.len();
        let lost = (self.told + lost).min(end);
        let floor = match lost > self.told {
            true => self.engine.log[lost - 1].seq,
            false => 0,
        };
        let topic = self.topic.clone();
        let begun = self.engine.begun(0, &topic, floor);
        (self.told, self.has_begun) = (end, true);
        self.it.begun.insert(topic);
        self.tells(begun);
    }

    fn loses(&mut self, count: usize) {
        let last = (self.told + count).min(self.engine.log.len());
        if !self.has_begun || last == self.told {
            return;
        }
        let through = self.engine.log[last - 1].seq;
        let behind = self.engine.log.iter().position(|it| it.seq > through);
        self.told = behind.unwrap_or(self.engine.log.len());
        self.tells(FromEngine::Gap { through });
    }

    /// A client that may speak.
    fn free(&self, who: usize) -> Option<Key> {
        let key = self.clients[who].key?;
        let is_open = self.it.stage.out.find(key).is_some_and(|it| it.socket.is_open());
        (is_open && !self.it.stage.out.is_held(key)).then_some(key)
    }

    fn joins(&mut self, who: usize, is_fresh: bool) {
        self.listens(who);
        if self.clients[who].key.is_none() {
            let wire = self.clients[who].wire.unwrap();
            self.clients[who].key = Some(self.it.opens(wire));
        }
        let Some(key) = self.free(who) else { return };
        let client = &mut self.clients[who];
        // Over V1 a client does not know whose word it hears that joins twice on a connection.
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
        self.it.says(key, &topic, "phx_join", &params);
    }

    /// What a client makes of what it hears.
    fn listens(&mut self, who: usize) {
        let Some(key) = self.clients[who].key else { return };
        for text in self.it.hears(key) {
            self.note(format!("{who} hears {text}"));
            if text.starts_with("close") || self.it.stage.out.find(key).is_none() {
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
        // What it was told of a gap it has to make the best of.
        let has_gap = payload.get("recovered") == Some(&serde_json::Value::Bool(false));
        let nowhere = Epoch::from_seed(crate::Node::id(&*self.it.stage.node));
        let start = Position { epoch: at.epoch, place: Place::ZERO };
        if let Some(before) = before.filter(|_| !has_gap) {
            // It stood nowhere, and nothing was said before this.
            let is_first = before.epoch == nowhere && event == "simurgh:at";
            let before = if is_first { start } else { before };
            assert_eq!(before.epoch, at.epoch, "{}", self.story());
            let is_word = event == "simurgh:resumed";
            // Where two nodes, or two times, say of nothing how far it reaches.
            assert!(at.place > before.place || is_word, "twice, or back: {}", self.story());
            let (from, to) = (before.min_place(at), before.place.max(at.place));
            let missed = self.stored.between(who, from, to);
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

    /// All comes that is on its way, and everybody is up to date.
    fn ends(&mut self) {
        self.note("the end");
        for _ in 0..4 {
            while !self.it.stores.is_empty() {
                self.keeps(false, 4);
            }
            for (number, at) in std::mem::take(&mut self.owed) {
                self.it.stage.node.post_stored(number, Ok(at));
            }
            if !self.has_begun {
                self.begins(0);
            }
            self.does(&Step::Known);
            self.does(&Step::Settles);
            self.does(&Step::Passes(2_500));
        }
        for who in 0..3 {
            let client = &self.clients[who];
            let (Some(key), true) = (client.key, client.is_joined) else { continue };
            assert!(!self.it.stage.out.is_held(key), "{who} waits: {}", self.story());
            let Some(at) = client.position else {
                panic!("{who} stands nowhere: {}", self.story())
            };
            let end = Place { seq: u64::MAX, item: 0 };
            let missed = self.stored.between(who, at, end);
            assert!(missed.is_empty(), "{who} is not told {missed:?}: {}", self.story());
            let now = Epoch::from_seed(self.engine.epoch);
            assert_eq!(at.epoch, now, "{who}: {}", self.story());
        }
        for client in &mut self.clients {
            if let Some(key) = client.key.take() {
                self.it.stage.goes(key);
            }
        }
        self.it.settles();
        self.it.passes(Duration::from_secs(30));
        assert_eq!((self.it.waits(), self.it.charged()), (0, [0; 2]), "{}", self.story());
    }

    fn story(&self) -> String {
        self.log_of.join("\n")
    }
}

/// The earlier of two, of one epoch.
trait Earlier {
    fn min_place(self, other: Position) -> Position;
}

impl Earlier for Position {
    fn min_place(self, other: Position) -> Position {
        Position { epoch: self.epoch, place: self.place.min(other.place) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_clients_hear_is_the_stored_order_or_a_gap_was_told_before(
        is_here in any::<bool>(),
        portion in 1..6usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(is_here, portion);
        steps.iter().for_each(|step| world.does(step));
        world.ends();
    }
}

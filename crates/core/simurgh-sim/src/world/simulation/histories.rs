//! Operations on kept topics from outside of channels, faults of the engine, and restarts of a node
//! without one: with what it has saved, clients resume as if it had not ended; topics that were not
//! saved have a new epoch.

use simurgh_core::{NotKept, Range};

use super::*;

const KEYS: u32 = 4;
const PAGE_MAX: usize = 50;

/// The position that the answer to a question has named.
type Seen = Arc<Mutex<Option<Position>>>;

impl Simulation {
    pub(crate) fn read_log(&self) {
        let (log, plan) = (self.network.take_log(), &self.shared.plan);
        if log.is_empty() || plan.is_one_node() {
            return;
        }
        let mut ledger = self.shared.ledger();
        for it in log {
            ledger.note(|| format!("the engine: {it:?}").chars().take(60).collect());
            match ledger.log.take(&it, self.clock_ns, plan) {
                Ok(count) => ledger.count("stored", count),
                Err(wrong) => ledger.fail("log", wrong),
            }
        }
    }

    /// Broadcasts from outside of channels, perhaps with an id, and checks the answer.
    pub(crate) fn keep(&self, slot: usize, topic: u8, c: u32) {
        let Some(running) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let (node, start) = (Arc::clone(&running.node), running.start);
        let mut ledger = self.shared.ledger();
        if !ledger.is_kept(topic) {
            return;
        }
        let name = self.shared.plan.topics.name(topic).to_owned();
        let topic = usize::from(topic);
        let id = ledger.add(BroadcastInfo { event: "c", ..BroadcastInfo::new(topic, start) });
        let key = (c >> 8 & 3 != 0).then_some((c >> 12) % KEYS);
        if let Some(key) = key {
            ledger.log.keyed.insert(id, (topic, key as u8));
        }
        drop(ledger);
        let shared = Arc::clone(&self.shared);
        let answer = Box::new(move |it| check_stored(&shared.ledger(), (id, topic), it));
        let payload = payload::make(id, 0, 0, c >> 4 & 7 == 0);
        let said = key.map(|key| format!("key-{key}").into());
        let done = node.keep(Broadcast::new(name, "c", payload), said, Some(answer));
        self.shared.note(|| format!("#{id} is said on start {start} with {key:?}: {done:?}"));
    }

    pub(crate) fn purge(&self, slot: usize, topic: u8) {
        let Some(running) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let name = self.shared.plan.topics.name(topic).to_owned();
        self.shared.note(|| format!("{name} is to be forgotten, says start {}", running.start));
        self.shared.ledger().orders[usize::from(topic)].is_purged = true;
        running.node.request_history(HistoryRequest::Forget(name.into(), Box::new(|_| {})));
    }

    pub(crate) fn look_up(&self, slot: usize, topic: u8, c: u32) {
        let Some(running) = self.nodes.get(slot).and_then(Option::as_ref) else { return };
        let topic = usize::from(topic) % self.shared.plan.topics.rooms;
        let ledger = self.shared.ledger();
        let clients = 0..self.clients.len() as u32;
        let views = clients.filter_map(|client| ledger.view(client, topic as u8));
        let since = views.filter_map(|view| view.at).nth(c as usize >> 8 & 3);
        drop(ledger);
        let since = since.filter(|_| c & 1 == 0);
        self.read_page(&running.node, topic, since, Arc::default());
    }

    fn read_page(&self, node: &SimNode, topic: usize, since: Option<Position>, seen: Seen) {
        let range = Range { since, limit: PAGE_MAX, is_reverse: false };
        let shared: Arc<Shared> = Arc::clone(&self.shared);
        let answer = Box::new(move |page: HistoryPage| {
            *locked(&seen) = Some(page.position);
            check_page(&shared.ledger(), topic, since, &page);
        });
        let name = self.shared.plan.topics.name(topic as u8).to_owned();
        node.request_history(HistoryRequest::Read(name.into(), range, answer));
    }

    /// Checks that every node knows all that is stored, once everything is delivered.
    pub(crate) fn read_everywhere(&mut self) {
        let mut asked = Vec::new();
        for running in self.nodes.iter().flatten().filter(|it| !it.is_draining) {
            for topic in 0..self.shared.plan.topics.rooms {
                let seen = Arc::default();
                self.read_page(&running.node, topic, None, Arc::clone(&seen));
                asked.push((running.start, topic, seen));
            }
        }
        self.pass(4 * SECOND + 4 * self.shared.plan.slack_ns());
        let rule = self.shared.plan.history.as_ref().map(|it| it.rule).unwrap_or_default();
        let age_ns = rule.age.as_nanos() as u64;
        let ledger = self.shared.ledger();
        for (start, topic, seen) in asked {
            let (seen, epoch) = (*locked(&seen), ledger.log.epoch());
            let Some(epoch) = epoch else { continue };
            let last = ledger.log.of(epoch, topic).and_then(|it| it.last()).copied();
            // Once all of a topic is too old, a node may not know its last position.
            let last = last.filter(|it| self.clock_ns.saturating_sub(it.at_ns) < age_ns);
            let is_there = match (seen, last) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(seen), Some(last)) => seen.epoch == epoch && seen.place >= last.place,
            };
            if !is_there {
                let text = format!("start {start} knows {topic} up to {seen:?}, of {last:?}");
                ledger.fail("read", text);
            }
        }
    }
}

/// Checks the answer to a broadcast from outside: its position, or an error.
fn check_stored(ledger: &Ledger, (id, topic): (u32, usize), outcome: Result<KeptAt, NotKept>) {
    ledger.note(|| format!("#{id}: {outcome:?}"));
    match outcome {
        Ok(at) => {
            ledger.count("known by their ids", u64::from(at.is_duplicate));
            let entry = ledger.log.at(at.position, topic);
            if entry.is_none_or(|it| !ledger.log.have_same_id(it.id, id)) {
                let text = format!("#{id} is said to stand at {at:?}, where {entry:?} is");
                ledger.fail("answer", text);
            }
        }
        Err(NotKept::Unconfirmed) => ledger.count("unconfirmed", 1),
        Err(NotKept::Refused(_) | NotKept::Full | NotKept::LocalOnly) => {
            ledger.count("refused", 1);
            if ledger.log.has(id) {
                ledger.fail("answer", format!("#{id} is stored, and said not to be"));
            }
        }
    }
}

/// Checks that what is read is what is stored, without holes.
fn check_page(ledger: &Ledger, topic: usize, since: Option<Position>, page: &HistoryPage) {
    ledger.count("pages", 1);
    let HistoryPage { gap, position, messages, .. } = page;
    let fail = |wrong: String| {
        ledger.fail("page", format!("topic {topic} from {since:?}, {gap:?}: {wrong}"));
    };
    let mut before = since.filter(|it| gap.is_none() && it.epoch == position.epoch);
    let heads = messages.iter().map(|it| (it.position, Some(payload::parse(&it.payload()).0)));
    let end = (messages.len() < PAGE_MAX).then_some((*position, None));
    for (at, id) in heads.chain(end) {
        let entry = ledger.log.at(at, topic);
        if id.is_some() && entry.map(|it| it.id) != id {
            fail(format!("#{id:?} at {at}, where {entry:?} is"));
        }
        if let Some(before) = before {
            let entries = ledger.log.of(at.epoch, topic).unwrap_or_default();
            let is_between =
                |it: &&Entry| it.place > before.place && it.place < at.place && it.id != NONE;
            let missed = entries.iter().find(is_between);
            if let Some(missed) = missed {
                fail(format!("{missed:?} is missing before {at}"));
            }
        }
        before = Some(at).filter(|_| !messages.is_empty() || before.is_some());
    }
}

/// More topics than there are.
const TOPICS_MAX: usize = 100;

impl Simulation {
    /// Listens to each topic on each shard, outside of channels, to learn the order.
    pub(crate) fn listen_everywhere(&mut self) {
        let Some(node) = self.nodes.first().and_then(Option::as_ref) else { return };
        let (node, topics) = (Arc::clone(&node.node), self.shared.plan.topics.rooms);
        for (shard, topic) in (0..node.shards()).flat_map(|it| (0..topics).map(move |t| (it, t))) {
            let shared = Arc::clone(&self.shared);
            let hear = Box::new(move |it: &Arc<Broadcast>| {
                if !it.event().starts_with("presence_") {
                    shared.ledger().note_heard(shard, topic, it);
                }
            });
            let name = Listener::id(shard as u16, topic as u32);
            let listener = Listener { name, on_broadcast: hear };
            let name = self.shared.plan.topics.name(topic as u8);
            node.post(shard, Mail::Listen(name.into(), listener));
            self.take_mail(0, shard);
        }
    }

    /// Drains all shards and starts others, which have what was saved unless `is_lost`.
    pub(crate) fn restart_with_histories(&mut self, is_lost: bool) {
        let Some(node) = self.running(0).map(|it| Arc::clone(&it.node)) else { return };
        for shard in 0..node.shards() {
            node.post(shard, Mail::Drain(Duration::from_millis(50)));
        }
        self.rest();
        (0..self.clients.len()).for_each(|client| self.vanish(client));
        self.rest();
        self.check_left();
        let Some(running) = self.running(0) else { return };
        if !running.shards.iter().all(|it| it.net.stops) {
            node.shared.fail("drain", "the shards do not end");
        }
        if node.shared.has_failed() {
            return;
        }
        let shards = &mut running.shards;
        let saved: Vec<SavedHistory> = shards.iter_mut().map(|it| it.core.take_history()).collect();
        shards.iter_mut().for_each(|it| it.core.retire());
        let topics = |all: &[SavedHistory]| all.iter().map(SavedHistory::topics).sum::<usize>();
        let had = topics(&saved);
        let mut bytes = Vec::new();
        let written = SavedHistory::encode(saved, |part| {
            bytes.extend_from_slice(part);
            Ok::<_, Infallible>(())
        });
        let Ok(mut decoded) = SavedHistory::decode(&bytes, node.shards(), node.id()) else {
            return self.shared.fail("save", "what was saved is not read");
        };
        if topics(&decoded) != had || written != Ok(had) {
            self.shared.fail("save", "not all that was saved is read");
        }
        let has_forgotten = self.shared.faults.happens(Fault::Amnesia);
        let names = if is_lost { Vec::new() } else { self.saved_names(&node, &mut decoded) };
        if !has_forgotten {
            node.id.fetch_add(1 << 32, Relaxed);
        }
        let restored = if is_lost || has_forgotten { Vec::new() } else { decoded };
        let (now_ns, mut restored) = (self.clock_ns, restored.into_iter());
        let shards = self.running(0).map(|it| &mut it.shards).into_iter().flatten();
        for (shard, place) in shards.enumerate() {
            *place = Shard::new(&node, shard, Arc::clone(&place.metrics), node.id());
            if let Some(saved) = restored.next() {
                place.core.restore_history(saved, now_ns);
            }
        }
        let topics = &self.shared.plan.topics.names;
        let mut ledger = self.shared.ledger();
        ledger.restart(|topic| topics.get(topic).is_some_and(|it| names.contains(it)));
        ledger.sessions.shards.iter_mut().for_each(|shard| shard.drains = false);
        drop(ledger);
        self.shared.note(|| format!("it starts again, with {names:?}"));
        self.listen_everywhere();
    }

    /// The topics that were saved, as a core that has loaded them lists them.
    fn saved_names(&self, node: &Arc<SimNode>, saved: &mut [SavedHistory]) -> Vec<String> {
        let mut names = Vec::new();
        for (shard, it) in saved.iter_mut().enumerate() {
            let Shard { mut core, mut net, .. } =
                Shard::new(node, shard, Arc::default(), node.id());
            core.restore_history(std::mem::take(it), self.clock_ns);
            let (answer, answers) = mpsc::channel();
            let tell = Box::new(move |topics| drop(answer.send(topics)));
            let question = HistoryRequest::Topics(shard as u16, 0, TOPICS_MAX, tell);
            core.mail(&mut net, Mail::History(HistoryMail::Request(question)));
            let topics = answers.try_iter().flat_map(|it| it.topics);
            names.extend(topics.map(|it| it.name.into_string()));
            *it = core.take_history();
        }
        names
    }
}

//! What the engine has stored of topics that are kept: the reference for all other checks.
//!
//! What the handlers of each client that opts in receive, over all its connections and on any node
//! ([`TopicView`]), must be the stored order without holes and
//! without repeats, or a gap must precede anything newer. A reply `ok` means that what its channel
//! broadcast is in the log, and no broadcast is there twice.

use simurgh_cluster::Kind;

use super::*;

/// How long an engine remembers ids, less the delay with which its actions are read here.
const ID_NS: u64 = 119_000 * MILLISECOND;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) place: Place,
    /// The broadcast; [`NONE`] for a purge of what is before it.
    pub(crate) id: u32,
    pub(crate) at_ns: u64,
    /// Its share of the bounds of a node without a broker.
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone)]
struct EpochLog {
    epoch: Epoch,
    topics: Vec<Vec<Entry>>,
    ids: HashSet<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    epochs: Vec<EpochLog>,
    /// The broadcasts before a reply or a push, by its number.
    pub(crate) before: BTreeMap<u32, Vec<u32>>,
    /// The topics and ids of broadcasts with an id.
    pub(crate) keyed: BTreeMap<u32, (usize, u8)>,
}

impl Log {
    pub(crate) fn take(&mut self, what: &LogEntry, at_ns: u64, plan: &Plan) -> Result<u64, String> {
        match what {
            LogEntry::Remade { epoch, head } => {
                let (epoch, topics) = (Epoch::from_seed(*epoch), plan.topics.rooms);
                let before = self.epochs.last().cloned();
                let empty =
                    || EpochLog { epoch, topics: vec![Vec::new(); topics], ids: HashSet::new() };
                let mut life = before.map_or_else(empty, |it| EpochLog { epoch, ..it });
                for it in &mut life.topics {
                    it.retain(|it| it.place.seq <= *head);
                }
                life.ids = life.topics.iter().flatten().map(|it| it.id).collect();
                self.epochs.push(life);
                Ok(0)
            }
            LogEntry::Stored(seq, bytes) => {
                let envelope = Envelope::decode(bytes).map_err(|it| it.to_string())?;
                let topic = plan.topics.number(envelope.topic).ok_or("a topic of nobody")?;
                let topic = usize::from(topic);
                let is_purge = envelope.header.kind == Kind::Forget;
                let ids = envelope.items().map(|it| payload::parse(&it.payload.to_payload()).0);
                let ids: Vec<u32> = ids.chain(is_purge.then_some(NONE)).collect();
                let Some(life) = self.epochs.last_mut() else { return Err("no epoch".to_owned()) };
                let Some(entries) = life.topics.get_mut(topic) else { return Ok(0) };
                for (item, id) in ids.iter().copied().enumerate() {
                    let place = Place { seq: *seq, item: item as u16 };
                    if id != NONE && !life.ids.insert(id) {
                        return Err(format!("#{id} is stored twice, the second time at {place:?}"));
                    }
                    if let Some(key) = self.keyed.get(&id) {
                        let is_again = |it: &&Entry| {
                            self.keyed.get(&it.id) == Some(key)
                                && at_ns.saturating_sub(it.at_ns) < ID_NS
                        };
                        if let Some(it) = entries.iter().find(is_again) {
                            return Err(format!("#{id} is stored, which is {it:?} by its id"));
                        }
                    }
                    entries.push(Entry { place, id, at_ns, bytes: 0 });
                }
                Ok(ids.len() as u64)
            }
        }
    }

    /// A node without an engine has stored a broadcast; returns whether it had done so before.
    pub(crate) fn add(&mut self, epoch: Epoch, topic: usize, topics: usize, entry: Entry) -> bool {
        let known = self.epochs.iter().rposition(|it| it.epoch == epoch);
        let at = known.unwrap_or_else(|| {
            let topics = vec![Vec::new(); topics];
            self.epochs.push(EpochLog { epoch, topics, ids: HashSet::new() });
            self.epochs.len() - 1
        });
        let is_known = self.has(entry.id);
        if let Some(life) = self.epochs.get_mut(at) {
            life.ids.insert(entry.id);
            life.topics.get_mut(topic).into_iter().for_each(|it| it.push(entry));
        }
        is_known
    }

    /// A node without an engine starts again without the history of a topic.
    pub(crate) fn forget(&mut self, topic: usize) {
        let lives = self.epochs.iter_mut();
        lives.filter_map(|it| it.topics.get_mut(topic)).for_each(Vec::clear);
    }

    /// The broadcasts stored on a topic after a position, of its epoch.
    pub(crate) fn behind(&self, at: Position, topic: usize) -> &[Entry] {
        let entries = self.of(at.epoch, topic).unwrap_or_default();
        entries.get(entries.partition_point(|it| it.place <= at.place)..).unwrap_or_default()
    }

    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.epochs.last().map(|it| it.epoch)
    }

    /// What was stored on a topic in an epoch; `None` for an epoch that is not the engine's.
    pub(crate) fn of(&self, epoch: Epoch, topic: usize) -> Option<&[Entry]> {
        let life = self.epochs.iter().rfind(|it| it.epoch == epoch)?;
        life.topics.get(topic).map(Vec::as_slice)
    }

    pub(crate) fn at(&self, at: Position, topic: usize) -> Option<Entry> {
        self.of(at.epoch, topic)?.iter().rfind(|it| it.place == at.place).copied()
    }

    /// The position of a broadcast, in the last epoch that has it.
    pub(crate) fn find(&self, id: u32, topic: usize) -> Option<Position> {
        self.epochs.iter().rev().find_map(|life| {
            let entry = life.topics.get(topic)?.iter().rfind(|it| it.id == id)?;
            Some(Position { epoch: life.epoch, place: entry.place })
        })
    }

    pub(crate) fn has(&self, id: u32) -> bool {
        self.epochs.iter().any(|it| it.ids.contains(&id))
    }

    pub(crate) fn have_same_id(&self, one: u32, other: u32) -> bool {
        one == other || self.keyed.get(&one).is_some_and(|it| self.keyed.get(&other) == Some(it))
    }
}

#[derive(Debug, Default)]
pub(crate) struct TopicOrder {
    /// How many of the broadcasts that its home has stored each shard has received.
    pub(super) heard: Vec<usize>,
    pub(super) home: Option<usize>,
    /// That of the first position, which all others have.
    pub(super) epoch: Option<Epoch>,
    pub(crate) is_purged: bool,
}

impl Ledger {
    /// The broadcasts that the home of a topic has stored.
    fn stored(&self, topic: usize) -> &[Entry] {
        let epoch = self.orders.get(topic).and_then(|it| it.epoch);
        epoch.and_then(|epoch| self.log.of(epoch, topic)).unwrap_or_default()
    }

    /// The place of the last that is stored.
    pub(crate) fn head(&self, topic: usize) -> Place {
        self.stored(topic).last().map_or(Place::ZERO, |it| it.place)
    }

    /// A node without an engine has started again, with the histories of some topics.
    pub(crate) fn restart(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.count("restarts", 1);
        self.sessions.handles.clear();
        for (number, topic) in self.orders.iter_mut().enumerate() {
            if !is_kept(number) {
                let heard = vec![0; topic.heard.len()];
                *topic = TopicOrder { heard, ..TopicOrder::default() };
                self.log.forget(number);
            }
        }
    }

    /// The listener of a shard receives a broadcast.
    pub(crate) fn note_heard(&mut self, shard: usize, topic: usize, it: &Broadcast) {
        let (id, bytes) = (payload::parse(it.payload()).0, it.payload().len() + 96);
        let Some(at) = it.position() else {
            return self.fail("stored", format!("#{id} comes to shard {shard} without a position"));
        };
        self.note(|| format!("shard {shard} receives #{id} at {at} of topic {topic}"));
        let entry = Entry { place: at.place, id, at_ns: self.now_ns, bytes: bytes as u64 };
        let Some(it) = self.orders.get_mut(topic) else { return };
        let Some(count) = it.heard.get_mut(shard) else { return };
        *count += 1;
        let (count, home) = (*count, *it.home.get_or_insert(shard));
        let epoch = *it.epoch.get_or_insert(at.epoch);
        let stored = self.stored(topic);
        let (known, last) = (stored.get(count - 1).copied(), stored.last().copied());
        if let Some(known) = known {
            if (epoch, known.place, known.id) != (at.epoch, at.place, id) {
                let text = format!("shard {shard} receives #{id} at {at}, where {known:?} is next");
                self.fail("stored", text);
            }
            return;
        }
        if home != shard || epoch != at.epoch || last.is_some_and(|it| it.place >= at.place) {
            let text = format!("#{id} is stored by shard {shard} ({home}) at {at} behind {last:?}");
            return self.fail("stored", text);
        }
        let is_again = self.log.add(epoch, topic, self.plan.topics.rooms, entry);
        self.count("stored", 1);
        let made = self.broadcasts.get(id as usize);
        if is_again || made.is_none_or(|it| it.topic != topic) {
            return self.fail("stored", format!("#{id} is stored twice, or is of no such topic"));
        }
        self.check_order(id, topic);
    }

    /// Broadcasts of a channel's callbacks are stored in the order in which they were made.
    fn check_order(&mut self, id: u32, topic: usize) {
        let chan_of = |id: u32| {
            let made: &BroadcastInfo = self.broadcasts.get(id as usize)?;
            Some(made.chan).filter(|it| *it != NONE && !made.is_optional)
        };
        let Some(chan) = chan_of(id) else { return };
        let mut earlier = self.stored(topic).iter().rev().skip(1).take(40);
        let before = earlier.find(|it| chan_of(it.id) == Some(chan)).filter(|it| it.id > id);
        if let Some(before) = before {
            self.fail("order", format!("channel {chan}: #{id} is stored behind #{}", before.id));
        }
    }

    /// Everything was delivered: what channels broadcast is stored, and each shard has it.
    pub(crate) fn check_stored(&self, unconfirmed: u64) {
        let is_lost = |(id, it): (usize, &BroadcastInfo)| {
            it.chan != NONE && !it.is_optional && !self.log.has(id as u32)
        };
        let lost = self.broadcasts.iter().enumerate().position(is_lost);
        if let Some(id) = lost.filter(|_| unconfirmed == 0) {
            self.fail("kept", format!("#{id} was broadcast, and is not stored"));
        }
        let is_unheard = |(topic, it): (usize, &TopicOrder)| {
            it.heard.iter().any(|count| *count != self.stored(topic).len())
        };
        if let Some(topic) = self.orders.iter().enumerate().position(is_unheard) {
            self.fail("kept", format!("a shard has not received all of topic {topic}"));
        }
    }
}

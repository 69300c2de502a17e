//! The topics whose histories a shard keeps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use simurgh_history::{
    Epoch, KeptTopic, Limits, Place, Position, Reason, ReplayLimits, Since, Stored,
};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use super::call::{Ask, Kept, Missed, What};
use super::rule::{HistoryConfig, HistoryRule};
use crate::broadcast::{Broadcast, Mark};

/// Longer payloads are shared with the broadcasts that members get; of shorter ones a copy takes
/// less memory than the broadcast around them.
const SHARED_BYTES: usize = 1 << 10;
/// What a kept broadcast is counted with beside its payload: its record, and its share of what the
/// allocator adds.
const KEPT_BYTES: usize = 96;
/// Names of events that are shared by what is kept.
const EVENTS_MAX: usize = 256;

/// The histories that a shard keeps, and what is declared of all.
pub(crate) struct KeptTopics {
    /// The first that matches a topic is its own.
    rules: Vec<(Pattern, HistoryRule)>,
    epoch: Epoch,
    /// Nobody's to guess.
    seed: u64,
    topics: HashMap<Box<str>, KeptTopic<Kept>>,
    events: HashSet<Arc<str>>,
    /// The last answer, for those who ask the same.
    last: Option<(Asked, Arc<Missed>)>,
}

/// What was asked, and what was there: while both are the same, so is the answer.
#[derive(PartialEq, Eq)]
struct Asked {
    topic: Box<str>,
    since: Since,
    partial: bool,
    head: Place,
    floor: Place,
}

impl KeptTopics {
    pub(crate) fn new(rules: Vec<(Pattern, HistoryRule)>, epoch: Epoch, seed: u64) -> Self {
        Self { rules, epoch, seed, topics: HashMap::new(), events: HashSet::new(), last: None }
    }

    /// Gives a broadcast the next place in its topic's history and keeps it; as it is to be passed
    /// on, unless one with the same id was kept before.
    pub(crate) fn store(
        &mut self,
        mut broadcast: Broadcast,
        id: Option<&str>,
        sender: u64,
        now_ms: u64,
    ) -> (Position, Option<Arc<Broadcast>>) {
        let limits = limits(self.rule(&broadcast.topic).copied().unwrap_or_default());
        let (epoch, seed) = (self.epoch, self.seed);
        let kept = self.topics.entry(broadcast.topic.clone());
        let topic = kept.or_insert_with(|| KeptTopic::new(epoch, seed));
        let place = Place::new(topic.ring().head().seq.saturating_add(1));
        let position = topic.ring().position_of(place);
        broadcast.kept = Some(Box::new(Mark { position, sender }));
        let bytes = broadcast.payload.len() + KEPT_BYTES;
        let broadcast = Arc::new(broadcast);
        let what = match &broadcast.payload {
            Payload::Json(text) if text.len() <= SHARED_BYTES => {
                What::Json(shared(&mut self.events, &broadcast.event), (**text).into())
            }
            Payload::Binary(data) if data.len() <= SHARED_BYTES => {
                What::Binary(shared(&mut self.events, &broadcast.event), (**data).into())
            }
            _ => What::Shared(Arc::clone(&broadcast)),
        };
        match topic.store(Kept { sender, what }, bytes, id, now_ms, &limits) {
            Stored::New(position, _) => (position, Some(broadcast)),
            Stored::Duplicate(position) => (position, None),
        }
    }

    /// What somebody has missed.
    pub(super) fn missed(
        &mut self,
        ask: &Ask,
        config: &HistoryConfig,
        now_ms: u64,
    ) -> Arc<Missed> {
        let limits = limits(self.rule(&ask.topic).copied().unwrap_or_default());
        let Some(topic) = self.topics.get_mut(&ask.topic) else {
            return Arc::new(self.nothing(ask.since));
        };
        topic.enforce(&limits, now_ms);
        let ring = topic.ring();
        let asked = Asked {
            topic: ask.topic.clone(),
            since: ask.since,
            partial: ask.partial,
            head: ring.head(),
            floor: ring.floor(),
        };
        if let Some((_, missed)) = self.last.as_ref().filter(|(last, _)| *last == asked) {
            return Arc::clone(missed);
        }
        let (count, bytes) = (config.replay_count, config.replay_bytes as u64);
        let replay = ring.since(ask.since, &ReplayLimits { count, bytes });
        let is_given = replay.gap.is_none() || ask.partial;
        let entries = ring.entries(if is_given { replay.entries } else { 0..0 });
        let messages = entries.map(|it| (ring.position_of(it.place), it.value.clone())).collect();
        let after = if is_given { replay.after } else { ring.head() };
        let missed = Arc::new(Missed {
            gap: replay.gap,
            after: ring.position_of(after),
            head: ring.position(),
            messages,
        });
        self.last = Some((asked, Arc::clone(&missed)));
        missed
    }

    /// What somebody has missed of a topic of which nothing is known.
    fn nothing(&self, since: Since) -> Missed {
        let head = Position { epoch: self.epoch, place: Place::ZERO };
        let is_known = match since {
            Since::Now => true,
            Since::After(position) => position == head,
            Since::Unknown => false,
        };
        let gap = (!is_known).then_some(Reason::Epoch);
        Missed { gap, after: head, head, messages: Vec::new() }
    }

    /// What is declared of a topic, if its broadcasts are kept.
    pub(crate) fn rule(&self, topic: &str) -> Option<&HistoryRule> {
        let found = self.rules.iter().find(|(pattern, _)| pattern.matches(topic));
        found.map(|(_, rule)| rule)
    }
}

fn limits(rule: HistoryRule) -> Limits {
    let age_ms = rule.age.as_millis().try_into().unwrap_or(u64::MAX);
    Limits { count: rule.count, bytes: rule.bytes as u64, age_ms }
}

/// The name of an event, shared with others of the same.
fn shared(events: &mut HashSet<Arc<str>>, event: &str) -> Arc<str> {
    if let Some(known) = events.get(event) {
        return Arc::clone(known);
    }
    // Clients may have chosen them.
    if events.len() >= EVENTS_MAX {
        events.clear();
    }
    let event = Arc::<str>::from(event);
    events.insert(Arc::clone(&event));
    event
}

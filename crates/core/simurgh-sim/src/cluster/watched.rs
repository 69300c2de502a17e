//! The loopback adapter of a node, watched: which interests it has and since when the engine has
//! them. Planted faults lose events or reorder them here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::kit::fault::Fault;
use bytes::Bytes;
use simurgh_cluster::adapter::{Event, Fetch};
use simurgh_cluster::{
    Adapter, Bucket, Generation, Interest, NodeId, QueueFull, Received, Space, Subject, Ticket,
    Wanted,
};
use simurgh_loopback::Loopback;

use crate::cluster::Shared;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Nodes,
    Node,
    Exact(bool, Box<str>),
    Whole(bool, u16),
}

pub(crate) struct WatchedAdapter {
    adapter: Loopback,
    shared: Arc<Shared>,
    /// Interests, by the number of the change that added them.
    wanted: BTreeMap<Name, u64>,
    /// Topics whose own interest was in force until their bucket's was, without a hole.
    before: BTreeMap<(bool, Box<str>), u64>,
    is_up: bool,
    in_force: u64,
    held: VecDeque<Event>,
}

fn name_of(interest: &Interest) -> Name {
    match interest {
        Interest::Nodes => Name::Nodes,
        Interest::Node(_) => Name::Node,
        Interest::Exact(space, topic) => Name::Exact(*space == Space::Presence, topic.clone()),
        Interest::Whole(space, bucket) => {
            Name::Whole(*space == Space::Presence, bucket.number() as u16)
        }
    }
}

impl WatchedAdapter {
    pub(crate) fn new(adapter: Loopback, shared: Arc<Shared>) -> Self {
        Self {
            adapter,
            shared,
            wanted: BTreeMap::new(),
            before: BTreeMap::new(),
            is_up: false,
            in_force: 0,
            held: VecDeque::new(),
        }
    }

    /// Whether this interest certainly brings what another node publishes on a topic from now on.
    pub(crate) fn is_in_force(&self, by: &Interest, topic: &str) -> bool {
        let name = name_of(by);
        let Some(since) = self.wanted.get(&name) else { return false };
        let before = match name {
            Name::Whole(space, _) => self.before.get(&(space, topic.into())),
            _ => None,
        };
        let since = before.map_or(*since, |before| *since.min(before));
        self.is_up && since <= self.in_force
    }

    /// How many interests there are besides those of all nodes.
    pub(crate) fn of_topics(&self) -> usize {
        let of_topic = |it: &&Name| matches!(it, Name::Exact(..) | Name::Whole(..));
        self.wanted.keys().filter(of_topic).count()
    }

    fn want(&mut self, changes: &[(Interest, Wanted)], generation: u64) {
        let is_no = |it: &&(Interest, Wanted)| it.1 == Wanted::No;
        let gone: BTreeSet<Name> = changes.iter().filter(is_no).map(|it| name_of(&it.0)).collect();
        let comes: Vec<Name> =
            changes.iter().filter(|it| !is_no(it)).map(|it| name_of(&it.0)).collect();
        for name in comes {
            let mut since = generation;
            match &name {
                Name::Exact(space, topic) => {
                    let bucket = Bucket::of(topic).number() as u16;
                    let whole = Name::Whole(*space, bucket);
                    let was = self.wanted.get(&whole).filter(|_| gone.contains(&whole));
                    let before = self.before.get(&(*space, topic.clone()));
                    since = was.map_or(since, |it| before.map_or(*it, |before| *it.min(before)));
                }
                Name::Whole(space, bucket) => {
                    for it in &gone {
                        if let (Name::Exact(of, topic), Some(was)) = (it, self.wanted.get(it))
                            && (of, Bucket::of(topic).number() as u16) == (space, *bucket)
                        {
                            self.before.insert((*of, topic.clone()), *was);
                        }
                    }
                }
                Name::Nodes | Name::Node => {}
            }
            self.wanted.entry(name).or_insert(since);
        }
        for name in gone {
            self.wanted.remove(&name);
            if let Name::Whole(space, bucket) = name {
                self.before.retain(|(of, topic), _| {
                    (*of, Bucket::of(topic).number() as u16) != (space, bucket)
                });
            }
        }
    }

    /// The event as a planted fault leaves it; `None` if it is lost or held back.
    fn with_fault(&mut self, event: Event) -> Option<Event> {
        let is_broadcast =
            matches!(&event, Event::Received(Received { space: Some(Space::Broadcast), .. }));
        if !is_broadcast {
            return Some(event);
        }
        if self.shared.setup.faults.happens(Fault::LoseEnvelope) {
            return None;
        }
        if self.shared.setup.faults.happens(Fault::SwapEnvelopes) {
            self.held.push_back(event);
            return None;
        }
        Some(event)
    }
}

impl Adapter for WatchedAdapter {
    fn start(&mut self, me: NodeId) {
        self.adapter.start(me);
    }

    fn publish(&mut self, to: &Subject, envelope: Bytes) -> Result<(), QueueFull> {
        self.adapter.publish(to, envelope)
    }

    fn store(
        &mut self,
        to: &Subject,
        id: &str,
        age: Option<Duration>,
        envelope: Bytes,
        ticket: Ticket,
    ) -> Result<(), QueueFull> {
        self.adapter.store(to, id, age, envelope, ticket)
    }

    fn purge(&mut self, of: &Subject, before: u64, ticket: Ticket) -> Result<(), QueueFull> {
        self.adapter.purge(of, before, ticket)
    }

    fn interest(&mut self, changes: &[(Interest, Wanted)]) -> Generation {
        let generation = self.adapter.interest(changes);
        self.want(changes, generation.0);
        generation
    }

    fn fetch(&mut self, what: Fetch, ticket: Ticket) -> Result<(), QueueFull> {
        self.adapter.fetch(what, ticket)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            let event = match self.adapter.poll_event(context) {
                Poll::Ready(event) => event,
                Poll::Pending => return Poll::Pending,
            };
            match &event {
                Event::Up { .. } => self.is_up = true,
                Event::Down(_) => self.is_up = false,
                Event::InForce(generation) => self.in_force = generation.0,
                _ => {}
            }
            if let Some(event) = self.with_fault(event) {
                let is_behind = matches!(event, Event::Received(_)) && !self.held.is_empty();
                if !is_behind {
                    return Poll::Ready(event);
                }
                self.held.push_front(event);
            }
            if self.held.len() > 1
                && let Some(event) = self.held.pop_front()
            {
                return Poll::Ready(event);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.adapter.in_flight()
    }
}

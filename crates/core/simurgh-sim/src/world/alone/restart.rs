//! The server drains, ends, and starts again. With what it has saved, clients resume as if it had
//! not ended; topics that were not saved have a new epoch.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use crate::kit::fault::Fault;
use crate::kit::payload;
use crate::world::simulation::Simulation;
use crate::world::{Shard, SimNode};
use simurgh_core::{
    Broadcast, HistoryMail, HistoryRequest, Listener, Mail, Mailboxes, Node, SavedHistory,
};

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
                    let (id, bytes) = (payload::parse(it.payload()).0, it.payload().len() + 96);
                    shared.ledger().note_heard(shard, topic, id, bytes, it.position());
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
            node.shared.ledger().fail("drain", "the shards do not end");
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
            return self.shared.ledger().fail("save", "what was saved is not read");
        };
        if topics(&decoded) != had || written != Ok(had) {
            self.shared.ledger().fail("save", "not all that was saved is read");
        }
        let has_forgotten = self.shared.faults.happens(Fault::Amnesia);
        let names = if is_lost { Vec::new() } else { self.saved_names(&node, &mut decoded) };
        if !has_forgotten {
            node.id.fetch_add(1 << 32, Relaxed);
        }
        let restored = if is_lost || has_forgotten { Vec::new() } else { decoded };
        self.start_shards(&node, restored);
        let topics = &self.shared.plan.topics.names;
        let mut ledger = self.shared.ledger();
        ledger.restart(|topic| topics.get(topic).is_some_and(|it| names.contains(it)));
        ledger.sessions.end_drains();
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

    fn start_shards(&mut self, node: &Arc<SimNode>, saved: Vec<SavedHistory>) {
        let now_ns = self.clock_ns;
        let mut saved = saved.into_iter();
        let shards = self.running(0).map(|it| &mut it.shards).into_iter().flatten();
        for (shard, place) in shards.enumerate() {
            let metrics = Arc::clone(&place.metrics);
            *place = Shard::new(node, shard, metrics, node.id());
            if let Some(saved) = saved.next() {
                place.core.restore_history(saved, now_ns);
            }
        }
    }
}

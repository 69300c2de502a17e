//! The server drains, ends, and starts again. With what it has saved, clients resume as if it had
//! not ended; topics that were not saved have a new epoch.

use std::convert::Infallible;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use crate::kit::fault::Fault;
use crate::kit::shard::Turns;
use simurgh_core::{HistoryMail, HistoryRequest, Mail, Node, SavedHistory};

use super::plan;
use super::simulation::{HistorySimulation, Shard};

/// More topics than there are.
const TOPICS_MAX: usize = 100;

impl HistorySimulation {
    /// Drains all shards and starts others, which have what was saved unless `is_lost`.
    pub(super) fn restart(&mut self, is_lost: bool) {
        for shard in 0..self.shards.len() {
            self.node.post(shard, Mail::Drain(Duration::from_millis(50)));
        }
        self.drain();
        (0..self.clients.len()).for_each(|client| self.vanish(client));
        self.rest();
        self.check_left();
        if self.shared.has_failed() {
            return;
        }
        let shards = self.shards.len();
        let saved: Vec<SavedHistory> =
            self.shards.iter_mut().map(|it| it.core.take_history()).collect();
        self.shards.iter_mut().for_each(|it| it.core.retire());
        let topics = |all: &[SavedHistory]| all.iter().map(SavedHistory::topics).sum::<usize>();
        let had = topics(&saved);
        let mut bytes = Vec::new();
        let written = SavedHistory::encode(saved, |part| {
            bytes.extend_from_slice(part);
            Ok::<_, Infallible>(())
        });
        let decoded = SavedHistory::decode(&bytes, shards, self.node.id());
        let Ok(mut decoded) = decoded else {
            return self.shared.ledger().fail("save", "what was saved is not read");
        };
        if topics(&decoded) != had || written != Ok(had) {
            self.shared.ledger().fail("save", "not all that was saved is read");
        }
        let has_forgotten = self.shared.setup.faults.happens(Fault::Amnesia);
        let names = if is_lost { Vec::new() } else { self.saved_names(&mut decoded) };
        if !has_forgotten {
            self.node.id.fetch_add(1 << 32, Relaxed);
        }
        let restored = if is_lost || has_forgotten { Vec::new() } else { decoded };
        self.start(restored);
        self.shared.ledger().restart(|topic| names.contains(&plan::topic(topic)));
        self.shared.note(|| format!("it starts again, and knows of {names:?}"));
    }

    fn drain(&mut self) {
        for _ in 0..2_000 {
            for shard in 0..self.shards.len() {
                while self.take_mail(0, shard) {}
                self.finish_turn(0, shard);
            }
            while self.node.decide_next() {}
            for client in 0..self.clients.len() {
                self.receive(client, usize::MAX);
            }
            if self.shared.has_failed() || self.shards.iter().all(|it| it.net.stops) {
                return;
            }
            self.clock_ns += 20_000_000;
        }
        self.shared.ledger().fail("drain", "the shards do not end");
    }

    /// The topics that were saved, as a core that has loaded them lists them.
    fn saved_names(&mut self, saved: &mut [SavedHistory]) -> Vec<String> {
        let mut names = Vec::new();
        for (shard, it) in saved.iter_mut().enumerate() {
            let Shard { mut core, mut net, .. } =
                Shard::new(&self.node, shard, Arc::default(), self.node.id());
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

    fn start(&mut self, saved: Vec<SavedHistory>) {
        let now_ns = self.clock_ns;
        let mut saved = saved.into_iter();
        for (shard, place) in self.shards.iter_mut().enumerate() {
            let metrics = Arc::clone(&place.metrics);
            *place = Shard::new(&self.node, shard, metrics, self.node.id());
            if let Some(saved) = saved.next() {
                place.core.restore_history(saved, now_ns);
            }
        }
        self.listen();
    }
}

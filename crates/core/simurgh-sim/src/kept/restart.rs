//! The server drains, ends, and starts again: with what it has saved, clients resume as if nothing
//! had been; what is not saved is of another epoch.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use simurgh_core::{HistoryMail, HistoryRequest, Mail, Node, SavedHistory};

use super::world::{Server, World};
use crate::stage::Fault;

/// More topics than there are.
const TOPICS_MAX: usize = 100;

impl World {
    /// Drains all shards and starts others, which have what was saved unless `is_lost`.
    pub(super) fn restarts(&mut self, is_lost: bool) {
        for shard in 0..self.servers.len() {
            self.node.post(shard, Mail::Drain(Duration::from_millis(50)));
        }
        self.drains();
        (0..self.clients.len()).for_each(|client| self.vanishes(client));
        self.rests();
        self.has_nothing_left();
        if self.has_failed() {
            return;
        }
        let shards = self.servers.len();
        let saved: Vec<SavedHistory> =
            self.servers.iter_mut().map(|it| it.core.take_history()).collect();
        self.servers.iter_mut().for_each(|it| it.core.retire());
        let bytes = SavedHistory::encode(&saved);
        let decoded = SavedHistory::decode(&bytes, shards, self.node.id());
        let Ok(mut decoded) = decoded else {
            return self.shared.account().fail("save", "what was saved is not read");
        };
        let topics = |all: &[SavedHistory]| all.iter().map(SavedHistory::topics).sum::<usize>();
        if topics(&decoded) != topics(&saved) {
            self.shared.account().fail("save", "not all that was saved is read");
        }
        let has_forgotten = self.shared.stage.is_faulty(Fault::Amnesia);
        let names = if is_lost { Vec::new() } else { self.saved_names(&mut decoded) };
        if !has_forgotten {
            self.node.starts.fetch_add(1, Relaxed);
        }
        let restored = if is_lost || has_forgotten { Vec::new() } else { decoded };
        self.starts(restored);
        let plan = &self.shared.plan;
        let is_kept = |topic: usize| names.contains(&plan.topic(topic as u8));
        self.shared.account().restarts(is_kept);
        self.shared.account().note(|| format!("it starts again, and knows of {names:?}"));
    }

    /// Until all shards have ended, or nothing is left to wait for.
    fn drains(&mut self) {
        for _ in 0..2_000 {
            for shard in 0..self.servers.len() {
                while self.takes_mail(shard) {}
                self.ends_turn(shard);
            }
            while self.decides() {}
            for client in 0..self.clients.len() {
                self.takes(client, usize::MAX);
            }
            if self.has_failed() || self.servers.iter().all(|it| it.net.stops) {
                return;
            }
            self.clock_ns += 20_000_000;
        }
        self.shared.account().fail("drain", "the shards do not end");
    }

    /// Which topics are among what was saved: a core that knows them is asked.
    fn saved_names(&mut self, saved: &mut [SavedHistory]) -> Vec<String> {
        let mut names = Vec::new();
        for (shard, it) in saved.iter_mut().enumerate() {
            let Server { mut core, mut net, .. } = Server::new(&self.node, shard, Arc::default());
            core.restore_history(std::mem::take(it), self.clock_ns);
            let (answer, answers) = mpsc::channel();
            let tell = Box::new(move |topics| drop(answer.send(topics)));
            let question = HistoryRequest::Topics(shard as u16, 0, TOPICS_MAX, tell);
            core.mail(&mut net, Mail::History(HistoryMail::HistoryRequest(question)));
            let topics = answers.try_iter().flat_map(|it| it.topics);
            names.extend(topics.map(|it| it.name.into_string()));
            *it = core.take_history();
        }
        names
    }

    /// Others in the place of the shards that have ended.
    fn starts(&mut self, saved: Vec<SavedHistory>) {
        let now_ns = self.clock_ns;
        let mut saved = saved.into_iter();
        for (shard, place) in self.servers.iter_mut().enumerate() {
            *place = Server::new(&self.node, shard, Arc::clone(&place.metrics));
            if let Some(saved) = saved.next() {
                place.core.restore_history(saved, now_ns);
            }
        }
        self.listen();
    }
}

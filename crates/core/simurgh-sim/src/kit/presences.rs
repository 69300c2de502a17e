//! Presences as applications track them, and what clients make of the events, as phoenix.js does.

use std::collections::{BTreeMap, HashMap};

use crate::kit::presence::{Meta, PhxRef, PresenceEvent};

/// One state of an entry; its number is that of its meta.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The start of its node.
    pub(crate) node: usize,
    pub(crate) topic: usize,
    chan: u32,
    key: u8,
    /// Of its meta's text.
    bytes: usize,
    pub(crate) is_live: bool,
    /// It was tracked: another state is never sent.
    may_be_sent: bool,
    phx_ref: Option<PhxRef>,
}

/// The tracked presences, known before the homes of the topics learn of them.
#[derive(Debug, Default)]
pub(crate) struct Presences {
    entries: Vec<Entry>,
    held: BTreeMap<(u32, u8), u32>,
    refs: HashMap<PhxRef, u32>,
    /// How often a presence began or ended.
    pub(crate) changes: u64,
    /// Calls without an effect: repeats, strays, and entries beyond the most of a channel.
    pub(crate) refused: u64,
}

impl Presences {
    /// A new state, which is not tracked yet; returns its number.
    pub(crate) fn make(&mut self, node: usize, topic: usize, chan: u32, key: u8) -> u32 {
        let (bytes, is_live, may_be_sent, phx_ref) = (0, false, false, None);
        let entry = Entry { node, topic, chan, key, bytes, is_live, may_be_sent, phx_ref };
        self.entries.push(entry);
        self.entries.len() as u32 - 1
    }

    /// The text of a state's meta is this long.
    pub(crate) fn weigh(&mut self, number: u32, bytes: usize) {
        self.entries.get_mut(number as usize).into_iter().for_each(|it| it.bytes = bytes);
    }

    /// A channel tracks or updates, at most this many entries.
    pub(crate) fn track(&mut self, number: u32, is_update: bool, entries_max: usize) {
        let Some(Entry { chan, key, .. }) = self.entries.get(number as usize).copied() else {
            return;
        };
        let held = self.held.get(&(chan, key)).copied();
        let count = self.held.range((chan, 0)..=(chan, u8::MAX)).count();
        if held.is_some() != is_update || (!is_update && count >= entries_max) {
            self.refused += 1;
            return;
        }
        self.held.insert((chan, key), number);
        self.changes += 1;
        self.end(held);
        self.may_send(number);
        self.entries.get_mut(number as usize).into_iter().for_each(|it| it.is_live = true);
    }

    /// A state may be tracked for a moment, by a channel that ends.
    pub(crate) fn may_send(&mut self, number: u32) {
        self.entries.get_mut(number as usize).into_iter().for_each(|it| it.may_be_sent = true);
    }

    pub(crate) fn untrack(&mut self, chan: u32, key: u8) {
        let held = self.held.remove(&(chan, key));
        self.refused += u64::from(held.is_none());
        self.end(held);
    }

    fn end(&mut self, number: Option<u32>) {
        self.changes += 1;
        let entry = number.and_then(|it| self.entries.get_mut(it as usize));
        entry.into_iter().for_each(|it| it.is_live = false);
    }

    pub(crate) fn channel_ended(&mut self, chan: u32) {
        let all = self.held.range((chan, 0)..=(chan, u8::MAX));
        let all: Vec<_> = all.map(|(at, number)| (*at, *number)).collect();
        for (at, number) in all {
            self.held.remove(&at);
            self.end(Some(number));
        }
    }

    pub(crate) fn node_ended(&mut self, node: usize) {
        for it in self.entries.iter_mut().filter(|it| it.node == node) {
            it.is_live = false;
        }
        let is_of =
            |number: u32| self.entries.get(number as usize).is_some_and(|it| it.node == node);
        self.held.retain(|_, number| !is_of(*number));
    }

    /// The numbers of the presences in a topic.
    pub(crate) fn of(&self, topic: usize) -> Vec<u32> {
        let all = self.entries.iter().enumerate();
        let there = all.filter(|(_, it)| it.is_live && it.topic == topic);
        there.map(|(number, _)| number as u32).collect()
    }

    /// How many are present in a topic, and the bytes of their metas.
    pub(crate) fn size(&self, topic: usize) -> (usize, usize) {
        let there = self.entries.iter().filter(|it| it.is_live && it.topic == topic);
        there.fold((0, 0), |(count, bytes), it| (count + 1, bytes + it.bytes))
    }

    pub(crate) fn live(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn is_of(&self, number: u32, node: usize) -> bool {
        self.get(number).is_some_and(|it| it.node == node)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)
    }

    /// Compares an event with what was tracked: states and refs map one to one.
    ///
    /// # Errors
    /// The difference.
    pub(crate) fn check(&mut self, topic: usize, told: &PresenceEvent) -> Result<(), String> {
        told.metas().try_for_each(|meta| self.check_meta(topic, meta))?;
        if let PresenceEvent::Diff { joins, leaves } = told
            && joins.iter().any(|it| leaves.iter().any(|is| is.phx_ref == it.phx_ref))
        {
            return Err("joins and leaves at once".to_owned());
        }
        Ok(())
    }

    fn check_meta(&mut self, topic: usize, meta: &Meta) -> Result<(), String> {
        let number = meta.number;
        let Some(it) = self.entries.get_mut(number as usize) else {
            return Err(format!("nobody made {number}"));
        };
        let is_right = it.topic == topic && it.key == meta.key && it.may_be_sent;
        if !is_right || it.phx_ref.is_some_and(|known| known != meta.phx_ref) {
            return Err(format!("{number} was made as {it:?}"));
        }
        it.phx_ref = Some(meta.phx_ref);
        let known = *self.refs.entry(meta.phx_ref).or_insert(number);
        if known == number { Ok(()) } else { Err(format!("{number} has the ref of {known}")) }
    }
}

/// The presences of a topic as a client knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) has_state: bool,
    pub(crate) numbers: Vec<u32>,
    /// How many there are, if the list is too long.
    pub(crate) count: Option<usize>,
    pending: Vec<PresenceEvent>,
}

impl View {
    /// Receives an event; diffs before the first list are applied after it.
    pub(crate) fn receive(&mut self, told: &PresenceEvent) {
        match told {
            PresenceEvent::Diff { .. } if !self.has_state => self.pending.push(told.clone()),
            PresenceEvent::Diff { .. } => told.apply_to(&mut self.numbers),
            PresenceEvent::State(_) => {
                (self.has_state, self.count) = (true, None);
                told.apply_to(&mut self.numbers);
                for told in std::mem::take(&mut self.pending) {
                    told.apply_to(&mut self.numbers);
                }
            }
            PresenceEvent::Summary { count, .. } => self.count = Some(*count),
        }
    }

    /// Whether a client that has the list gets a join that it knows, or a leave that it does not.
    pub(crate) fn contradicts(&self, told: &PresenceEvent) -> bool {
        let PresenceEvent::Diff { joins, leaves } = told else { return false };
        let is_known = |meta: &Meta| self.numbers.contains(&meta.number);
        let has_list = self.has_state && self.count.is_none();
        has_list && (joins.iter().any(is_known) || !leaves.iter().all(is_known))
    }

    pub(crate) fn sorted(&self) -> Vec<u32> {
        let mut numbers = self.numbers.clone();
        numbers.sort_unstable();
        numbers
    }
}

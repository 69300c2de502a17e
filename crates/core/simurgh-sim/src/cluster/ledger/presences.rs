//! Presences as applications track them, and clients' views of them, built as in phoenix.js.

use std::collections::{BTreeMap, HashMap};

use crate::kit::presence::{Meta, PhxRef, PresenceEvent};

use super::Ledger;

/// One state of an entry; its number is that of its meta.
#[derive(Debug, Clone, Copy)]
struct Entry {
    node: usize,
    topic: usize,
    key: u8,
    is_live: bool,
    /// Its channel already had an entry under this key, or none to update: it is not sent.
    is_refused: bool,
    phx_ref: Option<PhxRef>,
}

#[derive(Debug, Default)]
pub(crate) struct Presences {
    entries: Vec<Entry>,
    held: BTreeMap<(u32, u8), u32>,
    refs: HashMap<PhxRef, u32>,
    gone: Vec<(usize, usize)>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct View {
    pub(crate) has_state: bool,
    pub(crate) numbers: Vec<u32>,
    pending: Vec<PresenceEvent>,
}

impl Presences {
    /// A channel tracks or updates; returns the meta's number. Repeats and strays are refused.
    pub(crate) fn track(
        &mut self,
        (chan, key): (u32, u8),
        node: usize,
        topic: usize,
        is_update: bool,
    ) -> u32 {
        let number = self.entries.len() as u32;
        let held = self.held.get(&(chan, key)).copied();
        let is_refused = held.is_some() != is_update;
        let is_live = !is_refused;
        self.entries.push(Entry { node, topic, key, is_live, is_refused, phx_ref: None });
        if is_live {
            self.held.insert((chan, key), number);
            if let Some(old) = held.and_then(|old| self.entries.get_mut(old as usize)) {
                old.is_live = false;
            }
        }
        number
    }

    pub(crate) fn untrack(&mut self, chan: u32, key: u8) {
        if let Some(old) = self.held.remove(&(chan, key))
            && let Some(old) = self.entries.get_mut(old as usize)
        {
            old.is_live = false;
        }
    }

    pub(crate) fn channel_ended(&mut self, chan: u32) {
        (0..=u8::MAX).take(8).for_each(|key| self.untrack(chan, key));
    }

    pub(crate) fn node_ended(&mut self, start: usize) {
        for it in self.entries.iter_mut().filter(|it| it.node == start) {
            it.is_live = false;
        }
        let entries = &self.entries;
        self.held
            .retain(|_, number| entries.get(*number as usize).is_some_and(|it| it.node != start));
    }

    pub(crate) fn note_gone(&mut self, of: usize, gone: usize) {
        if !self.gone.contains(&(of, gone)) {
            self.gone.push((of, gone));
        }
    }

    pub(crate) fn of(&self, topic: usize) -> Vec<u32> {
        let all = self.entries.iter().enumerate();
        let there = all.filter(|(_, it)| it.is_live && it.topic == topic);
        there.map(|(number, _)| number as u32).collect()
    }

    pub(crate) fn is_of(&self, number: u32, start: usize) -> bool {
        self.entries.get(number as usize).is_some_and(|it| it.node == start)
    }

    /// Compares a meta with what was tracked; returns the difference.
    fn check(&mut self, topic: usize, meta: &Meta) -> Option<String> {
        let Some(it) = self.entries.get_mut(meta.number as usize) else {
            return Some("nobody made it".to_owned());
        };
        let is_right = it.topic == topic && it.key == meta.key && !it.is_refused;
        if !is_right || it.phx_ref.is_some_and(|known| known != meta.phx_ref) {
            return Some(format!("it was said as {it:?}"));
        }
        it.phx_ref = Some(meta.phx_ref);
        let known = *self.refs.entry(meta.phx_ref).or_insert(meta.number);
        (known != meta.number).then(|| format!("its ref is that of {known}"))
    }
}

impl Ledger {
    pub(crate) fn receive_presence(
        &mut self,
        (start, topic): (usize, usize),
        view: &mut View,
        event: &str,
        json: &str,
    ) {
        let Some(told) = PresenceEvent::read(event, json) else {
            return self.fail("presence", format!("{event} is {json}"));
        };
        for meta in told.metas() {
            if let Some(wrong) = self.presences.check(topic, meta) {
                return self.fail("presence", format!("{wrong}: {event} {json}"));
            }
        }
        match &told {
            PresenceEvent::State(_) => {
                self.counts.count("states", 1);
                view.has_state = true;
                told.apply_to(&mut view.numbers);
                for told in std::mem::take(&mut view.pending) {
                    told.apply_to(&mut view.numbers);
                }
            }
            PresenceEvent::Diff { joins, leaves } => {
                self.counts.count("diffs", 1);
                self.check_diff(start, view, (joins, leaves), json);
                match view.has_state {
                    true => told.apply_to(&mut view.numbers),
                    false => view.pending.push(told),
                }
            }
            PresenceEvent::Summary { .. } => self.fail("presence", format!("{event} is {json}")),
        }
    }

    fn check_diff(
        &mut self,
        start: usize,
        view: &View,
        (joins, leaves): (&[Meta], &[Meta]),
        json: &str,
    ) {
        let is_in_both = |it: &Meta| leaves.iter().any(|is| is.phx_ref == it.phx_ref);
        if joins.iter().any(is_in_both) {
            return self.fail("diff", format!("joins and leaves at once: {json}"));
        }
        let is_known = |it: &Meta| view.numbers.contains(&it.number);
        if view.has_state && (joins.iter().any(is_known) || !leaves.iter().all(is_known)) {
            let text = format!("start {start}: {json} for who knows {:?}", view.numbers);
            return self.fail("diff", text);
        }
        // A client without a list may get the leave of an unknown entry.
        for it in leaves.iter().filter(|_| view.has_state) {
            let Some(entry) = self.presences.entries.get(it.number as usize) else { continue };
            let is_gone = self.presences.gone.contains(&(start, entry.node));
            if entry.is_live && !is_gone {
                let text = format!("start {start} hears that {entry:?} has left: {json}");
                return self.fail("left", text);
            }
        }
    }
}

impl View {
    pub(crate) fn sorted(&self) -> Vec<u32> {
        let mut numbers = self.numbers.clone();
        numbers.sort_unstable();
        numbers
    }
}

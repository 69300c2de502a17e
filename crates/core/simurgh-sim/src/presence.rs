//! Presences: events read strictly (each key once, each meta as it was made, then its refs), what
//! applications track, and what clients make of the events, as phoenix.js does.

use std::collections::{BTreeMap, HashMap};

use simurgh_proto::serializer::json;

/// Events of presence and their letters.
pub(crate) const EVENTS: [(&str, u8); 3] =
    [("presence_diff", b'D'), ("presence_state", b'S'), ("presence_summary", b'U')];
/// Keys that channels track themselves under.
pub(crate) const KEYS: [&str; 5] = ["a", "", "b", "__proto__", "é\"\\\u{1}"];
const REF_BYTES: usize = 16;

pub(crate) fn letter_of(name: &str) -> Option<u8> {
    EVENTS.iter().find(|(it, _)| *it == name).map(|(_, letter)| *letter)
}

/// The ref of one state of one entry.
pub(crate) type PhxRef = [u8; REF_BYTES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Its index in [`KEYS`].
    pub(crate) key: u8,
    /// The number that it was made with.
    pub(crate) number: u32,
    pub(crate) phx_ref: PhxRef,
}

#[derive(Clone, Debug)]
pub(crate) enum PresenceEvent {
    State(Vec<Meta>),
    Diff {
        joins: Vec<Meta>,
        leaves: Vec<Meta>,
    },
    Summary {
        count: usize,
        keys: usize,
        /// Some entries, of as many keys.
        sample: Vec<Meta>,
    },
}

impl PresenceEvent {
    /// Reads the payload of an event; `None` if its form is wrong.
    pub(crate) fn read(event: &str, text: &str) -> Option<Self> {
        let mut it = Reader(text);
        let told = match event {
            "presence_state" => Self::State(it.metas_by_key()?),
            "presence_diff" => {
                it.skip("{\"joins\":")?;
                let joins = it.metas_by_key()?;
                it.skip(",\"leaves\":")?;
                let leaves = it.metas_by_key()?;
                it.skip("}")?;
                Self::Diff { joins, leaves }
            }
            _ => {
                it.skip("{\"count\":")?;
                let count = it.number()? as usize;
                it.skip(",\"keys\":")?;
                let keys = it.number()? as usize;
                it.skip(",\"sample\":")?;
                let sample = it.metas_by_key()?;
                it.skip("}")?;
                Self::Summary { count, keys, sample }
            }
        };
        it.0.is_empty().then_some(told)
    }

    /// Applies the event to a client's states, as `Presence.syncDiff` of phoenix.js does.
    pub(crate) fn apply_to(&self, numbers: &mut Vec<u32>) {
        match self {
            Self::State(metas) => *numbers = metas.iter().map(|it| it.number).collect(),
            Self::Diff { joins, leaves } => {
                for it in joins {
                    if !numbers.contains(&it.number) {
                        numbers.push(it.number);
                    }
                }
                numbers.retain(|it| leaves.iter().all(|is| is.number != *it));
            }
            Self::Summary { .. } => {}
        }
    }

    pub(crate) fn metas(&self) -> impl Iterator<Item = &Meta> {
        let (one, other): (&[Meta], &[Meta]) = match self {
            Self::State(metas) | Self::Summary { sample: metas, .. } => (metas, &[]),
            Self::Diff { joins, leaves } => (joins, leaves),
        };
        one.iter().chain(other)
    }
}

struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn skip(&mut self, text: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    fn number(&mut self) -> Option<u32> {
        let len = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        digits.parse().ok()
    }

    fn key(&mut self) -> Option<u8> {
        let mut bytes = Vec::new();
        let place = KEYS.iter().position(|key| {
            bytes.clear();
            json::escape_into(&mut bytes, key);
            bytes.extend_from_slice(b":{\"metas\":[");
            self.0.as_bytes().starts_with(&bytes)
        })?;
        self.0 = self.0.get(bytes.len()..)?;
        Some(place as u8)
    }

    fn phx_ref(&mut self) -> Option<PhxRef> {
        let (text, rest) = self.0.split_at_checked(REF_BYTES)?;
        self.0 = rest.strip_prefix('"')?;
        text.as_bytes().try_into().ok()
    }

    /// `{"i":number,…,"phx_ref":"…"}`, with other members in between.
    fn meta(&mut self, key: u8) -> Option<Meta> {
        self.skip("{\"i\":")?;
        let number = self.number()?;
        if self.skip(",\"p\":\"").is_some() {
            self.0 = self.0.trim_start_matches('p').strip_prefix('"')?;
        }
        self.skip(",\"phx_ref\":\"")?;
        let phx_ref = self.phx_ref()?;
        if self.skip(",\"phx_ref_prev\":\"").is_some() {
            self.phx_ref()?;
        }
        self.skip("}")?;
        Some(Meta { key, number, phx_ref })
    }

    /// `{key:{"metas":[…]},…}`.
    fn metas_by_key(&mut self) -> Option<Vec<Meta>> {
        let (mut metas, mut seen) = (Vec::new(), [false; KEYS.len()]);
        self.skip("{")?;
        while self.skip("}").is_none() {
            if !metas.is_empty() {
                self.skip(",")?;
            }
            let key = self.key()?;
            if std::mem::replace(seen.get_mut(usize::from(key))?, true) {
                return None;
            }
            metas.push(self.meta(key)?);
            while self.skip(",").is_some() {
                metas.push(self.meta(key)?);
            }
            self.skip("]}")?;
        }
        Some(metas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence_events_are_parsed_strictly() {
        let meta = |n: u32| format!(r#"{{"i":{n},"p":"pp","phx_ref":"AAAAAAAAAAAAAAA{n}"}}"#);
        let list = format!(
            r#"{{"":{{"metas":[{},{}]}},"a":{{"metas":[{}]}}}}"#,
            meta(1),
            meta(2),
            meta(3)
        );
        let Some(PresenceEvent::State(metas)) = PresenceEvent::read("presence_state", &list) else {
            panic!("{list}")
        };
        let read: Vec<_> = metas.iter().map(|it| (it.key, it.number)).collect();
        assert_eq!(read, [(1, 1), (1, 2), (0, 3)]);
        let twice = format!(r#"{{"a":{{"metas":[{}]}},"a":{{"metas":[{}]}}}}"#, meta(1), meta(2));
        let empty = r#"{"a":{"metas":[]}}"#.to_owned();
        for wrong in [twice, empty, list.replace("\"i\":1", "\"i\":1,\"x\":1"), list + " "] {
            assert!(PresenceEvent::read("presence_state", &wrong).is_none(), "{wrong}");
        }
    }
}

/// One state of an entry; its number is that of its meta.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// The start of its node.
    pub(crate) node: usize,
    pub(crate) topic: usize,
    chan: u32,
    key: u8,
    /// Of its meta's text.
    pub(crate) bytes: usize,
    /// It was tracked: another state is never sent.
    may_be_sent: bool,
    phx_ref: Option<PhxRef>,
}

/// The tracked presences, known before the homes of the topics learn of them.
#[derive(Debug, Default)]
pub(crate) struct Presences {
    pub(crate) entries: Vec<Entry>,
    pub(crate) held: BTreeMap<(u32, u8), u32>,
    refs: HashMap<PhxRef, u32>,
    /// How often a presence began or ended.
    pub(crate) changes: u64,
    /// Calls without an effect: repeats, strays, and entries beyond the most of a channel.
    pub(crate) refused: u64,
}

impl Presences {
    /// A new state, which is not tracked yet; returns its number.
    pub(crate) fn make(&mut self, node: usize, topic: usize, chan: u32, key: u8) -> u32 {
        self.entries.push(Entry { node, topic, chan, key, ..Entry::default() });
        self.entries.len() as u32 - 1
    }

    /// A channel tracks or updates, at most this many entries.
    pub(crate) fn track(&mut self, number: u32, is_update: bool, entries_max: usize) {
        let Entry { chan, key, .. } = self.entries[number as usize];
        let held = self.held.get(&(chan, key)).copied();
        let count = self.held.range((chan, 0)..=(chan, u8::MAX)).count();
        if held.is_some() != is_update || (!is_update && count >= entries_max) {
            self.refused += 1;
            return;
        }
        self.held.insert((chan, key), number);
        self.changes += 1;
        self.entries[number as usize].may_be_sent = true;
    }

    pub(crate) fn untrack(&mut self, chan: u32, key: u8) {
        let held = self.held.remove(&(chan, key));
        self.refused += u64::from(held.is_none());
        self.changes += 1;
    }

    pub(crate) fn channel_ended(&mut self, chan: u32) {
        let ended = self.held.extract_if((chan, 0)..=(chan, u8::MAX), |_, _| true);
        self.changes += ended.count() as u64;
    }

    pub(crate) fn node_ended(&mut self, node: usize) {
        self.held.retain(|_, number| self.entries[*number as usize].node != node);
    }

    /// The numbers of the presences in a topic, and the bytes of their metas.
    pub(crate) fn of(&self, topic: usize) -> (Vec<u32>, usize) {
        let entry = |number: &u32| &self.entries[*number as usize];
        let is_there = |number: &u32| entry(number).topic == topic;
        let mut numbers: Vec<u32> = self.held.values().copied().filter(is_there).collect();
        numbers.sort_unstable();
        let bytes = numbers.iter().map(|number| entry(number).bytes).sum();
        (numbers, bytes)
    }

    /// Whether the state of this number is present; then the start of its node.
    pub(crate) fn node_of(&self, number: u32) -> Option<usize> {
        let it = self.entries.get(number as usize)?;
        Some(it.node).filter(|_| self.held.get(&(it.chan, it.key)) == Some(&number))
    }

    /// What differs between an event and what was tracked: states and refs map one to one.
    pub(crate) fn check(&mut self, topic: usize, told: &PresenceEvent) -> Result<(), String> {
        for Meta { key, number, phx_ref } in told.metas() {
            let Some(it) = self.entries.get_mut(*number as usize) else {
                return Err(format!("nobody made {number}"));
            };
            let is_right = it.topic == topic && it.key == *key && it.may_be_sent;
            let known = *self.refs.entry(*phx_ref).or_insert(*number);
            let is_its_ref = *it.phx_ref.get_or_insert(*phx_ref) == *phx_ref;
            if !is_right || !is_its_ref || known != *number {
                return Err(format!("{number} was made as {it:?}, and {known} has its ref"));
            }
        }
        if let PresenceEvent::Diff { joins, leaves } = told
            && joins.iter().any(|it| leaves.iter().any(|is| is.phx_ref == it.phx_ref))
        {
            return Err("joins and leaves at once".to_owned());
        }
        Ok(())
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
}

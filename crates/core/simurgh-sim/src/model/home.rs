//! The presences of one topic in its home's order, and which events the home may send.

use crate::kit::presence::{KEYS, Meta, PhxRef, PresenceEvent};
use simurgh_core::PresenceConfig;

#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) config: PresenceConfig,
    /// Of one payload.
    pub(crate) bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    chan: u32,
    key: u8,
    number: u32,
    /// Of its meta's text.
    bytes: usize,
    /// The state that members have received, if it is another.
    prev: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    chan: u32,
    /// No list was sent since.
    is_open: bool,
    /// How many it may get.
    left: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Room {
    pub(crate) home: Option<usize>,
    pub(crate) is_gone: bool,
    pub(crate) entries: Vec<Entry>,
    told: Vec<u32>,
    pub(crate) is_summary: bool,
    /// The number of entries that members have received, and when they did.
    counted: usize,
    counted_ns: u64,
    told_ns: Option<u64>,
    pub(crate) version: u32,
    asks: Vec<Ask>,
    /// Members, or all, that must get the number next.
    owed: Vec<u32>,
    owes_all: bool,
    /// All have received an empty list, and must get the list next.
    owes_list: bool,
    pub(crate) questions: usize,
}

type Wrong = Result<(), String>;

impl Room {
    pub(crate) fn keys(&self) -> usize {
        let mask = self.entries.iter().fold(0_u32, |mask, it| mask | 1 << it.key);
        mask.count_ones() as usize
    }

    fn find(&self, chan: u32, key: u8) -> Option<usize> {
        self.entries.iter().position(|it| (it.chan, it.key) == (chan, key))
    }

    pub(crate) fn track(
        &mut self,
        chan: u32,
        key: u8,
        (number, bytes): (u32, usize),
        entries_max: usize,
    ) -> bool {
        let count = self.entries.iter().filter(|it| it.chan == chan).count();
        if count >= entries_max || self.find(chan, key).is_some() {
            return false;
        }
        self.entries.push(Entry { chan, key, number, bytes, prev: None });
        true
    }

    pub(crate) fn update(&mut self, chan: u32, key: u8, (number, bytes): (u32, usize)) -> bool {
        let Some(at) = self.find(chan, key) else { return false };
        let Entry { number: was, prev, .. } = self.entries.remove(at);
        let prev = if self.told.contains(&was) { Some(was) } else { prev };
        self.entries.push(Entry { chan, key, number, bytes, prev });
        true
    }

    pub(crate) fn untrack(&mut self, chan: u32, key: u8) -> bool {
        let at = self.find(chan, key);
        at.map(|at| self.entries.remove(at)).is_some()
    }

    pub(crate) fn end(&mut self, chan: u32) {
        self.entries.retain(|it| it.chan != chan);
    }

    pub(crate) fn ask(&mut self, chan: u32) {
        match self.asks.iter_mut().find(|it| it.chan == chan) {
            Some(it) => (it.is_open, it.left) = (true, it.left + 1),
            None => self.asks.push(Ask { chan, is_open: true, left: 1 }),
        }
    }

    fn is_listed(&self, number: u32) -> bool {
        self.entries.iter().any(|it| it.number == number)
    }

    /// Whether these are all entries, each once.
    fn is_all(&self, metas: &[Meta]) -> bool {
        metas.len() == self.entries.len() && self.are_of(metas)
    }

    /// Whether these are some of the entries, each once.
    fn are_of(&self, metas: &[Meta]) -> bool {
        let is_entry = |meta: &Meta| {
            self.entries.iter().any(|it| (it.key, it.number) == (meta.key, meta.number))
        };
        let is_first =
            |(at, meta): (usize, &Meta)| metas.iter().take(at).all(|it| it.number != meta.number);
        metas.iter().all(is_entry) && metas.iter().enumerate().all(is_first)
    }

    fn is_long(&self, rules: &Rules) -> bool {
        let limit = |max: usize| max - if self.is_summary { max / 10 } else { 0 };
        self.entries.len() > limit(rules.config.list_max) || self.bytes() > limit(rules.bytes_max)
    }

    /// Bytes of its list as a table counts them: without escapes in keys.
    fn bytes(&self) -> usize {
        let key = |(place, key): (usize, &&str)| {
            let is_there = self.entries.iter().any(|it| usize::from(it.key) == place);
            if is_there { key.len() + r#","":{"metas":[]}"#.len() } else { 0 }
        };
        let one = |it: &Entry| {
            let prev =
                if it.prev.is_some() { r#","phx_ref_prev":"0123456789abcdef""#.len() } else { 0 };
            it.bytes + r#","phx_ref":"0123456789abcdef","#.len() + prev
        };
        let keys = KEYS.iter().enumerate().map(key).sum::<usize>();
        "{}".len() + keys + self.entries.iter().map(one).sum::<usize>()
    }

    /// Sends the changes to all members, at most once in an interval.
    fn tells(&mut self, rules: &Rules, now_ns: u64) -> Wrong {
        let told_ns = self.told_ns.replace(now_ns);
        let passed = told_ns.filter(|it| *it != now_ns).map(|it| now_ns.saturating_sub(it));
        if passed.is_some_and(|it| u128::from(it) < rules.config.interval.as_nanos()) {
            return Err(format!("tells again after {passed:?} ns"));
        }
        self.told = self.entries.iter().map(|it| it.number).collect();
        if self.entries.is_empty() {
            // Nothing of it is kept, so the time of the last event is unknown.
            self.told_ns = None;
        }
        self.version += 1;
        Ok(())
    }

    /// A diff for all members; `ref_of` has the names of states.
    pub(crate) fn says_diff(
        &mut self,
        joins: &[Meta],
        leaves: &[Meta],
        rules: &Rules,
        now_ns: u64,
        ref_of: impl Fn(u32) -> Option<PhxRef>,
    ) -> Wrong {
        if self.is_summary || self.is_long(rules) {
            return Err("tells a diff of a list that is too long".to_owned());
        }
        if let Some(both) = joins.iter().find(|it| leaves.iter().any(|is| is.phx_ref == it.phx_ref))
        {
            return Err(format!("tells that {both:?} comes and goes"));
        }
        let new = self.entries.iter().filter(|it| !self.told.contains(&it.number));
        let mut count = 0;
        for entry in new {
            count += 1;
            let (key, prev) = (entry.key, entry.prev.and_then(&ref_of));
            let is_it = |it: &&Meta| (it.number, it.key, it.prev) == (entry.number, key, prev);
            if joins.iter().filter(is_it).count() != 1 {
                return Err(format!("does not tell that {entry:?} comes, or not after {prev:?}"));
            }
        }
        let gone: Vec<u32> = self.told.iter().copied().filter(|it| !self.is_listed(*it)).collect();
        let is_told = |number: &u32| leaves.iter().filter(|it| it.number == *number).count() == 1;
        let is_right = joins.len() == count && leaves.len() == gone.len();
        if !is_right || !gone.iter().all(is_told) {
            return Err(format!("tells the wrong diff; {gone:?} go"));
        }
        self.tells(rules, now_ns)
    }

    /// A list for all members, which is empty where it would be too long.
    pub(crate) fn says_state(&mut self, metas: &[Meta], rules: &Rules, now_ns: u64) -> Wrong {
        let (was_summary, is_long) = (self.is_summary, self.is_long(rules));
        if is_long && (was_summary || !metas.is_empty()) {
            return Err("tells all a list that is too long, or again that it is".to_owned());
        }
        if !is_long && !was_summary && metas.is_empty() && !self.owes_list {
            self.owes_list = true;
            self.version += 1;
            return Ok(());
        }
        self.owes_list = false;
        if !is_long && !self.is_all(metas) {
            return Err("tells all a list that is not who is there".to_owned());
        }
        (self.is_summary, self.owes_all) = (is_long, is_long);
        self.asks.iter_mut().for_each(|it| it.is_open = false);
        self.tells(rules, now_ns)
    }

    pub(crate) fn says_state_to(&mut self, metas: &[Meta], chans: &[u32], rules: &Rules) -> Wrong {
        for chan in chans {
            let ask = self.asks.iter_mut().find(|it| it.chan == *chan && it.left > 0);
            let Some(ask) = ask else { return Err(format!("tells channel {chan} unasked")) };
            (ask.is_open, ask.left) = (false, ask.left - 1);
        }
        if self.is_summary {
            self.owed.extend_from_slice(chans);
            let is_right = metas.is_empty() && self.is_long(rules);
            return if is_right { Ok(()) } else { Err("tells some a list".to_owned()) };
        }
        let is_told = |it: &Meta| self.told.contains(&it.number);
        if metas.len() != self.told.len() || !metas.iter().all(is_told) {
            return Err(format!("tells some another list than all know: {:?}", self.told));
        }
        Ok(())
    }

    /// Whether the number of entries is right, with a sample of them.
    fn is_number(&self, (count, keys, sample): (usize, usize, &[Meta]), rules: &Rules) -> bool {
        let sampled = sample.iter().fold(0_u32, |mask, it| mask | 1 << it.key).count_ones();
        (count, keys) == (self.entries.len(), self.keys())
            && self.are_of(sample)
            && sampled as usize == rules.config.sample.min(keys)
    }

    /// Whether this is a valid answer of shards to members that ask, by the current entries.
    pub(crate) fn is_answer(&self, told: &PresenceEvent, rules: &Rules) -> bool {
        self.is_long(rules)
            && match told {
                PresenceEvent::State(metas) => metas.is_empty(),
                PresenceEvent::Summary { count, keys, sample } => {
                    self.is_number((*count, *keys, sample), rules)
                }
                PresenceEvent::Diff { .. } => false,
            }
    }

    /// A summary for all members, or for some that have asked.
    pub(crate) fn says_summary(
        &mut self,
        (count, keys, sample): (usize, usize, &[Meta]),
        chans: Option<&[u32]>,
        rules: &Rules,
        now_ns: u64,
    ) -> Wrong {
        let entries = self.entries.len();
        if !self.is_summary || !self.is_number((count, keys, sample), rules) {
            return Err(format!("tells a wrong number, or sample: {entries} are there"));
        }
        match chans {
            None => {
                let passed = u128::from(now_ns.saturating_sub(self.counted_ns));
                let is_due = passed >= rules.config.summary_interval.as_nanos();
                if !self.owes_all && !is_due {
                    return Err(format!("tells the number again after {passed} ns"));
                }
                (self.counted, self.counted_ns, self.owes_all) = (entries, now_ns, false);
                self.owed.clear();
                self.told = self.entries.iter().map(|it| it.number).collect();
            }
            Some(chans) => {
                for chan in chans {
                    let at = self.owed.iter().position(|it| it == chan);
                    let Some(at) = at else { return Err(format!("tells channel {chan} only")) };
                    self.owed.swap_remove(at);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn answers(
        &mut self,
        (entries, keys): (usize, usize),
        metas: &[Meta],
        rules: &Rules,
    ) -> Wrong {
        self.questions = self.questions.saturating_sub(1);
        let is_list = entries <= rules.config.list_max;
        let is_right = (entries, keys) == (self.entries.len(), self.keys());
        if !is_right || !self.are_of(metas) || (is_list && metas.len() != entries) {
            return Err(format!("answers {entries} entries, {keys} keys, and not who is there"));
        }
        Ok(())
    }

    /// Whether members that were sent a list are still due the number.
    pub(crate) fn is_owed(&self) -> bool {
        self.owes_all || self.owes_list || !self.owed.is_empty()
    }

    /// Names what is still to be sent. Channels that have ended need no list.
    pub(crate) fn unrest(
        &self,
        rules: &Rules,
        is_live: &impl Fn(u32) -> bool,
    ) -> Option<&'static str> {
        match () {
            () if self.questions > 0 => Some("questions"),
            () if self.asks.iter().any(|it| it.is_open && is_live(it.chan)) => Some("lists"),
            () if self.is_summary != self.is_long(rules) => Some("whether there is a list"),
            () if self.is_summary && self.counted != self.entries.len() => Some("a number"),
            () if self.is_summary => None,
            () => {
                let is_same = self.told.len() == self.entries.len()
                    && self.told.iter().all(|it| self.is_listed(*it));
                (!is_same).then_some("a diff")
            }
        }
    }

    /// Everything was sent: no more events may come.
    pub(crate) fn rests(&mut self) {
        self.asks.clear();
    }

    /// Whether a member with these states has the whole list.
    pub(crate) fn is_known(&self, numbers: &[u32]) -> bool {
        numbers.len() == self.entries.len() && numbers.iter().all(|it| self.is_listed(*it))
    }

    /// The event and the entries, for the text of a failure.
    pub(crate) fn said(&mut self, told: &PresenceEvent) -> String {
        let numbers: Vec<_> = self.entries.iter().map(|it| (it.chan, it.key, it.number)).collect();
        format!("{told:?} where there are {numbers:?} (channel, key, number)")
    }
}

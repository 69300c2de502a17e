//! What homes of presences send, and listeners outside of channels.

use super::*;

/// Added to the number of a listener that a broadcast leaves out.
const LISTENER: u32 = 1 << 31;

/// A listener: it receives everything that its shard accepts on its topic.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) name: ChannelId,
    pub(crate) shard: usize,
    pub(crate) topic: u8,
    pub(crate) is_ending: bool,
    pub(super) is_on: bool,
    pub(crate) is_gone: bool,
    /// Broadcasts accepted in this step that it has not received.
    due: VecDeque<u32>,
}

/// The events that a home has sent to all members of a topic.
#[derive(Clone, Debug)]
pub(super) struct Told {
    /// The list; `None` where it is unknown, or too long.
    numbers: Option<Vec<u32>>,
    /// When the last diff was sent, unless its home may have forgotten that.
    diff_ns: Option<u64>,
}

impl Default for Told {
    fn default() -> Self {
        Self { numbers: Some(Vec::new()), diff_ns: None }
    }
}

/// Tells the ledger what a listener receives, and when its shard drops it.
pub(crate) struct ListenerGuard {
    pub(crate) number: u32,
    pub(crate) shared: Arc<crate::world::Shared>,
}

impl ListenerGuard {
    /// A broadcast without a position comes in the order of its shard.
    pub(crate) fn hear(&self, id: u32, at: Option<Position>) {
        if self.shared.faults.happens(crate::findings::Fault::Deafen) {
            return;
        }
        let mut ledger = self.shared.ledger();
        ledger.count("received by listeners", 1);
        if let Some(at) = at {
            let topic = usize::from(ledger.sessions.listeners[self.number as usize].topic);
            let entry = ledger.log.at(at, topic);
            if entry.is_none_or(|entry| entry.id != id) && !ledger.plan.is_alone() {
                let text = format!("a listener hears #{id} at {at}, where {entry:?} is");
                ledger.fail("listener", text);
            }
            return;
        }
        let due = &mut ledger.sessions.listeners[self.number as usize].due;
        if due.pop_front_if(|it| *it == id).is_none() {
            ledger.fail("listener", format!("listener {} receives {id}", self.number));
        }
    }
}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        let mut ledger = self.shared.ledger();
        let it = &mut ledger.sessions.listeners[self.number as usize];
        if std::mem::replace(&mut it.is_gone, true) {
            ledger.fail("listener", "a listener is gone twice");
        }
    }
}

impl Ledger {
    pub(crate) fn new_listener(&mut self, start: usize, shard: usize, topic: u8) -> u32 {
        let number = self.sessions.listeners.len() as u32;
        let name = simurgh_core::Listener::id(shard as u16, number);
        let shard = self.starts[start].shards.start + shard;
        self.sessions.listeners.push(Listening {
            name,
            shard,
            topic,
            is_ending: false,
            is_on: false,
            is_gone: false,
            due: VecDeque::new(),
        });
        number
    }

    /// A shard is told to begin or to end listening.
    pub(super) fn listens(&mut self, name: ChannelId, is_on: bool) {
        let Sessions { listeners, now, .. } = &mut self.sessions;
        for (number, it) in (0..).zip(listeners).filter(|(_, it)| it.name == name) {
            it.is_on = is_on;
            now.listeners.extend((!is_on).then_some(number));
        }
    }

    /// A shard has accepted a broadcast.
    pub(super) fn append(&mut self, shard: usize, topic: u8, entry: LineEntry) {
        let line = self.accepted(shard, usize::from(topic));
        line.into_iter().for_each(|line| line.entries.push(entry));
        let Sessions { listeners, now, .. } = &mut self.sessions;
        for (number, it) in (0..).zip(listeners) {
            let is_it = it.is_on && (it.shard, it.topic) == (shard, topic);
            if is_it && entry.except != LISTENER + number {
                it.due.push_back(entry.id);
                now.listeners.push(number);
            }
        }
    }

    pub(super) fn check_listeners(&mut self) {
        while let Some(number) = self.sessions.now.listeners.pop() {
            let it = &self.sessions.listeners[number as usize];
            if !it.due.is_empty() || it.is_on == it.is_gone {
                self.findings.fail("listener", format!("{it:?}"));
            }
        }
    }

    /// Leaves a listener out of a broadcast; returns its name.
    pub(crate) fn leave_out(&mut self, id: u32, c: u32) -> Option<ChannelId> {
        let count = self.sessions.listeners.len();
        let number = count.checked_sub(1 + c as usize % count.clamp(1, 4))?;
        self.broadcasts[id as usize].except = LISTENER + number as u32;
        Some(self.sessions.listeners[number].name)
    }

    /// The shards of a node with channels that receive the broadcasts of a topic.
    pub(crate) fn members(&self, start: usize, topic: u8) -> BTreeSet<usize> {
        let Sessions { shards, conns, chans, .. } = &self.sessions;
        let receives = |(joined, chan): &(u8, u32)| {
            let mut relays = chans[*chan as usize].relays.iter();
            *joined == topic || relays.any(|relay| relay.topic == topic && !relay.is_unsure)
        };
        let has_member = |shard: &usize| {
            let mut sockets = shards[*shard].sockets.iter();
            sockets.any(|conn| conns[*conn as usize].channels.iter().any(receives))
        };
        self.starts[start].shards.clone().filter(has_member).collect()
    }

    /// The shards of a node on which somebody listens to a topic.
    pub(crate) fn listening(&self, start: usize, topic: u8) -> impl Iterator<Item = usize> {
        let all = self.sessions.listeners.iter().filter(move |it| it.is_on && it.topic == topic);
        all.map(|it| it.shard).filter(move |it| self.starts[start].shards.contains(it))
    }

    /// A home on a node posts events of presence.
    pub(crate) fn presence_posts(&mut self, start: usize, mail: &Mail) {
        match mail {
            Mail::Broadcast(posted) => {
                let it = posted.broadcast();
                let topic = self.plan.topics.number(it.topic()).unwrap_or_default();
                let json = it.payload().json().unwrap_or_default();
                // All shards are posted the same one.
                let last = self.sessions.last_event.replace(Arc::clone(it));
                if last.is_none_or(|last| !Arc::ptr_eq(&last, it))
                    && let Some(told) = self.notes_presence(start, topic, it.event(), json)
                    && let Err(wrong) = self.check_event(topic, &told)
                {
                    self.fail("presence", format!("{}, {json}: {wrong}", it.event()));
                }
            }
            Mail::Push(push) => {
                let first = push.channels().first();
                let first = first.and_then(|name| self.sessions.names.get(&(start, *name)));
                let topic = first.and_then(|chan| self.sessions.chan(*chan)).map(|chan| chan.topic);
                let Some(topic) = topic else {
                    let text = format!("{push:?} is for channels without a request");
                    return self.fail("presence", text);
                };
                for (event, json) in push.events() {
                    if event == "presence_diff" {
                        self.fail("presence", "a diff is sent to some members");
                    }
                    self.notes_presence(start, topic, event, json);
                }
            }
            Mail::Presence(_, PresenceMail::Call(name, call), _) => {
                if let Some(chan) = self.sessions.names.get(&(start, *name)).copied() {
                    self.presence_calls(chan, call);
                }
            }
            Mail::Presence(topic, PresenceMail::ListAnswer(Some(events)), _) => {
                let topic = self.plan.topics.number(topic).unwrap_or_default();
                for (event, json) in events.iter() {
                    self.notes_presence(start, topic, event, json);
                }
            }
            _ => {}
        }
    }

    /// A channel's call is on its way to the home of its topic.
    fn presence_calls(&mut self, chan: u32, call: &PresenceCall) {
        let number = |meta: &simurgh_presence::Meta| {
            payload::number(meta.as_str().as_bytes().get(5..).unwrap_or_default()).0
        };
        let act = match call {
            PresenceCall::Track(_, meta, _) => Act::Track(number(meta)),
            PresenceCall::Update(_, meta) => Act::Update(number(meta)),
            PresenceCall::Untrack(key) => {
                let place = KEYS.iter().position(|known| *known == &**key).unwrap_or_default();
                Act::Untrack(place as u8)
            }
            PresenceCall::End | PresenceCall::PushState => return,
        };
        if self.sessions.chan(chan).is_some_and(|chan| self.is_kept(chan.topic)) {
            return;
        }
        let calls = &mut self.sessions.now.calls;
        let Some(at) = calls.iter().position(|made| *made == (chan, act)) else {
            return self.fail("presence", format!("channel {chan} has not called {act:?}"));
        };
        calls.remove(at);
        let entries_max = self.plan.config.presence.channel_entries_max;
        match act {
            Act::Track(number) => self.presences.track(number, false, entries_max),
            Act::Update(number) => self.presences.track(number, true, entries_max),
            Act::Untrack(key) => self.presences.untrack(chan, key),
            _ => {}
        }
    }

    /// Whether one of these entries is present, and so is its node for that of this start.
    pub(super) fn is_any_present(&self, start: usize, metas: &[Meta]) -> bool {
        let mut nodes = metas.iter().filter_map(|meta| self.presences.node_of(meta.number));
        nodes.any(|node| !self.gone.contains(&(start, node)))
    }

    /// Notes an event of presence by the number of its payload.
    fn notes_presence(
        &mut self,
        start: usize,
        topic: u8,
        event: &str,
        json: &str,
    ) -> Option<Arc<PresenceEvent>> {
        let id = payload::said(json.as_bytes());
        let Some(told) = PresenceEvent::read(event, json) else {
            self.fail("presence", format!("{event} {json}"));
            return None;
        };
        self.note(|| format!("topic {topic} sends {event} {json}"));
        let mut checked = self.presences.check(usize::from(topic), &told);
        match &told {
            PresenceEvent::Diff { leaves, .. } => {
                self.count("diffs", 1);
                if self.plan.is_one_node() && self.is_any_present(start, leaves) {
                    checked = Err("an entry that is present leaves".to_owned());
                }
            }
            PresenceEvent::State(_) => self.count("states", 1),
            PresenceEvent::Summary { count, keys, sample } => {
                let sampled = sample.iter().fold(0_u32, |mask, it| mask | 1 << it.key).count_ones();
                let most = self.plan.config.presence.sample.min(*keys);
                if keys > count || sampled as usize != most {
                    checked = Err("the sample is wrong".to_owned());
                }
            }
        }
        if let Err(wrong) = checked {
            self.fail("presence", format!("topic {topic}, {event} {json}: {wrong}"));
        }
        let told = Arc::new(told);
        self.sessions.events.insert(id, Arc::clone(&told));
        Some(told)
    }

    /// Checks an event for all members of a topic against those before it: each diff changes the
    /// list, after the interval at least, and a number follows an empty list.
    fn check_event(&mut self, topic: u8, told: &PresenceEvent) -> Result<(), String> {
        if !self.plan.is_one_node() {
            return Ok(());
        }
        let (now_ns, interval) = (self.now_ns, self.plan.config.presence.interval);
        let it = &mut self.sessions.told[usize::from(topic)];
        match told {
            PresenceEvent::Diff { joins, leaves } => {
                let before_ns = it.diff_ns.replace(now_ns).filter(|before| *before != now_ns);
                let passed_ns = before_ns.map(|before| now_ns.saturating_sub(before));
                if passed_ns.is_some_and(|passed| u128::from(passed) < interval.as_nanos()) {
                    return Err(format!("the next diff is sent after {passed_ns:?} ns"));
                }
                let Some(list) = &mut it.numbers else {
                    it.diff_ns = None;
                    return Ok(());
                };
                let is_known = |meta: &Meta| list.contains(&meta.number);
                let is_right = leaves.iter().all(is_known) && !joins.iter().any(is_known);
                told.apply_to(list);
                if list.is_empty() {
                    // The home retains nothing of it, so the time of the last event is unknown.
                    it.diff_ns = None;
                }
                if is_right { Ok(()) } else { Err(format!("then, {list:?} are present")) }
            }
            PresenceEvent::State(metas) => {
                let list: Vec<u32> = metas.iter().map(|meta| meta.number).collect();
                (it.numbers, it.diff_ns) = (Some(list).filter(|list| !list.is_empty()), None);
                Ok(())
            }
            PresenceEvent::Summary { .. } if it.numbers.is_some() => {
                Err("a list becomes a number without an empty list".to_owned())
            }
            PresenceEvent::Summary { .. } => Ok(()),
        }
    }

    /// Whether something of presence is posted.
    pub(crate) fn is_of_presence(mail: &Mail) -> bool {
        match mail {
            Mail::Presence(..) | Mail::Push(_) => true,
            Mail::Broadcast(posted) => letter_of(posted.broadcast().event()).is_some(),
            _ => false,
        }
    }

    /// A presence that a client or a shard does not know although everything is delivered.
    pub(crate) fn presence_unrest(&self, kept: u64, refused: u64) -> Option<String> {
        if self.sessions.is_partial {
            return None;
        }
        let (live, expected) = (self.presences.held.len() as u64, self.presences.refused);
        if self.plan.is_one_node() && (kept != live || refused != expected) {
            return Some(format!("{kept} of {live} presences, {refused} of {expected} refused"));
        }
        let topics = 0..self.plan.topics.names.len();
        let lists: Vec<_> = topics.map(|topic| self.presences.of(topic)).collect();
        let max = self.plan.config.presence.list_max;
        for (number, chan) in self.sessions.views() {
            let Some((list, bytes)) = lists.get(usize::from(chan.topic)) else { continue };
            let (view, len) = (&chan.view, list.len());
            let mut numbers = view.numbers.clone();
            numbers.sort_unstable();
            // Each state has some more bytes on the wire than in its meta.
            let may_be_long =
                len > max - max / 10 || bytes + 100 * len > self.sessions.bytes_max / 2;
            let is_right = match view.count {
                Some(count) => count == len && may_be_long,
                None if view.has_state => numbers == *list && len <= max,
                None => !chan.has_asked,
            };
            if !is_right {
                return Some(format!("channel {number} knows {view:?} of {list:?}"));
            }
        }
        None
    }
}

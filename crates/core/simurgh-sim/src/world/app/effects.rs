//! The effects that a callback or a join draws, for the shard and for the ledger.

use super::*;

/// How many broadcasts may lead to each other, so that they end.
const DEPTH_MAX: u8 = 2;
/// Words of broadcasts have ten digits, so that only the numbers decide their lengths.
const LONG_WORD: u32 = 1 << 30;

/// A value that is kept with a socket.
pub(crate) struct Assigned {
    pub(crate) number: u32,
    pub(crate) _alive: Arc<()>,
}

/// Linked work: it learns of its end by being dropped.
#[derive(Default)]
pub(crate) struct Linked(u32, Option<Arc<Shared>>);

impl LinkedWork for Linked {
    fn is_finished(&self) -> bool {
        self.1.as_ref().is_some_and(|shared| shared.ledger().is_finished(self.0))
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.1.iter().for_each(|shared| shared.ledger().task_notified(self.0));
    }
}

pub(super) struct Draw<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) ledger: &'a mut Ledger,
    pub(super) rng: Rng,
    pub(super) topic: u8,
    pub(super) called: Called,
}

impl Draw<'_> {
    /// How many broadcasts have led to its callback.
    fn depth(&self) -> u8 {
        match self.called.call {
            Call::HandleOut(id) | Call::HandleBroadcast(id, _) | Call::HandleInfo(id) => {
                self.ledger.broadcasts.get(id as usize).map_or(DEPTH_MAX, |made| made.depth)
            }
            Call::Terminate(_) => 1,
            _ => 0,
        }
    }

    pub(super) fn end(self, end: CallEnd) {
        self.ledger.end(Called { end, ..self.called });
    }

    pub(super) fn begin_channel(&mut self, ctx: &mut ShardContext<'_>) {
        let handle = ctx.handle::<Actor>();
        self.ledger.sessions.name_channel(handle.id(), self.called.chan);
        // Most clients with a view of presences ask for the list as soon as they have joined.
        if self.may_be_present() && self.shared.plan.app.is_present && self.rng.bool() {
            self.present(ctx, Habit::AskState);
        }
    }

    pub(super) fn plain(&self) -> BroadcastInfo {
        let (depth, topic) = (self.depth(), usize::from(self.topic));
        let node = self.ledger.sessions.start_of(self.ledger.sessions.shard_of(self.called.conn));
        BroadcastInfo { depth, ..BroadcastInfo::new(topic, node) }
    }

    pub(super) fn payload(&mut self, made: BroadcastInfo) -> Made {
        let word = LONG_WORD | self.rng.u32(..);
        let AppPlan { binary, long, pad, .. } = self.shared.plan.app;
        let is_binary = is(&mut self.rng, binary);
        let pad = if is(&mut self.rng, long) { pad } else { 0 };
        // Lengths tell the broadcasts of a step apart.
        let pad = pad + self.ledger.broadcasts.len() % 8;
        self.ledger.payload(BroadcastInfo { is_binary, ..made }, word, pad)
    }

    fn push(&mut self, ctx: &mut ShardContext<'_>) {
        let (id, payload) = self.payload(self.plain());
        self.follows(id);
        ctx.push("p", payload);
        self.called.acts.push(Act::Push(id));
    }

    /// Broadcasts a message as it came in, without a copy of its payload.
    pub(super) fn echo(&mut self, ctx: &mut ShardContext<'_>, id: u32, payload: Payload<'static>) {
        let name = EVENTS[self.rng.usize(..EVENTS.len())];
        let is_for_others = self.rng.bool();
        let weight = self.ledger.weight(self.topic, name, payload.len());
        let made = &mut self.ledger.broadcasts[id as usize];
        (made.event, made.depth, made.weight) = (name, 1, weight);
        made.except = if is_for_others { self.called.chan } else { NONE };
        match is_for_others {
            true => ctx.broadcast_from(name, payload),
            false => ctx.broadcast(name, payload),
        }
        self.called.acts.push(Act::Broadcast(id));
    }

    pub(super) fn effect(&mut self, ctx: &mut ShardContext<'_>) {
        let habits = self.shared.plan.app.habits();
        let Some(habit) = pick(&mut self.rng, habits) else { return };
        let topics = &self.shared.plan.topics;
        let some_topic = self.rng.usize(..topics.rooms) as u8;
        let has_channel = self.called.chan != NONE;
        match habit {
            Habit::Push => self.push(ctx),
            Habit::Broadcast | Habit::BroadcastFrom | Habit::BroadcastTo => {
                self.broadcast(ctx, habit, some_topic);
            }
            Habit::Disconnect => {
                let which = self.rng.usize(..IDS);
                self.called.acts.push(Act::Broadcast(which as u32));
                ctx.disconnect(topics.name(topics.id(which)));
            }
            Habit::Subscribe => {
                ctx.subscribe(topics.name(some_topic));
                self.called.acts.push(Act::Subscribe(some_topic));
            }
            Habit::Unsubscribe => {
                ctx.unsubscribe(topics.name(some_topic));
                self.called.acts.push(Act::Unsubscribe(some_topic));
            }
            // Rare, or sockets would close too soon.
            Habit::CloseSocket if self.rng.u8(..) < 80 => {
                ctx.close_socket(CloseCode::RESTART);
                self.called.acts.push(Act::Close(1012));
            }
            Habit::Tell if has_channel && self.depth() < DEPTH_MAX => {
                let depth = self.depth() + 1;
                let id = self.ledger.add(BroadcastInfo { depth, ..self.plain() });
                self.ledger.sessions.chans[self.called.chan as usize].infos.push_back(id);
                ctx.handle::<Actor>().send(id);
            }
            Habit::CloseSocket | Habit::Tell => {}
            Habit::Expire => {
                let word = self.rng.u32(..);
                ctx.expire_in(lifetime(word));
                self.called.acts.push(Act::Expire(word));
            }
            Habit::Keep if has_channel => self.keep(ctx),
            Habit::Track | Habit::Update | Habit::Untrack | Habit::AskState => {
                self.present(ctx, habit);
            }
            Habit::Assign => {
                let number = self.ledger.sessions.next_assigned();
                ctx.assign(Assigned { number, _alive: Arc::clone(&self.shared.assigned) });
                self.called.acts.push(Act::Assign(number));
            }
            Habit::Link if has_channel => self.link(ctx),
            Habit::Hold if has_channel => {
                ctx.carry_out([Effect::Hold]);
                self.called.acts.push(Act::Hold);
                self.keep(ctx);
            }
            Habit::Proceed => self.proceed(ctx),
            Habit::Speak if has_channel => self.speak(ctx),
            _ => {}
        }
    }

    /// Whether presences may change. On a topic with a history nothing takes place after a
    /// broadcast that is not stored.
    fn may_be_present(&self) -> bool {
        let may_wait = self.called.acts.iter().any(|act| matches!(act, Act::Broadcast(_)));
        let is_first = matches!(self.called.call, Call::AfterJoin | Call::HandleIn(_)) && !may_wait;
        is_first || !self.ledger.is_kept(self.topic)
    }

    /// A reply or a push comes after the broadcasts of its callback are stored.
    pub(super) fn follows(&mut self, id: u32) {
        let broadcasts = self.called.acts.iter().filter_map(|act| match act {
            Act::Broadcast(id) => Some(*id),
            _ => None,
        });
        if self.ledger.is_kept(self.topic) && !matches!(self.called.call, Call::Terminate(_)) {
            self.ledger.log.before.insert(id, broadcasts.collect());
        }
    }

    pub(super) fn keep(&mut self, ctx: &ShardContext<'_>) {
        self.ledger.sessions.handles.insert(self.called.chan, ctx.handle());
    }

    fn link(&mut self, ctx: &mut ShardContext<'_>) {
        let task = self.ledger.new_task(self.called.chan);
        *locked(&self.shared.linking) = Some(Linked(task, Some(Arc::clone(self.shared))));
        ctx.spawn_linked(std::future::pending());
        self.called.acts.push(Act::Link(task));
    }

    pub(super) fn proceed(&mut self, ctx: &mut ShardContext<'_>) {
        ctx.carry_out([Effect::Proceed]);
        self.called.acts.push(Act::Proceed);
    }

    fn broadcast(&mut self, ctx: &mut ShardContext<'_>, how: Habit, other: u8) {
        if self.depth() >= DEPTH_MAX {
            return;
        }
        let event = EVENTS[self.rng.usize(..EVENTS.len())];
        let topic = usize::from(if how == Habit::BroadcastTo { other } else { self.topic });
        let except = match how {
            Habit::BroadcastFrom if self.called.chan == NONE => JOINER,
            Habit::BroadcastFrom => self.called.chan,
            _ => NONE,
        };
        let (chan, depth) = (self.called.chan, self.depth() + 1);
        let made = BroadcastInfo { topic, event, except, chan, depth, ..self.plain() };
        let (id, payload) = self.payload(made);
        match how {
            Habit::BroadcastTo => {
                ctx.broadcast_to(self.shared.plan.topics.name(topic as u8), event, payload);
            }
            Habit::BroadcastFrom => ctx.broadcast_from(event, payload),
            _ => ctx.broadcast(event, payload),
        }
        self.called.acts.push(Act::Broadcast(id));
    }

    /// Broadcasts by the handle of its channel.
    fn speak(&mut self, ctx: &ShardContext<'_>) {
        if self.depth() >= DEPTH_MAX {
            return;
        }
        let word = self.rng.u32(..);
        let is_others = word & 64 == 0;
        let (id, payload) = speech(self.ledger, self.called.chan, self.depth() + 1, word);
        let (event, bytes) = (self.ledger.broadcasts[id as usize].event, payload.len());
        let handle = ctx.handle::<Actor>();
        let done = match is_others {
            true => handle.broadcast_from(event, payload),
            false => handle.broadcast(event, payload),
        };
        let is_too_large = bytes > self.ledger.sessions.bytes_max;
        if matches!(done, Err(BroadcastError::TooLarge { .. })) != is_too_large {
            self.ledger.fail("bounds", format!("{done:?} by the handle of {}", self.called.chan));
        }
    }

    /// Draws whether an interceptor drops a broadcast, replaces it or passes it on.
    pub(super) fn pass(&mut self, ctx: &mut ShardContext<'_>, (event, it): (&str, &Payload<'_>)) {
        let id = payload::parse(it).0;
        match self.rng.u8(..4) {
            0 => {}
            1 => self.push(ctx),
            _ => {
                ctx.push(event, it);
                self.called.acts.push(match letter_of(event) {
                    Some(word) => Act::Pass(word, id),
                    None => Act::Push(id),
                });
            }
        }
    }

    fn present(&mut self, ctx: &mut ShardContext<'_>, habit: Habit) {
        let (place, word) = (self.rng.u8(..KEYS.len() as u8), self.rng.u32(..));
        let key = KEYS[usize::from(place)];
        // Its events may call this again, without end.
        if self.depth() >= DEPTH_MAX || self.called.chan == NONE || !self.may_be_present() {
            return;
        }
        let is_kept = self.ledger.is_kept(self.topic);
        match habit {
            Habit::Untrack => {
                ctx.presence().untrack(key);
                return match is_kept {
                    true => self.ledger.presences.untrack(self.called.chan, place),
                    false => self.called.acts.push(Act::Untrack(place)),
                };
            }
            Habit::AskState => {
                ctx.presence().push_state();
                return self.called.acts.push(Act::AskState);
            }
            _ => {}
        }
        let BroadcastInfo { node, topic, .. } = self.plain();
        let presences = &mut self.ledger.presences;
        let number = presences.make(node, topic, self.called.chan, place);
        let config = &self.shared.plan.config.presence;
        let pad = match word % 32 {
            0..2 => 40,
            2 if config.meta_bytes_max > 4096 => config.meta_bytes_max - 60,
            _ => 0,
        };
        let text = meta(number, pad);
        presences.entries[number as usize].bytes = text.len();
        let expected = may_be_tracked(config, key, &text);
        let meta = Payload::from_json(text);
        let (done, act) = match habit {
            Habit::Track => (ctx.presence().track(key, meta), Act::Track(number)),
            _ => (ctx.presence().update(key, meta), Act::Update(number)),
        };
        if done != expected {
            self.ledger.fail("presence", format!("{act:?}: {done:?}, not {expected:?}"));
        }
        if done.is_ok() && is_kept {
            // It may be posted later.
            let entries_max = config.channel_entries_max;
            self.ledger.presences.track(number, habit == Habit::Update, entries_max);
        } else if done.is_ok() {
            self.called.acts.push(act);
        }
    }
}

/// Makes the payload of a broadcast by a channel's handle.
pub(crate) fn speech(ledger: &mut Ledger, chan: u32, depth: u8, word: u32) -> Made {
    let AppPlan { binary, long, pad, .. } = ledger.plan.app;
    let of = ledger.sessions.chan(chan).map_or((0, 0), |it| (usize::from(it.topic), it.conn));
    let (topic, node) = (of.0, ledger.sessions.start_of(ledger.sessions.shard_of(of.1)));
    let made = BroadcastInfo {
        event: EVENTS[word as usize % EVENTS.len()],
        except: if word & 64 == 0 { chan } else { NONE },
        is_binary: binary > 0 && word >> 8 & 7 == 0,
        depth,
        ..BroadcastInfo::new(topic, node)
    };
    let is_long = long > 0 && word >> 12 & 3 == 0;
    let pad = if is_long { pad } else { 0 } + ledger.broadcasts.len() % 8;
    ledger.payload(made, LONG_WORD | word, pad)
}

/// Draws one of several in proportion to their weights; `None` if the sum of the weights is 0.
fn pick<K>(rng: &mut Rng, weights: impl Iterator<Item = (K, u32)> + Clone) -> Option<K> {
    let all: u32 = weights.clone().map(|(_, weight)| weight).sum();
    let mut at = rng.u32(..all.max(1));
    weights.into_iter().find_map(|(kind, weight)| {
        let is_it = at < weight;
        at = at.saturating_sub(weight);
        is_it.then_some(kind)
    })
}

/// The text of a meta, which begins with its number.
fn meta(number: u32, pad: usize) -> String {
    match pad {
        // The table drops members that only it may set.
        0 if number % 8 == 3 => format!("{{\"i\":{number},\"phx_ref\":\"mine\"}}"),
        0 => format!("{{ \"i\":{number}}}"),
        _ => format!("{{\"i\":{number},\"p\":\"{}\"}}", "p".repeat(pad)),
    }
}

fn may_be_tracked(config: &PresenceConfig, key: &str, meta: &str) -> Result<(), PresenceError> {
    let PresenceConfig { key_bytes_max, meta_bytes_max, .. } = *config;
    match (key.len(), meta.len()) {
        (bytes, _) if bytes > key_bytes_max => {
            Err(PresenceError::KeyTooLong { bytes, bytes_max: key_bytes_max })
        }
        (_, bytes) if bytes > meta_bytes_max => {
            Err(PresenceError::MetaTooLong { bytes, bytes_max: meta_bytes_max })
        }
        _ => Ok(()),
    }
}

//! The application: its channels draw effects from words of messages, for the [`Model`] as well.

pub(crate) mod handlers;
mod presence;
pub(crate) mod ready;
pub(crate) mod shared;

use std::cell::Cell;
use std::sync::Arc;

use crate::kit::fault::Fault;
use crate::kit::operation::pick;
use crate::kit::presence::letter_of;
use crate::kit::setup::locked;
use crate::kit::topics::IDS;
use crate::kit::{EVENTS, NONE, payload};
use fastrand::Rng;
use simurgh_core::{
    Broadcast, Join, JoinFn, Outcome, Reason, Reply, ShardChannel, ShardContext, ShardHandleInfo,
    Stop,
};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;

use self::handlers::Busy;
use self::ready::Ready;
use self::shared::Shared;
use crate::limits::lifetime;
use crate::model::presence::{INTERCEPTS_DIFF, INTERCEPTS_STATE};
use crate::model::{
    Action, Answer, Call, CallbackEnd, CallbackRecord, Due, Intent, Joining, Model, PayloadInfo,
    SPEAKER,
};
use crate::profile::{Habit, Profile};

/// What interceptors may intercept: of broadcasts, and of presence by its bits.
const INTERCEPTS: [&[&str]; 16] = [
    &[],
    &["a"],
    &["a", "b"],
    &[],
    &["presence_diff"],
    &["a", "presence_diff"],
    &["a", "b", "presence_diff"],
    &[],
    &["presence_state"],
    &["a", "presence_state"],
    &["a", "b", "presence_state"],
    &[],
    &["presence_diff", "presence_state"],
    &["a", "presence_diff", "presence_state"],
    &["a", "b", "presence_diff", "presence_state"],
    &[],
];
/// How many broadcasts may lead to each other, so that they end.
pub(crate) const DEPTH_MAX: u8 = 2;

pub(crate) struct Member {
    pub(crate) shared: Arc<Shared>,
    pub(crate) chan: u32,
    pub(crate) word: u32,
    intercepts: u8,
    intercept_panics: Cell<bool>,
    /// Whether its handlers wait, and the one that does.
    waits: bool,
    pub(crate) busy: Option<Busy>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.model().dropped(self.chan);
    }
}

#[derive(Default)]
struct Given<'a> {
    /// What an interceptor may pass on.
    passed: Option<(&'a str, &'a Payload<'a>)>,
    ready: Option<Ready>,
}

pub(crate) fn mixed(one: u32, two: u32) -> u64 {
    (u64::from(one) << 32 | u64::from(two)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Panics as the application does, on purpose and without the hook.
pub(crate) fn give_up() -> ! {
    std::panic::resume_unwind(Box::new("meant"))
}

/// The effects that a callback or a join draws from its seed, for the model.
pub(crate) struct Draw<'a> {
    shared: &'a Arc<Shared>,
    model: &'a mut Model,
    rng: Rng,
    depth: u8,
    chan: u32,
    conn: u32,
    topic: u8,
    effects: Vec<Action>,
    /// The ref of its message, and the sequence number of its broadcast.
    msg_ref: u32,
    seq: u64,
}

impl<'a> Draw<'a> {
    /// A join has no channel yet.
    fn join(shared: &'a Arc<Shared>, model: &'a mut Model, joining: Joining, word: u32) -> Self {
        let Joining { conn, topic, .. } = joining;
        let (rng, effects) =
            (Rng::with_seed(mixed(word, conn)), model.spare.pop().unwrap_or_default());
        let (depth, chan, msg_ref, seq) = (0, NONE, 0, 0);
        Self { shared, model, rng, depth, chan, conn, topic, effects, msg_ref, seq }
    }

    fn begin(
        shared: &'a Arc<Shared>,
        model: &'a mut Model,
        ctx: &ShardContext<'_>,
        (chan, call): (u32, Call),
        seed: u64,
    ) -> Self {
        let (msg_ref, seq) = model.begin(chan, call);
        model.reads(chan, handlers::assigned(ctx));
        let (conn, topic) = model.chan(chan).map_or((NONE, 0), |it| (it.conn, it.topic));
        let depth = match call {
            Call::HandleOut(id) | Call::HandleBroadcast(id, _) | Call::ShardHandleInfo(id) => {
                model.made(id).map_or(DEPTH_MAX, |it| it.depth)
            }
            Call::Terminate(_) => 1,
            _ => 0,
        };
        let (rng, effects) = (Rng::with_seed(seed), model.spare.pop().unwrap_or_default());
        Self { shared, model, rng, depth, chan, conn, topic, effects, msg_ref, seq }
    }

    /// Notes the callback; returns whether it panics.
    fn end(self, call: Call, out: CallbackEnd) -> bool {
        let is_panic = matches!(out, CallbackEnd::Panic);
        let Self { model, chan, conn, effects, msg_ref, seq, .. } = self;
        model.end(CallbackRecord { chan, conn, call, effects, out, msg_ref, seq });
        is_panic
    }

    fn payload(&mut self, made: PayloadInfo) -> (u32, Payload<'static>) {
        let profile = &self.shared.profile;
        let is_binary = Profile::is(&mut self.rng, profile.binary);
        let is_long = Profile::is(&mut self.rng, profile.long);
        let pad = if is_long { profile.pad } else { 0 };
        self.model.payload(PayloadInfo { is_binary, ..made }, self.rng.u32(..), pad)
    }

    fn plain(&self) -> PayloadInfo {
        PayloadInfo::plain(self.topic, self.depth)
    }

    fn push(&mut self, ctx: &mut ShardContext<'_>) {
        let (id, payload) = self.payload(self.plain());
        ctx.push("p", payload);
        self.effects.push(Action::Push(id));
    }

    /// Broadcasts a message as it came in, without a copy of its payload.
    fn echo(&mut self, ctx: &mut ShardContext<'_>, id: u32, payload: Payload<'static>) {
        let event = self.rng.u8(..EVENTS.len() as u8);
        let name = EVENTS[usize::from(event)];
        let is_for_others = self.rng.bool();
        let weight = self.model.weight(self.topic, name, &payload);
        let made = &mut self.model.made[id as usize];
        (made.event, made.depth, made.weight) = (event, 1, weight);
        made.except = if is_for_others { self.chan } else { NONE };
        match is_for_others {
            true => ctx.broadcast_from(name, payload),
            false => ctx.broadcast(name, payload),
        }
        self.effects.push(Action::Broadcast(id));
    }

    fn effect(&mut self, ctx: &mut ShardContext<'_>) {
        let habit = pick(&mut self.rng, self.shared.profile.habits());
        let some_topic = self.rng.usize(..self.model.topics.rooms) as u8;
        match habit {
            None => {}
            Some(Habit::Push) => self.push(ctx),
            Some(it @ (Habit::Broadcast | Habit::BroadcastFrom | Habit::BroadcastTo)) => {
                self.broadcast(ctx, it, some_topic);
            }
            Some(Habit::Disconnect) => {
                let which = self.rng.usize(..IDS);
                self.effects.push(Action::Broadcast(which as u32));
                ctx.disconnect(self.model.topics.name(self.model.topics.id(which)));
            }
            Some(Habit::Subscribe) => {
                ctx.subscribe(self.model.topics.name(some_topic));
                self.effects.push(Action::Subscribe(some_topic));
            }
            Some(Habit::Unsubscribe) => {
                ctx.unsubscribe(self.model.topics.name(some_topic));
                self.effects.push(Action::Unsubscribe(some_topic));
            }
            // Rare, or sockets would close too soon.
            Some(Habit::CloseSocket) if self.rng.u8(..) < 80 => {
                ctx.close_socket(CloseCode::RESTART);
                self.effects.push(Action::Close(1012));
            }
            Some(Habit::Tell) if self.chan != NONE && self.depth < DEPTH_MAX => {
                let id = self.model.make(PayloadInfo { depth: self.depth + 1, ..self.plain() });
                *locked(&self.shared.intent) = Some((self.chan, Intent::Info(id)));
                ctx.handle::<Member>().send(id);
            }
            Some(Habit::CloseSocket | Habit::Tell) => {}
            Some(Habit::Expire) => {
                let word = self.rng.u32(..);
                ctx.expire_in(lifetime(word));
                self.effects.push(Action::Expire(word));
            }
            Some(Habit::Keep) if self.chan != NONE => self.shared.keep(self.chan, ctx.handle()),
            Some(it @ (Habit::Track | Habit::Update | Habit::Untrack | Habit::AskState)) => {
                self.present(ctx, it);
            }
            Some(further) => self.reach(ctx, further),
        }
    }

    fn broadcast(&mut self, ctx: &mut ShardContext<'_>, how: Habit, other: u8) {
        if self.depth >= DEPTH_MAX {
            return;
        }
        let event = self.rng.u8(..EVENTS.len() as u8);
        let topic = if how == Habit::BroadcastTo { other } else { self.topic };
        let except = match how {
            // A join broadcasts for the channel that it makes.
            Habit::BroadcastFrom if self.chan == NONE => SPEAKER,
            Habit::BroadcastFrom => self.chan,
            _ => NONE,
        };
        let made = PayloadInfo { topic, event, except, depth: self.depth + 1, ..self.plain() };
        let (id, payload) = self.payload(made);
        let name = EVENTS[usize::from(event)];
        match how {
            Habit::BroadcastTo => ctx.broadcast_to(self.model.topics.name(topic), name, payload),
            Habit::BroadcastFrom => ctx.broadcast_from(name, payload),
            _ => ctx.broadcast(name, payload),
        }
        self.effects.push(Action::Broadcast(id));
    }

    /// Draws whether an interceptor drops a broadcast, replaces it or passes it on.
    fn pass(&mut self, ctx: &mut ShardContext<'_>, (event, payload): (&str, &Payload<'_>)) {
        match self.rng.u8(..4) {
            0 => {}
            1 => self.push(ctx),
            _ if let Some(word) = letter_of(event) => {
                let (chan, (said, _), record) = (self.chan, payload::parse(payload), NONE);
                ctx.push(event, payload);
                self.effects.push(Action::Say { chan, word, said, record });
            }
            _ => {
                let (id, _) = payload::parse(payload);
                ctx.push(self.model.made(id).map_or("p", |it| event_name(it.event)), payload);
                self.effects.push(Action::Push(id));
            }
        }
    }

    /// Draws how a callback ends; `answer` was prepared for that.
    fn outcome(
        &mut self,
        ctx: &ShardContext<'_>,
        call: Call,
        answer: Option<(u32, Payload<'static>)>,
    ) -> (Outcome, CallbackEnd) {
        let profile = &self.shared.profile;
        if Profile::is(&mut self.rng, profile.panics) {
            return (Outcome::NoReply, CallbackEnd::Panic);
        }
        let is_stop = Profile::is(&mut self.rng, profile.stops);
        let how =
            [Stop::Normal, Stop::Shutdown, Stop::Abnormal, Stop::Expired][self.rng.usize(..4)];
        if matches!(call, Call::AfterJoin | Call::Terminate(_)) {
            return (Outcome::NoReply, CallbackEnd::Nothing);
        }
        let is_reply = matches!(call, Call::HandleIn(_)) && self.rng.u8(..) < 150;
        if is_reply
            && self.rng.u8(..) < 30
            && let Some(to) = ctx.reply_ref()
            && let Some(it) = self.model.chan_mut(self.chan)
        {
            it.refs.push((to, self.msg_ref));
            self.shared.keep(self.chan, ctx.handle());
            return (Outcome::NoReply, CallbackEnd::Nothing);
        }
        if !is_reply {
            return match is_stop {
                true => (Outcome::Stop(how), CallbackEnd::Stop(how)),
                false => (Outcome::NoReply, CallbackEnd::Nothing),
            };
        }
        let (id, payload) = answer.unwrap_or_else(|| self.payload(self.plain()));
        let word = ["ok", "error", "weird"][self.rng.usize(..3)];
        let letter = word.as_bytes().first().copied().unwrap_or_default();
        let reply = Reply::new(word, payload);
        match is_stop {
            true => (Outcome::ReplyAndStop(reply, how), CallbackEnd::ReplyAndStop(letter, id, how)),
            false => (Outcome::Reply(reply), CallbackEnd::Reply(letter, id)),
        }
    }
}

impl Member {
    /// Runs a callback: draws its effects, carries them out, and records them in the model.
    fn act(&self, ctx: &mut ShardContext<'_>, call: Call, word: u32, given: Given<'_>) -> Outcome {
        let shared = &self.shared;
        let Given { passed, mut ready } = given;
        // Only the message that was prepared has a value here.
        let stray = if ready.is_none() { ready::taken(shared, ctx, None) } else { None };
        drop(stray);
        let mut model = shared.model();
        let seed = mixed(self.word, word);
        let mut draw = Draw::begin(shared, &mut model, ctx, (self.chan, call), seed);
        if let Some(passed) = passed {
            draw.pass(ctx, passed);
        }
        // Most clients with a view of presences ask for the list as soon as they have joined.
        if call == Call::AfterJoin && shared.profile.features.is_present && draw.rng.bool() {
            draw.present(ctx, Habit::AskState);
        }
        // Callbacks that run for each member do little, so that broadcasts end.
        let is_each = matches!(call, Call::HandleOut(_) | Call::HandleBroadcast(..));
        let most = if is_each && draw.rng.u8(..) < 200 { 0 } else { shared.profile.effects_max };
        for _ in 0..draw.rng.u8(..=most) {
            draw.effect(ctx);
        }
        if let Some(it) = &mut ready
            && let Some(payload) = it.payload.take()
            && draw.rng.bool()
        {
            draw.echo(ctx, it.id, payload);
        }
        if shared.is_faulty(Fault::Lie) {
            ctx.push("p", Payload::NULL);
        }
        let answer = ready.as_mut().and_then(|it| it.answer.take());
        let (outcome, out) = draw.outcome(ctx, call, answer);
        let is_panic = draw.end(call, out);
        drop(model);
        if is_panic {
            give_up();
        }
        outcome
    }
}

fn event_name(event: u8) -> &'static str {
    EVENTS.get(usize::from(event)).copied().unwrap_or("p")
}

impl ShardHandleInfo<u32> for Member {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, id: u32) -> Outcome {
        self.act(ctx, Call::ShardHandleInfo(id), id, Given::default())
    }
}

impl ShardChannel for Member {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let _ = self.act(ctx, Call::AfterJoin, 1, Given::default());
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        _event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        let ready = ready::taken(&self.shared, ctx, Some(&payload));
        let (id, word) = match &ready {
            Some(it) => (it.id, it.word),
            None => self.shared.model().given(&payload),
        };
        if self.waits {
            drop(ready);
            return self.take(ctx, id, word);
        }
        self.act(ctx, Call::HandleIn(id), word, Given { ready, passed: None })
    }

    fn intercept(&self) -> &'static [&'static str] {
        if self.intercept_panics.take() {
            give_up();
        }
        INTERCEPTS.get(usize::from(self.intercepts)).copied().unwrap_or_default()
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        let (id, word) = self.shared.model().given(payload);
        let given = Given { passed: Some((event, payload)), ready: None };
        self.act(ctx, Call::HandleOut(id), word, given)
    }

    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        let mut model = self.shared.model();
        let topic = model.topics.number(broadcast.topic());
        let (id, word) = model.given(broadcast.payload());
        drop(model);
        self.act(ctx, Call::HandleBroadcast(id, topic), word, Given::default())
    }

    fn hibernate(&mut self) {
        let mut model = self.shared.model();
        model.begin(self.chan, Call::Hibernate);
        let mut rng = Rng::with_seed(mixed(self.word, 3));
        let is_panic = Profile::is(&mut rng, self.shared.profile.panics);
        if is_panic {
            model.must_end(self.chan, Reason::Crashed, None);
        }
        drop(model);
        if is_panic {
            give_up();
        }
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        let _ = self.act(ctx, Call::Terminate(*reason), 2, Given::default());
    }
}

pub(crate) fn join(shared: &Arc<Shared>) -> JoinFn {
    let shared = Arc::downgrade(shared);
    Arc::new(move |ctx, payload| {
        let Some(shared) = shared.upgrade() else { return Join::error(Payload::NULL) };
        ask(&shared, ctx, &payload)
    })
}

fn ask(shared: &Arc<Shared>, ctx: &mut ShardContext<'_>, payload: &Payload<'_>) -> Join {
    let mut ready = ready::taken(shared, ctx, Some(payload));
    let mut model = shared.model();
    let (id, word) = model.given(payload);
    model.take_due(Due::Join { id });
    let Some(joining) = model.joining else { return Join::error(Payload::NULL) };
    if model.joined(joining.conn, joining.topic).is_some() {
        model.fail("join", format!("{joining:?} while the old channel lives"));
    }
    let mut draw = Draw::join(shared, &mut model, joining, word);
    if draw.rng.u8(..) < 60 {
        draw.effect(ctx);
    }
    let prepared = ready.as_mut().and_then(|it| it.answer.take());
    let (join, answer) = decide(shared, &mut draw.rng, draw.model, joining, Some(prepared));
    let effects = draw.effects;
    model.answer(joining, answer, effects);
    drop(model);
    join.unwrap_or_else(|| give_up())
}

/// Decides about a join; `None` if it panics. `first`: the value prepared for the first decision.
fn decide(
    shared: &Arc<Shared>,
    rng: &mut Rng,
    model: &mut Model,
    joining: Joining,
    first: Option<Option<(u32, Payload<'static>)>>,
) -> (Option<Join>, Answer) {
    let profile = &shared.profile;
    if Profile::is(rng, profile.panics) {
        return (None, Answer::Panic);
    }
    let later = if first.is_some() { profile.later } else { profile.later / 8 };
    if Profile::is(rng, later) {
        let word = rng.u32(..);
        return (Some(Join::later(decide_later(Arc::clone(shared), joining, word))), Answer::Later);
    }
    let Joining { conn, topic, .. } = joining;
    let made = || model.payload(PayloadInfo::plain(topic, 0), 0, 0);
    let (reply, response) = first.flatten().unwrap_or_else(made);
    if Profile::is(rng, profile.refused) {
        return (Some(Join::error(response)), Answer::Error(reply));
    }
    let mut intercepts = if Profile::is(rng, profile.intercepts) { rng.u8(1..=2) } else { 0 };
    if profile.features.is_present && rng.u8(..) < 30 {
        intercepts |= [INTERCEPTS_DIFF, INTERCEPTS_STATE, 12][rng.usize(..3)];
    }
    let intercept_panics = Profile::is(rng, profile.panics / 2);
    let chan = model.new_chan(conn, topic, intercepts);
    let member = Member {
        shared: Arc::clone(shared),
        chan,
        word: rng.u32(..),
        intercepts,
        intercept_panics: Cell::new(intercept_panics),
        waits: Profile::is(rng, profile.features.waits),
        busy: None,
    };
    (Some(Join::ok(member).reply(response)), Answer::Ok { chan, reply, intercept_panics })
}

async fn decide_later(shared: Arc<Shared>, joining: Joining, word: u32) -> Join {
    let mut model = shared.model();
    let mut rng = Rng::with_seed(u64::from(word));
    let (join, answer) = decide(&shared, &mut rng, &mut model, joining, None);
    drop(model);
    *locked(&shared.answer) = Some(answer);
    join.unwrap_or_else(|| give_up())
}

//! The application: channels that do whatever the word of a message draws, and tell the account
//! ([`Model`]) what they did.

use std::cell::Cell;
use std::sync::Arc;

use fastrand::Rng;
use simurgh_core::{
    Broadcast, Channel, Context, HandleInfo, Join, JoinFn, Outcome, Reason, Reply, Stop,
};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;
use simurgh_sim_kit::fault::Fault;
use simurgh_sim_kit::presence::letter_of;
use simurgh_sim_kit::setup::locked;
use simurgh_sim_kit::topics::IDS;
use simurgh_sim_kit::{EVENTS, NONE, payload};

use crate::handlers::{self, Busy};
use crate::limits::lifetime;
use crate::model::presence::{INTERCEPTS_DIFF, INTERCEPTS_STATE};
use crate::model::{Answer, Call, Did, Due, Eff, Intent, Joining, Made, Model, Out, SPEAKER};
use crate::profile::{HABITS, Habit, Profile};
use crate::ready::{self, Ready};
use crate::stage::Stage;

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
/// Broadcasts that come one out of the other, at most: else there would be no end of them.
pub(crate) const DEPTH_MAX: u8 = 2;

/// A channel.
pub(crate) struct Member {
    pub(crate) stage: Arc<Stage>,
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
        self.stage.model().dropped(self.chan);
    }
}

/// What a callback is given beside its word.
#[derive(Default)]
struct Given<'a> {
    /// What an interceptor may pass on.
    passed: Option<(&'a str, &'a Payload<'a>)>,
    ready: Option<Ready>,
}

/// One word out of two.
pub(crate) fn mixed(one: u32, two: u32) -> u64 {
    (u64::from(one) << 32 | u64::from(two)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A panic of the application's, without the hook: it is meant.
pub(crate) fn give_up() -> ! {
    std::panic::resume_unwind(Box::new("meant"))
}

/// What a callback draws.
pub(crate) struct Draw<'a> {
    pub(crate) stage: &'a Arc<Stage>,
    pub(crate) rng: Rng,
    pub(crate) depth: u8,
    pub(crate) chan: u32,
    pub(crate) topic: u8,
}

impl Draw<'_> {
    /// Makes a payload with a number of its own.
    pub(crate) fn payload(&mut self, model: &mut Model, made: Made) -> (u32, Payload<'static>) {
        let profile = &self.stage.profile;
        let is_binary = Profile::is(&mut self.rng, profile.binary);
        let is_long = Profile::is(&mut self.rng, profile.long);
        let pad = if is_long { profile.pad } else { 0 };
        model.payload(Made { is_binary, ..made }, self.rng.u32(..), pad)
    }

    pub(crate) fn plain(&self) -> Made {
        Made::plain(self.topic, self.depth)
    }

    /// Broadcasts a message as it came in: nobody copies its payload.
    fn echo(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        id: u32,
        payload: Payload<'static>,
        effects: &mut Vec<Eff>,
    ) {
        let event = self.rng.u8(..EVENTS.len() as u8);
        let name = EVENTS.get(usize::from(event)).copied().unwrap_or_default();
        let is_for_others = self.rng.bool();
        let weight = model.weight(self.topic, name, &payload);
        if let Some(made) = model.made.get_mut(id as usize) {
            (made.event, made.depth, made.weight) = (event, 1, weight);
            made.except = if is_for_others { self.chan } else { NONE };
        }
        match is_for_others {
            true => ctx.broadcast_from(name, payload),
            false => ctx.broadcast(name, payload),
        }
        effects.push(Eff::Broadcast(id));
    }

    /// One effect.
    pub(crate) fn effect(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        effects: &mut Vec<Eff>,
    ) {
        let habits = self.stage.profile.habits();
        let sum: u32 = habits.iter().map(|it| u32::from(*it)).sum();
        let mut at = self.rng.u32(..sum.max(1));
        let place = habits.iter().position(|it| {
            let is_it = at < u32::from(*it);
            at = at.saturating_sub(u32::from(*it));
            is_it
        });
        let rooms = model.topics.rooms;
        let some_topic = self.rng.usize(..rooms) as u8;
        match place.and_then(habit) {
            None => {}
            Some(Habit::Push) => {
                let made = self.plain();
                let (id, payload) = self.payload(model, made);
                ctx.push("p", payload);
                effects.push(Eff::Push(id));
            }
            Some(it @ (Habit::Broadcast | Habit::BroadcastFrom | Habit::BroadcastTo)) => {
                self.broadcast(model, ctx, effects, it, some_topic);
            }
            Some(Habit::Disconnect) => {
                let which = self.rng.usize(..IDS);
                effects.push(Eff::Broadcast(which as u32));
                ctx.disconnect(model.topics.name(model.topics.id(which)));
            }
            Some(Habit::Subscribe) => {
                ctx.subscribe(model.topics.name(some_topic));
                effects.push(Eff::Subscribe(some_topic));
            }
            Some(Habit::Unsubscribe) => {
                ctx.unsubscribe(model.topics.name(some_topic));
                effects.push(Eff::Unsubscribe(some_topic));
            }
            // Rarer than all else, or nobody would live to see anything.
            Some(Habit::CloseSocket) if self.rng.u8(..) < 80 => {
                ctx.close_socket(CloseCode::RESTART);
                effects.push(Eff::Close(1012));
            }
            Some(Habit::Tell) if self.chan != NONE && self.depth < DEPTH_MAX => {
                let made = Made { depth: self.depth + 1, ..self.plain() };
                let id = model.make(made);
                *locked(&self.stage.intent) = Some((self.chan, Intent::Info { id }));
                ctx.handle::<Member>().send(id);
            }
            Some(Habit::CloseSocket | Habit::Tell) => {}
            Some(Habit::Expire) => {
                let word = self.rng.u32(..);
                ctx.expire_in(lifetime(word));
                effects.push(Eff::Expire(word));
            }
            Some(Habit::Keep) => {
                let chan = model.chan_mut(self.chan);
                if let Some(it) = chan {
                    it.handle = Some(ctx.handle());
                }
            }
            Some(it @ (Habit::Track | Habit::Update | Habit::Untrack | Habit::AskState)) => {
                self.present(model, ctx, effects, it);
            }
            Some(further) => self.reach(model, ctx, effects, further),
        }
    }

    fn broadcast(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        effects: &mut Vec<Eff>,
        how: Habit,
        other: u8,
    ) {
        if self.depth >= DEPTH_MAX {
            return;
        }
        let event = self.rng.u8(..EVENTS.len() as u8);
        let topic = if how == Habit::BroadcastTo { other } else { self.topic };
        let except = match how {
            // A join speaks for the channel that it makes.
            Habit::BroadcastFrom if self.chan == NONE => SPEAKER,
            Habit::BroadcastFrom => self.chan,
            _ => NONE,
        };
        let made = Made { topic, event, except, depth: self.depth + 1, ..self.plain() };
        let (id, payload) = self.payload(model, made);
        let name = EVENTS.get(usize::from(event)).copied().unwrap_or_default();
        let weight = model.weight(topic, name, &payload);
        model.made[id as usize].weight = weight;
        match how {
            Habit::BroadcastTo => {
                ctx.broadcast_to(model.topics.name(topic), name, payload);
            }
            Habit::BroadcastFrom => ctx.broadcast_from(name, payload),
            _ => ctx.broadcast(name, payload),
        }
        effects.push(Eff::Broadcast(id));
    }
}

fn habit(place: usize) -> Option<Habit> {
    const ALL: [Habit; HABITS] = [
        Habit::Push,
        Habit::Broadcast,
        Habit::BroadcastFrom,
        Habit::BroadcastTo,
        Habit::Disconnect,
        Habit::Subscribe,
        Habit::Unsubscribe,
        Habit::CloseSocket,
        Habit::Tell,
        Habit::Keep,
        Habit::Assign,
        Habit::Link,
        Habit::Hold,
        Habit::Proceed,
        Habit::Speak,
        Habit::Track,
        Habit::Update,
        Habit::Untrack,
        Habit::AskState,
        Habit::Expire,
    ];
    ALL.get(place).copied()
}

impl Member {
    /// A callback: draws what it does, does it, and tells.
    fn act(&self, ctx: &mut Context<'_>, call: Call, word: u32, given: Given<'_>) -> Outcome {
        let stage = &self.stage;
        let Given { passed, mut ready } = given;
        // Only the message that was prepared has anything in hand.
        let stray = if ready.is_none() { ready::taken(stage, ctx, None) } else { None };
        drop(stray);
        let mut guard = stage.model();
        let model = &mut *guard;
        let (msg_ref, seq) = model.begin(self.chan, call);
        model.reads(self.chan, handlers::assigned(ctx));
        let (conn, topic) = model.chan(self.chan).map_or((NONE, 0), |it| (it.conn, it.topic));
        let depth = match call {
            Call::HandleOut { id } | Call::HandleBroadcast { id, .. } | Call::HandleInfo { id } => {
                model.made(id).map_or(DEPTH_MAX, |it| it.depth)
            }
            Call::Terminate(_) => 1,
            _ => 0,
        };
        let rng = Rng::with_seed(mixed(self.word, word));
        let mut draw = Draw { stage, rng, depth, chan: self.chan, topic };
        let mut effects = model.spare.pop().unwrap_or_default();
        if let Some(passed) = passed {
            pass(&mut draw, model, ctx, passed, &mut effects);
        }
        let profile = &stage.profile;
        // What is called for each member does little, or there would be no end of it.
        let is_each = matches!(call, Call::HandleOut { .. } | Call::HandleBroadcast { .. });
        let most = if is_each && draw.rng.u8(..) < 200 { 0 } else { profile.effects_max };
        for _ in 0..draw.rng.u8(..=most) {
            draw.effect(model, ctx, &mut effects);
        }
        if let Some(it) = &mut ready
            && let Some(payload) = it.payload.take()
            && draw.rng.bool()
        {
            draw.echo(model, ctx, it.id, payload, &mut effects);
        }
        if stage.is_faulty(Fault::Lie) {
            ctx.push("p", Payload::NULL);
        }
        let answer = ready.as_mut().and_then(|it| it.answer.take());
        let (outcome, out) = self.outcome(&mut draw, model, ctx, (call, msg_ref), answer);
        let is_panic = matches!(out, Out::Panic);
        model.end(Did { chan: self.chan, conn, call, effects, out, msg_ref, seq });
        drop(guard);
        if is_panic {
            give_up();
        }
        outcome
    }

    fn outcome(
        &self,
        draw: &mut Draw<'_>,
        model: &mut Model,
        ctx: &Context<'_>,
        (call, msg_ref): (Call, u32),
        answer: Option<(u32, Payload<'static>)>,
    ) -> (Outcome, Out) {
        let profile = &self.stage.profile;
        if Profile::is(&mut draw.rng, profile.panics) {
            return (Outcome::NoReply, Out::Panic);
        }
        let is_stop = Profile::is(&mut draw.rng, profile.stops);
        let how =
            [Stop::Normal, Stop::Shutdown, Stop::Abnormal, Stop::Expired][draw.rng.usize(..4)];
        if matches!(call, Call::AfterJoin | Call::Terminate(_)) {
            return (Outcome::NoReply, Out::Nothing);
        }
        let is_reply = matches!(call, Call::HandleIn { .. }) && draw.rng.u8(..) < 150;
        if is_reply
            && draw.rng.u8(..) < 30
            && let Some(to) = ctx.reply_ref()
            && let Some(it) = model.chan_mut(self.chan)
        {
            it.refs.push((to, msg_ref));
            it.handle = Some(ctx.handle());
            return (Outcome::NoReply, Out::Nothing);
        }
        if !is_reply {
            return match is_stop {
                true => (Outcome::Stop(how), Out::Stop(how)),
                false => (Outcome::NoReply, Out::Nothing),
            };
        }
        let made = draw.plain();
        let (id, payload) = answer.unwrap_or_else(|| draw.payload(model, made));
        let word = ["ok", "error", "weird"][draw.rng.usize(..3)];
        let letter = word.as_bytes().first().copied().unwrap_or_default();
        let reply = Reply::new(word, payload);
        match is_stop {
            true => (Outcome::ReplyAndStop(reply, how), Out::ReplyAndStop(letter, id, how)),
            false => (Outcome::Reply(reply), Out::Reply(letter, id)),
        }
    }
}

/// What an interceptor makes of a broadcast: nothing, something else, or what it is.
fn pass(
    draw: &mut Draw<'_>,
    model: &mut Model,
    ctx: &mut Context<'_>,
    (event, payload): (&str, &Payload<'_>),
    effects: &mut Vec<Eff>,
) {
    match draw.rng.u8(..4) {
        0 => {}
        1 => {
            let made = draw.plain();
            let (id, payload) = draw.payload(model, made);
            ctx.push("p", payload);
            effects.push(Eff::Push(id));
        }
        _ if let Some(word) = letter_of(event) => {
            let (chan, (said, _), record) = (draw.chan, payload::parse(payload), NONE);
            ctx.push(event, payload);
            effects.push(Eff::Say { chan, word, said, record });
        }
        _ => {
            let (id, _) = payload::parse(payload);
            ctx.push(model.made(id).map_or("p", |it| event_name(it.event)), payload);
            effects.push(Eff::Push(id));
        }
    }
}

fn event_name(event: u8) -> &'static str {
    EVENTS.get(usize::from(event)).copied().unwrap_or("p")
}

impl HandleInfo<u32> for Member {
    fn handle_info(&mut self, ctx: &mut Context<'_>, id: u32) -> Outcome {
        self.act(ctx, Call::HandleInfo { id }, id, Given::default())
    }
}

impl Channel for Member {
    fn after_join(&mut self, ctx: &mut Context<'_>) {
        let _ = self.act(ctx, Call::AfterJoin, 1, Given::default());
    }

    fn handle_in(&mut self, ctx: &mut Context<'_>, _event: &str, payload: Payload<'_>) -> Outcome {
        let ready = ready::taken(&self.stage, ctx, Some(&payload));
        let (id, word) = match &ready {
            Some(it) => (it.id, it.word),
            None => self.stage.model().given(&payload),
        };
        if self.waits {
            drop(ready);
            return self.take(ctx, id, word);
        }
        self.act(ctx, Call::HandleIn { id }, word, Given { ready, passed: None })
    }

    fn intercept(&self) -> &'static [&'static str] {
        if self.intercept_panics.take() {
            give_up();
        }
        INTERCEPTS.get(usize::from(self.intercepts)).copied().unwrap_or_default()
    }

    fn handle_out(&mut self, ctx: &mut Context<'_>, event: &str, payload: &Payload<'_>) -> Outcome {
        let (id, word) = self.stage.model().given(payload);
        self.act(
            ctx,
            Call::HandleOut { id },
            word,
            Given { passed: Some((event, payload)), ready: None },
        )
    }

    fn handle_broadcast(&mut self, ctx: &mut Context<'_>, broadcast: &Broadcast) -> Outcome {
        let mut model = self.stage.model();
        let topic = model.topics.number(broadcast.topic());
        let (id, word) = model.given(broadcast.payload());
        drop(model);
        self.act(ctx, Call::HandleBroadcast { id, topic }, word, Given::default())
    }

    fn hibernate(&mut self) {
        let mut model = self.stage.model();
        model.begin(self.chan, Call::Hibernate);
        let mut rng = Rng::with_seed(mixed(self.word, 3));
        let is_panic = Profile::is(&mut rng, self.stage.profile.panics);
        if is_panic {
            model.must_end(self.chan, Reason::Crashed, None);
        }
        drop(model);
        if is_panic {
            give_up();
        }
    }

    fn terminate(&mut self, ctx: &mut Context<'_>, reason: &Reason) {
        let _ = self.act(ctx, Call::Terminate(*reason), 2, Given::default());
    }
}

/// The join function of all topics.
pub(crate) fn join(stage: &Arc<Stage>) -> JoinFn {
    let stage = Arc::downgrade(stage);
    Arc::new(move |ctx, payload| {
        let Some(stage) = stage.upgrade() else { return Join::error(Payload::NULL) };
        ask(&stage, ctx, &payload)
    })
}

fn ask(stage: &Arc<Stage>, ctx: &mut Context<'_>, payload: &Payload<'_>) -> Join {
    let mut ready = ready::taken(stage, ctx, Some(payload));
    let mut guard = stage.model();
    let model = &mut *guard;
    let (id, word) = model.given(payload);
    model.take_due(Due::Join { id });
    let Some(joining) = model.joining else { return Join::error(Payload::NULL) };
    if model.joined(joining.conn, joining.topic).is_some() {
        model.fail("join", format!("{joining:?} while the old channel lives"));
    }
    let rng = Rng::with_seed(mixed(word, joining.conn));
    let mut draw = Draw { stage, rng, depth: 0, chan: NONE, topic: joining.topic };
    let mut effects = model.spare.pop().unwrap_or_default();
    if draw.rng.u8(..) < 60 {
        draw.effect(model, ctx, &mut effects);
    }
    let prepared = ready.as_mut().and_then(|it| it.answer.take());
    let (join, answer) = decide(stage, &mut draw.rng, model, joining, Some(prepared));
    model.answer(joining, answer, effects);
    drop(guard);
    join.unwrap_or_else(|| give_up())
}

/// Decides about a join; none: it panics. The first time what was prepared for it may be there.
fn decide(
    stage: &Arc<Stage>,
    rng: &mut Rng,
    model: &mut Model,
    joining: Joining,
    first: Option<Option<(u32, Payload<'static>)>>,
) -> (Option<Join>, Answer) {
    let profile = &stage.profile;
    if Profile::is(rng, profile.panics) {
        return (None, Answer::Panic);
    }
    let later = if first.is_some() { profile.later } else { profile.later / 8 };
    if Profile::is(rng, later) {
        let word = rng.u32(..);
        return (Some(Join::later(decide_later(Arc::clone(stage), joining, word))), Answer::Later);
    }
    let Joining { conn, topic, .. } = joining;
    let made = || model.payload(Made::plain(topic, 0), 0, 0);
    let (reply, response) = first.flatten().unwrap_or_else(made);
    if Profile::is(rng, profile.refused) {
        return (Some(Join::error(response)), Answer::Error(reply));
    }
    let mut intercepts = if Profile::is(rng, profile.intercepts) { rng.u8(1..=2) } else { 0 };
    if profile.extras.is_present && rng.u8(..) < 30 {
        intercepts |= [INTERCEPTS_DIFF, INTERCEPTS_STATE, 12][rng.usize(..3)];
    }
    let intercept_panics = Profile::is(rng, profile.panics / 2);
    let chan = model.new_chan(conn, topic, intercepts);
    let member = Member {
        stage: Arc::clone(stage),
        chan,
        word: rng.u32(..),
        intercepts,
        intercept_panics: Cell::new(intercept_panics),
        waits: Profile::is(rng, profile.extras.waits),
        busy: None,
    };
    (Some(Join::ok(member).reply(response)), Answer::Ok { chan, reply, intercept_panics })
}

async fn decide_later(stage: Arc<Stage>, joining: Joining, word: u32) -> Join {
    let mut model = stage.model();
    let mut rng = Rng::with_seed(u64::from(word));
    let (join, answer) = decide(&stage, &mut rng, &mut model, joining, None);
    drop(model);
    *locked(&stage.answer) = Some(answer);
    join.unwrap_or_else(|| give_up())
}

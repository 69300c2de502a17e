//! Handlers that wait, as those of asynchronous channels do: messages queue behind them, bounded,
//! and where there are too many the socket is not read. And what callbacks do beyond their socket's
//! messages: hold it, keep something with it, link work, broadcast by their handles.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use fastrand::Rng;
use simurgh_core::{
    Assigns, BroadcastError, Context, Effect, LinkedWork, Outcome, Reply, ReplyRef, Stop,
};
use simurgh_sim_kit::setup::locked;
use simurgh_sim_kit::{EVENTS, NONE};

use crate::app::{Draw, Member, give_up, mixed};
use crate::model::{Action, Call, CallbackEnd, CallbackRecord, Intent, Life, Model, PayloadInfo};
use crate::op::{Kind, Op};
use crate::profile::{Habit, Profile};
use crate::shared::Shared;
use crate::simulation::NodeSimulation;

struct Job {
    id: u32,
    word: u32,
    /// What is to be answered.
    message: Option<(ReplyRef, u32)>,
}

/// A handler that waits, with what has come meanwhile.
pub(crate) struct Busy {
    task: u32,
    job: Job,
    behind: VecDeque<Job>,
    is_full: bool,
}

#[derive(Debug)]
struct Assigned(u32, Arc<Shared>);

pub(crate) type Count = AtomicI64;

impl Drop for Assigned {
    fn drop(&mut self) {
        self.1.assigned.fetch_sub(1, Ordering::Relaxed);
    }
}

fn new_assigned(shared: &Arc<Shared>, number: u32) -> Assigned {
    shared.assigned.fetch_add(1, Ordering::Relaxed);
    Assigned(number, Arc::clone(shared))
}

/// What a socket is let in with.
pub(crate) fn first_assigned(shared: &Arc<Shared>, number: u32) -> Assigns {
    Arc::new(new_assigned(shared, number))
}

/// What a callback reads of its socket.
pub(crate) fn assigned(ctx: &Context<'_>) -> Option<u32> {
    ctx.assigns::<Assigned>().map(|it| it.0)
}

/// Work that is told its end by being dropped.
pub(crate) struct Linked {
    pub(crate) task: u32,
    pub(crate) shared: Arc<Shared>,
}

impl LinkedWork for Linked {
    fn is_finished(&self) -> bool {
        self.shared.model().tasks.get(self.task as usize).is_some_and(|it| it.is_finished)
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.shared.model().task_told(self.task);
    }
}

/// Links work to the channel that speaks.
fn link(
    shared: &Shared,
    model: &mut Model,
    chan: u32,
    ctx: &mut Context<'_>,
    effects: &mut Vec<Action>,
) -> u32 {
    let task = model.new_task(chan);
    *locked(&shared.linking) = Some(task);
    ctx.spawn_linked(std::future::pending());
    effects.push(Action::Link(task));
    task
}

impl Draw<'_> {
    /// One effect of those that there are where channels reach further.
    pub(crate) fn reach(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        effects: &mut Vec<Action>,
        habit: Habit,
    ) {
        let has_channel = self.chan != NONE;
        match habit {
            Habit::Assign => {
                let number = model.next_assigned();
                ctx.assign(new_assigned(self.shared, number));
                effects.push(Action::Assign(number));
            }
            Habit::Link if has_channel => {
                link(self.shared, model, self.chan, ctx, effects);
            }
            Habit::Hold => {
                ctx.carry_out([Effect::Hold]);
                effects.push(Action::Hold);
            }
            Habit::Proceed => {
                ctx.carry_out([Effect::Proceed]);
                effects.push(Action::Proceed);
            }
            Habit::Speak if has_channel => self.speak(model, ctx),
            _ => {}
        }
    }

    /// Broadcasts by its own handle.
    fn speak(&mut self, model: &mut Model, ctx: &Context<'_>) {
        if self.depth >= crate::app::DEPTH_MAX {
            return;
        }
        let word = self.rng.u32(..);
        let speech = Speech::new(self.shared, model, self.chan, self.depth + 1, word);
        let done = speech.by(self.shared, &ctx.handle());
        if matches!(done, Err(BroadcastError::TooLarge { .. })) != speech.is_too_large(model) {
            model.fail("bounds", format!("{done:?} by the handle of channel {}", self.chan));
        }
    }
}

struct Speech {
    chan: u32,
    id: u32,
    event: &'static str,
    payload: simurgh_proto::message::Payload<'static>,
    is_for_others: bool,
}

impl Speech {
    fn new(shared: &Shared, model: &mut Model, chan: u32, depth: u8, word: u32) -> Self {
        let profile = &shared.profile;
        let (event, is_for_others) = ((word % EVENTS.len() as u32) as u8, word & 64 == 0);
        let topic = model.chan(chan).map_or(0, |it| it.topic);
        let except = if is_for_others { chan } else { NONE };
        let is_long = profile.long > 0 && word >> 12 & 3 == 0;
        let is_binary = profile.binary > 0 && word >> 8 & 7 == 0;
        let made = PayloadInfo { event, except, is_binary, ..PayloadInfo::plain(topic, depth) };
        let (id, payload) = model.payload(made, word, if is_long { profile.pad } else { 0 });
        Self { chan, id, event: EVENTS[usize::from(event)], payload, is_for_others }
    }

    fn is_too_large(&self, model: &Model) -> bool {
        self.payload.len() > model.broadcast_bytes_max
    }

    fn by(
        &self,
        shared: &Shared,
        handle: &simurgh_core::ChannelHandle<Member>,
    ) -> Result<(), BroadcastError> {
        *locked(&shared.intent) = Some((self.chan, Intent::Broadcast { id: self.id }));
        let done = match self.is_for_others {
            true => handle.broadcast_from(self.event, self.payload.clone()),
            false => handle.broadcast(self.event, self.payload.clone()),
        };
        *locked(&shared.intent) = None;
        done
    }
}

impl Member {
    /// A message of the client, whose handler waits, or waits behind another.
    pub(crate) fn take(&mut self, ctx: &mut Context<'_>, id: u32, word: u32) -> Outcome {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.model();
        let model = &mut *guard;
        let call = Call::HandleIn { id };
        let (msg_ref, seq) = model.begin(self.chan, call);
        model.reads(self.chan, assigned(ctx));
        model.waits_behind(self.chan, id);
        let conn = model.chan(self.chan).map_or(NONE, |it| it.conn);
        let mut effects = model.spare.pop().unwrap_or_default();
        let job = Job { id, word, message: ctx.reply_ref().map(|it| (it, msg_ref)) };
        match &mut self.busy {
            None => self.start(model, ctx, job, VecDeque::new(), &mut effects),
            Some(busy) => {
                busy.behind.push_back(job);
                let most = usize::from(shared.profile.features.behind_max);
                if !busy.is_full && busy.behind.len() >= most {
                    busy.is_full = true;
                    ctx.carry_out([Effect::Hold]);
                    effects.push(Action::Hold);
                }
            }
        }
        let chan = self.chan;
        model.end(CallbackRecord {
            chan,
            conn,
            call,
            effects,
            out: CallbackEnd::Nothing,
            msg_ref,
            seq,
        });
        Outcome::NoReply
    }

    /// A handler begins, and waits.
    fn start(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        job: Job,
        behind: VecDeque<Job>,
        effects: &mut Vec<Action>,
    ) {
        let task = link(&self.shared, model, self.chan, ctx, effects);
        model.begins(self.chan, job.id, task);
        model.chans[self.chan as usize].handle = Some(ctx.handle());
        self.busy = Some(Busy { task, job, behind, is_full: false });
    }

    /// A handler that waited is done: what it did takes place, and the next one begins.
    fn done(&mut self, ctx: &mut Context<'_>, task: u32, word: u32) -> Outcome {
        let shared = Arc::clone(&self.shared);
        let mut guard = shared.model();
        let model = &mut *guard;
        let (chan, call) = (self.chan, Call::Done { task });
        let (msg_ref, seq) = model.begin(chan, call);
        model.reads(chan, assigned(ctx));
        let Some(Busy { job, behind, is_full, .. }) = self.busy.take_if(|it| it.task == task)
        else {
            return Outcome::NoReply;
        };
        let (conn, topic) = model.chan(chan).map_or((NONE, 0), |it| (it.conn, it.topic));
        let rng = Rng::with_seed(mixed(self.word ^ job.word, word));
        let mut draw = Draw { shared: &shared, rng, depth: 0, chan, topic };
        let mut effects = model.spare.pop().unwrap_or_default();
        for _ in 0..draw.rng.u8(..=shared.profile.effects_max) {
            draw.effect(model, ctx, &mut effects);
        }
        if let Some((to, msg_ref)) = job.message
            && draw.rng.u8(..) < 180
        {
            let made = draw.plain();
            let (id, payload) = draw.payload(model, made);
            ctx.carry_out([Effect::Reply(to, Reply::ok(payload))]);
            effects.push(Action::Reply(msg_ref, id));
        }
        let (outcome, out) = match () {
            () if Profile::is(&mut draw.rng, shared.profile.panics) => {
                (Outcome::NoReply, CallbackEnd::Panic)
            }
            () if Profile::is(&mut draw.rng, shared.profile.stops) => {
                (Outcome::Stop(Stop::Normal), CallbackEnd::Stop(Stop::Normal))
            }
            () => (Outcome::NoReply, CallbackEnd::Nothing),
        };
        if matches!(out, CallbackEnd::Nothing) {
            self.go_on(model, ctx, (behind, is_full), &mut effects);
        }
        let is_panic = matches!(out, CallbackEnd::Panic);
        model.end(CallbackRecord { chan, conn, call, effects, out, msg_ref, seq });
        drop(guard);
        if is_panic {
            give_up();
        }
        outcome
    }

    /// Begins on what waits, and wants more once few enough are left.
    fn go_on(
        &mut self,
        model: &mut Model,
        ctx: &mut Context<'_>,
        (mut behind, mut is_full): (VecDeque<Job>, bool),
        effects: &mut Vec<Action>,
    ) {
        let Some(job) = behind.pop_front() else { return };
        let most = usize::from(self.shared.profile.features.behind_max);
        if is_full && behind.len() <= most / 2 {
            is_full = false;
            ctx.carry_out([Effect::Proceed]);
            effects.push(Action::Proceed);
        }
        self.start(model, ctx, job, behind, effects);
        if let Some(busy) = &mut self.busy {
            busy.is_full = is_full;
        }
    }
}

impl NodeSimulation {
    /// Does what concerns handlers that wait, and what lies beyond a socket's messages.
    pub(crate) fn reach_further(&mut self, op: Op) {
        let Op { kind, a, b, c } = op;
        let reaches = self.shared.profile.features.reaches;
        match kind {
            Kind::Done => self.done(usize::from(a), c),
            Kind::Finish if reaches => self.end_work(usize::from(a)),
            Kind::Speak if reaches => self.speak(c),
            Kind::Listen if reaches => {
                let topic = self.some_topic(b);
                self.begin_listening(topic, c);
            }
            Kind::Unlisten => self.unlisten(c),
            Kind::Burst => self.burst(op),
            Kind::Who => {
                let topic = self.some_topic(b);
                self.ask_who(topic);
            }
            _ => {}
        }
    }

    /// A handler that waits is done; its channel may have ended meanwhile.
    fn done(&mut self, which: usize, c: u32) {
        let mut model = self.shared.model();
        let which = which.checked_rem(model.handlers.len()).unwrap_or(0);
        if which >= model.handlers.len() {
            return;
        }
        let it = model.handlers.swap_remove(which);
        let handle = model.chan(it.chan).and_then(|it| it.handle.clone());
        drop(model);
        let Some(handle) = handle else { return };
        let (chan, task) = (it.chan, it.task);
        self.tell(|| format!("handler {task} of channel {chan} is done"));
        *locked(&self.shared.intent) = Some((chan, Intent::Done { task }));
        handle.visit(move |it: &mut Member, ctx| it.done(ctx, task, c));
    }

    /// Linked work other than a handler ends by itself.
    fn end_work(&mut self, which: usize) {
        let mut model = self.shared.model();
        let count = model.tasks.len();
        let Some(at) = count.checked_sub(1 + which % count.clamp(1, 16)) else { return };
        if let Some(task) = model.tasks.get_mut(at).filter(|it| !it.is_handler) {
            task.is_finished = true;
        }
    }

    /// The handle of one of the last channels broadcasts.
    fn speak(&mut self, c: u32) {
        let mut model = self.shared.model();
        let chans = model.chans.len();
        let Some(chan) = chans.checked_sub(1 + c as usize % chans.clamp(1, 16)) else { return };
        let Some(it) = model.chans.get_mut(chan) else { return };
        let Some(handle) = it.handle.clone() else { return };
        if it.life == Life::Ended {
            it.handle = None;
        }
        let speech = Speech::new(&self.shared, &mut model, chan as u32, 1, c.rotate_right(8));
        drop(model);
        let expected = self.node.may_broadcast_bytes(speech.payload.len());
        let done = speech.by(&self.shared, &handle);
        if done != expected {
            self.shared.model().fail("bounds", format!("{done:?}, not {expected:?}"));
        }
        self.tell(|| format!("the handle of channel {chan} broadcasts #{}: {done:?}", speech.id));
    }
}

//! Handlers that wait, as those of asynchronous channels do: messages queue behind them up to a
//! bound, beyond which the socket is not read. Callbacks also hold their socket, keep values with
//! it, link work and broadcast by their handles.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::kit::setup::locked;
use crate::kit::{EVENTS, NONE};
use simurgh_core::{
    Assigns, BroadcastError, ChannelHandle, Effect, LinkedWork, Outcome, Reply, ReplyRef,
    ShardContext, Stop,
};
use simurgh_proto::message::Payload;

use super::{DEPTH_MAX, Draw, Member, give_up, mixed};
use crate::app::shared::Shared;
use crate::model::{Action, Call, CallbackEnd, Intent, Model, PayloadInfo};
use crate::profile::{Habit, Profile};

struct Job {
    id: u32,
    word: u32,
    message: Option<(ReplyRef, u32)>,
}

pub(crate) struct Busy {
    task: u32,
    job: Job,
    behind: VecDeque<Job>,
    is_full: bool,
}

#[derive(Debug)]
struct Assigned(u32, Arc<Shared>);

impl Drop for Assigned {
    fn drop(&mut self) {
        self.1.assigned.fetch_sub(1, Ordering::Relaxed);
    }
}

fn new_assigned(shared: &Arc<Shared>, number: u32) -> Assigned {
    shared.assigned.fetch_add(1, Ordering::Relaxed);
    Assigned(number, Arc::clone(shared))
}

pub(crate) fn first_assigned(shared: &Arc<Shared>, number: u32) -> Assigns {
    Arc::new(new_assigned(shared, number))
}

pub(crate) fn assigned(ctx: &ShardContext<'_>) -> Option<u32> {
    ctx.assigns::<Assigned>().map(|it| it.0)
}

/// Linked work: it learns of its end by being dropped.
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

impl Draw<'_> {
    fn link(&mut self, ctx: &mut ShardContext<'_>) -> u32 {
        let task = self.model.new_task(self.chan);
        *locked(&self.shared.linking) = Some(task);
        ctx.spawn_linked(std::future::pending());
        self.effects.push(Action::Link(task));
        task
    }

    fn hold(&mut self, ctx: &mut ShardContext<'_>) {
        ctx.carry_out([Effect::Hold]);
        self.effects.push(Action::Hold);
    }

    fn proceed(&mut self, ctx: &mut ShardContext<'_>) {
        ctx.carry_out([Effect::Proceed]);
        self.effects.push(Action::Proceed);
    }

    /// One effect of [`Features::reaches`](crate::features::Features::reaches).
    pub(super) fn reach(&mut self, ctx: &mut ShardContext<'_>, habit: Habit) {
        let has_channel = self.chan != NONE;
        match habit {
            Habit::Assign => {
                let number = self.model.next_assigned();
                ctx.assign(new_assigned(self.shared, number));
                self.effects.push(Action::Assign(number));
            }
            Habit::Link if has_channel => _ = self.link(ctx),
            Habit::Hold => self.hold(ctx),
            Habit::Proceed => self.proceed(ctx),
            Habit::Speak if has_channel => self.speak(ctx),
            _ => {}
        }
    }

    fn speak(&mut self, ctx: &ShardContext<'_>) {
        if self.depth >= DEPTH_MAX {
            return;
        }
        let word = self.rng.u32(..);
        let speech = Speech::new(self.shared, self.model, self.chan, self.depth + 1, word);
        let done = speech.by(self.shared, &ctx.handle());
        let is_too_large = speech.payload.len() > self.model.broadcast_bytes_max;
        if matches!(done, Err(BroadcastError::TooLarge { .. })) != is_too_large {
            self.model.fail("bounds", format!("{done:?} by the handle of channel {}", self.chan));
        }
    }
}

pub(crate) struct Speech {
    chan: u32,
    pub(crate) id: u32,
    event: &'static str,
    pub(crate) payload: Payload<'static>,
    is_for_others: bool,
}

impl Speech {
    pub(crate) fn new(shared: &Shared, model: &mut Model, chan: u32, depth: u8, word: u32) -> Self {
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

    pub(crate) fn by(
        &self,
        shared: &Shared,
        handle: &ChannelHandle<Member>,
    ) -> Result<(), BroadcastError> {
        *locked(&shared.intent) = Some((self.chan, Intent::Broadcast(self.id)));
        let done = match self.is_for_others {
            true => handle.broadcast_from(self.event, self.payload.clone()),
            false => handle.broadcast(self.event, self.payload.clone()),
        };
        *locked(&shared.intent) = None;
        done
    }
}

impl Member {
    /// Takes a client's message: its handler waits, or queues behind another.
    pub(super) fn take(&mut self, ctx: &mut ShardContext<'_>, id: u32, word: u32) -> Outcome {
        let shared = Arc::clone(&self.shared);
        let (mut model, call) = (shared.model(), Call::HandleIn(id));
        let mut draw = Draw::begin(&shared, &mut model, ctx, (self.chan, call), 0);
        draw.model.waits_behind(self.chan, id);
        let job = Job { id, word, message: ctx.reply_ref().map(|it| (it, draw.msg_ref)) };
        match &mut self.busy {
            None => self.start(&mut draw, ctx, job, VecDeque::new()),
            Some(busy) => {
                busy.behind.push_back(job);
                let most = usize::from(shared.profile.features.behind_max);
                if !busy.is_full && busy.behind.len() >= most {
                    busy.is_full = true;
                    draw.hold(ctx);
                }
            }
        }
        draw.end(call, CallbackEnd::Nothing);
        Outcome::NoReply
    }

    fn start(
        &mut self,
        draw: &mut Draw<'_>,
        ctx: &mut ShardContext<'_>,
        job: Job,
        behind: VecDeque<Job>,
    ) {
        let task = draw.link(ctx);
        draw.model.begins(self.chan, job.id, task);
        self.shared.keep(self.chan, ctx.handle());
        self.busy = Some(Busy { task, job, behind, is_full: false });
    }

    /// Ends a handler that waited: its effects take place, and the next one begins.
    pub(crate) fn done(&mut self, ctx: &mut ShardContext<'_>, task: u32, word: u32) -> Outcome {
        let shared = Arc::clone(&self.shared);
        let (mut model, call) = (shared.model(), Call::Done(task));
        let busy = self.busy.take_if(|it| it.task == task);
        let seed = busy.as_ref().map_or(0, |it| mixed(self.word ^ it.job.word, word));
        let mut draw = Draw::begin(&shared, &mut model, ctx, (self.chan, call), seed);
        let Some(Busy { job, behind, is_full, .. }) = busy else { return Outcome::NoReply };
        for _ in 0..draw.rng.u8(..=shared.profile.effects_max) {
            draw.effect(ctx);
        }
        if let Some((to, msg_ref)) = job.message
            && draw.rng.u8(..) < 180
        {
            let (id, payload) = draw.payload(draw.plain());
            ctx.carry_out([Effect::Reply(to, Reply::ok(payload))]);
            draw.effects.push(Action::Reply(msg_ref, id));
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
            self.go_on(&mut draw, ctx, behind, is_full);
        }
        let is_panic = draw.end(call, out);
        drop(model);
        if is_panic {
            give_up();
        }
        outcome
    }

    /// Begins on the next message; reads the socket again once few enough are left.
    fn go_on(
        &mut self,
        draw: &mut Draw<'_>,
        ctx: &mut ShardContext<'_>,
        mut behind: VecDeque<Job>,
        mut is_full: bool,
    ) {
        let Some(job) = behind.pop_front() else { return };
        let most = usize::from(self.shared.profile.features.behind_max);
        if is_full && behind.len() <= most / 2 {
            is_full = false;
            draw.proceed(ctx);
        }
        self.start(draw, ctx, job, behind);
        if let Some(busy) = &mut self.busy {
            busy.is_full = is_full;
        }
    }
}

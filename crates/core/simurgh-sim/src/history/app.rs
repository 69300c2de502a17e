//! The application: channels whose actions are drawn from the words of their clients' messages.

use std::sync::Arc;

use crate::kit::handle;
use crate::kit::{EVENTS, NONE, payload};
use fastrand::Rng;
use simurgh_core::{Join, JoinFn, Outcome, Reason, Reply, ShardChannel, ShardContext, Stop};
use simurgh_proto::message::Payload;

use super::ledger::{BroadcastInfo, Ledger, SWALLOWED};
use super::plan;
use super::simulation::Shared;

/// The event of pushes.
pub(crate) const PUSH: &str = "p";
/// Of 16 words of joins, those from this on are decided later.
const LATER: u32 = 12;

pub(crate) struct Member {
    shared: Arc<Shared>,
    chan: u32,
    topic: u8,
    id: u32,
    intercepts: bool,
    word: u32,
}

pub(crate) fn join(shared: &Arc<Shared>) -> JoinFn {
    let shared = Arc::clone(shared);
    Arc::new(move |_: &mut ShardContext<'_>, payload: Payload<'_>| {
        let (chan, word) = payload::parse(&payload);
        let Some(asked) = shared.ledger().joins.get(chan as usize).copied() else {
            return Join::error(Payload::EMPTY_OBJECT);
        };
        let shared = Arc::clone(&shared);
        let (topic, id, intercepts) = (asked.topic, asked.id, asked.intercepts);
        let member = Member { shared, chan, topic, id, intercepts, word };
        match word % 16 {
            0 => Join::error(Payload::EMPTY_OBJECT),
            LATER.. => Join::later(async move { Join::ok(member) }),
            _ => Join::ok(member),
        }
    })
}

struct Callback<'a> {
    ledger: &'a mut Ledger,
    member: &'a Member,
    rng: Rng,
    behind: Vec<u32>,
}

impl Callback<'_> {
    fn payload(&mut self, made: BroadcastInfo) -> (u32, Payload<'static>) {
        let is_binary = made.is_binary;
        let id = self.ledger.new_broadcast(made);
        let pad = match self.rng.u8(..) {
            0..16 => self.member.shared.plan.pad,
            _ => 0,
        };
        (id, payload::make(id, 0, pad, is_binary))
    }

    /// A payload that is sent after what was broadcast.
    fn plain(&mut self) -> (u32, Payload<'static>) {
        let made =
            BroadcastInfo { behind: self.behind.clone(), ..BroadcastInfo::new(self.member.topic) };
        self.payload(made)
    }

    fn broadcast(&mut self, ctx: &mut ShardContext<'_>) {
        let event = self.rng.u8(..EVENTS.len() as u8);
        let is_binary = self.member.shared.plan.has_binary && self.rng.u8(..) < 50;
        let name = EVENTS[usize::from(event)];
        let made = BroadcastInfo {
            event,
            is_binary,
            chan: self.member.chan,
            ..BroadcastInfo::new(self.member.topic)
        };
        let how = self.rng.u8(..);
        let made = match how {
            0..110 => BroadcastInfo { except: self.member.chan, sender: self.member.id, ..made },
            110..140 => {
                BroadcastInfo { topic: self.rng.u8(..self.ledger.topics.len() as u8), ..made }
            }
            _ => made,
        };
        let topic = made.topic;
        let (id, payload) = self.payload(made);
        match how {
            0..110 => ctx.broadcast_from(name, payload),
            110..140 => ctx.broadcast_to(&plan::topic(usize::from(topic)), name, payload),
            _ => ctx.broadcast(name, payload),
        }
        self.behind.push(id);
        let chan = self.member.chan;
        self.ledger.note(|| format!("channel {chan} broadcasts #{id}"));
    }

    fn draw(&mut self, ctx: &mut ShardContext<'_>, most: u8) {
        for _ in 0..self.rng.u8(..=most) {
            match self.rng.u8(..) {
                0..170 => self.broadcast(ctx),
                _ => {
                    let (_, payload) = self.plain();
                    ctx.push(PUSH, payload);
                }
            }
        }
    }
}

impl Member {
    fn act<T>(&self, word: u32, f: impl FnOnce(&mut Callback<'_>) -> T) -> T {
        let mut ledger = self.shared.ledger();
        let rng = Rng::with_seed(u64::from(word) << 32 | u64::from(self.word));
        f(&mut Callback { ledger: &mut ledger, member: self, rng, behind: Vec::new() })
    }
}

impl ShardChannel for Member {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let handle = handle::wrap(ctx.handle::<Self>());
        self.act(!self.word, |it| {
            it.ledger.handles.push((self.chan, handle));
            if it.rng.u8(..) < 60 {
                it.draw(ctx, 2);
            }
        });
    }

    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        let (_, word) = payload::parse(&payload);
        self.act(word, |it| {
            it.ledger.check_quota(self.chan);
            it.draw(ctx, 3);
            let (_, payload) = it.plain();
            match it.rng.u8(..) {
                0..150 => Outcome::Reply(Reply::ok(payload)),
                150..160 => Outcome::ReplyAndStop(Reply::ok(payload), Stop::Normal),
                160..170 => Outcome::Stop(Stop::Abnormal),
                _ => Outcome::NoReply,
            }
        })
    }

    fn intercept(&self) -> &'static [&'static str] {
        if self.intercepts { &["a"] } else { &[] }
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        if !payload::parse(payload).0.is_multiple_of(SWALLOWED) {
            ctx.push(event, payload.clone().into_owned());
        }
        Outcome::NoReply
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, _: &Reason) {
        self.act(self.word.rotate_left(7), |it| {
            if it.rng.u8(..) < 60 {
                let made = BroadcastInfo { event: 1, chan: NONE, ..BroadcastInfo::new(self.topic) };
                let (_, payload) = it.payload(made);
                ctx.broadcast("b", payload);
            }
        });
    }
}

//! The application: channels that broadcast and track presences, drawn from words of messages.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

use crate::kit::presence::KEYS;
use crate::kit::{NONE, payload};
use fastrand::Rng;
use simurgh_core::{
    ChannelHandle, Join, JoinFn, Outcome, Reason, Reply, ShardChannel, ShardContext, Stop,
};
use simurgh_proto::message::Payload;

use crate::world::Shared;
use crate::world::alone::SWALLOWED;
use crate::world::ledger::{Handle, Ledger};
use crate::world::thread::{Command, Mailbox};

/// The event of pushes.
pub(crate) const PUSH: &str = "p";
/// Of 16 words of joins, those from this on are decided later.
const LATER: u32 = 13;

pub(crate) struct Member {
    shared: Arc<Shared>,
    chan: u32,
    node: usize,
    shard: usize,
    topic: usize,
    word: u32,
    is_present: bool,
    intercepts: bool,
}

fn wrap(handle: ChannelHandle<Member>) -> Handle {
    Arc::new(move |is_for_others, id| {
        let payload = payload::make(id, 0, 0, false);
        // Its channel may have ended.
        let _ = match is_for_others {
            true => handle.broadcast_from("b", payload),
            false => handle.broadcast("b", payload),
        };
    })
}

/// Words from this on wait for the topic's interest to be in force.
const WAITS: u32 = 10;

pub(crate) fn join(shared: &Arc<Shared>, mailbox: &Arc<Mailbox>) -> JoinFn {
    let (shared, mailbox) = (Arc::clone(shared), Arc::clone(mailbox));
    Arc::new(move |_: &mut ShardContext<'_>, payload: Payload<'_>| {
        let (chan, word) = payload::parse(&payload);
        let Some(asked) = shared.ledger().joins.get(chan as usize).copied() else {
            return Join::error(Payload::EMPTY_OBJECT);
        };
        let (node, shard, topic) = (asked.node, asked.shard, asked.topic);
        let is_present = shared.plan.alone.is_none() && (word >> 8) as u8 <= shared.plan.present;
        let own = Arc::clone(&shared);
        let intercepts = shared.plan.habits(asked.client).intercepts;
        let member = Member { shared: own, chan, node, shard, topic, word, is_present, intercepts };
        match word % 16 {
            0 => Join::error(Payload::EMPTY_OBJECT),
            LATER.. => Join::later(async move { Join::ok(member) }),
            WAITS.. if shared.plan.alone.is_none() => {
                let name = shared.plan.topics.get(topic).cloned().unwrap_or_default();
                Join::ok(member).after(wait_until_heard(Arc::clone(&mailbox), name))
            }
            _ => Join::ok(member),
        }
    })
}

async fn wait_until_heard(mailbox: Arc<Mailbox>, topic: String) {
    let told = Arc::new(AtomicBool::new(false));
    mailbox.post(Command::AwaitTopic(topic.into(), Arc::clone(&told)));
    poll_fn(|_| if told.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Member {
    fn broadcast(&self, ctx: &mut ShardContext<'_>, ledger: &mut Ledger, rng: &mut Rng) -> u32 {
        let pad = if rng.u8(..) < 30 { self.shared.plan.pad } else { 0 };
        let event = ["a", "b"][rng.usize(..2)];
        let mut made = NONE;
        let mut make = |topic: usize, except: u32| {
            let id = ledger.new_broadcast(topic, self.node, except);
            let (chan, start) = (self.chan, self.node);
            let info = &mut ledger.broadcasts[id as usize];
            (info.chan, info.event, info.is_binary) = (chan, event, id.is_multiple_of(7));
            ledger.note(|| format!("channel {chan} of start {start} broadcasts #{id}"));
            made = id;
            payload::make(id, 0, pad, id.is_multiple_of(7))
        };
        match rng.u8(..) {
            0..90 => ctx.broadcast_from(event, make(self.topic, self.chan)),
            90..120 => {
                let topic = rng.usize(..self.shared.plan.topics.len());
                let name = self.shared.plan.topics.get(topic).cloned().unwrap_or_default();
                ctx.broadcast_to(&name, event, make(topic, NONE));
            }
            _ => ctx.broadcast(event, make(self.topic, NONE)),
        }
        made
    }

    fn change_presence(
        &self,
        ctx: &mut ShardContext<'_>,
        ledger: &mut Ledger,
        rng: &mut Rng,
        what: u8,
    ) {
        let place = rng.u8(..3);
        let key = KEYS.get(usize::from(place)).copied().unwrap_or_default();
        let is_update = match what {
            0..3 => false,
            3..5 => true,
            5..7 => {
                ledger.presences.untrack(self.chan, place);
                return ctx.presence().untrack(key);
            }
            _ => return ctx.presence().push_state(),
        };
        let number = ledger.presences.make(self.node, self.topic, self.chan, place);
        ledger.presences.track(number, is_update, usize::MAX);
        let meta = Payload::from_json(format!("{{\"i\":{number}}}"));
        let done = match is_update {
            true => ctx.presence().update(key, meta),
            false => ctx.presence().track(key, meta),
        };
        if let Err(error) = done {
            ledger.fail("presence", error.to_string());
        }
    }
}

impl ShardChannel for Member {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let handle = wrap(ctx.handle());
        let mut ledger = self.shared.ledger();
        let mut rng = Rng::with_seed(u64::from(self.word));
        let from = ledger.accepted_entries(self.node, self.shard, self.topic).len();
        ledger.joins[self.chan as usize].from = Some(from);
        let chan = self.chan;
        ledger.note(|| format!("channel {chan} is a member, from {from} on"));
        ledger.handles.push((chan, handle));
        ledger.member_joined(self.node, self.topic, self.shard);
        if self.is_present {
            for what in [0, 7] {
                if rng.u8(..) < 225 {
                    self.change_presence(ctx, &mut ledger, &mut rng, what);
                }
            }
        }
        if rng.u8(..) < 60 {
            self.broadcast(ctx, &mut ledger, &mut rng);
        }
    }

    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        let word = payload::parse(&payload).1;
        let mut ledger = self.shared.ledger();
        let mut rng = Rng::with_seed(u64::from(word) << 32 | u64::from(self.word));
        let (mut behind, has_history) = (Vec::new(), self.shared.plan.history.is_some());
        ledger.check_quota(self.chan);
        for _ in 0..rng.u8(1..=3) {
            match rng.u8(..) {
                // Nothing takes place after a broadcast that is not stored.
                0..90 if self.is_present && (!has_history || behind.is_empty()) => {
                    let what = rng.u8(..8);
                    self.change_presence(ctx, &mut ledger, &mut rng, what);
                }
                _ => behind.push(self.broadcast(ctx, &mut ledger, &mut rng)),
            }
        }
        if self.shared.plan.alone.is_some() {
            let pushed = ledger.log.new_reply(behind.clone());
            ctx.push(PUSH, payload::make(pushed, 0, 0, false));
        }
        match rng.u8(..) {
            0..4 => Outcome::Stop(Stop::Normal),
            4..10 if self.shared.plan.alone.is_some() => Outcome::Stop(Stop::Abnormal),
            10..100 if has_history => {
                let said = ledger.log.new_reply(behind);
                Outcome::Reply(Reply::ok(payload::make(said, 0, 0, false)))
            }
            10..100 => Outcome::Reply(Reply::ok(Payload::EMPTY_OBJECT)),
            _ => Outcome::NoReply,
        }
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
        let mut ledger = self.shared.ledger();
        ledger.presences.channel_ended(self.chan);
        ledger.member_left(self.node, self.topic, self.shard);
        let chan = self.chan;
        ledger.handles.retain(|it| it.0 != chan);
        ledger.note(|| format!("channel {chan} ends"));
        let mut rng = Rng::with_seed(u64::from(self.word.rotate_left(7)));
        if rng.u8(..) < 40 {
            let id = ledger.new_broadcast(self.topic, self.node, NONE);
            ledger.broadcasts[id as usize].event = "b";
            ctx.broadcast("b", payload::make(id, 0, 0, false));
        }
    }
}

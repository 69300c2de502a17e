//! The channels of one node: they draw effects from words of messages, and tell the ledger.

use super::*;

/// What interceptors may intercept: by their bits of presence, and how many events of broadcasts.
const INTERCEPTS: [[&[&str]; 3]; 4] = [
    [&[], &["a"], &["a", "b"]],
    [&["presence_diff"], &["a", "presence_diff"], &["a", "b", "presence_diff"]],
    [&["presence_state"], &["a", "presence_state"], &["a", "b", "presence_state"]],
    [
        &["presence_diff", "presence_state"],
        &["a", "presence_diff", "presence_state"],
        &["a", "b", "presence_diff", "presence_state"],
    ],
];

pub(crate) struct Actor {
    shared: Arc<Shared>,
    chan: u32,
    word: u32,
    intercepts: u8,
    intercept_panics: Cell<bool>,
    /// On a topic with a history it only drops some broadcasts.
    passes_most: bool,
    _alive: Arc<()>,
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.shared.ledger().dropped(self.chan);
    }
}

#[derive(Default)]
struct Given<'a> {
    /// What an interceptor may pass on.
    passed: Option<(&'a str, &'a Payload<'a>)>,
    ready: Option<Ready>,
}

fn mixed(one: u32, two: u32) -> u64 {
    (u64::from(one) << 32 | u64::from(two)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Panics as the application does, on purpose and without the hook.
pub(super) fn give_up() -> ! {
    std::panic::resume_unwind(Box::new("meant"))
}

impl Actor {
    fn begin<'a>(
        &'a self,
        ledger: &'a mut Ledger,
        ctx: &ShardContext<'_>,
        call: Call,
        word: u32,
    ) -> Draw<'a> {
        let called = ledger.begin(self.chan, call);
        ledger.reads(called.conn, ctx.assigns::<Assigned>().map(|value| value.number));
        let topic = ledger.sessions.chan(self.chan).map_or(0, |chan| chan.topic);
        let rng = Rng::with_seed(mixed(self.word, word));
        Draw { shared: &self.shared, ledger, rng, topic, called }
    }

    /// Runs a callback: draws its effects, carries them out, and tells the ledger.
    fn act(&self, ctx: &mut ShardContext<'_>, call: Call, word: u32, given: Given<'_>) -> Outcome {
        let shared = &self.shared;
        let plan = &shared.plan.app;
        let Given { passed, mut ready } = given;
        // Only the message that was prepared has a value here.
        if ready.is_none() {
            drop(taken(shared, ctx, None));
        }
        let mut ledger = shared.ledger();
        let mut draw = self.begin(&mut ledger, ctx, call, word);
        if let Some(passed) = passed {
            draw.pass(ctx, passed);
        }
        if call == Call::AfterJoin {
            draw.begin_channel(ctx);
        }
        // Callbacks that run for each member do little, so that broadcasts end.
        let is_each = matches!(call, Call::HandleOut(_) | Call::HandleBroadcast(..));
        let most = if is_each && draw.rng.u8(..) < 200 { 0 } else { plan.effects_max };
        for _ in 0..draw.rng.u8(..=most) {
            draw.effect(ctx);
        }
        if let Some(it) = &mut ready
            && let Some(payload) = it.payload.take()
            && draw.rng.bool()
        {
            draw.echo(ctx, it.id, payload);
        }
        if shared.faults.happens(Fault::Lie) {
            ctx.push("p", Payload::NULL);
        }
        let answer = ready.as_mut().and_then(|ready| ready.answer.take());
        let (outcome, end) = self.outcome(&mut draw, ctx, call, answer);
        draw.end(end);
        drop(ledger);
        if end.reason == Some(Reason::Crashed) {
            give_up();
        }
        outcome
    }

    /// Draws how a callback ends; `answer` was prepared for that.
    fn outcome(
        &self,
        draw: &mut Draw<'_>,
        ctx: &ShardContext<'_>,
        call: Call,
        answer: Option<Made>,
    ) -> (Outcome, CallEnd) {
        let plan = &self.shared.plan.app;
        if is(&mut draw.rng, plan.panics) {
            let reason = Some(Reason::Crashed);
            return (Outcome::NoReply, CallEnd { reason, reply: None });
        }
        let is_stop = is(&mut draw.rng, plan.stops);
        let all = [Stop::Normal, Stop::Shutdown, Stop::Abnormal, Stop::Expired];
        let how = all[draw.rng.usize(..4)];
        if matches!(call, Call::AfterJoin | Call::Terminate(_)) {
            return (Outcome::NoReply, CallEnd::default());
        }
        let reason = is_stop.then_some(Reason::Stopped(how));
        let is_reply = matches!(call, Call::HandleIn(_)) && draw.rng.u8(..) < 150;
        if is_reply
            && draw.rng.u8(..) < 30
            && let Some(to) = ctx.reply_ref()
        {
            let answered = (to, draw.called.msg_ref);
            draw.ledger.sessions.chans[self.chan as usize].refs.push(answered);
            draw.keep(ctx);
            return (Outcome::NoReply, CallEnd::default());
        }
        if !is_reply {
            let outcome = if is_stop { Outcome::Stop(how) } else { Outcome::NoReply };
            return (outcome, CallEnd { reason, reply: None });
        }
        let (id, payload) = answer.unwrap_or_else(|| draw.payload(draw.plain()));
        draw.follows(id);
        let word = ["ok", "error", "weird"][draw.rng.usize(..3)];
        let end = CallEnd { reply: Some((letter(word), id)), reason };
        let reply = Reply::new(word, payload);
        (if is_stop { Outcome::ReplyAndStop(reply, how) } else { Outcome::Reply(reply) }, end)
    }

    /// Lets its client's messages be read again, if it holds its socket.
    pub(crate) fn proceed(&mut self, ctx: &mut ShardContext<'_>, id: u32, word: u32) -> Outcome {
        let mut ledger = self.shared.ledger();
        let mut draw = self.begin(&mut ledger, ctx, Call::HandleInfo(id), word);
        draw.proceed(ctx);
        draw.end(CallEnd::default());
        Outcome::NoReply
    }
}

impl ShardHandleInfo<u32> for Actor {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, id: u32) -> Outcome {
        self.act(ctx, Call::HandleInfo(id), id, Given::default())
    }
}

impl ShardChannel for Actor {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let _ = self.act(ctx, Call::AfterJoin, 1, Given::default());
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        _event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        let ready = taken(&self.shared, ctx, Some(&payload));
        let (id, word) = match &ready {
            Some(it) => (it.id, it.word),
            None => self.shared.ledger().given(&payload),
        };
        self.act(ctx, Call::HandleIn(id), word, Given { ready, passed: None })
    }

    fn intercept(&self) -> &'static [&'static str] {
        if self.intercept_panics.take() {
            give_up();
        }
        INTERCEPTS[usize::from(self.intercepts >> 2)][usize::from(self.intercepts & 3)]
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        let (id, word) = self.shared.ledger().given(payload);
        if self.passes_most {
            self.shared.ledger().begin(self.chan, Call::HandleOut(id));
            if !id.is_multiple_of(SWALLOWED) {
                ctx.push(event, payload.clone().into_owned());
            }
            return Outcome::NoReply;
        }
        let given = Given { passed: Some((event, payload)), ready: None };
        self.act(ctx, Call::HandleOut(id), word, given)
    }

    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        let topic = self.shared.plan.topics.number(broadcast.topic());
        let (id, word) = self.shared.ledger().given(broadcast.payload());
        self.act(ctx, Call::HandleBroadcast(id, topic), word, Given::default())
    }

    fn hibernate(&mut self) {
        self.shared.ledger().begin(self.chan, Call::Hibernate);
        let mut rng = Rng::with_seed(mixed(self.word, 3));
        if is(&mut rng, self.shared.plan.app.panics) {
            self.shared.ledger().must_end(self.chan, Reason::Crashed, false);
            give_up();
        }
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        let _ = self.act(ctx, Call::Terminate(*reason), 2, Given::default());
    }
}

pub(crate) fn join(shared: &Arc<Shared>, mailbox: &Arc<Mailbox>) -> JoinFn {
    let (shared, mailbox) = (Arc::downgrade(shared), Arc::clone(mailbox));
    Arc::new(move |ctx, payload| {
        let Some(shared) = shared.upgrade() else { return Join::error(Payload::NULL) };
        let mut ready = taken(&shared, ctx, Some(&payload));
        let mut ledger = shared.ledger();
        let (id, word) = ledger.given(&payload);
        let Some(joining) = ledger.asked(id) else { return Join::error(Payload::NULL) };
        let rng = Rng::with_seed(mixed(word, joining.conn));
        let Joining { conn, topic, .. } = joining;
        let called = Called::join(NONE, conn);
        let mut draw = Draw { shared: &shared, ledger: &mut ledger, rng, topic, called };
        let waits = shared.plan.has_broker && draw.rng.u8(..) < 48;
        // The effects of a join that waits would wait, too.
        if draw.rng.u8(..) < 60 && shared.plan.history.is_none() && !waits {
            draw.effect(ctx);
        }
        let prepared = ready.as_mut().and_then(|ready| ready.answer.take());
        let Draw { mut rng, called: Called { acts, .. }, .. } = draw;
        let (join, answer) = decide(&shared, &mut rng, &mut ledger, joining, Some(prepared));
        let (join, answer) = match (join, answer) {
            (Some(join), Answer::Ok { chan, reply, .. }) if waits => {
                let name = shared.plan.topics.name(joining.topic).to_owned();
                let join =
                    join.after(wait_until_heard(Arc::clone(&shared), Arc::clone(&mailbox), name));
                (Some(join), Answer::Ok { chan, reply, waits })
            }
            other => other,
        };
        ledger.answer(joining, answer, acts);
        drop(ledger);
        join.unwrap_or_else(|| give_up())
    })
}

async fn wait_until_heard(shared: Arc<Shared>, mailbox: Arc<Mailbox>, topic: String) {
    let told = Arc::new(AtomicBool::new(false));
    mailbox.post(Command::AwaitTopic(topic.into(), Arc::clone(&told)));
    poll_fn(|_| if told.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
    shared.ledger().decided = Some(Answer::Released);
}

/// Decides about a join; `None` if it panics. `first`: the value prepared for the first decision.
fn decide(
    shared: &Arc<Shared>,
    rng: &mut Rng,
    ledger: &mut Ledger,
    joining: Joining,
    first: Option<Option<Made>>,
) -> (Option<Join>, Answer) {
    let plan = &shared.plan.app;
    if is(rng, plan.panics) {
        return (None, Answer::panic());
    }
    let later = if first.is_some() { plan.later } else { plan.later / 8 };
    if is(rng, later) {
        let word = rng.u32(..);
        return (Some(Join::later(decide_later(Arc::clone(shared), joining, word))), Answer::Later);
    }
    let Joining { conn, topic, .. } = joining;
    let node = ledger.sessions.start_of(ledger.sessions.shard_of(conn));
    let made = BroadcastInfo::new(usize::from(topic), node);
    let (reply, response) = first.flatten().unwrap_or_else(|| ledger.payload(made, 0, 0));
    if is(rng, plan.refused) {
        return (Some(Join::error(response)), Answer::Error(reply));
    }
    let mut intercepts = if is(rng, plan.intercepts) { rng.u8(1..=2) } else { 0 };
    if plan.is_present && rng.u8(..) < 30 {
        intercepts |= [INTERCEPTS_DIFF, INTERCEPTS_STATE, 12][rng.usize(..3)];
    }
    let passes_most = ledger.is_kept(topic);
    if passes_most {
        let client = ledger.sessions.conn(conn).map_or(0, |conn| conn.client);
        intercepts = u8::from(shared.plan.habits(client).intercepts);
    }
    let intercept_panics = is(rng, plan.panics / 2) && !passes_most;
    let chan = ledger.sessions.new_chan(conn, topic, intercepts);
    let actor = Actor {
        shared: Arc::clone(shared),
        chan,
        word: rng.u32(..),
        intercepts,
        intercept_panics: Cell::new(intercept_panics),
        passes_most,
        _alive: Arc::clone(&shared.channels),
    };
    let answer = Answer::Ok { chan, reply, waits: false };
    let answer = if intercept_panics { Answer::panic() } else { answer };
    (Some(Join::ok(actor).reply(response)), answer)
}

async fn decide_later(shared: Arc<Shared>, joining: Joining, word: u32) -> Join {
    let mut ledger = shared.ledger();
    let mut rng = Rng::with_seed(u64::from(word));
    let (join, answer) = decide(&shared, &mut rng, &mut ledger, joining, None);
    ledger.decided = Some(answer);
    drop(ledger);
    join.unwrap_or_else(|| give_up())
}

/// The value prepared from a message: the payload of an event as it came, and an answer, to be sent
/// in the very bytes that were made.
pub(crate) struct Ready {
    pub(crate) id: u32,
    pub(crate) word: u32,
    pub(crate) payload: Option<Payload<'static>>,
    pub(crate) answer: Option<Made>,
    _alive: Arc<()>,
}

pub(crate) fn prepare(shared: &Arc<Shared>) -> PrepareFn {
    let shared = Arc::downgrade(shared);
    Arc::new(move |message| match shared.upgrade() {
        Some(shared) => Box::new(ready(&shared, message)) as Prepared,
        None => Box::new(()),
    })
}

fn ready(shared: &Arc<Shared>, message: &mut Message<'static>) -> Ready {
    let mut ledger = shared.ledger();
    let (id, word) = ledger.given(&message.payload);
    // The application prepares, and may panic.
    let panics = shared.plan.app.panics > 0;
    let topic = shared.plan.topics.number(&message.topic).unwrap_or_default();
    let made = BroadcastInfo::new(usize::from(topic), 0);
    let answer = ledger.payload(made, word, message.payload.len() / 2);
    drop(ledger);
    if panics && word % 64 == 1 {
        give_up();
    }
    // The replacement must not be longer.
    let is_taken = message.event != events::JOIN && message.payload.len() >= Payload::NULL.len();
    let payload = is_taken.then(|| std::mem::replace(&mut message.payload, Payload::NULL));
    Ready { id, word, payload, answer: Some(answer), _alive: Arc::clone(&shared.ready) }
}

/// The value prepared from the current message, if any; `payload` is what the core passes.
pub(super) fn taken(
    shared: &Shared,
    ctx: &mut ShardContext<'_>,
    payload: Option<&Payload<'_>>,
) -> Option<Ready> {
    let ready: Option<Ready> = ctx.take_prepared();
    let mut ledger = shared.ledger();
    // Callbacks other than that of the message have no prepared value.
    let due = payload.and_then(|_| ledger.sessions.prepared.take());
    let found = ready.as_ref().map(|ready| ready.id);
    // The payload of an event was taken where it was read.
    let is_empty = payload.is_some_and(|payload| payload.json() == Some("null"));
    let is_whole = ready.as_ref().is_none_or(|ready| ready.payload.is_some() == is_empty);
    if due != found || !is_whole {
        ledger.fail("prepared", format!("{found:?} is in hand, not {due:?} ({payload:?})"));
    }
    drop(ledger);
    ready
}

//! An asynchronous channel as the shard has it: a [`Channel`] that begins handlers, keeps what
//! comes meanwhile, and takes their results.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};

use simurgh_core::{
    Broadcast, Channel, ChannelHandle, Context, Effect, HandleInfo, LinkedWork, Outcome, Reason,
    ReplyRef,
};
use simurgh_proto::message::Payload;

use super::context::Outbox;
use super::{AsyncChannel, AsyncContext, AsyncHandleInfo, Reject};

/// Messages of the client that may wait behind one that is handled.
pub const BEHIND_MAX: usize = 32;
/// Bytes of such messages.
pub const BEHIND_BYTES_MAX: usize = 64 << 10;

/// An [`AsyncChannel`] as a [`Channel`], for [`Join::ok`](crate::Join::ok).
pub struct Async<C: AsyncChannel>(State<C>);

enum State<C> {
    /// No handler waits.
    Idle(C),
    /// A handler waits, and has the channel.
    Busy(Box<Busy<C>>),
    /// A handler has panicked, or is just being asked for the first time.
    Gone,
}

struct Busy<C> {
    /// Dropping it drops the handler.
    _handler: Box<dyn LinkedWork>,
    behind: Behind<C>,
}

/// What waits behind a handler, in its order.
struct Behind<C> {
    jobs: VecDeque<Job<C>>,
    /// How many of them came from the client, and their bytes.
    messages: usize,
    bytes: usize,
    /// The socket is not read.
    is_full: bool,
}

/// One thing that is to be handled.
struct Job<C> {
    start: Box<dyn FnOnce(C, AsyncContext) -> Running<C> + Send>,
    at: &'static str,
    /// The message that is to be answered.
    message: Option<ReplyRef>,
    /// Bytes of what came from the client.
    bytes: Option<usize>,
}

type Handled = Result<Outcome, Reject>;
/// A handler with its channel, which it gives back.
type Running<C> = Pin<Box<dyn Future<Output = (C, Handled)> + Send>>;

impl<C: AsyncChannel> Async<C> {
    /// A channel of which no handler runs.
    pub fn new(channel: C) -> Self {
        Self(State::Idle(channel))
    }

    /// Handles something, now or behind what is handled.
    fn take(&mut self, ctx: &mut Context<'_>, job: Job<C>) -> Outcome {
        match std::mem::replace(&mut self.0, State::Gone) {
            State::Idle(channel) => self.work(ctx, channel, Some(job), Behind::default()),
            State::Busy(mut busy) => {
                busy.behind.push(ctx, job);
                self.0 = State::Busy(busy);
                Outcome::NoReply
            }
            // It has panicked, and ends.
            State::Gone => Outcome::NoReply,
        }
    }

    /// Handles one thing after the other, until a handler waits, or nothing is left, or the channel
    /// ends, which is what it returns.
    fn work(
        &mut self,
        ctx: &mut Context<'_>,
        mut channel: C,
        mut next: Option<Job<C>>,
        mut behind: Behind<C>,
    ) -> Outcome {
        while let Some(job) = next.take().or_else(|| behind.pop(ctx)) {
            let Job { start, at, message, .. } = job;
            match self.begin(ctx, channel, start, at, message.clone()) {
                Begun::Done(given_back, handled) => {
                    channel = given_back;
                    if let Some(end) = answer(ctx, at, message, handled) {
                        self.0 = State::Idle(channel);
                        return end;
                    }
                }
                Begun::Waits(handler) => {
                    self.0 = State::Busy(Box::new(Busy { _handler: handler, behind }));
                    return Outcome::NoReply;
                }
            }
        }
        self.0 = State::Idle(channel);
        Outcome::NoReply
    }

    /// Asks a handler once, on the shard; if it waits, it goes on elsewhere.
    fn begin(
        &self,
        ctx: &mut Context<'_>,
        channel: C,
        start: Box<dyn FnOnce(C, AsyncContext) -> Running<C> + Send>,
        at: &'static str,
        message: Option<ReplyRef>,
    ) -> Begun<C> {
        let context = AsyncContext::of::<C>(ctx, message.clone());
        let outbox = context.outbox().clone();
        let handle = ctx.handle::<Self>();
        let mut running = start(channel, context);
        let mut polled = Ok(Poll::Pending);
        handle.reach().within_runtime(&mut || {
            // Whom it would wake does not matter: it is asked again where it goes.
            let mut nobody = TaskContext::from_waker(Waker::noop());
            polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut nobody)));
        });
        ctx.carry_out(outbox.take());
        match polled {
            Ok(Poll::Ready((channel, handled))) => Begun::Done(channel, handled),
            Ok(Poll::Pending) => {
                let waiting = Waiting { running, outbox, handle: handle.clone(), at, message };
                Begun::Waits(handle.reach().spawn_linked(Box::pin(waiting)))
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// The handler that waited is done.
    fn done(&mut self, ctx: &mut Context<'_>, channel: C, end: Option<Outcome>) -> Outcome {
        let State::Busy(busy) = std::mem::replace(&mut self.0, State::Gone) else {
            return Outcome::NoReply;
        };
        match end {
            None => self.work(ctx, channel, None, busy.behind),
            Some(end) => {
                self.0 = State::Idle(channel);
                end
            }
        }
    }
}

/// What became of a handler that was asked once.
enum Begun<C> {
    Done(C, Handled),
    Waits(Box<dyn LinkedWork>),
}

/// Answers a message; returns how the channel ends, if it does.
fn answer(
    ctx: &mut Context<'_>,
    at: &'static str,
    message: Option<ReplyRef>,
    handled: Handled,
) -> Option<Outcome> {
    let outcome = match handled {
        Ok(outcome) => outcome,
        Err(reject) => reject.outcome(ctx, at, message.is_some()),
    };
    let (reply, end) = match outcome {
        Outcome::NoReply => (None, None),
        Outcome::Reply(reply) => (Some(reply), None),
        Outcome::Stop(how) => (None, Some(Outcome::Stop(how))),
        Outcome::ReplyAndStop(reply, how) => (Some(reply), Some(Outcome::Stop(how))),
    };
    match (reply, message) {
        (Some(reply), Some(message)) => ctx.carry_out([Effect::Reply(message, reply)]),
        (Some(_), None) => tracing::debug!(at, "a reply where there is no message: dropped"),
        (None, _) => {}
    }
    end
}

impl<C> Default for Behind<C> {
    fn default() -> Self {
        Self { jobs: VecDeque::new(), messages: 0, bytes: 0, is_full: false }
    }
}

impl<C> Behind<C> {
    fn push(&mut self, ctx: &mut Context<'_>, job: Job<C>) {
        if let Some(bytes) = job.bytes {
            self.messages += 1;
            self.bytes += bytes;
            if !self.is_full && (self.messages >= BEHIND_MAX || self.bytes >= BEHIND_BYTES_MAX) {
                self.is_full = true;
                ctx.carry_out([Effect::Hold]);
            }
        }
        self.jobs.push_back(job);
    }

    fn pop(&mut self, ctx: &mut Context<'_>) -> Option<Job<C>> {
        let job = self.jobs.pop_front()?;
        if let Some(bytes) = job.bytes {
            self.messages -= 1;
            self.bytes -= bytes;
            if self.is_full && self.messages <= BEHIND_MAX / 2 && self.bytes <= BEHIND_BYTES_MAX / 2
            {
                self.is_full = false;
                ctx.carry_out([Effect::Proceed]);
            }
        }
        Some(job)
    }
}

/// A handler that waits, on tokio.
struct Waiting<C: AsyncChannel> {
    running: Running<C>,
    outbox: Outbox,
    handle: ChannelHandle<Async<C>>,
    at: &'static str,
    message: Option<ReplyRef>,
}

impl<C: AsyncChannel> Future for Waiting<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.running.as_mut().poll(cx)));
        let effects = self.outbox.take();
        match polled {
            Ok(Poll::Pending) => {
                if !effects.is_empty() {
                    self.handle.visit(move |_, ctx| {
                        ctx.carry_out(effects);
                        Outcome::NoReply
                    });
                }
                return Poll::Pending;
            }
            Ok(Poll::Ready((channel, handled))) => {
                let (at, message) = (self.at, self.message.take());
                self.handle.visit(move |it: &mut Async<C>, ctx| {
                    ctx.carry_out(effects);
                    let end = answer(ctx, at, message, handled);
                    it.done(ctx, channel, end)
                });
            }
            // It ends its channel as it would have on the shard; it was told on standard error.
            Err(panic) => self.handle.visit(move |_, ctx| {
                ctx.carry_out(effects);
                resume_unwind(panic)
            }),
        }
        Poll::Ready(())
    }
}

impl<C: AsyncChannel> Job<C> {
    fn new<F>(at: &'static str, start: impl FnOnce(C, AsyncContext) -> F + Send + 'static) -> Self
    where
        F: Future<Output = (C, Handled)> + Send + 'static,
    {
        let start = move |channel, ctx| Box::pin(start(channel, ctx)) as Running<C>;
        Self { start: Box::new(start), at, message: None, bytes: None }
    }
}

impl<C: AsyncChannel> Channel for Async<C> {
    fn after_join(&mut self, ctx: &mut Context<'_>) {
        let job = Job::new("after_join", |mut channel: C, mut ctx| async move {
            let handled = channel.after_join(&mut ctx).await;
            (channel, handled.map(|()| Outcome::NoReply))
        });
        // There is no outcome of this callback: how the channel ends is the handle's to say.
        if let Outcome::Stop(how) = self.take(ctx, job) {
            ctx.handle::<Self>().stop(how);
        }
    }

    fn handle_in(&mut self, ctx: &mut Context<'_>, event: &str, payload: Payload<'_>) -> Outcome {
        let (bytes, event, payload) =
            (payload.len(), Box::<str>::from(event), payload.into_owned());
        let job = Job::new("handle_in", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_in(&mut ctx, &event, payload).await;
            (channel, handled)
        });
        let message = ctx.reply_ref();
        self.take(ctx, Job { message, bytes: Some(bytes), ..job })
    }

    fn intercept(&self) -> &'static [&'static str] {
        C::INTERCEPT
    }

    fn handle_out(&mut self, ctx: &mut Context<'_>, event: &str, payload: &Payload<'_>) -> Outcome {
        let (event, payload) = (Box::<str>::from(event), payload.clone().into_owned());
        let job = Job::new("handle_out", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_out(&mut ctx, &event, payload).await;
            (channel, handled)
        });
        self.take(ctx, job)
    }

    fn handle_broadcast(&mut self, ctx: &mut Context<'_>, broadcast: &Broadcast) -> Outcome {
        let (topic, event) = (broadcast.topic(), broadcast.event());
        let broadcast = Broadcast::new(topic, event, broadcast.payload().clone());
        let job = Job::new("handle_broadcast", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_broadcast(&mut ctx, broadcast).await;
            (channel, handled)
        });
        self.take(ctx, job)
    }

    fn hibernate(&mut self) {
        if let State::Idle(channel) = &mut self.0 {
            channel.hibernate();
        }
    }

    fn terminate(&mut self, ctx: &mut Context<'_>, reason: &Reason) {
        if let State::Idle(channel) = &mut self.0 {
            channel.terminate(ctx, reason);
        }
    }
}

impl<M: Send + 'static, C: AsyncHandleInfo<M>> HandleInfo<M> for Async<C> {
    fn handle_info(&mut self, ctx: &mut Context<'_>, message: M) -> Outcome {
        let job = Job::new("handle_info", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_info(&mut ctx, message).await;
            (channel, handled)
        });
        self.take(ctx, job)
    }
}

impl<C: AsyncChannel + fmt::Debug> fmt::Debug for Async<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Idle(channel) => f.debug_tuple("Async").field(channel).finish(),
            State::Busy(_) | State::Gone => f.write_str("Async(busy)"),
        }
    }
}

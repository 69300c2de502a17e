//! The shard's side of an asynchronous channel: a [`ShardChannel`] that starts handlers, queues
//! messages meanwhile, and takes their results.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use simurgh_channel::{
    Broadcast, ChannelHandle, Effect, LinkedWork, Outcome, Reason, ReplyRef, ShardChannel,
    ShardContext, ShardHandleInfo,
};
use simurgh_proto::message::Payload;

use super::context::{OffShardScope, Outbox};
use super::reject::Refusal;
use super::{Channel, Context, HandleInfo, Reject};
use crate::off_shard::OffShard;
use crate::panics::log_panic;

/// Most queued messages of the client.
pub const BEHIND_MAX: usize = 32;
/// Most bytes of such messages.
pub const BEHIND_BYTES_MAX: usize = 64 << 10;

/// A [`Channel`] as a [`ShardChannel`], for [`Join::ok`](simurgh_channel::Join::ok).
pub struct Async<C: Channel>(State<C>);

enum State<C: Channel> {
    Idle(OffShard<C>),
    /// A handler runs, and owns the channel.
    Busy(Box<Busy<C>>),
    Gone,
}

struct Busy<C> {
    /// Dropping it drops the handler, on tokio.
    _handler: Box<dyn LinkedWork>,
    behind: Backlog<C>,
}

struct Backlog<C> {
    jobs: VecDeque<Job<C>>,
    /// Messages of the client among `jobs`, and their bytes.
    messages: usize,
    bytes: usize,
    is_full: bool,
}

/// One call of a handler. Values of the application are kept off the shard.
struct Job<C> {
    start: Box<dyn FnOnce(C, Context) -> Running<C> + Send>,
    at: &'static str,
    message: Option<ReplyRef>,
    bytes: Option<usize>,
}

type Handled = Result<Outcome, Reject>;
/// A handler that owns its channel and returns it.
type Running<C> = Pin<Box<dyn Future<Output = (C, Handled)> + Send>>;
/// A handler's result for the shard, without values of the application.
type Answer = Result<Outcome, Refusal>;

impl<C: Channel> Async<C> {
    /// A channel without a running handler.
    pub fn new(channel: C) -> Self {
        Self(State::Idle(OffShard::new(channel)))
    }

    /// Starts a handler, or queues the job behind the running one.
    fn take(&mut self, ctx: &mut ShardContext<'_>, job: Job<C>) {
        match std::mem::replace(&mut self.0, State::Gone) {
            State::Idle(channel) => self.begin(ctx, channel, job, Backlog::default()),
            State::Busy(mut busy) => {
                busy.behind.push(ctx, job);
                self.0 = State::Busy(busy);
            }
            State::Gone => {}
        }
    }

    fn begin(
        &mut self,
        ctx: &mut ShardContext<'_>,
        channel: OffShard<C>,
        job: Job<C>,
        behind: Backlog<C>,
    ) {
        let Some(channel) = channel.take() else { return };
        let Job { start, at, message, .. } = job;
        let scope = OffShardScope::of(ctx, message.clone());
        let (outbox, topic) = (scope.outbox.clone(), Arc::clone(&scope.known.topic));
        let handle = ctx.handle::<Self>();
        let reach = Arc::clone(handle.node());
        let running = start(channel, Context::new(scope));
        let waiting = Waiting { running, outbox, handle, topic, at, message };
        let handler = reach.spawn_linked(Box::pin(waiting));
        self.0 = State::Busy(Box::new(Busy { _handler: handler, behind }));
    }

    /// A handler is done and has returned the channel; starts the next one, unless the channel
    /// ends.
    fn done(
        &mut self,
        ctx: &mut ShardContext<'_>,
        channel: OffShard<C>,
        end: Option<Outcome>,
    ) -> Outcome {
        let State::Busy(busy) = std::mem::replace(&mut self.0, State::Gone) else {
            return Outcome::NoReply;
        };
        let mut behind = busy.behind;
        if end.is_none()
            && let Some(job) = behind.pop(ctx)
        {
            self.begin(ctx, channel, job, behind);
        } else {
            self.0 = State::Idle(channel);
        }
        end.unwrap_or(Outcome::NoReply)
    }
}

/// Answers a message; returns how the channel ends, if it does.
fn answer(
    ctx: &mut ShardContext<'_>,
    at: &'static str,
    message: Option<ReplyRef>,
    answer: Answer,
) -> Option<Outcome> {
    let outcome = answer.unwrap_or_else(|refusal| refusal.outcome(ctx));
    let (reply, end) = match outcome {
        Outcome::NoReply => (None, None),
        Outcome::Reply(reply) => (Some(reply), None),
        Outcome::Stop(how) => (None, Some(Outcome::Stop(how))),
        Outcome::ReplyAndStop(reply, how) => (Some(reply), Some(Outcome::Stop(how))),
    };
    match (reply, message) {
        (Some(reply), Some(message)) => ctx.carry_out([Effect::Reply(message, reply)]),
        (Some(_), None) => tracing::debug!(at, "dropped a reply: there is no message to reply to"),
        (None, _) => {}
    }
    end
}

impl<C> Default for Backlog<C> {
    fn default() -> Self {
        Self { jobs: VecDeque::new(), messages: 0, bytes: 0, is_full: false }
    }
}

impl<C> Backlog<C> {
    fn push(&mut self, ctx: &mut ShardContext<'_>, job: Job<C>) {
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

    fn pop(&mut self, ctx: &mut ShardContext<'_>) -> Option<Job<C>> {
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

struct Waiting<C: Channel> {
    running: Running<C>,
    outbox: Outbox,
    handle: ChannelHandle<Async<C>>,
    topic: Arc<str>,
    at: &'static str,
    message: Option<ReplyRef>,
}

impl<C: Channel> Waiting<C> {
    /// Polls the handler. Converting and dropping its error may run application code as well.
    fn go_on(&mut self, cx: &mut TaskContext<'_>) -> Poll<(OffShard<C>, Answer)> {
        let Self { running, topic, at, message, .. } = self;
        running.as_mut().poll(cx).map(|(channel, handled)| {
            let channel = OffShard::new(channel);
            (channel, handled.map_err(|reject| reject.settle(topic, at, message.is_some())))
        })
    }
}

impl<C: Channel> Future for Waiting<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.go_on(cx)));
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
            Ok(Poll::Ready((channel, answered))) => {
                let (at, message) = (self.at, self.message.take());
                self.handle.visit(move |it: &mut Async<C>, ctx| {
                    ctx.carry_out(effects);
                    let end = answer(ctx, at, message, answered);
                    it.done(ctx, channel, end)
                });
            }
            // It ends its channel as it would have on the shard.
            Err(panic) => {
                log_panic(&self.topic, self.at, panic);
                self.handle.visit(move |_, ctx| {
                    ctx.carry_out(effects);
                    resume_unwind(Box::new(()))
                });
            }
        }
        Poll::Ready(())
    }
}

impl<C: Channel> Job<C> {
    fn new<F>(at: &'static str, start: impl FnOnce(C, Context) -> F + Send + 'static) -> Self
    where
        F: Future<Output = (C, Handled)> + Send + 'static,
    {
        let start = move |channel, ctx| Box::pin(start(channel, ctx)) as Running<C>;
        Self { start: Box::new(start), at, message: None, bytes: None }
    }
}

impl<C: Channel> ShardChannel for Async<C> {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        // A future that captures nothing, not even its channel, is the default: no task for each
        // join.
        if size_of_future(C::after_join) > 0 {
            let job = Job::new("after_join", |mut channel: C, mut ctx| async move {
                let handled = channel.after_join(&mut ctx).await;
                (channel, handled.map(|()| Outcome::NoReply))
            });
            self.take(ctx, job);
        }
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        let (bytes, event, payload) =
            (payload.len(), Box::<str>::from(event), payload.into_owned());
        let job = Job::new("handle_in", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_in(&mut ctx, &event, payload).await;
            (channel, handled)
        });
        let message = ctx.reply_ref();
        self.take(ctx, Job { message, bytes: Some(bytes), ..job });
        Outcome::NoReply
    }

    fn intercept(&self) -> &'static [&'static str] {
        C::INTERCEPT
    }

    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        let (event, payload) = (Box::<str>::from(event), payload.clone().into_owned());
        let job = Job::new("handle_out", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_out(&mut ctx, &event, payload).await;
            (channel, handled)
        });
        self.take(ctx, job);
        Outcome::NoReply
    }

    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        let (topic, event) = (broadcast.topic(), broadcast.event());
        let broadcast = Broadcast::new(topic, event, broadcast.payload().clone());
        let job = Job::new("handle_broadcast", |mut channel: C, mut ctx| async move {
            let handled = channel.handle_broadcast(&mut ctx, broadcast).await;
            (channel, handled)
        });
        self.take(ctx, job);
        Outcome::NoReply
    }

    fn hibernate(&mut self) {
        if let State::Idle(channel) = &mut self.0
            && let Some(channel) = channel.get_mut()
        {
            channel.hibernate();
        }
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, reason: &Reason) {
        // While a handler runs as well, values are dropped at once.
        if let State::Idle(mut channel) = std::mem::replace(&mut self.0, State::Gone)
            && let Some(channel) = channel.get_mut()
        {
            channel.terminate(ctx, reason);
        }
    }
}

fn size_of_future<'a, C: 'a, F>(_: impl FnOnce(&'a mut C, &'a mut Context) -> F) -> usize {
    size_of::<F>()
}

/// The default of handlers that do nothing: its size distinguishes it from others.
pub(super) struct Nothing;

impl Future for Nothing {
    type Output = Result<(), Reject>;

    fn poll(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

impl<M: Send + 'static, C: HandleInfo<M>> ShardHandleInfo<M> for Async<C> {
    fn handle_info(&mut self, ctx: &mut ShardContext<'_>, message: M) -> Outcome {
        let message = OffShard::new(message);
        let job = Job::new("handle_info", |mut channel: C, mut ctx| async move {
            let handled = match message.take() {
                Some(message) => channel.handle_info(&mut ctx, message).await,
                None => Ok(Outcome::NoReply),
            };
            (channel, handled)
        });
        self.take(ctx, job);
        Outcome::NoReply
    }
}

impl<C: Channel + fmt::Debug> fmt::Debug for Async<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Idle(channel) => f.debug_tuple("Async").field(&channel.get()).finish(),
            State::Busy(_) | State::Gone => f.write_str("Async(busy)"),
        }
    }
}

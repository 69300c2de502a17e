//! A join in progress: what its answer needs, what it waits for, and how it is answered.

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{Decision, Effect, Join, JoinKind, Missed, Node, Reason};
use simurgh_data::Key;
use simurgh_history::{BadResume, Resume};
use simurgh_proto::message::{OwnedRef, Payload, Ref};
use simurgh_proto::session::server as session;
use simurgh_proto::ws::CloseCode;

use crate::core::Core;
use crate::frames::send;
use crate::socket::{AwaitedJoin, Granted, Phase, Replaced, Resuming, Socket, Speaker};
use crate::sockets::Sockets;
use crate::wire::Wire;
use simurgh_data::prelude::*;

pub(super) struct Joining<'a> {
    pub(super) key: Key,
    pub(super) topic: &'a str,
    pub(super) join_ref: Ref<'a>,
    pub(super) message: Ref<'a>,
    pub(super) replaced: Option<Box<Replaced>>,
    /// The client's progress on a kept topic, if it reports that.
    pub(super) resume: Option<Box<Resuming>>,
}

impl<'a> Joining<'a> {
    pub(super) fn again(key: Key, awaited: &'a mut AwaitedJoin) -> Self {
        Self {
            key,
            topic: &awaited.topic,
            join_ref: awaited.join_ref.as_ref(),
            message: awaited.message.as_ref(),
            replaced: awaited.replaced.take(),
            resume: awaited.resume.take(),
        }
    }
}

impl Joining<'_> {
    pub(super) fn awaited(self, ticket: u32, granted: Option<Granted>) -> AwaitedJoin {
        let Self { topic, join_ref, message, replaced, resume, .. } = self;
        let (join_ref, message) = (OwnedRef::from(join_ref), OwnedRef::from(message));
        let (topic, is_new, _waits) = (topic.into(), false, None);
        AwaitedJoin { topic, join_ref, message, replaced, ticket, resume, is_new, granted, _waits }
    }
}

pub(super) fn resume(
    payload: &Payload<'_>,
    out: &impl Sockets,
) -> Result<Option<Box<Resuming>>, BadResume> {
    match payload {
        Payload::Json(text) => {
            let said = Resume::parse(text)?;
            Ok(said.map(|said| Box::new(Resuming { said, at_ns: out.clock_ns() })))
        }
        Payload::Binary(_) | Payload::User(_) => Ok(None),
    }
}

#[inline(always)]
pub(super) fn reply_join(
    out: &mut impl Sockets,
    metrics: &ShardMetrics,
    joining: &Joining<'_>,
    status: &str,
    response: Payload<'static>,
) {
    let Joining { key, topic, join_ref, message, .. } = joining;
    if out.socket(*key).is_none_or(|socket| socket.wire.is_plain()) {
        return;
    }
    send(out, metrics, *key, session::reply(join_ref, message, topic, status, response));
}

/// Has an open socket wait for the answer to its join.
pub(super) fn await_answer(out: &mut impl Sockets, key: Key, awaited: AwaitedJoin) {
    let tick = out.now().tick;
    let Some(socket) = out.socket_mut(key) else { return };
    socket.enter(Phase::Waiting, tick);
    socket.own.get_or_insert_default().awaited = Some(Box::new(awaited));
    out.hold(key);
}

impl<N: Node> Core<N> {
    /// Carries out what a join function did without a channel, as far as it is for others or the
    /// socket.
    pub(super) fn apply_unjoined(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        topic: &str,
        mut effects: Vec<Effect>,
    ) {
        let has_a_place = |it: &Effect| {
            use Effect::{Assign, Broadcast, Close, Expire};
            matches!(it, Broadcast(..) | Close(_) | Assign(_) | Expire(_))
        };
        for lost in effects.extract_if(.., |it| !has_a_place(it)) {
            self.metrics.errors_before_join.add(1);
            let what = lost.name();
            tracing::warn!(
                topic,
                what,
                "dropped an effect of a join function, because its channel does not exist yet: \
                 move it to after_join"
            );
        }
        if effects.is_empty() {
            return self.channels.application.keep(effects);
        }
        let nobody = Speaker {
            conn: key,
            wire: out.socket(key).map_or(Wire::V2, |socket| socket.wire),
            topic: topic.into(),
            join_ref: OwnedRef::NULL,
            is_given: false,
            id: self.channels.application.nobody(),
            client: 0,
        };
        self.channels.apply(out, &nobody, effects);
    }

    pub(super) fn refuse_join(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        response: Payload<'static>,
    ) {
        let key = joining.key;
        self.metrics.joins_refused.add(1);
        reply_join(out, &self.metrics, &joining, "error", response);
        self.close_replaced(out, joining.replaced);
        if out.socket(key).is_some_and(|socket| socket.wire.is_plain()) {
            self.channels.close(out, key, CloseCode::POLICY);
        }
    }

    /// Ends the old channel of a topic that is joined again; what it pushes waits for the new
    /// reply.
    pub(super) fn replace(
        &mut self,
        out: &mut impl Sockets,
        membership: u32,
    ) -> Option<Box<Replaced>> {
        let id = self.channels.registry.channel_id(membership)?;
        self.channels.bring_up_to_date(out, membership);
        let speaker =
            self.channels.registry.live(id).and_then(|it| self.channels.speaker(out, it))?;
        let effects = self.channels.take_out(out, &speaker, Reason::Rejoined);
        let (pushes, others): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::Push(..)));
        self.channels.apply(out, &speaker, others);
        Some(Box::new(Replaced { speaker, pushes }))
    }

    pub(super) fn close_replaced(
        &mut self,
        out: &mut impl Sockets,
        replaced: Option<Box<Replaced>>,
    ) {
        if let Some(replaced) = replaced {
            self.channels.notify(out, &replaced.speaker, Reason::Rejoined);
            self.channels.apply(out, &replaced.speaker, replaced.pushes);
        }
    }

    /// Has a socket wait for the decision about its join, or for what `granted` waits for. It is
    /// not read meanwhile, so messages behind the join are handled in order (PROTOCOL §5.4).
    pub(super) fn await_join(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        decision: Decision<Join>,
        granted: Option<Granted>,
    ) {
        self.tickets = self.tickets.wrapping_add(1);
        let (key, ticket) = (joining.key, self.tickets);
        if !out.socket(key).is_some_and(Socket::is_open) {
            return self.channels.application.drop_guarded((granted, decision));
        }
        let _waits = self.node.begin(usize::from(self.shard), (key, ticket), decision);
        await_answer(out, key, AwaitedJoin { _waits, ..joining.awaited(ticket, granted) });
    }

    pub(super) fn no_longer_awaited(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        is_it: impl FnOnce(&AwaitedJoin) -> bool,
    ) -> Option<Box<AwaitedJoin>> {
        let own = out.socket_mut(key)?.own.as_mut()?;
        let awaited = own.awaited.take_if(|awaited| is_it(awaited))?;
        self.channels.resume(out, key);
        Some(awaited)
    }
}

/// Joins that waited: for the application's decision, or for what their clients have missed.
impl<N: Node> Core<N> {
    pub(crate) fn missed_came(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        ticket: u32,
        missed: Arc<Missed>,
        own: usize,
    ) {
        let is_it = |it: &AwaitedJoin| it.ticket == ticket;
        let Some(mut awaited) = self.no_longer_awaited(out, key, is_it) else { return };
        let Some(granted) = awaited.granted.take() else { return };
        let is_new = awaited.is_new;
        let joining = Joining::again(key, &mut awaited);
        let Some(resuming) = joining.resume.as_deref() else { return };
        let resumption =
            self.channels.histories.resumption(joining.topic, &resuming.said, is_new, missed, own);
        self.let_in_resumed(out, joining, granted, Some(resumption));
    }

    /// The decision about a join, which may not be awaited any more; `None`: it panicked.
    pub(crate) fn joined(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        ticket: u32,
        answer: Option<Join>,
    ) {
        let Some(mut awaited) = self.no_longer_awaited(out, key, |it| it.ticket == ticket) else {
            return self.channels.application.drop_guarded(answer);
        };
        let granted = awaited.granted.take();
        let joining = Joining::again(key, &mut awaited);
        match (answer, granted) {
            (Some(Join(JoinKind::Released)), Some(granted)) if joining.resume.is_some() => {
                self.request_missed(out, joining, granted);
            }
            (Some(Join(JoinKind::Released)), Some(granted)) => {
                self.let_in_resumed(out, joining, granted, None);
            }
            (Some(join), granted) => {
                self.channels.application.drop_guarded(granted);
                self.answer_join(out, joining, join, Vec::new());
            }
            (None, granted) => {
                self.channels.application.drop_guarded(granted);
                self.metrics.errors_callback_panic.add(1);
                self.refuse_join(out, joining, session::JOIN_CRASHED);
            }
        }
    }

    /// The application has not decided in time: the join is refused.
    pub(crate) fn join_overdue(&mut self, out: &mut impl Sockets, key: Key) {
        let Some(mut awaited) = self.no_longer_awaited(out, key, |_| true) else { return };
        self.metrics.errors_decision_timeout.add(1);
        if let Some(granted) = awaited.granted.take() {
            self.channels.application.drop_guarded(granted);
        }
        let joining = Joining::again(key, &mut awaited);
        self.refuse_join(out, joining, session::JOIN_TIMED_OUT);
    }
}

//! Joins: what is asked before the application is, what it decides, at once or later, and what
//! follows from that.

use std::sync::Arc;

use simurgh_history::{BadResume, Resume};
use simurgh_proto::message::{Message, OwnedRef, Payload, Ref};
use simurgh_proto::session::server as session;
use simurgh_proto::ws::CloseCode;
use simurgh_reactor::Key;

use crate::channel::{Channel, Join, JoinFn, JoinKind};
use crate::context::{Effect, Prepared};
use crate::core::{Core, Received};
use crate::effects::InHand;
use crate::frames::say;
use crate::mount::{Kind, Mount};
use crate::node::{Callback, Deciding, Node};
use crate::outcome::{Outcome, Reason};
use crate::history::call::{Ask, HistoryMail, Missed};
use crate::mail::Mail;
use crate::presence::call::home;
use crate::registry::{COUNTED, Holds, POSITIONS, Subscriber, WITHOUT_JOIN_REF};
use crate::socket::{AwaitedJoin, Granted, Phase, Replaced, Speaker};
use crate::sockets::Sockets;
use crate::wire::Wire;

/// Longest topic that can be joined. The protocol sets no limit, but a membership keeps its topic:
/// without one, a socket could pin a whole message for each of its channels.
const TOPIC_BYTES_MAX: usize = 16 << 10;
/// Longest join_ref, or ref of a join, of which a membership keeps one too.
const REF_BYTES_MAX: usize = 1 << 10;

/// A join on its way through the application, with what its reply will need.
struct Joining<'a> {
    topic: &'a str,
    join_ref: Ref<'a>,
    message: Ref<'a>,
    replaced: Option<Box<Replaced>>,
    /// What its client has heard of a kept topic, if it says so.
    resume: Option<Box<Resume>>,
}

impl<'a> Joining<'a> {
    /// One that was awaited.
    fn again(awaited: &'a mut AwaitedJoin) -> Self {
        Self {
            topic: &awaited.topic,
            join_ref: awaited.join_ref.as_ref(),
            message: awaited.message.as_ref(),
            replaced: awaited.replaced.take(),
            resume: awaited.resume.take(),
        }
    }
}

impl Joining<'_> {
    /// It waits for an answer.
    fn awaited(self, ticket: u32, granted: Option<Granted>) -> AwaitedJoin {
        let Self { topic, join_ref, message, replaced, resume } = self;
        let (join_ref, message) = (OwnedRef::from(join_ref), OwnedRef::from(message));
        let topic = topic.into();
        AwaitedJoin { topic, join_ref, message, replaced, ticket, resume, granted }
    }
}

/// What a client says that it has heard of a kept topic.
fn resume(payload: &Payload<'_>) -> Result<Option<Box<Resume>>, BadResume> {
    match payload {
        Payload::Json(text) => Ok(Resume::parse(text)?.map(Box::new)),
        Payload::Binary(_) | Payload::User(_) => Ok(None),
    }
}

impl<N: Node> Core<N> {
    /// A client wants to join; `joined` is the channel it has in that topic.
    pub(crate) fn join_topic(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joined: Option<u32>,
        received: Received<'_>,
    ) {
        let Received { message, prepared, .. } = received;
        let Some((mount, list)) = out.socket(key).map(|it| (it.mount, it.list)) else { return };
        let node = Arc::clone(&self.node);
        let Some(mount) = node.mount(mount) else { return };
        let Message { join_ref, msg_ref, topic, payload, .. } = message;
        let Some(route) = mount.route(&topic) else {
            self.metrics.errors_unmatched_topic.add(1);
            return say(out, &self.metrics, key, session::unmatched(&msg_ref, &topic));
        };
        if joined.is_none() && list.channels() >= mount.channels_max {
            self.metrics.joins_refused.add(1);
            let refusal = session::too_many_channels(&join_ref, &msg_ref, &topic);
            return say(out, &self.metrics, key, refusal);
        }
        let is_long = |raw: &str| raw.len() > REF_BYTES_MAX;
        if topic.len() > TOPIC_BYTES_MAX || is_long(join_ref.raw()) || is_long(msg_ref.raw()) {
            self.metrics.joins_refused.add(1);
            let refusal = session::join_too_long(&join_ref, &msg_ref, &topic);
            return self.say_behind(out, key, joined, refusal);
        }
        let resume = match self.keeps(&topic).then(|| resume(&payload)).transpose() {
            Ok(resume) => resume.flatten(),
            Err(error) => {
                tracing::debug!(topic = &*topic, %error, "a join says wrongly what its client has heard");
                self.metrics.joins_refused.add(1);
                let refusal = session::bad_resume(&join_ref, &msg_ref, &topic);
                return self.say_behind(out, key, joined, refusal);
            }
        };
        let replaced = joined.and_then(|old| self.replace(out, old));
        let joining = Joining { topic: &topic, join_ref, message: msg_ref, replaced, resume };
        self.ask_to_join(out, key, joining, payload, prepared, &route.join);
    }

    /// Asks a plain mount's join function, right after the upgrade.
    pub(crate) fn join_plain(&mut self, out: &mut impl Sockets, key: Key, mount: u8) {
        let node = Arc::clone(&self.node);
        let Some(Mount { kind: Kind::Plain { topic, join }, .. }) = node.mount(mount) else {
            return;
        };
        let (join_ref, message, replaced) = (Ref::Null, Ref::Null, None);
        let joining = Joining { topic, join_ref, message, replaced, resume: None };
        self.ask_to_join(out, key, joining, Payload::EMPTY_OBJECT, None, join);
    }

    fn ask_to_join(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: Joining<'_>,
        payload: Payload<'_>,
        prepared: Option<Prepared>,
        join: &JoinFn,
    ) {
        let state = out.socket(key).and_then(|socket| socket.state());
        let answer = self.application.join(state, joining.topic, payload, prepared, join);
        match answer {
            (Some(join), effects) => self.answer_join(out, key, joining, join, effects),
            (None, effects) => {
                self.apply_unjoined(out, key, joining.topic, effects);
                self.join_crashed(out, key, joining);
            }
        }
    }

    /// Carries out what a join function said.
    fn answer_join(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: Joining<'_>,
        join: Join,
        effects: Vec<Effect>,
    ) {
        let topic = joining.topic;
        match join.0 {
            JoinKind::Ok { channel, reply } => {
                let granted = Granted { channel, reply, effects };
                match joining.resume.is_some() {
                    true => self.ask_missed(out, key, joining, granted),
                    false => self.let_in(out, key, joining, granted, None),
                }
            }
            JoinKind::Error(response) => {
                self.metrics.joins_refused.add(1);
                self.refuse_join(out, key, joining, response);
                self.apply_unjoined(out, key, topic, effects);
            }
            JoinKind::Later(work) => {
                self.await_join(out, key, joining, work);
                self.apply_unjoined(out, key, topic, effects);
            }
        }
    }

    /// Asks what a client has missed that is let in, and has its socket wait for that.
    fn ask_missed(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: Joining<'_>,
        granted: Granted,
    ) {
        let Some(resume) = &joining.resume else { return };
        let (client, tick) = (self.client(resume), out.now().tick);
        let sent = self.history.as_ref().map(|it| &it.departures);
        let since = resume.since;
        let since = sent.map_or(since, |it| it.floor(key, joining.topic, since, tick));
        self.tickets = self.tickets.wrapping_add(1);
        let ask = Ask {
            topic: joining.topic.into(),
            since,
            partial: resume.partial,
            shard: self.shard,
            conn: key,
            ticket: self.tickets,
        };
        let home = home(joining.topic, self.node.shards());
        if home == usize::from(self.shard) {
            let missed = self.missed(out, &ask).map(|missed| (client, missed));
            return self.let_in(out, key, joining, granted, missed);
        }
        let Some(socket) = out.socket_mut(key).filter(|socket| socket.is_open()) else {
            return self.application.drop_guarded(granted);
        };
        socket.enter(Phase::Waiting, tick);
        let awaited = joining.awaited(ask.ticket, Some(granted));
        socket.own.get_or_insert_default().awaited = Some(Box::new(awaited));
        out.hold(key);
        self.node.post(home, Mail::History(HistoryMail::Ask(Box::new(ask))));
    }

    /// What a client has missed whose socket waits for that.
    pub(crate) fn heard_missed(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        ticket: u32,
        missed: Arc<Missed>,
    ) {
        let is_it = |it: &AwaitedJoin| it.ticket == ticket;
        let Some(mut awaited) = self.no_longer_awaited(out, key, is_it) else { return };
        let Some(granted) = awaited.granted.take() else { return };
        let client = awaited.resume.as_ref().map_or(0, |resume| self.client(resume));
        let joining = Joining::again(&mut awaited);
        self.let_in(out, key, joining, granted, Some((client, missed)));
    }

    /// As whom a client joins: the same on all shards.
    fn client(&self, resume: &Resume) -> u64 {
        resume.id_hash(self.node.id()).unwrap_or(0)
    }

    /// Makes the membership, and only then answers (PROTOCOL §5.5).
    fn let_in(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: Joining<'_>,
        granted: Granted,
        missed: Option<(u64, Arc<Missed>)>,
    ) {
        let Granted { channel, reply, effects } = granted;
        // Which events it wants to see is the application's to say, and may panic too.
        let Some(intercepts) = self.application.ask(|| !channel.intercept().is_empty()) else {
            self.application.drop_guarded(channel);
            let topic = joining.topic;
            self.join_crashed(out, key, joining);
            return self.apply_unjoined(out, key, topic, effects);
        };
        let key_of_client = missed.as_ref().map(|(client, _)| *client);
        let ways = (intercepts, key_of_client);
        let Some(membership) = self.enter_topic(out, key, &joining, channel, ways) else {
            return;
        };
        self.metrics.joins.add(1);
        self.reply_join(out, key, &joining, "ok", reply);
        self.close_replaced(out, joining.replaced);
        let id = self.name_of(membership);
        if let Some((client, missed)) = missed {
            self.tell_missed(out, membership, client, &missed);
        }
        let Some(membership) = id.and_then(|id| self.live(id)) else {
            return self.application.drop_guarded(effects);
        };
        let membership = match effects.is_empty() {
            true => {
                self.application.keep(effects);
                membership
            }
            false => {
                let Some(speaker) = self.speaker(out, membership) else { return };
                self.apply(out, &speaker, effects);
                self.end_as_wanted(out, speaker.id);
                let Some(membership) = self.live(speaker.id) else { return };
                membership
            }
        };
        self.call(out, membership, Callback::AfterJoin, InHand::default(), |channel, ctx| {
            channel.after_join(ctx);
            Outcome::NoReply
        });
    }

    fn enter_topic(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: &Joining<'_>,
        channel: Box<dyn Channel>,
        (intercepts, client): (bool, Option<u64>),
    ) -> Option<u32> {
        let Some(socket) = out.socket_mut(key).filter(|socket| socket.is_open()) else {
            // The channel that this join replaced has closed the socket with its last breath.
            self.application.drop_guarded(channel);
            return None;
        };
        let is_counted = self.node.mount(socket.mount).is_some_and(|it| it.count_members);
        let Joining { topic, join_ref: given, message, .. } = joining;
        let join_ref = OwnedRef::from(session::push_join_ref(given, message));
        let mut flags = 0;
        if given.is_null() {
            flags |= WITHOUT_JOIN_REF;
        }
        if is_counted {
            flags |= COUNTED;
        }
        if client.is_some() {
            flags |= POSITIONS;
        }
        let holds = Holds::Channel(channel);
        let subscriber = Subscriber { holds, join_ref, through_channel: intercepts, flags };
        let entered = self.registry.subscribe(&mut socket.list, key, topic, subscriber);
        match entered {
            Ok(membership) => {
                if let Some(client @ 1..) = client {
                    self.fanout.keys.get_or_insert_default().set(membership, client);
                }
                if is_counted {
                    self.node.count_in(topic);
                }
                Some(membership)
            }
            Err(holds) => {
                // No memory is left.
                self.application.drop_guarded(holds);
                None
            }
        }
    }

    /// Speaks for a join that has made no channel (yet): carries out all that concerns others, or
    /// the socket.
    fn apply_unjoined(
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
                "a join function did this before its join was decided, and \
                there is no channel: dropped; after_join is the place for it"
            );
        }
        if effects.is_empty() {
            return self.application.keep(effects);
        }
        let nobody = Speaker {
            conn: key,
            wire: out.socket(key).map_or(Wire::V2, |socket| socket.wire),
            topic: topic.into(),
            join_ref: OwnedRef::NULL,
            is_given: false,
            id: self.application.nobody(),
        };
        self.apply(out, &nobody, effects);
    }

    fn join_crashed(&mut self, out: &mut impl Sockets, key: Key, joining: Joining<'_>) {
        self.metrics.joins_refused.add(1);
        self.refuse_join(out, key, joining, session::JOIN_CRASHED);
    }

    fn refuse_join(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: Joining<'_>,
        response: Payload<'static>,
    ) {
        self.reply_join(out, key, &joining, "error", response);
        self.close_replaced(out, joining.replaced);
        if out.socket(key).is_some_and(|socket| socket.wire == Wire::Plain) {
            self.close_with(out, key, CloseCode::POLICY);
        }
    }

    fn reply_join(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: &Joining<'_>,
        status: &str,
        response: Payload<'static>,
    ) {
        if out.socket(key).is_none_or(|socket| socket.wire == Wire::Plain) {
            return;
        }
        let Joining { topic, join_ref, message, .. } = joining;
        let reply = session::reply_join(join_ref, message, topic, status, response);
        say(out, &self.metrics, key, reply);
    }

    /// Ends the old channel of a topic that is joined again; its last words wait for the new reply.
    fn replace(&mut self, out: &mut impl Sockets, membership: u32) -> Option<Box<Replaced>> {
        let id = self.name_of(membership)?;
        self.bring_up_to_date(out, membership);
        let speaker = self.live(id).and_then(|it| self.speaker(out, it))?;
        let effects = self.take_out(out, &speaker, Reason::Rejoined);
        let (pushes, others): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::Push(..)));
        self.apply(out, &speaker, others);
        Some(Box::new(Replaced { speaker, pushes }))
    }

    fn close_replaced(&mut self, out: &mut impl Sockets, replaced: Option<Box<Replaced>>) {
        if let Some(replaced) = replaced {
            self.notify(out, &replaced.speaker, Reason::Rejoined);
            self.apply(out, &replaced.speaker, replaced.pushes);
        }
    }

    /// Has a socket wait for the application's word on its join. It is not read meanwhile, and what
    /// came behind waits with it; so everything is handled in the order in which it came (PROTOCOL
    /// §5.4).
    fn await_join(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joining: Joining<'_>,
        work: Deciding,
    ) {
        self.tickets = self.tickets.wrapping_add(1);
        let (ticket, tick) = (self.tickets, out.now().tick);
        let Some(socket) = out.socket_mut(key).filter(|socket| socket.is_open()) else {
            return self.application.drop_guarded(work);
        };
        socket.enter(Phase::Waiting, tick);
        let awaited = joining.awaited(ticket, None);
        socket.own.get_or_insert_default().awaited = Some(Box::new(awaited));
        out.hold(key);
        self.node.decide(usize::from(self.shard), key, ticket, work);
    }

    /// What was awaited has come, or something that is not awaited any more; no answer is one that
    /// panicked.
    pub(crate) fn joined(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        ticket: u32,
        answer: Option<Join>,
    ) {
        let Some(mut awaited) = self.no_longer_awaited(out, key, |it| it.ticket == ticket) else {
            return self.application.drop_guarded(answer);
        };
        let joining = Joining::again(&mut awaited);
        match answer {
            Some(join) => self.answer_join(out, key, joining, join, Vec::new()),
            None => {
                self.metrics.errors_callback_panic.add(1);
                self.join_crashed(out, key, joining);
            }
        }
    }

    /// The application has not decided in time: the client is told so.
    pub(crate) fn join_overdue(&mut self, out: &mut impl Sockets, key: Key) {
        let Some(mut awaited) = self.no_longer_awaited(out, key, |_| true) else { return };
        self.metrics.errors_decision_timeout.add(1);
        self.metrics.joins_refused.add(1);
        if let Some(granted) = awaited.granted.take() {
            self.application.drop_guarded(granted);
        }
        let joining = Joining::again(&mut awaited);
        self.refuse_join(out, key, joining, session::JOIN_TIMED_OUT);
    }

    /// Has a socket go on that waits for a join, if that is the one.
    fn no_longer_awaited(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        is_it: impl FnOnce(&AwaitedJoin) -> bool,
    ) -> Option<Box<AwaitedJoin>> {
        let own = out.socket_mut(key)?.own.as_mut()?;
        let awaited = own.awaited.take_if(|awaited| is_it(awaited))?;
        self.resume(out, key);
        Some(awaited)
    }
}

#[cfg(test)]
mod tests;

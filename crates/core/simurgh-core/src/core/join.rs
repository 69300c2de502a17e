//! Joins: checks before the application is called, its decision, and what follows from it.

use simurgh_channel::{
    Admission, Callback, Decision, Effect, Join, JoinFn, JoinKind, Kind, Node, Outcome,
    PARSED_BYTES_MAX, Prepared, Publisher, ShardChannel, ShardContext, TOPIC_BYTES_MAX, UserSocket,
};
use simurgh_data::Key;
use simurgh_proto::message::{Message, OwnedRef, Payload, Ref};
use simurgh_proto::session::server as session;

use super::channels::CurrentMessage;
use super::joining::{Joining, await_answer, reply_join, resume};
use crate::application::Subject;
use crate::core::{Core, Received};
use crate::frames::send;
use crate::history::{Recovery, Resumption};
use crate::registry::{COUNTED, Holds, POSITIONS, Subscriber, WITHOUT_JOIN_REF};
use crate::socket::{AwaitedJoin, Granted, Resuming, Socket};
use crate::sockets::Sockets;
use crate::wire::Wire;
use simurgh_data::prelude::*;

/// Longest ref of a join, bytes. The protocol sets no limit to it or to a topic, but a membership
/// keeps both: without limits a socket could pin a whole message for each of its channels.
const REF_BYTES_MAX: usize = 1 << 10;

/// Topics up to this many bytes are never too many for a socket.
const SHORT_TOPIC_BYTES: usize = 1 << 10;
/// Bytes of all topics of a socket, if it joins longer ones.
const TOPICS_BYTES_MAX: usize = 64 << 10;

impl<N: Node> Core<N> {
    /// A client joins; `joined` is the channel it has in that topic.
    pub(crate) fn join_topic(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        joined: Option<u32>,
        received: Received<'_>,
    ) {
        let Received { message, prepared, .. } = received;
        let Some(socket) = out.socket(key) else { return };
        let (user_socket, list, wire) = (socket.user_socket, socket.list, socket.wire);
        let node = Arc::clone(&self.node);
        let Some(user_socket) = node.user_socket(user_socket) else { return };
        let Message { join_ref, msg_ref, topic, payload, .. } = message;
        let Some(route) = user_socket.route(&topic) else {
            self.metrics.errors_unmatched_topic.add(1);
            return send(out, &self.metrics, key, session::unmatched(&msg_ref, &topic));
        };
        let is_long = |raw: &str| raw.len() > REF_BYTES_MAX;
        let is_too_long = topic.len() > TOPIC_BYTES_MAX
            || (joined.is_none()
                && topic.len() > SHORT_TOPIC_BYTES
                && topic.len() + self.channels.registry.topic_bytes(list) > TOPICS_BYTES_MAX);
        // Sockets within the process get no history.
        let may_resume = wire != Wire::Values && self.node.keeps(&topic);
        let resume = if joined.is_none() && list.channels() >= user_socket.channels_max {
            Err(session::TOO_MANY_CHANNELS)
        } else if is_too_long || is_long(join_ref.raw()) || is_long(msg_ref.raw()) {
            Err(session::JOIN_TOO_LONG)
        } else if !may_resume {
            Ok(None)
        } else if payload.len() > PARSED_BYTES_MAX {
            Err(session::JOIN_PAYLOAD_TOO_LONG)
        } else {
            resume(&payload, out).map_err(|error| {
                let text = "a join has invalid parameters for resuming";
                tracing::debug!(topic = &*topic, %error, "{text}");
                session::BAD_RESUME
            })
        };
        let resume = match resume {
            Ok(resume) => resume,
            Err(response) => {
                self.metrics.joins_refused.add(1);
                let refusal = session::reply(&join_ref, &msg_ref, &topic, "error", response);
                return self.channels.send_behind(out, key, joined, refusal);
            }
        };
        let replaced = joined.and_then(|old| self.replace(out, old));
        let joining = Joining { key, topic: &topic, join_ref, message: msg_ref, replaced, resume };
        self.ask_to_join(out, joining, payload, prepared, &route.join);
    }

    /// Calls a plain user socket's join function, right after the upgrade.
    pub(crate) fn join_plain(&mut self, out: &mut impl Sockets, key: Key, user_socket: u8) {
        let node = Arc::clone(&self.node);
        let Some(UserSocket { kind: Kind::Plain { topic, join }, .. }) =
            node.user_socket(user_socket)
        else {
            return;
        };
        let (join_ref, message, replaced) = (Ref::Null, Ref::Null, None);
        let joining = Joining { key, topic, join_ref, message, replaced, resume: None };
        self.ask_to_join(out, joining, Payload::EMPTY_OBJECT, None, join);
    }

    fn ask_to_join(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        payload: Payload<'_>,
        prepared: Option<Prepared>,
        join: &JoinFn,
    ) {
        self.decide_join(out, joining, prepared, |ctx| join(ctx, payload));
    }

    fn decide_join(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        prepared: Option<Prepared>,
        decide: impl FnOnce(&mut ShardContext<'_>) -> Join,
    ) {
        let Joining { key, topic, resume, .. } = &joining;
        let about = Subject {
            socket: out.socket(*key).and_then(|socket| socket.state()),
            topic,
            channel: self.channels.application.nobody(),
            message: None,
            prepared,
            resume: resume.as_ref().map(|it| &it.said),
        };
        match self.channels.application.run(about, Callback::Join, decide) {
            (Some(join), effects) => self.answer_join(out, joining, join, effects),
            (None, effects) => {
                self.apply_unjoined(out, joining.key, joining.topic, effects);
                self.refuse_join(out, joining, session::JOIN_CRASHED);
            }
        }
    }

    pub(super) fn answer_join(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        join: Join,
        effects: Vec<Effect>,
    ) {
        let (key, topic) = (joining.key, joining.topic);
        match join.0 {
            JoinKind::Ok(admission) => {
                let granted = Granted { admission, effects };
                if joining.resume.is_some() {
                    return self.request_missed(out, joining, granted);
                }
                self.let_in(out, joining, granted, None);
            }
            JoinKind::Error(response) => {
                self.refuse_join(out, joining, response);
                self.apply_unjoined(out, key, topic, effects);
            }
            JoinKind::Later(work) => {
                self.await_join(out, joining, work, None);
                self.apply_unjoined(out, key, topic, effects);
            }
            JoinKind::Held(admission, until) => {
                let granted = Granted { admission, effects };
                self.await_join(out, joining, Decision::Work(until), Some(granted));
            }
            JoinKind::OnShard(decide) => {
                self.apply_unjoined(out, key, topic, effects);
                self.decide_join(out, joining, None, decide);
            }
            // Only a held join is released.
            JoinKind::Released => self.refuse_join(out, joining, session::JOIN_CRASHED),
        }
    }

    pub(super) fn request_missed(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        granted: Granted,
    ) {
        let Some(Resuming { said: resume, .. }) = joining.resume.as_deref() else { return };
        let key = joining.key;
        if !out.socket(key).is_some_and(Socket::is_open) {
            return self.channels.application.drop_guarded(granted);
        }
        self.tickets = self.tickets.wrapping_add(1);
        let ticket = self.tickets;
        match self.channels.histories.join(key, ticket, joining.topic, resume, out.now()) {
            Recovery::Now(resumption) => {
                self.let_in_resumed(out, joining, granted, Some(resumption));
            }
            Recovery::Later { is_new } => {
                let granted = Some(granted);
                await_answer(out, key, AwaitedJoin { is_new, ..joining.awaited(ticket, granted) });
            }
        }
    }

    /// The same for a client that receives positions.
    #[inline(never)]
    pub(super) fn let_in_resumed(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        granted: Granted,
        resumption: Option<Resumption>,
    ) {
        self.let_in(out, joining, granted, resumption);
    }

    /// Makes the membership, and only then answers (PROTOCOL §5.5). Joins without history must not
    /// pay for it.
    #[inline(always)]
    fn let_in(
        &mut self,
        out: &mut impl Sockets,
        joining: Joining<'_>,
        granted: Granted,
        resumption: Option<Resumption>,
    ) {
        let Granted { admission: Admission { channel, reply, starts }, effects } = granted;
        // `intercept` is application code, too, and may panic.
        let Some(intercepts) = self.channels.application.ask(|| !channel.intercept().is_empty())
        else {
            self.channels.application.drop_guarded(channel);
            let (key, topic) = (joining.key, joining.topic);
            self.refuse_join(out, joining, session::JOIN_CRASHED);
            return self.apply_unjoined(out, key, topic, effects);
        };
        let ways = (intercepts, resumption.as_ref().map(|resumption| resumption.client));
        let Some(mut membership) = self.enter_topic(out, &joining, channel, ways) else {
            return;
        };
        self.metrics.joins.add(1);
        reply_join(out, &self.metrics, &joining, "ok", reply);
        self.close_replaced(out, joining.replaced);
        if let Some(resumption) = resumption {
            let id = self.channels.registry.channel_id(membership);
            self.channels.send_missed(out, membership, &resumption);
            if let Some(resuming) = &joining.resume {
                let took_ns = out.clock_ns().saturating_sub(resuming.at_ns);
                self.metrics.resume_times.add(took_ns);
            }
            // Its interceptor may have ended it by what it saw.
            if id.and_then(|id| self.channels.registry.live(id)).is_none() {
                return self.channels.application.drop_guarded(effects);
            }
        }
        if effects.is_empty() {
            self.channels.application.keep(effects);
        } else {
            let Some(speaker) = self.channels.speaker(out, membership) else { return };
            self.channels.apply(out, &speaker, effects);
            self.channels.end_if_stopped(out, speaker.id);
            let Some(live) = self.channels.registry.live(speaker.id) else { return };
            membership = live;
        }
        let current = CurrentMessage::default();
        self.channels.call(out, membership, Callback::AfterJoin, current, |channel, ctx| {
            starts.into_iter().for_each(|start| start(ctx));
            channel.after_join(ctx);
            Outcome::NoReply
        });
    }

    #[inline(always)]
    fn enter_topic(
        &mut self,
        out: &mut impl Sockets,
        joining: &Joining<'_>,
        channel: Box<dyn ShardChannel>,
        (intercepts, client): (bool, Option<u64>),
    ) -> Option<u32> {
        let Joining { key, topic, join_ref: given, message, .. } = joining;
        let Some(socket) = out.socket_mut(*key).filter(|socket| socket.is_open()) else {
            // The channel that this join replaced may have closed the socket in `terminate`.
            self.channels.application.drop_guarded(channel);
            return None;
        };
        let is_counted =
            self.node.user_socket(socket.user_socket).is_some_and(|it| it.count_members);
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
        let subscriber = Subscriber { holds, join_ref, via_channel: intercepts, flags };
        let entered = self.channels.registry.subscribe(&mut socket.list, *key, topic, subscriber);
        match entered {
            Ok(membership) => {
                if let Some(client @ 1..) = client {
                    self.channels.registry.set_client(membership, client);
                }
                if is_counted {
                    self.node.member_joined(topic);
                }
                let wants = |topic: &str| self.channels.histories.retention(topic);
                self.channels.fanout.member_added(&mut self.channels.registry, membership, wants);
                if self.channels.sightings.is_some() {
                    self.channels.report_member(out, membership, None);
                }
                Some(membership)
            }
            Err(holds) => {
                // No memory is left.
                self.channels.application.drop_guarded(holds);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;

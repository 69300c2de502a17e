//! Messages that exceed a limit (PROTOCOL §6.7).

use simurgh_channel::{LimitPolicy, Node, Reply};
use simurgh_data::Key;
use simurgh_notices::Reason as Why;
use simurgh_proto::message::{Message, Ref};
use simurgh_proto::session::server::{self as session, MessageKind};
use simurgh_proto::ws::CloseCode;

use crate::core::{Core, Received};
use crate::fanout::Registry;
use crate::frames::send;
use crate::metering::Metered;
use crate::meters::Exceeded;
use crate::socket::Socket;
use crate::sockets::Sockets;

impl<N: Node> Core<N> {
    /// Whether a message exceeds a limit; if so, it is answered here. `joined` is the channel of
    /// its topic.
    #[inline(never)]
    pub(super) fn is_limited(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        kind: MessageKind,
        joined: Option<u32>,
        received: &Received<'_>,
    ) -> bool {
        let Some(Socket { user_socket, wire, .. }) = out.socket(key) else { return false };
        let Some(user_socket) = self.node.user_socket(*user_socket) else { return false };
        let Some(meters) = &mut self.channels.meters else { return false };
        let (message, now_ns) = (&received.message, out.now().ns);
        let is_current = |it: u32| !is_stale(&self.channels.registry, it, message);
        let is_for = kind == MessageKind::Push && joined.is_some_and(is_current);
        let metered = Metered::new(message, received.taken_bytes, kind, is_for, *wire);
        let exceeded = meters.charge_message(user_socket, key, &metered, now_ns);
        let Some(exceeded) = exceeded else { return false };
        let closes = exceeded.policy == LimitPolicy::Close;
        // Unanswered heartbeats and leaves would leave client and server in different states.
        if matches!(kind, MessageKind::Heartbeat | MessageKind::Leave) && !closes {
            return false;
        }
        meters.note(key, exceeded.limit, now_ns);
        if kind == MessageKind::Join {
            self.metrics.joins_refused.add(1);
        }
        match exceeded.policy {
            LimitPolicy::Reply => {
                self.reply_limited(out, key, kind, joined, &received.message, exceeded);
            }
            LimitPolicy::Drop => {}
            LimitPolicy::Close => {
                let reason = exceeded.limit.close_reason();
                self.channels.close_because(out, key, CloseCode::POLICY, reason, Why::Closed);
            }
        }
        true
    }

    fn reply_limited(
        &mut self,
        out: &mut impl Sockets,
        key: Key,
        kind: MessageKind,
        joined: Option<u32>,
        message: &Message<'_>,
        exceeded: Exceeded,
    ) {
        let Message { join_ref, msg_ref, topic, .. } = message;
        let response = exceeded.response();
        if kind == MessageKind::Join {
            let refusal = session::reply(join_ref, msg_ref, topic, "error", response);
            return self.channels.send_behind(out, key, joined, refusal);
        }
        let Some(channel) = joined else {
            let refusal = session::reply(&Ref::Null, msg_ref, topic, "error", response);
            return send(out, &self.metrics, key, refusal);
        };
        // A replaced channel gets no answer, and plain messages have none.
        let is_plain = out.socket(key).is_none_or(|socket| socket.wire.is_plain());
        if is_plain || is_stale(&self.channels.registry, channel, message) {
            return;
        }
        let Some(id) = self.channels.registry.channel_id(channel) else { return };
        self.channels.reply_to(out, channel, Some(msg_ref.borrow()), Reply::error(response));
        self.channels.end_if_stopped(out, id);
    }
}

fn is_stale(registry: &Registry, channel: u32, message: &Message<'_>) -> bool {
    let joined = registry.member(channel);
    joined.is_none_or(|it| session::is_stale(message, &it.join_ref.as_ref()))
}

#[cfg(test)]
mod tests;

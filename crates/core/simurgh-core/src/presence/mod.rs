//! Presence: who is in a topic (PROTOCOL §10).
//!
//! The presences of a topic are kept by one shard, its home, for members on all shards. Members
//! send changes of their entries to the home by mail. The home sends diffs as broadcasts and lists
//! as pushes, both by mail to all shards, including its own, so that each shard gets them in the
//! order in which they were made.

mod held_leaves;
pub(crate) mod home;
mod home_leaves;
mod output;
mod peers;
mod topic;
mod topic_peers;

use alloc::sync::Arc;
use core::time::Duration;

use simurgh_channel::{
    Broadcast, Charge, Mail, Node, Posted, PresenceCall, PresenceMail, Publisher, SharedEvent,
    SharedPush, ToCluster,
};
use simurgh_data::Next;
use simurgh_proto::message::Payload;

use self::home::MemberCall;
use self::output::Output;
use crate::core::Core;
use crate::registry::TRACKS;
use crate::socket::Speaker;
use crate::sockets::Sockets;

/// The cost of checking a topic, in bytes; so one turn checks 128 topics.
const TOPIC_BYTES: usize = 8 << 10;
/// How long presences wait while too much is in flight.
const WAIT_MAX: Duration = Duration::from_millis(5);

type Events = Arc<[SharedEvent]>;

impl<N: Node> Core<N> {
    /// Does what a channel requests about its presences, unless it has ended. Returns the events
    /// that it is pushed at once, if it requests the list and this shard has the answer: with the
    /// reply to its join that is one write.
    pub(crate) fn presence_call(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        call: PresenceCall,
    ) -> Option<Events> {
        let Speaker { id, topic, .. } = speaker;
        let is_live = self.registry.member(id.membership).map(|it| it.generation);
        if is_live != Some(id.generation) {
            return None;
        }
        if self.node.cluster().is_some() && self.registry.mark(id.membership, TRACKS, true) {
            self.node.post_home(topic, PresenceMail::Begin, None);
        }
        if matches!(call, PresenceCall::PushState)
            && let Some(told) = self.presence.answer(topic)
        {
            return Some(told);
        }
        self.registry.mark(id.membership, TRACKS, true);
        self.post_presence(out, speaker, call);
        None
    }

    /// Sends a call to the topic's home. It counts in the topic's flow until members have been sent
    /// what it changes: the socket of a member that calls faster is not read meanwhile.
    pub(crate) fn post_presence(
        &mut self,
        out: &mut impl Sockets,
        speaker: &Speaker,
        call: PresenceCall,
    ) {
        let Speaker { id, conn, topic, .. } = speaker;
        let mail = PresenceMail::Call(*id, call);
        let bytes = mail.weight() + topic.len();
        let admitted = self.fanout.charge(&mut self.registry, topic, bytes);
        self.node.post_home(topic, mail, Some(Arc::clone(&admitted.charge)));
        self.fanout.hold_back(out, *conn, admitted);
    }

    pub(crate) fn presence_came(
        &mut self,
        out: &impl Sockets,
        topic: &str,
        mail: PresenceMail,
        charge: Option<Arc<Charge>>,
    ) {
        let (node, now_ns) = (Arc::clone(&self.node), out.now().ns);
        let (shard, config) = (self.shard, &node.config().presence);
        node.discharge(usize::from(shard), mail.weight() + topic.len());
        let home = &mut self.presence;
        match mail {
            PresenceMail::Call(channel, call) => {
                let call = MemberCall { channel, call, charge };
                if !home.call(topic, call, config, now_ns) {
                    self.metrics.errors_presence_refused.add(1);
                    let entries_max = config.channel_entries_max;
                    tracing::debug!(
                        topic,
                        entries_max,
                        "refused a presence call: already tracked, not tracked, or too many"
                    );
                }
            }
            PresenceMail::List(answer) => {
                if let Some((answer, list)) = home.list(topic, answer, config, now_ns) {
                    self.application.ask(|| answer(list));
                }
            }
            PresenceMail::ListAnswer(events) => home.keep(topic, events),
            PresenceMail::Begin => home.begin(topic, config, now_ns),
            PresenceMail::Peers(what) => home.peers_message(topic, what, config, now_ns),
        }
        self.update_peers();
        self.count_presences();
    }

    fn update_peers(&mut self) {
        let Some(cluster) = self.node.cluster() else { return };
        for (topic, what) in self.presence.take_outbox() {
            cluster.send(ToCluster::Presence((&*topic).into(), what));
        }
    }

    pub(crate) fn send_presences(&mut self, out: &impl Sockets) -> Next {
        let home = &mut self.presence;
        if home.is_empty() {
            return Next::Idle;
        }
        let (node, now) = (Arc::clone(&self.node), out.now());
        let config = node.config();
        home.go_on_forgetting(&config.presence, now.ns);
        let bytes_max = config.broadcast_bytes_max();
        let mut bytes = 0;
        while bytes < config.presence.turn_bytes.max(1) {
            let Some(topic) = home.take_due(now.ns) else { break };
            // The cost of looking at a topic with little to send.
            bytes += TOPIC_BYTES;
            if node.is_congested() {
                home.postpone(topic, now.ns + WAIT_MAX.as_nanos() as u64);
                break;
            }
            for output in home.tell(&topic, &config.presence, bytes_max, now.ns) {
                self.metrics.presence_events.add(output.events() as u64);
                bytes += output.bytes();
                match output {
                    Output::Answer(answer, list) => drop(self.application.ask(|| answer(list))),
                    output => post_output(&*node, &topic, output),
                }
            }
        }
        home.release_leaves(config.mailbox_bytes_max, &config.presence, now.ns);
        let (next_ns, is_forgetting) = (home.next_ns(), home.is_forgetting());
        self.update_peers();
        self.count_presences();
        match next_ns {
            _ if is_forgetting => Next::Now,
            None => Next::Idle,
            Some(next_ns) if next_ns <= now.ns => Next::Now,
            Some(next_ns) => Next::After(Duration::from_nanos(next_ns - now.ns)),
        }
    }

    fn count_presences(&self) {
        self.metrics.presences.set(self.presence.entries() as u64);
        self.metrics.presences_remote.set(self.presence.remote() as u64);
    }
}

fn post_output<N: Node>(node: &N, topic: &str, output: Output) {
    match output {
        Output::All(event, json) => {
            let broadcast = Arc::new(Broadcast::new(topic, event, Payload::from_json(json)));
            for shard in 0..node.shards() {
                node.post_charged(shard, Posted::new(Arc::clone(&broadcast), None));
            }
        }
        Output::Keep(events) => {
            for shard in 0..node.shards() {
                let mail = PresenceMail::ListAnswer(events.clone());
                let bytes = mail.weight() + topic.len();
                node.post_weighed(shard, bytes, Mail::Presence(topic.into(), mail, None));
            }
        }
        Output::Some(events, channels) | Output::Again(events, channels) => {
            for channels in channels.chunk_by(|one, other| one.shard == other.shard) {
                let Some(shard) = channels.first().map(|it| usize::from(it.shard)) else {
                    continue;
                };
                let push = SharedPush { channels: channels.to_vec(), events: Arc::clone(&events) };
                node.post_weighed(shard, push.weight(), Mail::Push(push));
            }
        }
        // A panic of the callback must not reach the shard.
        Output::Answer(..) => {}
    }
}

#[cfg(test)]
mod tests;

//! Presence: who is in a topic (PROTOCOL §10).
//!
//! The presences of a topic are kept by one shard, its home, for members on all shards. Members
//! send changes of their entries to the home by mail. The home sends diffs as broadcasts and lists
//! as pushes, both by mail to all shards, including its own, so that each shard gets them in the
//! order in which they were made.

mod home;
mod home_leaves;
mod output;
mod peers;
mod topic;
mod topic_peers;

use core::time::Duration;

use simurgh_channel::metrics::ShardMetrics;
use simurgh_channel::{
    Broadcast, Charge, Mail, Node, Posted, PresenceCall, PresenceMail, Publisher, SharedEvent,
    SharedPush, ToCluster,
};
use simurgh_data::{Next, Now};
use simurgh_presence::Owner;
use simurgh_proto::message::Payload;

use self::home::{Home, MemberCall};
use self::output::Output;
use crate::application::ask;
use crate::fanout::{Fanout, Registry};
use crate::registry::TRACKS;
use crate::socket::Speaker;
use crate::sockets::Sockets;
use simurgh_data::prelude::*;

/// The cost of checking a topic, in bytes; so one turn checks 128 topics.
const TOPIC_BYTES: usize = 8 << 10;
/// How long presences wait while too much is in flight.
const WAIT_MAX: Duration = Duration::from_millis(5);

type Events = Arc<[SharedEvent]>;

/// Presences as counts, for display and tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PresenceCounts {
    /// Topics whose home this shard is, and that have presences or something to send.
    pub topics: usize,
    /// Entries of these topics.
    pub entries: usize,
    /// Topics whose members receive their number from this shard, whichever their home is.
    pub answers: usize,
    /// Bytes of calls whose changes members have not been sent.
    pub bytes: usize,
    /// Whether members are still to be sent something.
    pub is_due: bool,
}

/// The presences of topics whose home this shard is, and the calls of channels here.
pub(crate) struct Presences<N: Node> {
    node: Arc<N>,
    metrics: Arc<ShardMetrics>,
    shard: u16,
    home: Home,
}

impl<N: Node> Presences<N> {
    pub(crate) fn new(node: Arc<N>, metrics: Arc<ShardMetrics>, shard: u16, seed: u64) -> Self {
        let is_clustered = node.cluster().is_some();
        let home = Home::new(Owner(node.id()), shard, is_clustered, seed);
        Self { node, metrics, shard, home }
    }

    pub(crate) fn reload(&mut self, node: &Arc<N>) {
        self.node = Arc::clone(node);
    }

    pub(crate) fn counts(&self) -> PresenceCounts {
        PresenceCounts {
            topics: self.home.topics.len(),
            entries: self.home.entries,
            answers: self.home.answers(),
            bytes: self.home.charged_bytes(),
            is_due: self.home.next_ns().is_some(),
        }
    }

    /// A node of the cluster is gone.
    pub(crate) fn forget(&mut self, node: Owner) {
        self.home.forget(node);
    }

    /// Does what a channel requests about its presences, unless it has ended. Returns the events
    /// that it is pushed at once, if it requests the list and this shard has the answer: with the
    /// reply to its join that is one write.
    pub(crate) fn call(
        &self,
        registry: &mut Registry,
        fanout: &mut Fanout<N>,
        out: &mut impl Sockets,
        speaker: &Speaker,
        call: PresenceCall,
    ) -> Option<Events> {
        let member = registry.live(speaker.id)?;
        if self.node.cluster().is_some() && registry.mark(member, TRACKS, true) {
            self.node.post_home(&speaker.topic, PresenceMail::Begin, None);
        }
        if matches!(call, PresenceCall::PushState)
            && let Some(told) = self.home.answer(&speaker.topic)
        {
            return Some(told);
        }
        registry.mark(member, TRACKS, true);
        self.post(registry, fanout, out, speaker, call);
        None
    }

    /// Sends a call to the topic's home. It counts in the topic's flow until members have been sent
    /// what it changes: the socket of a member that calls faster is not read meanwhile.
    pub(crate) fn post(
        &self,
        registry: &mut Registry,
        fanout: &mut Fanout<N>,
        out: &mut impl Sockets,
        speaker: &Speaker,
        call: PresenceCall,
    ) {
        let Speaker { id, conn, topic, .. } = speaker;
        let mail = PresenceMail::Call(*id, call);
        let admitted = fanout.charge(registry, topic, mail.weight() + topic.len());
        self.node.post_home(topic, mail, Some(Arc::clone(&admitted.charge)));
        fanout.hold_back(out, *conn, admitted);
    }

    pub(crate) fn came(
        &mut self,
        now: Now,
        topic: &str,
        mail: PresenceMail,
        charge: Option<Arc<Charge>>,
    ) {
        let Self { node, metrics, shard, home } = self;
        let (config, now_ns) = (&node.config().presence, now.ns);
        node.discharge(usize::from(*shard), mail.weight() + topic.len());
        match mail {
            PresenceMail::Call(channel, call) => {
                let call = MemberCall { channel, call, charge };
                if !home.call(topic, call, config, now_ns) {
                    metrics.errors_presence_refused.add(1);
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
                    ask::<N, _>(metrics, || answer(list));
                }
            }
            PresenceMail::ListAnswer(events) => home.keep(topic, events),
            PresenceMail::Begin => home.begin(topic, config, now_ns),
            PresenceMail::Peers(what) => home.peers_message(topic, what, config, now_ns),
        }
        self.update_peers();
    }

    /// Sends other nodes their messages, and counts entries.
    fn update_peers(&mut self) {
        if let Some(cluster) = self.node.cluster() {
            for (topic, what) in self.home.take_outbox() {
                cluster.send(ToCluster::Presence((&*topic).into(), what));
            }
        }
        self.metrics.presences.set(self.home.entries as u64);
        self.metrics.presences_remote.set(self.home.remote() as u64);
    }

    /// Sends members what is due, in one turn as much as the configuration allows.
    pub(crate) fn send(&mut self, now: Now) -> Next {
        let Self { node, metrics, home, .. } = self;
        if home.is_empty() {
            return Next::Idle;
        }
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
                metrics.presence_events.add(output.events() as u64);
                bytes += output.bytes();
                match output {
                    Output::Answer(answer, list) => drop(ask::<N, _>(metrics, || answer(list))),
                    output => post_output(&**node, &topic, output),
                }
            }
        }
        home.release_leaves(config.mailbox_bytes_max, &config.presence, now.ns);
        let (next_ns, is_forgetting) = (home.next_ns(), home.is_forgetting());
        self.update_peers();
        match next_ns {
            _ if is_forgetting => Next::Now,
            None => Next::Idle,
            Some(next_ns) if next_ns <= now.ns => Next::Now,
            Some(next_ns) => Next::After(Duration::from_nanos(next_ns - now.ns)),
        }
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

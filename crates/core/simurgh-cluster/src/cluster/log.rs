//! The log of lifecycle notices: between this node, the broker and the module `log`.

use simurgh_notices::Peer;

use super::{Cluster, LinkState, LocalNode, Time};
use crate::adapter::{Adapter, Event, Fetch, Ticket};
use crate::log::{LogCommand, LogEvent, LogRequest, PAGE_BYTES, PAGE_COUNT, partition_of};
use crate::time::SECOND;
use simurgh_data::prelude::*;

impl<A: Adapter + ?Sized> Cluster<A> {
    /// Takes a command for the log of notices; [`LocalNode::log`] gets what comes of it. Ignored
    /// without a log ([`ClusterConfig::has_log`](super::ClusterConfig)).
    pub fn log(&mut self, command: LogCommand, local: &mut impl LocalNode) {
        let Some(log) = &mut self.log else { return };
        log.command(command, self.me, &mut self.n);
        log.events.drain(..).for_each(|event| local.log(event));
    }

    pub(super) fn log_answered(
        &mut self,
        ticket: Ticket,
        answer: Event,
        time: Time,
        local: &mut impl LocalNode,
    ) {
        let Some(log) = &mut self.log else { return };
        log.answered(ticket, answer, time.ns);
        log.events.drain(..).for_each(|event| local.log(event));
    }

    /// Reports the other nodes if that is due.
    pub(super) fn tick_log(&mut self, time: Time, local: &mut impl LocalNode) {
        let Some(log) = self.log.as_mut().filter(|it| it.peers_ns <= time.ns) else { return };
        log.peers_ns = time.ns.saturating_add(SECOND);
        let taking_part = self.peers.iter().filter(|peer| peer.has_notices);
        let peers = taking_part.map(|peer| Peer {
            id: peer.id().0,
            name: (&*peer.beat.name).into(),
            heard_ns: peer.heard_ns,
            is_candidate: !(peer.is_silent || peer.beat.is_draining || peer.is_incompatible),
        });
        let is_candidate = !(self.is_draining || self.has_said_bye);
        local.log(LogEvent::Peers { peers: peers.collect(), is_candidate });
    }

    /// The other nodes, or this one, have changed.
    pub(super) fn report_peers_soon(&mut self) {
        if let Some(log) = &mut self.log {
            log.peers_ns = 0;
        }
    }

    pub(super) fn log_next_ns(&self) -> Option<u64> {
        let log = self.log.as_ref()?;
        let may_ask = self.state != LinkState::Away && !self.is_storage_full;
        let due_ns = if may_ask { log.next_ns() } else { None };
        Some(due_ns.map_or(log.peers_ns, |it| it.min(log.peers_ns)))
    }

    /// Hands over requests, as many as the adapter takes. Returns whether there were any.
    pub(super) fn settle_log(&mut self, time: Time) -> bool {
        let mut has_said = false;
        let Some(log) = &mut self.log else { return false };
        while self.state != LinkState::Away && !self.is_storage_full {
            let Some((ticket, request)) = log.next(time.ns) else { break };
            let subject = self.prefix.log(partition_of(ticket));
            let is_taken = match request {
                LogRequest::Fetch { behind, from_leader } => {
                    let (seq, count, bytes) = (behind, PAGE_COUNT, PAGE_BYTES);
                    let fetch = Fetch::After { subject, seq, count, bytes, from_leader };
                    self.adapter.fetch(fetch, ticket)
                }
                LogRequest::Append(n, envelope) => {
                    let id = format!("{}-{n}", self.me);
                    self.adapter.store(&subject, &id, None, envelope, ticket)
                }
                LogRequest::Purge(before) => self.adapter.purge(&subject, before, ticket),
            };
            if is_taken.is_err() {
                self.is_storage_full = true;
                break;
            }
            log.taken(ticket);
            has_said = true;
        }
        has_said
    }
}

//! Invariants between steps.

use crate::kit::peer::Peer;
use simurgh_core::{NETWORK, Node, Phase};
use simurgh_data::Key;

use super::{NodeSimulation, Server};
use crate::model::{Model, Shard};

impl Server {
    pub(crate) fn check_counters(&self, model: &mut Model) {
        let shard = usize::from(self.core.shard());
        let (metrics, own) = (&self.metrics, model.shards.get_mut(shard));
        let Some(own) = own else { return };
        let counted = [
            metrics.broadcasts.value(),
            metrics.sockets.value(),
            metrics.channels.value(),
            metrics.joins_refused.value(),
            metrics.errors_unmatched_topic.value(),
        ];
        let refused = metrics.joins_refused.value();
        let perhaps = std::mem::take(&mut own.refused_perhaps);
        if (own.refused.saturating_sub(perhaps)..own.refused).contains(&refused) {
            own.refused = refused;
        }
        let Shard { accepted, open, channels, refused, unmatched, .. } = *own;
        let expected = [accepted, open, channels, refused, unmatched];
        if counted != expected {
            let names = "broadcasts, sockets, channels, refused joins, unmatched topics";
            model.fail("metrics", format!("{names}: {counted:?}, not {expected:?}"));
        }
        // Without limits and lifetimes none of this is counted, as the end of the run checks.
        if model.limits.is_some() || model.counts.of("times of sockets set") > 0 {
            self.check_limits(model);
        }
        let open: u64 = model.shards.iter().map(|it| it.open).sum();
        let seats = model.seats;
        if seats != open as i64 {
            model.fail("seats", format!("{seats} seats are taken, {open} sockets open"));
        }
    }

    fn check_limits(&self, model: &mut Model) {
        let metrics = &self.metrics;
        let limited = [
            metrics.limited_joins.value(),
            metrics.limited_messages.value(),
            metrics.limited_bytes.value(),
            metrics.limited_presence_calls.value(),
            metrics.limited_payload_bytes.value(),
        ];
        let shard = usize::from(self.core.shard());
        let Some(own) = model.shards.get(shard) else { return };
        let (expected, expirations) = (own.limited, metrics.expirations.value());
        let (least, most) = own.expired.range();
        if limited != expected {
            let names = "joins, messages, bytes, presence calls, payload bytes";
            model.fail("metrics", format!("over limits of {names}: {limited:?}, not {expected:?}"));
        }
        if !(least..=most).contains(&expirations) {
            model.fail("metrics", format!("{expirations} expirations, not {least} to {most}"));
        }
    }
}

pub(crate) fn check_waits(peer: &Peer, model: &mut Model) {
    let (conn, waits) = (peer.conn, peer.socket.phase() == Phase::Waiting);
    if peer.socket.is_open() && waits != model.waits(conn) {
        let why = model.conn(conn).map(|it| it.waits);
        model.fail("held", format!("socket {conn} waits: {waits}, by the model {why:?}"));
    }
}

impl NodeSimulation {
    pub(crate) fn check_waits(&self, shard: usize, model: &mut Model) {
        let waits = std::mem::take(&mut model.now.waits);
        for peer in waits.iter().filter_map(|conn| self.open_peer(shard, *conn)) {
            check_waits(peer, model);
        }
    }

    /// Checks that a closing socket is read, so that the answer to its close arrives.
    pub(crate) fn check_closing(&self, shard: usize, model: &mut Model) {
        let Some(server) = self.servers.get(shard) else { return };
        let is_deaf = |it: &&Key| {
            server.net.peer(**it).is_some_and(|it| {
                it.socket.phase() == Phase::Closing && it.socket.transport == NETWORK && it.is_held
            })
        };
        if let Some(key) = server.net.holds.iter().find(is_deaf) {
            model.fail("deaf", format!("{key:?} closes, and its answer is not read"));
        }
    }

    /// Every permit is free, in transit, or with a shard that has something to fan out.
    pub(crate) fn check_permits(&self, model: &mut Model) {
        let Some((left, all)) = self.node.permits().left().zip(self.node.permits_all) else {
            return;
        };
        let on_the_way = self.node.state().permits_posted;
        let is_busy = |it: &&Server| !it.has_ended && it.metrics.fanout_topics.value() > 0;
        let busy = self.servers.iter().filter(is_busy).count();
        let is_right = (left + on_the_way..=left + on_the_way + busy).contains(&all);
        if !is_right {
            let text = format!("{left} of {all} left, {on_the_way} on the way, {busy} shards busy");
            model.fail("permits", text);
        }
    }
}

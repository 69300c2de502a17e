//! Counters of each server of a scenario.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{OfServer, WorkerId};

/// Where an error happened: the phase in which the user started, and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The phase.
    pub phase: u16,
    /// Index of the server; `None`: not known.
    pub target: Option<u16>,
}

impl From<u16> for Origin {
    fn from(phase: u16) -> Self {
        Self { phase, target: None }
    }
}

/// Counters of one worker since its last report.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerCounters(BTreeMap<u16, Counted>);

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    now: OfServer,
    /// Connections at the last report.
    connected: u64,
}

impl ServerCounters {
    pub(super) fn at(&mut self, server: u16) -> &mut OfServer {
        &mut self.0.entry(server).or_default().now
    }

    pub(super) fn take(&mut self) -> BTreeMap<u16, OfServer> {
        let mut changed = BTreeMap::new();
        for (server, reported) in &mut self.0 {
            let connected = reported.now.connected;
            let nothing = OfServer { connected: reported.connected, ..OfServer::default() };
            if reported.now != nothing {
                changed.insert(*server, reported.now);
            }
            *reported = Counted { now: OfServer { connected, ..OfServer::default() }, connected };
        }
        changed
    }
}

/// Connections of each worker to each server, as last reported.
#[derive(Clone, Debug, Default)]
pub(super) struct Connected(BTreeMap<WorkerId, BTreeMap<u16, u64>>);

impl Connected {
    pub(super) fn update(&mut self, worker: WorkerId, servers: &BTreeMap<u16, OfServer>) {
        if !servers.is_empty() {
            let known = self.0.entry(worker).or_default();
            known.extend(servers.iter().map(|(server, of)| (*server, of.connected)));
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }

    /// Adds the sums over all workers to a second's servers; those without changes are left out.
    pub(super) fn close(
        &self,
        before: &BTreeMap<u16, ServerTotal>,
        reported: &mut BTreeMap<u16, OfServer>,
    ) {
        let mut sums: BTreeMap<u16, u64> = BTreeMap::new();
        for (server, connected) in self.0.values().flatten() {
            let sum = sums.entry(*server).or_default();
            *sum = sum.saturating_add(*connected);
        }
        let all: BTreeSet<u16> = before.keys().chain(sums.keys()).copied().collect();
        for server in all {
            let connected = sums.get(&server).copied().unwrap_or(0);
            let known = before.get(&server).map_or(0, |total| total.seen.connected);
            if connected != known || reported.contains_key(&server) {
                reported.entry(server).or_default().connected = connected;
            }
        }
    }
}

/// Totals of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerTotal {
    /// All its counters.
    #[serde(flatten)]
    pub seen: OfServer,
    /// The most connections that were open at the end of a second.
    pub connected_peak: u64,
}

impl ServerTotal {
    pub(super) fn apply(&mut self, second: &OfServer) {
        self.seen.add(second);
        self.seen.connected = second.connected;
        self.connected_peak = self.connected_peak.max(second.connected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_counters_are_taken_once_and_connection_totals_remain() {
        let mut seen = ServerCounters::default();
        *seen.at(3) = OfServer { users: 2, connected: 2, ..OfServer::default() };
        assert_eq!(seen.take().get(&3).map(|of| (of.users, of.connected)), Some((2, 2)));
        assert!(seen.take().is_empty());
        seen.at(3).disconnected();
        assert_eq!(seen.take().get(&3).map(|of| (of.users, of.connected)), Some((0, 1)));
        seen.at(3).errors += 1;
        assert_eq!(seen.take().get(&3).map(|of| (of.errors, of.connected)), Some((1, 1)));
    }

    #[test]
    fn connections_of_a_lost_worker_are_subtracted() {
        let worker = |thread| WorkerId { host: 0, thread };
        let with = |connected| [(0, OfServer { connected, ..OfServer::default() })].into();
        let (mut connected, mut total) = (Connected::default(), BTreeMap::new());
        connected.update(worker(0), &with(5));
        connected.update(worker(1), &with(7));
        let mut reported = BTreeMap::new();
        connected.close(&total, &mut reported);
        assert_eq!(reported.get(&0).map(|of| of.connected), Some(12));
        total.entry(0).or_insert_with(ServerTotal::default).apply(&reported[&0]);
        reported.clear();
        connected.close(&total, &mut reported);
        assert!(reported.is_empty());
        connected.forget(worker(1));
        connected.close(&total, &mut reported);
        assert_eq!(reported.get(&0).map(|of| of.connected), Some(5));
        total.entry(0).or_default().apply(&reported[&0]);
        connected.forget(worker(0));
        reported.clear();
        connected.close(&total, &mut reported);
        assert_eq!(reported.get(&0).map(|of| of.connected), Some(0));
        assert_eq!(total[&0].connected_peak, 12);
    }
}

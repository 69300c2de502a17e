//! The cluster thread of a node, without a link.

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use simurgh_channel::{Broadcast, StoreRequest, ToCluster};
use simurgh_cluster::{DisconnectReply, DisconnectsConfig, FLUSH_NS, NodeThread, ThreadNode};
use simurgh_proto::message::Payload;

use super::*;

impl ThreadNode for NodeRecord {
    type Mail = ();
    type Awaiting = ();

    fn time(&self) -> Time {
        self.time
    }

    fn take_mail(&mut self, empty: Vec<()>) -> Vec<()> {
        empty
    }

    fn handle<A: Adapter + ?Sized>(_: &mut NodeThread<A, Self>, (): (), _: Time) {}

    fn subscribed(&mut self, (): ()) {}

    fn broadcast_here(&mut self, _: Broadcast) {
        self.broadcasts.push(("t".into(), String::new(), Vec::new()));
    }

    fn undelivered(&mut self, broadcast: &Broadcast, error: &dyn Display) {
        panic!("{broadcast:?}: {error}");
    }
}

fn thread(is_local_when_away: bool) -> NodeThread<Loopback, NodeRecord> {
    let prefix = Prefix::new("a").unwrap();
    let adapter = Network::new(1, NetworkConfig::default()).adapter(&prefix);
    let mut config = ClusterConfig::new(prefix, "node");
    config.history = Some(HistoryConfig::default());
    config.disconnects = DisconnectsConfig { queue_max: 0, ..DisconnectsConfig::default() };
    let cluster = Cluster::new(config, Box::new(adapter), NodeId(1), 1, Time::default());
    NodeThread::new(cluster, NodeRecord::default(), is_local_when_away)
}

fn to_be_stored() -> ToCluster {
    let broadcast = Broadcast::new("t", "e", Payload::from_json("1".to_owned()));
    let request = StoreRequest { number: 7, broadcast, sender: 0, id: None, age: None };
    ToCluster::Store(Box::new(request))
}

#[test]
fn disconnect_beyond_the_maximum_is_reported_as_none() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let reply: DisconnectReply = Box::new(move |_, outcome| heard.lock().unwrap().push(outcome));
    assert!(thread(false).disconnect("user:1", Some(reply), Time::default()).is_err());
    assert_eq!(*told.lock().unwrap(), [None]);
}

#[test]
fn broadcast_to_be_stored_reaches_local_members_only_if_configured() {
    for is_local in [false, true] {
        let mut thread = thread(is_local);
        thread.handle_core(to_be_stored(), Time::default());
        assert_eq!(thread.local.broadcasts.len(), usize::from(is_local));
        let outcome = thread.local.stored.get(&7);
        assert_eq!(outcome.is_some_and(|it| *it == Err(NotKept::LocalOnly)), is_local);
    }
}

#[test]
fn node_that_ends_waits_five_seconds_for_what_is_not_stored() {
    let mut thread = thread(false);
    thread.handle_core(to_be_stored(), Time::default());
    thread.bye(Time::default());
    let mut context = Context::from_waker(Waker::noop());
    for (ns, has_ended) in [(0, false), (FLUSH_NS - 1, false), (FLUSH_NS, true)] {
        thread.local.time.ns = ns;
        assert_eq!(thread.turn(&mut context).is_ready(), has_ended, "at {ns}");
    }
}

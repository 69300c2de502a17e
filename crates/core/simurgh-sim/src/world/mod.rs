//! The simulated world: nodes, each with the cores of its shards and its part in a cluster by the
//! loopback adapter; or one node without a broker, with histories ([`alone`]) or without. Links,
//! the broker and nodes fail and return. What members receive, which presences they see, and which
//! sockets are closed is compared with what was sent on all nodes.
//!
//! ```text
//!   client ⇄ shard ⇄ mailboxes ⇄ shard ⇄ client        a node: real cores,
//!              mailbox ⇅ local shards                    and a real `Cluster`
//!           Cluster ⇄ Loopback ⇄ Network ⇄ … other nodes
//! ```
//!
//! Shards and the cluster reach each other as they do in the server, by
//! [`NodeThread`](simurgh_cluster::NodeThread).

mod app;
mod ledger;
mod node;
mod plan;
mod simulation;
mod thread;
mod view;

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard};

use simurgh_core::LinkedWork;

use crate::findings::Faults;
use crate::locked;
use crate::transport::Setup;
pub(crate) use crate::world::app::KINDS;
pub(crate) use crate::world::ledger::Ledger;
use crate::world::node::SimNode;
pub(crate) use crate::world::plan::{Op, Plan, World};
pub(crate) use crate::world::simulation::{Shard, Simulation};

/// What the nodes, applications and clients of a run share: the plan, and a ledger of what has
/// happened, by which the outcome is checked.
#[derive(Default)]
pub(crate) struct Shared {
    ledger: Mutex<Ledger>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) setup: Arc<Setup>,
    /// The next work that is linked to a channel.
    pub(crate) linking: Mutex<Option<Box<dyn LinkedWork>>>,
    /// Values kept with sockets, and values prepared from long messages, that are not dropped.
    pub(crate) assigned: AtomicI64,
    pub(crate) ready: AtomicI64,
}

impl Shared {
    pub(crate) fn new(plan: &Plan) -> Self {
        let plan = Arc::new(plan.clone());
        let faults = Arc::new(Faults::new(plan.fault));
        Self {
            ledger: Mutex::new(Ledger::new(Arc::clone(&plan))),
            setup: Arc::new(plan.setup(&faults)),
            faults,
            plan,
            linking: Mutex::default(),
            assigned: AtomicI64::default(),
            ready: AtomicI64::default(),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        locked(&self.ledger)
    }

    /// Adds a line to the log, if there is one.
    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        self.ledger().note(text);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.ledger().failure.is_some()
    }
}

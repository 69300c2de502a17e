//! A simulation of several nodes: each has the cores of its shards, and its part in a cluster by
//! the loopback adapter. Or of one node [`alone`], which stores the histories of its topics itself.
//! Links, the engine and nodes fail and return. What members receive, which
//! presences they see, and which sockets are closed is compared with what was sent on all nodes.
//!
//! ```text
//!   client ⇄ shard ⇄ mailboxes ⇄ shard ⇄ client        a node: real cores,
//!              mailbox ⇅ local shards                    and a real `Cluster`
//!           Cluster ⇄ Loopback ⇄ Network ⇄ … other nodes
//! ```
//!
//! Shards and the cluster reach each other as they do in the server, by
//! [`NodeThread`](simurgh_cluster::NodeThread).

mod alone;
mod app;
mod client;
pub(crate) mod found;
mod ledger;
mod node;
mod plan;
mod running;
mod simulation;
mod single;
mod thread;

pub(crate) use crate::world::ledger::Ledger;
use crate::world::node::SimNode;
pub(crate) use crate::world::plan::{Op, Plan, World};
pub(crate) use crate::world::simulation::{Shard, Simulation};
pub(crate) use crate::world::single::KINDS;

use crate::kit::setup::Shared;

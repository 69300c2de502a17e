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
mod plan;
mod running;
mod simulation;
mod thread;

use crate::kit::{node, setup, shard};

use crate::cluster::ledger::Ledger;
pub(crate) use crate::cluster::plan::ClusterPlan;
pub(crate) use crate::cluster::simulation::ClusterSimulation;

type Shared = setup::Shared<Ledger, ClusterPlan>;
type SimNode = node::SimNode<Ledger, ClusterPlan>;
type Shard = shard::Shard<Ledger, ClusterPlan>;

//! What all parts of a run share.

use simurgh_sim_kit::{node, setup, shard};

use crate::ledger::Ledger;
use crate::plan::ClusterPlan;

pub(crate) type Shared = setup::Shared<Ledger, ClusterPlan>;
pub(crate) type SimNode = node::SimNode<Ledger, ClusterPlan>;
pub(crate) type Shard = shard::Shard<Ledger, ClusterPlan>;

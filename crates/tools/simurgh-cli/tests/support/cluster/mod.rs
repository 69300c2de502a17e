//! Nodes of a cluster as processes, their engine, clients, and networks, for both suites of faults.

pub(crate) mod engine;
pub(crate) mod hosts;
pub(crate) mod listener;
pub(crate) mod node;

//! Nodes of a cluster as processes, their engine, clients of them, and the networks between: what
//! the suites of faults have in common.

pub(crate) mod engine;
pub(crate) mod hosts;
pub(crate) mod listener;
pub(crate) mod node;

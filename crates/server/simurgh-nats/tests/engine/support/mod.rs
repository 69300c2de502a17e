//! Brokers that tests start and end, and nodes on them.

pub(crate) mod authority;
#[path = "../../../../../tools/simurgh-cli/tests/it/support/engine.rs"]
#[allow(dead_code, clippy::disallowed_types, reason = "tests of whole nodes use the rest")]
pub(crate) mod engine;
pub(crate) mod jwt;
mod node;
#[path = "../../../../../tools/simurgh-cli/tests/it/cluster_history/operator.rs"]
#[allow(dead_code, clippy::disallowed_types, reason = "tests of whole nodes use the rest")]
pub(crate) mod operator;
pub(crate) mod proxy;

pub(crate) use engine::{Engine, STORE};
pub(crate) use node::{Node, numbered, prefix, runtime};

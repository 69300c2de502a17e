//! Notices for a back end: a user joined or left a topic, a topic has members or none, a user is
//! connected or gone. Each start and end is decided once in a cluster, also if a node is killed.
//! Without sockets, clocks, threads or randomness.
//!
//! A *stay* is one continuous period: a user is in a topic, a topic has members, a user is
//! connected. One of sixteen *partitions* has each key, and one node, its *coordinator*, decides
//! about it:
//!
//! 1. Each node counts its memberships, and reports the first and the last of each key
//!    ([`Reporter`]).
//! 2. The coordinator ([`Coordinator`], chosen by [`Election`]) compares what all nodes report with
//!    the open stays of its log. Where they differ, also after a grace period, it appends a
//!    [`Record`].
//! 3. It delivers what it has read back, in order, until each hook accepts it, or the notice is a
//!    dead letter.
//!
//! [`Notices`] is all of that on one node. The caller sends reports, keeps the logs, and makes
//! requests to the hooks.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod backoff;
mod batch;
mod codec;
mod coordinator;
mod delivery;
mod election;
mod key;
mod keyed;
mod node;
mod queue;
mod record;
mod report;
mod reporter;
mod settings;
mod stays;
#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use batch::{Batch, Outcome, Reset};
pub use codec::Malformed;
pub use coordinator::{Coordinator, OpenStay, Orphans};
pub use election::{Election, OUTRANKED_NS};
pub use key::{Key, Kind, PARTITIONS, Reason, Sighting, Time};
pub use node::{Notices, Output, Peer};
pub use record::{DeadLetter, Entry, Notice, Record, Stay, Term};
pub use report::{Change, Report, Verdict};
pub use reporter::Reporter;
pub use settings::{HookRule, Settings};

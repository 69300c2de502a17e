//! Presence: the table of members of one topic on one node, without sockets, clocks, randomness or
//! any knowledge of how nodes communicate.
//!
//! Every entry has one owner, the node whose member it is, and only the owner changes it. So
//! nothing has to be merged: an owner numbers the changes of its entries, and another node has the
//! entries of that owner at a version.
//!
//! ```text
//!   track, update, untrack                 learn(delta), answer(snapshot), node_down
//!      own members │                                     │ other nodes
//!                  ▼                                     ▼
//!        ┌─────────────────────────  Table  ─────────────────────────┐
//!        │  keys ──► entries, in order of arrival                    │
//!        │  changes since the last diff    changes since the last    │
//!        │  (of all owners)                delta (own ones)          │
//!        └──────┬──────────────────────────┬─────────────────────────┘
//!               ▼                          ▼
//!   take_diff, encode_state         take_delta, repeat_delta, snapshot
//!     for own members                 for other nodes
//! ```
//!
//! # The kinds of methods, and their order
//!
//! 1. *Own members*: [`track`](Table::track), [`update`](Table::update),
//!    [`untrack`](Table::untrack), [`untrack_all`](Table::untrack_all).
//! 2. *Other nodes*: [`learn`](Table::learn), [`answer`](Table::answer),
//!    [`node_down`](Table::node_down).
//! 3. *Output*, once in an interval: [`take_delta`](Table::take_delta) for other nodes, then
//!    [`take_diff`](Table::take_diff) for own members, after [`enrich`](Table::enrich) of those
//!    keys that have more than metas. For newcomers
//!    [`encode_state`](Table::encode_state) follows the diff, so that one text serves all of an
//!    interval; it is also valid before. [`snapshot`](Table::snapshot) answers a node that asks.
//! 4. *Getters*: [`len`](Table::len), [`get`](Table::get), [`iter`](Table::iter) and so on.
//!
//! ```
//! use simurgh_presence::{Meta, Owner, PhxRefs, Table};
//!
//! let mut refs = PhxRefs::new(Owner(7));
//! let mut table: Table<u32> = Table::new(Owner(7), 0x5eed);
//! table.track(1, "zoë", Meta::parse(r#"{"status": "here"}"#)?, refs.next(42))?;
//!
//! let diff = table.take_diff().unwrap();
//! let mut out = Vec::new();
//! diff.encode(&mut out);
//! let meta = r#"{"status":"here","phx_ref":"AAAAAAAqAAAHAAAA"}"#;
//! let joins = format!(r#"{{"zoë":{{"metas":[{meta}]}}}}"#);
//! assert_eq!(out, format!(r#"{{"joins":{joins},"leaves":{{}}}}"#).as_bytes());
//!
//! out.clear();
//! table.encode_state(&mut out);
//! assert_eq!(out, joins.as_bytes());
//!
//! // Another node gets the delta.
//! let mut other: Table<u32> = Table::new(Owner(8), 0x5eed);
//! other.learn(table.take_delta().unwrap());
//! assert_eq!(other.get("zoë").unwrap().metas().count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod delta;
mod diff;
mod encode;
mod held_leaves;
mod meta;
mod peers;
mod phx_ref;
mod table;

pub use delta::{Applied, Delta, Shared, Snapshot};
pub use diff::{Change, ChangedMeta, Diff};
pub use held_leaves::HeldLeaves;
pub use meta::{Extra, Meta, MetaError};
pub use peers::{FromPeers, ToPeers};
pub use phx_ref::{NotAPhxRef, Owner, PhxRef, PhxRefs};
pub use table::{AlreadyTracked, Listed, NotTracked, Presence, QUEUED_DELTAS_MAX, Table};

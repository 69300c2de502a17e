//! Messages with a node's own entries, for other nodes.
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::meta::{Extra, Meta};
use crate::phx_ref::{Owner, PhxRef};

/// One entry of a node, as other nodes receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Any string.
    pub key: Box<str>,
    /// The ref of its present state.
    pub phx_ref: PhxRef,
    /// The ref that it replaces, if it does.
    pub phx_ref_prev: Option<PhxRef>,
    /// Its data.
    pub meta: Meta,
    /// The members of its key besides the metas, if any.
    pub extra: Option<Extra>,
}

/// Net changes of one owner's entries of one topic, between two versions of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The owner of the entries.
    pub owner: Owner,
    /// The version that a receiver must have to apply it.
    pub from: u64,
    /// The version that it then has. Equal to `from` in a repeat, which changes nothing.
    pub to: u64,
    /// Entries that were added or updated.
    pub joins: Vec<Shared>,
    /// Refs of entries that were removed.
    pub leaves: Vec<PhxRef>,
}

/// All entries of one owner in one topic, at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The owner of the entries.
    pub owner: Owner,
    /// The version of these entries.
    pub version: u64,
    /// Grouped by key, and within a key in order of arrival.
    pub entries: Vec<Shared>,
}

/// The outcome of applying a [`Delta`] or a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The table has it now.
    Applied,
    /// The table had as much or more; nothing changed.
    AlreadyKnown,
    /// Something is missing: ask this owner for a snapshot. Returned for each delta until it comes,
    /// since requests may be lost as well.
    Missing {
        /// The node to be asked.
        owner: Owner,
        /// The version of its entries that this table has.
        known: u64,
    },
}

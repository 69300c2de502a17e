//! What nodes tell each other of their own entries.
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::meta::{Extra, Meta};
use crate::phx_ref::{Owner, PhxRef};

/// One entry of a node, as it tells others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Any string.
    pub key: Box<str>,
    /// Of its present state.
    pub phx_ref: PhxRef,
    /// The ref that it replaces, if it does.
    pub phx_ref_prev: Option<PhxRef>,
    /// Its data.
    pub meta: Meta,
    /// What its key has beside the metas, if anything.
    pub extra: Option<Extra>,
}

/// Net changes of one owner's entries of one topic, between two versions of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Whose entries.
    pub owner: Owner,
    /// The version that a receiver must know to apply it.
    pub from: u64,
    /// The version it then knows. Equal to `from` in a repeat, which changes nothing.
    pub to: u64,
    /// Entries that came, or are now like this.
    pub joins: Vec<Shared>,
    /// Refs that are not there any more.
    pub leaves: Vec<PhxRef>,
}

/// All entries of one owner in one topic, at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose entries.
    pub owner: Owner,
    /// Of these entries.
    pub version: u64,
    /// Grouped by key, and of each key in order of arrival.
    pub entries: Vec<Shared>,
}

/// What became of a [`Delta`] or a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It is in the table.
    Applied,
    /// The table knew as much or more; nothing changed.
    AlreadyKnown,
    /// Something is missing: ask this owner for a snapshot. Said again with each delta until it
    /// comes, since asks are lost as well.
    Missing {
        /// The node to be asked.
        owner: Owner,
        /// The version of its entries that is known here.
        known: u64,
    },
}

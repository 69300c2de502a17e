//! The changes that members are sent, and their encoding.
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::encode;
use crate::meta::{Extra, Meta};
use crate::phx_ref::PhxRef;

/// Net changes of the table between two calls of [`Table::take_diff`](crate::Table::take_diff): the
/// content of `presence_diff`. No ref is in both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Entries that were added or updated.
    pub joins: Vec<Change>,
    /// Entries that were removed, and the former states of updated ones.
    pub leaves: Vec<Change>,
}

/// Metas of one key that were added or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Any string.
    pub key: Box<str>,
    /// The members of the key besides its metas.
    pub extra: Option<Extra>,
    /// In order of arrival in joins, of removal in leaves.
    pub metas: Vec<ChangedMeta>,
}

/// One state of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedMeta {
    /// Its ref.
    pub phx_ref: PhxRef,
    /// The ref that it replaced, which members have received.
    pub phx_ref_prev: Option<PhxRef>,
    /// Its data.
    pub meta: Meta,
}

impl Diff {
    /// Appends `{"joins":{…},"leaves":{…}}`, without whitespace.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_bytes());
        out.extend_from_slice(b"{\"joins\":");
        write(&self.joins, out);
        out.extend_from_slice(b",\"leaves\":");
        write(&self.leaves, out);
        out.push(b'}');
    }

    /// Bytes that [`encode`](Self::encode) appends, without escapes of characters in keys.
    pub fn encoded_bytes(&self) -> usize {
        let one = |change: &Change| {
            let metas = change.metas.iter().map(|it| it.meta.encoded_bytes(it.phx_ref_prev));
            encode::key_bytes(&change.key, change.extra.as_ref()) + metas.sum::<usize>()
        };
        24 + self.joins.iter().chain(&self.leaves).map(one).sum::<usize>()
    }
}

fn write(changes: &[Change], out: &mut Vec<u8>) {
    encode::keys(out, changes, |change, out| {
        let metas = change.metas.iter().map(|it| (&it.meta, it.phx_ref, it.phx_ref_prev));
        encode::key(&change.key, metas, change.extra.as_ref(), out);
    });
}

//! Entries of this node's members.
use core::hash::Hash;
use core::{iter, mem};

use simurgh_data::NIL;
use thiserror::Error;

use super::aside::Journal;
use super::{Entry, Table, Whose};
use crate::meta::Meta;
use crate::phx_ref::PhxRef;

/// The member has an entry under this key; [`Table::update`] changes it. An application error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("already tracked under this key: use update to change it")]
pub struct AlreadyTracked;

/// The member has no entry under this key, an error of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not tracked under this key")]
pub struct NotTracked;

impl<M: Copy + Eq + Hash> Table<M> {
    /// Adds an entry of a local member. A member may have several, each under another key; a key
    /// may be any string, whose length the caller bounds. `phx_ref` must be new.
    ///
    /// # Errors
    /// If the member has one under this key.
    pub fn track(
        &mut self,
        member: M,
        key: &str,
        meta: Meta,
        phx_ref: PhxRef,
    ) -> Result<(), AlreadyTracked> {
        let key = self.key(key);
        if self.find_local(member, key).is_some() {
            return Err(AlreadyTracked);
        }
        let whose = Whose::Local { member, before: NIL, after: NIL };
        let at = self.add(key, phx_ref, PhxRef::NONE, meta, whose);
        self.change_own(|journal| journal.joined.push((at, PhxRef::NONE)));
        Ok(())
    }

    /// Gives an entry another meta and ref, and makes it the last of its key. A diff has a leave of
    /// the old state and a join of the new one.
    ///
    /// # Errors
    /// If the member has none under this key.
    pub fn update(
        &mut self,
        member: M,
        key: &str,
        meta: Meta,
        phx_ref: PhxRef,
    ) -> Result<(), NotTracked> {
        let key = self.find_key(key).ok_or(NotTracked)?;
        let at = self.find_local(member, key).ok_or(NotTracked)?;
        let entry = self.entries.get_mut(at).ok_or(NotTracked)?;
        let was = entry.phx_ref;
        let published = mem::take(&mut entry.published);
        self.replace(at, phx_ref, meta);
        self.change_own(|journal| {
            if published {
                journal.left.push(was);
                journal.joined.push((at, was));
            }
        });
        Ok(())
    }

    /// Removes an entry of a local member; returns whether there was one.
    pub fn untrack(&mut self, member: M, key: &str) -> bool {
        let found = self.find_key(key).and_then(|key| self.find_local(member, key));
        found.inspect(|&at| self.untrack_at(at)).is_some()
    }

    /// Removes all entries of a local member, as when its channel ends; returns their number.
    pub fn untrack_all(&mut self, member: M) -> usize {
        let mut count = 0;
        while let Some(at) = self.find_member(member) {
            self.untrack_at(at);
            count += 1;
        }
        count
    }

    /// How many entries a local member has; visits each of them.
    pub fn tracked(&self, member: M) -> usize {
        let Some(first) = self.find_member(member) else { return 0 };
        if self.index().is_none() {
            return self.entries.iter().filter(|(_, it)| it.whose.is(member)).count();
        }
        let next = |at: &u32| match self.entries.get(*at)?.whose {
            Whose::Local { after, .. } if after != NIL => Some(after),
            _ => None,
        };
        iter::successors(Some(first), next).count()
    }

    fn untrack_at(&mut self, at: u32) {
        let Some(&Entry { published, phx_ref, .. }) = self.entries.get(at) else { return };
        self.remove(at);
        self.change_own(|journal| {
            if published {
                journal.left.push(phx_ref);
            }
        });
    }

    /// Counts a change of an own entry, and notes it if there are other nodes.
    fn change_own(&mut self, note: impl FnOnce(&mut Journal)) {
        let from = self.version;
        self.version += 1;
        if !self.alone {
            let quiet = || Journal { from, joined: Default::default(), left: Default::default() };
            note(self.aside().journal.get_or_insert_with(quiet));
        }
    }
}

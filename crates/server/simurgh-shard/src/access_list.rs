//! Blocked users and revoked tokens, which back ends set on every node.
//!
//! Shards read the list at connects and joins: one look-up for the user, and one for the token.
//! While it is empty they only load a counter. Nodes that have got the same rules, in any order,
//! have the same list.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use simurgh_core::Identity;
use simurgh_proto::topic::Pattern;
use tokio::sync::Mutex;

use crate::mail::order::{Rule, SocketRef};

/// Most rules of a list, and of one user.
pub const RULES_MAX: usize = 100_000;
const RULES_OF_ONE_MAX: usize = 100;

const BLOCKED: &str = "blocked";
const REVOKED: &str = "revoked";

impl Rule {
    /// Whether it forbids a client to join a topic, or to connect.
    fn forbids(&self, issued_at: Option<u64>, topic: Option<&str>, now_s: u64) -> bool {
        let is_about = match (self.issued_before, &self.topic) {
            (Some(before), _) => issued_at.is_none_or(|at| at < before),
            (None, None) => true,
            (None, Some(pattern)) => topic
                .zip(Pattern::parse(pattern).ok())
                .is_some_and(|(topic, pattern)| pattern.matches(topic)),
        };
        is_about && !self.is_lifted && self.until > now_s
    }

    /// Whether it closes the socket of its user or token. A socket whose token is of the last
    /// second may return.
    pub(crate) fn closes(&self, issued_at: Option<u64>) -> bool {
        let is_older = |before| issued_at.is_none_or(|at| at <= before);
        !self.is_lifted && self.issued_before.is_none_or(is_older)
    }

    /// Whether it and another replace each other.
    fn is_like(&self, other: &Self) -> bool {
        (self.issued_before.is_some(), &self.topic) == (other.issued_before.is_some(), &other.topic)
    }

    /// Takes the content of another one about the same; returns whether that changes it.
    fn merge(&mut self, other: Self) -> bool {
        let before = (self.issued_before, self.set_ms, self.is_lifted, self.until);
        if other.issued_before.is_some() {
            self.issued_before = self.issued_before.max(other.issued_before);
            self.until = self.until.max(other.until);
        } else if (self.set_ms, self.is_lifted, self.until)
            < (other.set_ms, other.is_lifted, other.until)
        {
            *self = other;
        }
        before != (self.issued_before, self.set_ms, self.is_lifted, self.until)
    }
}

/// The list, or its part about one user, has no place for another rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of blocks and revocations is full: remove some, or wait until some have ended")]
pub struct ListIsFull;

type Rules = HashMap<SocketRef, Vec<Rule>>;

/// All rules of a node.
#[derive(Default)]
pub struct AccessList {
    rules: RwLock<Rules>,
    /// How many; changed under the lock.
    count: AtomicUsize,
    changes: AtomicU64,
    /// How many changes are in the file; locked while it is written.
    pub saved: Mutex<u64>,
    /// Another node has told its list.
    pub knows_other: AtomicBool,
    /// Refused connects and joins.
    blocked: AtomicU64,
    revoked: AtomicU64,
}

impl AccessList {
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Why a client may not join this topic, or connect; counts that.
    pub fn denial(
        &self,
        identity: &Identity<'_>,
        topic: Option<&str>,
        now_s: u64,
    ) -> Option<&'static str> {
        let user = identity.user.map(|user| SocketRef::User(user.to_owned()));
        let token = identity.token_id.map(|id| SocketRef::Token(id.to_owned()));
        let rules = self.read();
        let of_both = [user, token].into_iter().flatten().filter_map(|of| rules.get(&of)).flatten();
        let denying =
            of_both.into_iter().find(|it| it.forbids(identity.issued_at, topic, now_s))?;
        let is_revoked = denying.issued_before.is_some();
        let (why, count) =
            if is_revoked { (REVOKED, &self.revoked) } else { (BLOCKED, &self.blocked) };
        count.fetch_add(1, Relaxed);
        Some(why)
    }

    /// Dates a rule of this node after the one that it replaces, even if that one is of a node
    /// whose clock is ahead. A lifted block stays as long as the block would have lasted.
    pub fn date(&self, rule: &mut Rule, now_ms: u64) {
        rule.set_ms = now_ms;
        let rules = self.read();
        let known = rules.get(&rule.of).and_then(|all| all.iter().find(|it| it.is_like(rule)));
        if let Some(known) = known {
            rule.set_ms = now_ms.max(known.set_ms.saturating_add(1));
            if rule.is_lifted {
                rule.until = rule.until.max(known.until);
            }
        }
    }

    /// Adds a rule, or replaces an older one about the same; returns whether that changes the list.
    ///
    /// # Errors
    /// There are too many rules.
    pub fn set(&self, rule: Rule, now_s: u64) -> Result<bool, ListIsFull> {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let of_one = rules.get_mut(&rule.of);
        if let Some(known) = of_one.and_then(|all| all.iter_mut().find(|it| it.is_like(&rule))) {
            let is_changed = known.merge(rule);
            self.changes.fetch_add(u64::from(is_changed), Relaxed);
            return Ok(is_changed);
        }
        let mut count = self.count.load(Relaxed);
        if count >= RULES_MAX {
            rules.retain(|_, all| {
                all.retain(|it| it.until > now_s);
                !all.is_empty()
            });
            count = rules.values().map(Vec::len).sum();
            self.count.store(count, Relaxed);
        }
        let of_one = rules.entry(rule.of.clone()).or_default();
        if count >= RULES_MAX || of_one.len() >= RULES_OF_ONE_MAX {
            return Err(ListIsFull);
        }
        of_one.push(rule);
        self.count.store(count + 1, Relaxed);
        self.changes.fetch_add(1, Relaxed);
        Ok(true)
    }

    /// How often it has changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// All rules that have not ended.
    pub fn all(&self, now_s: u64) -> Vec<Rule> {
        let rules = self.read();
        rules.values().flatten().filter(|it| it.until > now_s).cloned().collect()
    }

    /// Refused connects and joins by reason.
    pub fn counts(&self) -> [(&'static str, u64); 2] {
        [(BLOCKED, self.blocked.load(Relaxed)), (REVOKED, self.revoked.load(Relaxed))]
    }

    fn read(&self) -> RwLockReadGuard<'_, Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(user: &str, topic: Option<&str>) -> Rule {
        Rule {
            of: SocketRef::User(user.to_owned()),
            issued_before: None,
            topic: topic.map(str::to_owned),
            is_lifted: false,
            set_ms: 0,
            until: 100,
        }
    }

    fn revocation(of: SocketRef, issued_before: u64) -> Rule {
        Rule { of, issued_before: Some(issued_before), ..block("", None) }
    }

    fn with(rules: impl IntoIterator<Item = Rule>) -> AccessList {
        let list = AccessList::default();
        for rule in rules {
            list.set(rule, 0).unwrap();
        }
        list
    }

    fn identity(user: &'static str) -> Identity<'static> {
        Identity { user: Some(user), token_id: Some("t1"), issued_at: Some(10) }
    }

    #[test]
    fn blocked_user_neither_connects_nor_joins_until_the_end() {
        let list = with([block("7", None)]);
        assert_eq!(list.denial(&identity("7"), None, 99), Some("blocked"));
        assert_eq!(list.denial(&identity("7"), Some("a"), 99), Some("blocked"));
        assert_eq!(list.denial(&identity("7"), None, 100), None);
        assert_eq!(list.denial(&identity("8"), None, 0), None);
        assert_eq!(
            (list.counts()[0], list.all(99).len(), list.all(100).len()),
            (("blocked", 2), 1, 0)
        );
    }

    #[test]
    fn block_of_a_pattern_refuses_joins_of_its_topics() {
        let list = with([block("7", Some("rooms:*")), block("7", Some("chat"))]);
        for (topic, is_refused) in
            [("rooms:1", true), ("chat", true), ("chat:1", false), ("a", false)]
        {
            assert_eq!(
                list.denial(&identity("7"), Some(topic), 0).is_some(),
                is_refused,
                "{topic}"
            );
        }
        assert_eq!(list.denial(&identity("7"), None, 0), None);
    }

    #[test]
    fn revocation_refuses_older_tokens_and_those_without_a_time() {
        let list = with([revocation(SocketRef::User("7".to_owned()), 10)]);
        let issued = |issued_at| {
            let identity = Identity { issued_at, ..identity("7") };
            list.denial(&identity, None, 0)
        };
        assert_eq!(
            [issued(Some(9)), issued(None), issued(Some(10))],
            [Some("revoked"), Some("revoked"), None]
        );
        list.set(revocation(SocketRef::User("7".to_owned()), 5), 0).unwrap();
        assert_eq!(issued(Some(9)), Some("revoked"), "an earlier time takes nothing back");
        let list = with([revocation(SocketRef::Token("t1".to_owned()), u64::MAX)]);
        assert_eq!(list.denial(&identity("anybody"), None, 0), Some("revoked"));
    }

    #[test]
    fn block_is_lifted_even_if_the_clock_of_another_node_is_ahead() {
        let list = with([Rule { set_ms: 5000, ..block("7", None) }]);
        let mut lifted = Rule { is_lifted: true, until: 1, ..block("7", None) };
        list.date(&mut lifted, 1000);
        assert_eq!((lifted.set_ms, lifted.until), (5001, 100));
        list.set(lifted, 0).unwrap();
        assert_eq!(list.denial(&identity("7"), None, 0), None);
        list.set(Rule { set_ms: 5000, ..block("7", None) }, 0).unwrap();
        assert_eq!(list.denial(&identity("7"), None, 0), None, "repeated by a node that was away");
    }

    #[test]
    fn full_list_refuses_rules_until_some_have_ended() {
        let list = with((0..RULES_MAX).map(|user| block(&user.to_string(), None)));
        assert_eq!(list.set(block("one more", None), 99), Err(ListIsFull));
        assert_eq!(list.set(block("7", None), 99), Ok(false), "a known rule needs no place");
        assert_eq!(list.set(Rule { until: 200, ..block("one more", None) }, 100), Ok(true));
        assert_eq!(list.all(100).len(), 1);
        let list = with((0..RULES_OF_ONE_MAX).map(|n| block("7", Some(&n.to_string()))));
        assert_eq!(list.set(block("7", None), 0), Err(ListIsFull));
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let rule = (0..2_u8, 0..3_u64, any::<bool>(), 0..5_u64).prop_map(
            |(kind, at, is_lifted, until)| {
                match kind {
                    0 => Rule { until, ..revocation(SocketRef::User("7".to_owned()), at) },
                    // One node dates each rule of its own differently.
                    _ => Rule { set_ms: at, is_lifted, until: at, ..block("7", None) },
                }
            },
        );
        prop::collection::vec(rule, 0..8)
    }

    proptest! {
        #[test]
        fn nodes_with_the_same_rules_in_any_order_have_the_same_list(rules in rules()) {
            let one = with(rules.iter().cloned());
            let other = with(rules.iter().rev().chain(&rules).cloned());
            let sorted = |list: &AccessList| {
                let mut all = list.all(0);
                all.sort_by_key(|it| it.issued_before);
                all
            };
            prop_assert_eq!(sorted(&one), sorted(&other));
        }
    }
}

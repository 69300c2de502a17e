//! Cached answers: grants that the application allowed to be cached, and refusals for some seconds.
//! Times are Unix milliseconds.

use std::collections::{BTreeSet, HashMap};
use std::mem::size_of;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::question::Kind;
use crate::verdict::Refusal;

/// A MAC over all inputs of a question.
pub(crate) type Key = [u8; 32];

/// Most users whose grants can be void at a time; beyond it all grants are.
const VOIDS_MAX: usize = 100_000;
/// An answer may come this long after its question.
const LATE_MS: u64 = 60_000;
/// Most ended entries that one call drops.
const DROPPED_MAX: usize = 16;

/// A grant, as the application gave it. It is parsed again when it is used: as a text it takes a
/// fifth of the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) kind: Kind,
    pub(crate) body: Arc<str>,
    pub(crate) user: Option<Box<str>>,
    /// The id of the sockets that it lets in, or of the one that asked.
    pub(crate) id: Option<Box<str>>,
    /// Time of the question.
    pub(crate) asked_ms: u64,
    /// When the answer came: `expires_in` counts from here.
    pub(crate) answered_ms: u64,
    /// It counts until here,
    pub(crate) fresh_until_ms: u64,
    /// and until here if its question fails.
    pub(crate) stale_until_ms: u64,
}

/// A cached answer that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    Granted(Arc<Granted>),
    Refused(Arc<Refusal>),
}

/// Grants are for all addresses, refusals for one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Slot {
    key: Key,
    client: Option<IpAddr>,
}

enum Entry {
    Granted(Arc<Granted>),
    Refused { refusal: Arc<Refusal>, until_ms: u64 },
}

/// A part of the cached answers. There are several, so that no table is long in growing.
pub(crate) struct Cache {
    /// No client chooses a MAC, so the fast hash is as safe as any.
    entries: HashMap<Slot, Entry, RandomState>,
    /// All entries by their end: those that end first leave first. So refusals, which an attacker
    /// can cause, do not push out grants.
    ends: BTreeSet<(u64, Slot)>,
    /// How many of the entries are refusals. A look for one costs as much as one for a grant.
    refused: usize,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let (entries, ends) = (HashMap::default(), BTreeSet::new());
        Self { entries, ends, refused: 0, bytes: 0, bytes_max }
    }

    /// `client` is the address of the one who asked, if it did so here. A newer grant stays.
    pub(crate) fn grant(&mut self, key: Key, client: Option<IpAddr>, granted: Granted) {
        if self.granted(key).is_some_and(|own| own.asked_ms > granted.asked_ms) {
            return;
        }
        if client.is_some() {
            self.remove(Slot { key, client });
        }
        self.insert(Slot { key, client: None }, Entry::Granted(Arc::new(granted)));
    }

    pub(crate) fn refuse(
        &mut self,
        key: Key,
        client: IpAddr,
        refusal: Arc<Refusal>,
        until_ms: u64,
    ) {
        self.remove(Slot { key, client: None });
        self.insert(Slot { key, client: Some(client) }, Entry::Refused { refusal, until_ms });
    }

    /// The cached answer to a question of this client.
    pub(crate) fn find(&mut self, key: Key, client: IpAddr, now_ms: u64) -> Option<Hit> {
        self.drop_ended(now_ms);
        if self.refused > 0
            && let Some(Entry::Refused { refusal, until_ms }) =
                self.entries.get(&Slot { key, client: Some(client) })
            && *until_ms > now_ms
        {
            return Some(Hit::Refused(Arc::clone(refusal)));
        }
        let granted = self.granted(key).filter(|granted| granted.fresh_until_ms > now_ms);
        granted.cloned().map(Hit::Granted)
    }

    /// The grant that counts because its question failed.
    pub(crate) fn find_stale(&self, key: Key, now_ms: u64) -> Option<Arc<Granted>> {
        self.granted(key).filter(|granted| granted.stale_until_ms > now_ms).cloned()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn grants(&self) -> impl Iterator<Item = (&Key, &Granted)> {
        self.entries.iter().filter_map(|(slot, entry)| match entry {
            Entry::Granted(granted) => Some((&slot.key, &**granted)),
            Entry::Refused { .. } => None,
        })
    }

    fn granted(&self, key: Key) -> Option<&Arc<Granted>> {
        match self.entries.get(&Slot { key, client: None })? {
            Entry::Granted(granted) => Some(granted),
            Entry::Refused { .. } => None,
        }
    }

    fn insert(&mut self, slot: Slot, entry: Entry) {
        self.remove(slot);
        self.bytes += entry.bytes();
        self.refused += usize::from(slot.client.is_some());
        self.ends.insert((entry.end_ms(), slot));
        self.entries.insert(slot, entry);
        while self.bytes > self.bytes_max
            && let Some((_, first)) = self.ends.first().copied()
        {
            self.remove(first);
        }
    }

    /// Drops some: many end together, and shards wait meanwhile.
    fn drop_ended(&mut self, now_ms: u64) {
        for _ in 0..DROPPED_MAX {
            match self.ends.first().copied() {
                Some((end_ms, slot)) if end_ms <= now_ms => self.remove(slot),
                Some(_) | None => return,
            }
        }
    }

    fn remove(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.remove(&slot) {
            self.bytes -= entry.bytes();
            self.refused -= usize::from(slot.client.is_some());
            self.ends.remove(&(entry.end_ms(), slot));
        }
    }
}

impl Entry {
    fn end_ms(&self) -> u64 {
        match self {
            Self::Granted(granted) => granted.stale_until_ms,
            Self::Refused { until_ms, .. } => *until_ms,
        }
    }

    /// An estimate: the two tables are three quarters full.
    fn bytes(&self) -> usize {
        let texts = match self {
            Self::Granted(granted) => {
                let names = [&granted.user, &granted.id].into_iter().flatten();
                let texts = granted.body.len() + names.map(|name| name.len()).sum::<usize>();
                size_of::<Granted>() + texts
            }
            Self::Refused { refusal, .. } => {
                size_of::<Refusal>() + refusal.reason.len() + refusal.response.len()
            }
        };
        texts + 32 + (size_of::<(Slot, Self)>() + size_of::<(u64, Slot)>()) * 4 / 3
    }
}

/// Users and socket ids whose grants from before a time are void. A user and an id of the same name
/// are one: a question too many does no harm.
#[derive(Default)]
pub(crate) struct Voids {
    before_ms: HashMap<Box<str>, u64>,
    all_before_ms: u64,
    /// The longest time for which a grant was cached.
    longest_ms: u64,
}

impl Voids {
    /// Makes grants of a user or socket id, or of all, from before this time void.
    pub(crate) fn void(&mut self, of: Option<&str>, before_ms: u64, now_ms: u64) {
        let Some(of) = of else {
            self.all_before_ms = self.all_before_ms.max(before_ms);
            return;
        };
        if self.before_ms.len() >= VOIDS_MAX {
            let past_ms = self.longest_ms + LATE_MS;
            self.before_ms.retain(|_, before_ms| *before_ms + past_ms > now_ms);
        }
        if self.before_ms.len() >= VOIDS_MAX {
            let last = self.before_ms.drain().map(|(_, before_ms)| before_ms).max();
            self.all_before_ms = self.all_before_ms.max(last.unwrap_or_default());
        }
        let before = self.before_ms.entry(of.into()).or_default();
        *before = before_ms.max(*before);
    }

    /// A grant may be cached, unless it became void while its question was in flight.
    pub(crate) fn admits(&mut self, granted: &Granted) -> bool {
        let time_ms = granted.stale_until_ms.saturating_sub(granted.asked_ms);
        self.longest_ms = self.longest_ms.max(time_ms);
        !self.is_void(granted)
    }

    pub(crate) fn is_void(&self, granted: &Granted) -> bool {
        self.has_ended([granted.user.as_deref(), granted.id.as_deref()], granted.asked_ms)
    }

    /// Whether the answer to a question about this user and socket id, asked then, is void.
    pub(crate) fn has_ended(&self, of: [Option<&str>; 2], asked_ms: u64) -> bool {
        let of_each = of.into_iter().flatten().filter_map(|of| self.before_ms.get(of).copied());
        asked_ms < of_each.fold(self.all_before_ms, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 8));
    const A: Key = [1; 32];
    const B: Key = [2; 32];

    fn granted(user: Option<&str>, at_ms: u64) -> Granted {
        Granted {
            kind: Kind::Connect,
            body: "{}".into(),
            user: user.map(Into::into),
            id: user.map(|user| format!("user_socket:{user}").into()),
            asked_ms: at_ms,
            answered_ms: at_ms,
            fresh_until_ms: at_ms + 1000,
            stale_until_ms: at_ms + 3000,
        }
    }

    fn refusal() -> Arc<Refusal> {
        Arc::new(Refusal { reason: "no".to_owned(), response: "{}".to_owned() })
    }

    fn with(key: Key, grant: Granted) -> Cache {
        let mut cache = Cache::new(1 << 20);
        cache.grant(key, Some(CLIENT), grant);
        cache
    }

    #[test]
    fn grant_counts_for_all_addresses_until_its_end() {
        let mut cache = with(A, granted(None, 0));
        assert_eq!(cache.find(A, OTHER, 999), Some(Hit::Granted(Arc::new(granted(None, 0)))));
        assert_eq!(cache.find(B, CLIENT, 0), None);
        assert_eq!(cache.find(A, CLIENT, 1000), None);
        assert!(cache.find_stale(A, 2999).is_some());
        assert_eq!((cache.find_stale(A, 3000), cache.find(A, CLIENT, 3000)), (None, None));
        assert_eq!((cache.bytes(), cache.entries.len(), cache.ends.len()), (0, 0, 0));
    }

    #[test]
    fn refusal_counts_for_one_address() {
        let mut cache = Cache::new(1 << 20);
        cache.refuse(A, CLIENT, refusal(), 5000);
        assert_eq!(cache.find(A, CLIENT, 4999), Some(Hit::Refused(refusal())));
        assert_eq!(cache.find(A, OTHER, 0), None);
        assert_eq!(cache.find(A, CLIENT, 5000), None);
    }

    #[test]
    fn newest_decision_replaces_the_last_one() {
        let mut cache = with(A, granted(None, 0));
        cache.refuse(A, CLIENT, refusal(), 5000);
        assert_eq!(cache.find_stale(A, 0), None, "a refused client has no stale grant");
        cache.grant(A, Some(CLIENT), granted(None, 0));
        assert!(matches!(cache.find(A, CLIENT, 0), Some(Hit::Granted(_))));
    }

    #[test]
    fn grants_of_a_user_before_a_time_are_void() {
        let mut voids = Voids::default();
        voids.void(Some("42"), 200, 200);
        assert!(voids.is_void(&granted(Some("42"), 199)));
        assert!(!voids.admits(&granted(Some("42"), 199)), "its question was in flight");
        assert!(voids.admits(&granted(Some("42"), 200)));
        assert!(voids.admits(&granted(Some("43"), 100)));
        assert!(voids.admits(&granted(None, 100)));
        voids.void(Some("42"), 100, 300);
        assert!(voids.is_void(&granted(Some("42"), 199)), "a time never moves back");
        voids.void(Some("user_socket:44"), 200, 200);
        assert!(voids.is_void(&granted(Some("44"), 199)), "by the id of its sockets");
        voids.void(None, 101, 300);
        assert!(voids.is_void(&granted(Some("43"), 100)) && voids.is_void(&granted(None, 100)));
        assert!(!voids.is_void(&granted(None, 101)));
    }

    #[test]
    fn too_many_void_users_void_all_grants() {
        let mut voids = Voids::default();
        for user in 0..=VOIDS_MAX {
            voids.void(Some(&user.to_string()), 200, 200);
        }
        assert!(voids.is_void(&granted(None, 199)));
        assert_eq!(voids.before_ms.len(), 1);
    }

    #[test]
    fn void_users_are_forgotten_when_no_grant_can_be_older() {
        let mut voids = Voids::default();
        assert!(voids.admits(&granted(None, 0)));
        for user in 0..VOIDS_MAX {
            voids.void(Some(&user.to_string()), 200, 200);
        }
        voids.void(Some("one more"), 200 + LATE_MS + 3000, 200 + LATE_MS + 3000);
        assert_eq!((voids.before_ms.len(), voids.all_before_ms), (1, 0));
    }

    #[test]
    fn entries_that_ended_together_leave_some_at_a_time() {
        let mut cache = Cache::new(1 << 20);
        for number in 0..100 {
            cache.grant([number; 32], Some(CLIENT), granted(None, 0));
        }
        assert_eq!(cache.find([99; 32], CLIENT, 3000), None);
        assert_eq!(cache.find_stale([99; 32], 3000), None);
        assert_eq!(cache.entries.len(), 100 - DROPPED_MAX);
    }

    #[test]
    fn oldest_leave_when_memory_is_full() {
        let mut cache = Cache::new(10_000);
        for at in 0..1000_u64 {
            let mut key = A;
            key[..8].copy_from_slice(&at.to_le_bytes());
            cache.grant(key, Some(CLIENT), granted(None, at));
            assert!(cache.bytes() <= 10_000);
            assert!(cache.find(key, CLIENT, 0).is_some());
        }
        let mut first = A;
        first[..8].copy_from_slice(&0_u64.to_le_bytes());
        assert_eq!(cache.find(first, CLIENT, 0), None);
    }

    #[test]
    fn grant_of_a_small_answer_takes_few_bytes() {
        let mut cache = Cache::new(1 << 20);
        let body = r#"{"user":"1000000","claims":{"staff":false},"cache_for":600}"#;
        let grant = Granted { body: body.into(), ..granted(Some("1000000"), 0) };
        cache.grant(A, Some(CLIENT), grant);
        assert!(cache.bytes() <= 400, "{}", cache.bytes());
    }

    proptest! {
        #[test]
        fn tables_agree_after_any_steps(
            steps in prop::collection::vec((0..3_u8, 0..4_u8, 0..5000_u64), 0..100)
        ) {
            let mut cache = Cache::new(1500);
            for (step, key, at) in steps {
                let key = [key; 32];
                match step {
                    0 => cache.grant(key, Some(CLIENT), granted(Some("u"), at)),
                    1 => cache.refuse(key, OTHER, refusal(), at),
                    _ => drop(cache.find(key, CLIENT, at)),
                }
                let bytes: usize = cache.entries.values().map(Entry::bytes).sum();
                prop_assert_eq!(cache.bytes, bytes);
                prop_assert_eq!(cache.entries.len(), cache.ends.len());
                prop_assert!(bytes <= 1500);
            }
        }
    }
}

//! Shards report memberships and users: the begins without ends are those that exist.

use simurgh_core::SightingSink;
use simurgh_notices::{HookRule, Key as StayKey, Kind as StayKind, Settings, Sighting};

use super::*;

/// Users of sockets by their values; the first is none.
const USERS: [&str; 4] = ["", "ann", "bob", "cid"];
/// All members without a user are counted together, since their keys are the core's.
const NOBODY: &str = "";

/// The begins without ends of a shard.
pub(crate) type Seen = Arc<Mutex<BTreeMap<StayKey, u32>>>;

pub(crate) fn user_of(of: &Assigns) -> Option<&str> {
    let number = of.downcast_ref::<Assigned>()?.number as usize;
    USERS.get(number % USERS.len()).copied().filter(|user| !user.is_empty())
}

/// Half of the seeds have hooks: for members and users, or only for topics.
fn settings(seed: u64) -> Option<Settings> {
    let kinds: &[StayKind] = match seed % 4 {
        0 => &[StayKind::Topic],
        1 => &[StayKind::User, StayKind::Member],
        _ => return None,
    };
    let types = kinds.iter().map(|kind| HookRule::bit(*kind, true)).sum();
    let hooks = vec![HookRule::new("app", types)];
    Some(Settings { hooks, ..Settings::default() })
}

/// Takes the reports of one shard.
pub(crate) fn sink(shared: &Arc<Shared>, seen: &Seen) -> Option<SightingSink> {
    let settings = Arc::new(settings(shared.plan.seed)?);
    let (shared, seen) = (Arc::clone(shared), Arc::clone(seen));
    let take = move |all: Vec<Sighting>| {
        shared.ledger().count("sightings", all.len() as u64);
        for Sighting { key, ended } in all {
            if shared.faults.happens(Fault::Overlook) {
                continue;
            }
            let mut seen = locked(&seen);
            let count = seen.entry(key.clone()).or_default();
            match (ended.is_some(), count.checked_sub(1)) {
                (false, _) => *count += 1,
                (true, Some(less)) => *count = less,
                (true, None) => shared.fail("sightings", format!("{key:?} ends twice")),
            }
            seen.retain(|_, count| *count > 0);
        }
    };
    Some(SightingSink { settings, take: Arc::new(take) })
}

impl Shard {
    /// After a turn what has begun and not ended is what is there.
    pub(crate) fn check_sightings(&self, node: &SimNode) {
        let Some(settings) = settings(node.shared.plan.seed) else { return };
        let mut there = BTreeMap::<StayKey, u32>::new();
        for peer in self.net.peers().filter(|peer| peer.socket.is_open()) {
            let user = peer.socket.state().and_then(|state| user_of(state.assigns.as_ref()?));
            let user = user.filter(|_| settings.wants(StayKind::User, ""));
            if let Some(user) = user {
                *there.entry(StayKey::user_of(user)).or_default() += 1;
            }
            for topic in self.core.topics_of(&peer.socket) {
                let key = StayKey::member(&topic, user.unwrap_or(NOBODY));
                *there.entry(key).or_default() += 1;
            }
        }
        let mut seen = BTreeMap::<StayKey, u32>::new();
        for (key, count) in &*locked(&self.seen) {
            let key = match USERS.contains(&key.user()) {
                true => key.clone(),
                false => StayKey::member(key.topic(), NOBODY),
            };
            *seen.entry(key).or_default() += count;
        }
        if seen != there {
            node.shared.fail("sightings", format!("seen {seen:?}, there are {there:?}"));
        }
    }
}

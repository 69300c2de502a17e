//! Lists of topics and connections: collected from all shards, at a limited rate.
//!
//! A list costs a walk over all records. It is reused for at least a second, and for [`PACE`] times
//! the shards' time that its walk took. A list that is watched all day takes 0.5 % of a core, with
//! a thousand connections or with a million.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde::Serialize;
use simurgh_reactor::Key;
use simurgh_shard::mail::Mail;
use simurgh_shard::mail::survey::{
    Answer, MembersHere, Peer, SAMPLE, ShardQuery, Surveyed, TopicCount,
};
use simurgh_shard::view::{ConnectionOrder, ConnectionRow, List, Members, TopicOrder, TopicRow};
use tokio::sync::oneshot;

use super::{Observer, nodes, unix_s};

/// A list is kept for this multiple of its cost.
const PACE: u32 = 200;
/// The least time it is kept.
const KEPT_MIN: Duration = Duration::from_secs(1);
/// The pause between walks for different lists, as a multiple of the first one's cost.
const PACE_BETWEEN: u32 = 20;
const BETWEEN_MAX: Duration = Duration::from_secs(2);
const LISTS_MAX: usize = 16;
/// Most rows of a list.
pub(super) const ROWS_MAX: usize = 100;
/// A shard that has not answered after this time is left out.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const CANDIDATES_MAX: usize = 512;
const COUNTED_AT_ONCE: usize = 64;
/// Bytes of a topic's name that are shown in a list.
const NAME_BYTES_MAX: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Topics { by: TopicOrder, search: String, most: usize },
    Connections { by: ConnectionOrder, peer: Option<Peer>, most: usize },
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Listed {
    Topics(List<TopicRow>),
    Connections(List<ConnectionRow>),
}

impl Listed {
    /// When it has to be updated, measured from when it was made.
    pub(super) fn next_in(&self) -> Duration {
        let next_in_s = match self {
            Self::Topics(list) => list.next_in_s,
            Self::Connections(list) => list.next_in_s,
        };
        Duration::from_secs_f64(next_in_s)
    }
}

#[derive(Default)]
pub(super) struct Lists {
    kept: Vec<KeptList>,
    not_before: Option<Instant>,
}

struct KeptList {
    wanted: Wanted,
    until: Instant,
    listed: Arc<Listed>,
}

/// May take some seconds.
pub(super) async fn list(observer: &Observer, wanted: &Wanted) -> Arc<Listed> {
    loop {
        // Held for the whole walk: one walk at a time, and equal requests share its result.
        let mut lists = observer.lists.lock().await;
        let now = Instant::now();
        if let Some(kept) = lists.kept.iter().find(|it| it.wanted == *wanted && it.until > now) {
            return Arc::clone(&kept.listed);
        }
        let wait = lists.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        if wait.is_zero() {
            let (listed, busy) = make(observer, wanted).await;
            return lists.keep(wanted, listed, busy);
        }
        drop(lists);
        tokio::time::sleep(wait).await;
    }
}

impl Lists {
    fn keep(&mut self, wanted: &Wanted, listed: Listed, busy: Duration) -> Arc<Listed> {
        let now = Instant::now();
        self.not_before = Some(now + (busy * PACE_BETWEEN).min(BETWEEN_MAX));
        self.kept.retain(|it| it.wanted != *wanted && it.until > now);
        if self.kept.len() >= LISTS_MAX {
            self.kept.remove(0);
        }
        let listed = Arc::new(listed);
        let until = now + listed.next_in();
        self.kept.push(KeptList { wanted: wanted.clone(), until, listed: Arc::clone(&listed) });
        listed
    }
}

/// Also returns how much time of all shards it took.
async fn make(observer: &Observer, wanted: &Wanted) -> (Listed, Duration) {
    match wanted {
        Wanted::Topics { by, search, most } => {
            let (by, search) = (*by, search.as_str());
            // More than wanted: a topic that is spread over all shards may be first on none.
            let is_spread = observer.server.mailboxes.len() > 1 && by != TopicOrder::Kept;
            let each = if is_spread { 2 * *most } else { *most };
            let found = ask_all(observer, |answer| ShardQuery::Topics {
                by,
                search: search.into(),
                most: each,
                answer,
            })
            .await;
            let distinct = distinct(&found);
            let (counts, total, busy) = together(found);
            let total = distinct.unwrap_or(total);
            let mut rows = whole_topics(observer, counts, by).await;
            sort_topics(&mut rows, by);
            rows.truncate(*most);
            if by == TopicOrder::Kept {
                // This walk counts no deliveries: the last count may be old.
                rows.iter_mut().for_each(|row| row.deliveries_per_s = None);
            }
            let rows = rows.into_iter().map(topic_row).collect();
            (Listed::Topics(finished(rows, total, busy)), busy)
        }
        Wanted::Connections { by, peer, most } => {
            let (by, peer, most) = (*by, *peer, *most);
            let found =
                ask_all(observer, |answer| ShardQuery::Connections { by, peer, most, answer })
                    .await;
            let (mut rows, total, busy) = together(found);
            sort_connections(&mut rows, by);
            rows.truncate(most);
            (Listed::Connections(finished(rows, total, busy)), busy)
        }
    }
}

fn finished<T>(rows: Vec<T>, total: u64, busy: Duration) -> List<T> {
    let next_in = (busy * PACE).max(KEPT_MIN);
    List {
        rows,
        total,
        cost_ms: busy.as_secs_f64() * 1e3,
        at_unix_s: unix_s(),
        next_in_s: next_in.as_secs_f64(),
    }
}

fn together<T>(found: Vec<Surveyed<T>>) -> (Vec<T>, u64, Duration) {
    let (mut rows, mut total, mut busy) = (Vec::new(), 0, Duration::ZERO);
    for mut surveyed in found {
        rows.append(&mut surveyed.rows);
        total += surveyed.total;
        busy += surveyed.busy;
    }
    (rows, total, busy)
}

/// How many topics there are if one with members on several shards counts once: exact for up to
/// [`SAMPLE`] topics a shard, an estimate within some percent for more. `None` for other lists, and
/// if the total is right.
fn distinct<T>(found: &[Surveyed<T>]) -> Option<u64> {
    let is_exact = found.iter().all(|it| it.total <= SAMPLE as u64);
    let totals = found.iter().map(|it| it.total);
    let (least, most) = (totals.clone().max()?, totals.sum());
    if found.len() < 2 || found.iter().all(|it| it.sample.is_empty()) {
        return None;
    }
    let mut hashes: Vec<u64> = found.iter().flat_map(|it| it.sample.iter().copied()).collect();
    hashes.sort_unstable_by(|one, other| other.cmp(one));
    hashes.dedup();
    if is_exact {
        return Some(hashes.len() as u64);
    }
    // The greatest hashes are this close together if there are this many evenly spread.
    let part = (u64::MAX - hashes.get(SAMPLE - 1)?) as f64 / u64::MAX as f64;
    Some(((SAMPLE as f64 / part.max(f64::MIN_POSITIVE)) as u64).clamp(least, most))
}

async fn whole_topics(
    observer: &Observer,
    mut counts: Vec<TopicCount>,
    by: TopicOrder,
) -> Vec<TopicCount> {
    if observer.server.mailboxes.len() == 1 {
        return counts;
    }
    counts.sort_by_key(|count| match by {
        TopicOrder::Members | TopicOrder::Deliveries => std::cmp::Reverse(count.members),
        TopicOrder::Kept => std::cmp::Reverse(kept_bytes(count)),
    });
    let mut named: Vec<Box<str>> = counts.into_iter().map(|count| count.topic).collect();
    let mut seen = std::collections::HashSet::new();
    named.retain(|name| seen.insert(name.clone()));
    named.truncate(CANDIDATES_MAX);
    let mut sums: HashMap<Box<str>, TopicCount> = HashMap::new();
    // A few at a time: looking up hundreds of cold topics makes a long turn.
    for named in named.chunks(COUNTED_AT_ONCE) {
        let named: Arc<[Box<str>]> = named.into();
        let found =
            ask_all(observer, |answer| ShardQuery::Counts { topics: Arc::clone(&named), answer })
                .await;
        for (name, count) in found.into_iter().flat_map(|counts| named.iter().zip(counts)) {
            let sum = sums.entry(name.clone()).or_default();
            sum.members += count.members;
            let both = [sum.deliveries_per_s, count.deliveries_per_s];
            sum.deliveries_per_s = both.into_iter().flatten().reduce(|one, other| one + other);
            sum.kept = sum.kept.take().or(count.kept);
        }
    }
    sums.into_iter().map(|(topic, count)| TopicCount { topic, ..count }).collect()
}

fn kept_bytes(count: &TopicCount) -> u64 {
    count.kept.as_ref().map_or(0, |kept| kept.bytes)
}

fn sort_topics(rows: &mut [TopicCount], by: TopicOrder) {
    let rate = |row: &TopicCount| row.deliveries_per_s.unwrap_or(0.0);
    rows.sort_by(|a, b| {
        let first = match by {
            TopicOrder::Members => Ordering::Equal,
            TopicOrder::Deliveries => rate(b).total_cmp(&rate(a)),
            TopicOrder::Kept => kept_bytes(b).cmp(&kept_bytes(a)),
        };
        first.then(b.members.cmp(&a.members)).then_with(|| a.topic.cmp(&b.topic))
    });
}

fn sort_connections(rows: &mut [ConnectionRow], by: ConnectionOrder) {
    let rate = |row: &ConnectionRow| row.messages_per_s.unwrap_or(0.0);
    rows.sort_by(|a, b| match by {
        ConnectionOrder::Queue => b.queued_bytes.cmp(&a.queued_bytes),
        ConnectionOrder::Rate => rate(b).total_cmp(&rate(a)),
        ConnectionOrder::Age => b.age_s.cmp(&a.age_s),
        ConnectionOrder::Channels => b.channels.cmp(&a.channels),
    });
}

fn topic_row(count: TopicCount) -> TopicRow {
    let shown = count.topic.floor_char_boundary(NAME_BYTES_MAX);
    TopicRow {
        topic: count.topic.get(..shown).unwrap_or_default().to_owned(),
        cut: shown < count.topic.len(),
        members: count.members,
        deliveries_per_s: count.deliveries_per_s,
        kept: count.kept,
    }
}

/// The members of a topic, and the sockets whose id it is.
pub(super) async fn members(observer: &Observer, topic: &str, most: usize) -> Members {
    let found =
        ask_all(observer, |answer| ShardQuery::Members { topic: topic.into(), most, answer }).await;
    let mut members = Members { topic: topic.to_owned(), ..Members::default() };
    for MembersHere { total, rows, kept } in found {
        members.total += total;
        members.rows.extend(rows);
        members.kept = members.kept.or(kept);
    }
    members.rows.truncate(most);
    members.nodes = nodes::members(observer, topic, members.total).await.unwrap_or_default();
    members
}

pub(super) async fn members_here(observer: &Observer, topic: &str) -> u64 {
    let named: Arc<[Box<str>]> = [Box::from(topic)].into();
    let found =
        ask_all(observer, |answer| ShardQuery::Counts { topics: Arc::clone(&named), answer }).await;
    found.into_iter().flatten().map(|count| count.members).fold(0, u64::saturating_add)
}

pub(super) async fn connection(
    observer: &Observer,
    (shard, key): (u16, Key),
) -> Option<ConnectionRow> {
    ask_one(observer, shard, |answer| ShardQuery::Connection { key, answer }).await?
}

/// Closes a connection; returns whether it was there.
pub(super) async fn disconnect(observer: &Observer, (shard, key): (u16, Key)) -> bool {
    ask_one(observer, shard, |answer| ShardQuery::Disconnect { key, answer }).await.unwrap_or(false)
}

pub(super) fn parse_id(id: &str) -> Option<(u16, Key)> {
    let mut parts = id.split('.');
    let (shard, slot, generation) = (parts.next()?, parts.next()?, parts.next()?);
    let key = Key { slot: slot.parse().ok()?, generation: generation.parse().ok()? };
    parts.next().is_none().then_some((shard.parse().ok()?, key))
}

async fn ask_one<T>(
    observer: &Observer,
    shard: u16,
    ask: impl FnOnce(Answer<T>) -> ShardQuery,
) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    observer.server.post_to(shard, Mail::Observe(Box::new(ask(answer))));
    tokio::time::timeout(ANSWER_MAX, answered).await.ok()?.ok()
}

/// Asks all shards at once; those that have ended give no answer.
async fn ask_all<T>(observer: &Observer, ask: impl Fn(Answer<T>) -> ShardQuery) -> Vec<T> {
    let shards = 0..observer.server.mailboxes.len();
    let answers = shards.map(|shard| ask_one(observer, shard as u16, &ask));
    join_all(answers).await.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_contains_shard_slot_and_generation() {
        assert_eq!(parse_id("3.17.2"), Some((3, Key { slot: 17, generation: 2 })));
        for wrong in ["", "3", "3.17", "3.17.2.1", "a.b.c", "-1.0.0", "70000.0.0", "3.17."] {
            assert_eq!(parse_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn long_name_is_truncated_between_characters() {
        let topic: Box<str> = "ä".repeat(400).into();
        let row = topic_row(TopicCount { topic, ..TopicCount::default() });
        assert!(row.cut);
        assert_eq!(row.topic.chars().count(), 256);
    }

    #[test]
    fn topics_on_several_shards_count_once() {
        let of = |numbers: std::ops::Range<u64>| {
            // Evenly spread numbers in place of hashes.
            let mut sample: Vec<u64> =
                numbers.clone().map(|it| it.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            sample.sort_unstable_by(|one, other| other.cmp(one));
            sample.truncate(SAMPLE);
            let total = numbers.end - numbers.start;
            Surveyed::<()> { rows: Vec::new(), total, sample, busy: Duration::ZERO }
        };
        assert_eq!(distinct(&[of(0..100)]), None, "a single shard");
        assert_eq!(distinct(&[of(0..100), of(50..120), of(0..0)]), Some(120));
        assert_eq!(distinct(&[of(0..3000), of(2000..6000)]), Some(6000));
        let many = distinct(&[of(0..60_000), of(40_000..100_000)]).unwrap();
        assert!((93_000..107_000).contains(&many), "{many}");
    }

    #[test]
    fn expensive_lists_are_made_less_often() {
        let cheap = finished(vec![0], 1, Duration::from_millis(2));
        let dear = finished(vec![0], 1, Duration::from_millis(50));
        assert_eq!((cheap.next_in_s, dear.next_in_s), (1.0, 10.0));
    }
}

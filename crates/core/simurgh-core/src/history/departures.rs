//! Positions of clients on kept topics that they left: a client that joins again on the same
//! connection has received what was sent on it, whatever its join states.

use crate::seeded_state::HashMap;
use core::hash::BuildHasher;
use simurgh_data::prelude::*;

use simurgh_channel::TICK;
use simurgh_data::Key;
use simurgh_history::{Position, Resume, Since};

use crate::seeded_state::SeededState;

/// Topics that are remembered of a connection.
const TOPICS_MAX: usize = 8;
const SECONDS: u32 = 60;

#[derive(Debug)]
struct Departure {
    /// The hash of its name, with a seed: names may be long.
    topic: u64,
    position: Position,
    tick: u32,
    how: Left,
    /// The client joined again and was sent what it had dropped once more, up to here.
    again: Option<Position>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Left {
    /// Its channel intercepts: what it received is for that channel alone.
    pub(crate) intercepts: bool,
    /// It was sent a gap at this position, which it may not have received.
    pub(crate) gap: Option<Position>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejoin {
    After(Since),
    /// It has dropped some of what it was sent up to here, and the rest is on its way to it: what
    /// it dropped would arrive behind that.
    Torn(Position),
}

#[derive(Debug, Default)]
pub(crate) struct Departures {
    hasher: SeededState,
    by_conn: HashMap<Key, Vec<Departure>>,
    /// Positions of members with interceptors: one that ends by what it has seen has not seen what
    /// followed.
    seen: HashMap<u32, Position>,
    gaps: HashMap<u32, Position>,
}

impl Departures {
    pub(crate) fn new(seed: u64) -> Self {
        Self { hasher: SeededState::new(seed), ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_conn.len() + self.seen.len() + self.gaps.len()
    }

    pub(crate) fn note(
        &mut self,
        conn: Key,
        topic: &str,
        position: Position,
        tick: u32,
        how: Left,
    ) {
        let topic = self.hasher.hash_one(topic);
        let all = self.by_conn.entry(conn).or_default();
        let before = all.iter().find(|it| it.topic == topic && !is_old(it, tick));
        let again = before.and_then(|it| it.again).filter(|it| it.epoch == position.epoch);
        all.retain(|it| it.topic != topic && !is_old(it, tick));
        if all.len() == TOPICS_MAX {
            all.remove(0);
        }
        all.push(Departure { topic, position, tick, how, again });
    }

    /// Where the replay of a client that joins again begins, by what its join states, by what has
    /// arrived there, and by what it was sent on this connection. What has not arrived yet is for
    /// the new channel.
    pub(crate) fn floor(&mut self, conn: Key, topic: &str, resume: &Resume, tick: u32) -> Rejoin {
        let (since, seen) = (resume.since, resume.seen);
        let claimed = match since {
            Since::Now | Since::Newest(_) => return Rejoin::After(since),
            Since::After(claimed) => Some(claimed),
            Since::Unknown => None,
        };
        let topic = self.hasher.hash_one(topic);
        let mut all = self.by_conn.get_mut(&conn).into_iter().flatten();
        let left = all.rfind(|it| it.topic == topic && !is_old(it, tick));
        let Some(left) = left else { return Rejoin::After(since) };
        // Its position is of another epoch; what was sent behind that it may have received.
        let Some(claimed) = claimed.filter(|it| it.epoch == left.position.epoch) else {
            return Rejoin::Torn(left.position);
        };
        if left.position.place <= claimed.place {
            return Rejoin::After(since);
        }
        let (sent, Left { intercepts, gap }) = (left.position, left.how);
        // A client that received the gap is behind it.
        if gap.is_some_and(|gap| gap.place > claimed.place) {
            return Rejoin::Torn(sent);
        }
        match seen.filter(|seen| seen.epoch == claimed.epoch && seen.place > claimed.place) {
            None if intercepts && seen.is_some() => Rejoin::Torn(sent),
            None => Rejoin::After(Since::After(sent)),
            // It may have dropped it once, and what it was sent again is on its way.
            Some(_) if left.again.is_some_and(|again| again.place >= sent.place) => {
                Rejoin::Torn(sent)
            }
            Some(seen) if seen.place >= sent.place => {
                left.again = Some(sent);
                Rejoin::After(since)
            }
            Some(_) => Rejoin::Torn(sent),
        }
    }

    pub(crate) fn has_seen(&mut self, membership: u32, position: Position) {
        self.seen.insert(membership, position);
    }

    pub(crate) fn has_gap(&mut self, membership: u32, position: Position) {
        self.gaps.insert(membership, position);
    }

    pub(crate) fn gap(&self, membership: u32) -> Option<Position> {
        self.gaps.get(&membership).copied()
    }

    /// A member has left. Returns its position, if its channel intercepts.
    pub(crate) fn leaves(&mut self, membership: u32) -> Option<Position> {
        self.gaps.remove(&membership);
        if self.gaps.is_empty() {
            self.gaps = HashMap::default();
        }
        let position = self.seen.remove(&membership);
        if self.seen.is_empty() {
            self.seen = HashMap::default();
        }
        position
    }

    pub(crate) fn forget(&mut self, conn: Key) {
        self.by_conn.remove(&conn);
        if self.by_conn.is_empty() {
            self.by_conn = HashMap::default();
        }
    }
}

fn is_old(it: &Departure, tick: u32) -> bool {
    (TICK * tick.wrapping_sub(it.tick)).as_secs() >= u64::from(SECONDS)
}

#[cfg(test)]
mod tests {
    use simurgh_history::{Epoch, Place};

    use super::*;

    const CONN: Key = Key { slot: 1, generation: 0 };

    fn at(seq: u64) -> Position {
        Position { epoch: Epoch::from_seed(1), place: Place::new(seq) }
    }

    fn resume(since: Since, seen: Option<u64>) -> Resume {
        Resume { id: None, since, seen: seen.map(at), partial: true, key: None }
    }

    #[test]
    fn remembered_departures_of_each_kind_are_counted() {
        let mut departures = Departures::default();
        assert_eq!(departures.len(), 0);
        departures.note(CONN, "t", at(6), 0, Left::default());
        departures.seen.insert(1, at(5));
        departures.seen.insert(2, at(5));
        departures.gaps.extend((0..3).map(|member| (member, at(5))));
        assert_eq!(departures.len(), 1 + 2 + 3);
    }

    #[test]
    fn arrived_messages_and_messages_in_transit_are_distinguished() {
        let mut departures = Departures::default();
        let mut rejoin = |since, seen: Option<u64>| {
            departures.note(CONN, "t", at(60), 0, Left::default());
            departures.floor(CONN, "t", &resume(Since::After(at(since)), seen), 1)
        };
        let after = |seq| Rejoin::After(Since::After(at(seq)));
        assert_eq!(rejoin(44, None), after(60), "all of it comes, or has come");
        assert_eq!(rejoin(44, Some(44)), after(60), "all of it is on its way");
        assert_eq!(rejoin(44, Some(50)), Rejoin::Torn(at(60)));
        assert_eq!(rejoin(60, Some(60)), after(60));
        assert_eq!(rejoin(70, Some(70)), after(70), "on another connection");
        assert_eq!(rejoin(44, Some(60)), after(44), "all of it was dropped");
        let again = rejoin(44, Some(60));
        assert_eq!(again, Rejoin::Torn(at(60)), "or is on its way a second time");
        departures.note(CONN, "t", at(60), 0, Left::default());
        let elsewhere = Since::After(Position { epoch: Epoch::from_seed(2), ..at(44) });
        for since in [elsewhere, Since::Unknown] {
            let resume = resume(since, None);
            let again = departures.floor(CONN, "t", &resume, 1);
            assert_eq!(again, Rejoin::Torn(at(60)), "it was told, and given what there is");
            assert_eq!(departures.floor(CONN, "u", &resume, 1), Rejoin::After(since));
        }
    }

    #[test]
    fn last_topics_of_a_connection_are_remembered_for_a_minute() {
        let mut departures = Departures::default();
        for n in 0..100 {
            departures.note(CONN, &format!("t{n}"), at(60), 0, Left::default());
            departures.note(CONN, "often", at(60 + n), 0, Left::default());
        }
        assert_eq!(departures.by_conn[&CONN].len(), TOPICS_MAX);
        let since = Since::After(at(44));
        let resume = resume(since, None);
        let floor = |it: &mut Departures, topic, tick| it.floor(CONN, topic, &resume, tick);
        assert_eq!(floor(&mut departures, "t99", 0), Rejoin::After(Since::After(at(60))));
        assert_eq!(floor(&mut departures, "often", 0), Rejoin::After(Since::After(at(159))));
        assert_eq!(floor(&mut departures, "t1", 0), Rejoin::After(since));
        assert_eq!(floor(&mut departures, "t99", 600), Rejoin::After(since), "it is too old");
        departures.note(CONN, "new", at(1), 600, Left::default());
        assert_eq!(departures.by_conn[&CONN].len(), 1);
    }

    #[test]
    fn intercepted_messages_are_not_for_the_next_channel_and_gaps_are_reported() {
        let mut departures = Departures::default();
        let floor = |departures: &mut Departures, since, seen: Option<u64>| {
            departures.floor(CONN, "t", &resume(Since::After(at(since)), seen), 0)
        };
        departures.note(CONN, "t", at(60), 0, Left { intercepts: true, gap: None });
        assert_eq!(floor(&mut departures, 50, Some(50)), Rejoin::Torn(at(60)));
        assert_eq!(floor(&mut departures, 50, Some(60)), Rejoin::After(Since::After(at(50))));
        assert_eq!(floor(&mut departures, 50, None), Rejoin::After(Since::After(at(60))));
        departures.has_gap(7, at(55));
        let gap = departures.gap(7);
        departures.leaves(7);
        departures.note(CONN, "t", at(60), 0, Left { intercepts: false, gap });
        let untold = floor(&mut departures, 50, None);
        assert_eq!(untold, Rejoin::Torn(at(60)), "it has not heard of it");
        assert_eq!(floor(&mut departures, 55, Some(55)), Rejoin::After(Since::After(at(60))));
        departures.forget(CONN);
        assert_eq!(departures.len(), 0);
    }
}

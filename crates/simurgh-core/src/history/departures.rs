//! Where clients stood on kept topics that they left: what was sent on a connection has reached who
//! joins again on it, whatever it says it has heard.

use std::collections::HashMap;

use simurgh_history::{Position, Resume, Since};
use simurgh_reactor::Key;

use crate::clock::TICK;

/// Topics that are remembered of a connection.
const TOPICS_MAX: usize = 8;
/// For so long, in seconds.
const SECONDS: u32 = 60;

#[derive(Debug)]
struct Departure {
    topic: Box<str>,
    position: Position,
    tick: u32,
}

/// From where on a client is given what it has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejoin {
    After(Since),
    /// It has dropped some of what it was sent up to here, and the rest is on its way to it: what
    /// it has dropped would come behind that.
    Torn(Position),
}

/// By connection; the newest last.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    by_conn: HashMap<Key, Vec<Departure>>,
    /// How far members have come whose channels intercept: one that ends by what it has seen has
    /// not seen what came behind.
    seen: HashMap<u32, Position>,
}

impl Departures {
    /// Connections and memberships of which something is remembered.
    pub(crate) fn len(&self) -> usize {
        self.by_conn.len() + self.seen.len()
    }

    /// A connection has been sent a topic up to a position.
    pub(crate) fn note(&mut self, conn: Key, topic: &str, position: Position, tick: u32) {
        let all = self.by_conn.entry(conn).or_default();
        all.retain(|it| &*it.topic != topic && !is_old(it, tick));
        if all.len() == TOPICS_MAX {
            all.remove(0);
        }
        all.push(Departure { topic: topic.into(), position, tick });
    }

    /// What a client that joins a topic again is to be given, by what it says it has heard, what has
    /// arrived there, and what it was sent on this connection. What has not arrived yet comes to the
    /// new channel.
    pub(crate) fn floor(&self, conn: Key, topic: &str, resume: &Resume, tick: u32) -> Rejoin {
        let (since, seen) = (resume.since, resume.seen);
        let Since::After(said) = since else { return Rejoin::After(since) };
        let mut all = self.by_conn.get(&conn).into_iter().flatten();
        let sent = all.rfind(|it| &*it.topic == topic && !is_old(it, tick));
        let sent = sent.map(|it| it.position).filter(|it| it.epoch == said.epoch);
        let Some(sent) = sent.filter(|sent| sent.place > said.place) else {
            return Rejoin::After(since);
        };
        match seen.filter(|seen| seen.epoch == said.epoch && seen.place > said.place) {
            None => Rejoin::After(Since::After(sent)),
            Some(seen) if seen.place >= sent.place => Rejoin::After(since),
            Some(_) => Rejoin::Torn(sent),
        }
    }

    /// A member whose channel intercepts has been given what stands here.
    pub(crate) fn has_seen(&mut self, membership: u32, position: Position) {
        self.seen.insert(membership, position);
    }

    /// A member has left; how far it had come, if its channel intercepts.
    pub(crate) fn leaves(&mut self, membership: u32) -> Option<Position> {
        let position = self.seen.remove(&membership);
        if self.seen.is_empty() {
            self.seen = HashMap::new();
        }
        position
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, conn: Key) {
        self.by_conn.remove(&conn);
        if self.by_conn.is_empty() {
            self.by_conn = HashMap::new();
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

    #[test]
    fn what_has_arrived_and_what_is_on_its_way_are_told_apart() {
        let at = |seq| Position { epoch: Epoch::from_seed(1), place: Place::new(seq) };
        let conn = Key { slot: 1, generation: 0 };
        let mut departures = Departures::default();
        departures.note(conn, "t", at(60), 0);
        let rejoin = |since, seen: Option<u64>| {
            let (seen, partial) = (seen.map(at), true);
            let resume =
                Resume { id: None, since: Since::After(at(since)), seen, partial, key: None };
            departures.floor(conn, "t", &resume, 1)
        };
        let after = |seq| Rejoin::After(Since::After(at(seq)));
        assert_eq!(rejoin(44, None), after(60), "all of it comes, or has come");
        assert_eq!(rejoin(44, Some(44)), after(60), "all of it is on its way");
        assert_eq!(rejoin(44, Some(60)), after(44), "all of it was dropped");
        assert_eq!(rejoin(44, Some(50)), Rejoin::Torn(at(60)));
        assert_eq!(rejoin(60, Some(60)), after(60));
        assert_eq!(rejoin(70, Some(70)), after(70), "on another connection");
    }
}

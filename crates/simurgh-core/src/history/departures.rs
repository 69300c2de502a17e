//! Where clients stood on kept topics that they left: what was sent on a connection has reached who
//! joins again on it, whatever it says it has heard.

use std::collections::HashMap;

use simurgh_history::{Position, Since};
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

/// By connection; the newest last.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    by_conn: HashMap<Key, Vec<Departure>>,
    /// How far members have come whose channels intercept: one that ends by what it has seen has
    /// not seen what came behind.
    seen: HashMap<u32, Position>,
}

impl Departures {
    /// A connection has been sent a topic up to a position.
    pub(crate) fn note(&mut self, conn: Key, topic: &str, position: Position, tick: u32) {
        let all = self.by_conn.entry(conn).or_default();
        all.retain(|it| &*it.topic != topic && !is_old(it, tick));
        if all.len() == TOPICS_MAX {
            all.remove(0);
        }
        all.push(Departure { topic: topic.into(), position, tick });
    }

    /// What a client has heard that joins a topic again, by what it says and what it was sent.
    pub(crate) fn floor(&self, conn: Key, topic: &str, since: Since, tick: u32) -> Since {
        let Since::After(said) = since else { return since };
        let mut all = self.by_conn.get(&conn).into_iter().flatten();
        let sent = all.rfind(|it| &*it.topic == topic && !is_old(it, tick));
        match sent.map(|it| it.position) {
            Some(sent) if sent.epoch == said.epoch && sent.place > said.place => Since::After(sent),
            _ => since,
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

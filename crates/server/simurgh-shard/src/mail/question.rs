//! Questions of back ends: who is connected, and what is in topics, on every node.
//!
//! Questions and answers travel between nodes as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most rows of an answer.
pub const ROWS_MAX: usize = 1_000;

/// A question for all shards of all nodes; their answers are [merged](Found::merge).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// The numbers of connections of these users.
    Online { users: Vec<String> },
    /// Topics with members whose names begin with `prefix` and come after `after`, in order.
    Topics { prefix: String, after: String, limit: usize },
    /// Connections whose ids come after `after`, in order.
    Connections { of: ConnectionsOf, after: String, limit: usize },
    /// Totals.
    Counts,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionsOf {
    User(String),
    Topic(String),
}

/// Receives what a shard has found.
pub type Answered = Box<dyn FnOnce(Found) + Send>;

/// The answer of a shard, a node or all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Found {
    pub users: BTreeMap<String, Online>,
    /// The numbers of their members.
    pub topics: BTreeMap<String, u64>,
    pub connections: BTreeMap<String, ConnectionInfo>,
    pub counts: Counts,
    /// Whether rows were left out because of the limit.
    pub has_more: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Online {
    pub connections: u64,
    /// When the oldest of them began, in seconds since 1970, to about 10 s.
    pub since: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionInfo {
    pub node: String,
    pub user: Option<String>,
    pub id: Option<String>,
    /// The address of the client, or of its proxy.
    pub peer: Option<String>,
    pub path: String,
    /// As [`Online::since`].
    pub since: u64,
    /// Some of its topics.
    pub topics: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Open sockets.
    pub connections: u64,
    /// Joined channels.
    pub channels: u64,
}

impl Question {
    /// The most rows that it wants.
    fn limit(&self) -> usize {
        match self {
            Self::Topics { limit, .. } | Self::Connections { limit, .. } => (*limit).min(ROWS_MAX),
            Self::Online { .. } | Self::Counts => ROWS_MAX,
        }
    }
}

impl Online {
    fn merge(&mut self, other: Self) {
        self.since = if self.connections == 0 { other.since } else { self.since.min(other.since) };
        self.connections = self.connections.saturating_add(other.connections);
    }
}

impl Found {
    pub(crate) fn add_user(&mut self, user: &str, since: u64) {
        let one = Online { connections: 1, since };
        self.users.entry(user.to_owned()).or_default().merge(one);
    }

    pub(crate) fn add_topic(&mut self, question: &Question, topic: &str, members: u64) {
        *self.topics.entry(topic.to_owned()).or_default() += members;
        self.cut(question);
    }

    /// Whether a row with this name would be among the first.
    pub(crate) fn has_place(&self, question: &Question, connection: &str) -> bool {
        let last = self.connections.last_key_value().map(|(name, _)| name.as_str());
        self.connections.len() <= question.limit() || last.is_some_and(|last| connection < last)
    }

    pub(crate) fn add_connection(&mut self, question: &Question, id: String, info: ConnectionInfo) {
        self.connections.insert(id, info);
        self.cut(question);
    }

    /// Adds what another shard or node has found.
    pub fn merge(&mut self, question: &Question, other: Self) {
        for (user, online) in other.users {
            self.users.entry(user).or_default().merge(online);
        }
        for (topic, members) in other.topics {
            let sum = self.topics.entry(topic).or_default();
            *sum = sum.saturating_add(members);
        }
        self.connections.extend(other.connections);
        let (counts, more) = (&mut self.counts, other.counts);
        counts.connections = counts.connections.saturating_add(more.connections);
        counts.channels = counts.channels.saturating_add(more.channels);
        self.has_more |= other.has_more;
        self.cut(question);
    }

    /// Leaves the first rows. Each shard has the first of its own, so those of all are complete.
    fn cut(&mut self, question: &Question) {
        let limit = question.limit();
        while self.topics.len() > limit {
            self.topics.pop_last();
            self.has_more = true;
        }
        while self.connections.len() > limit {
            self.connections.pop_last();
            self.has_more = true;
        }
    }

    /// The name after which the next page begins.
    pub fn next(&self) -> Option<&str> {
        let topic = self.topics.last_key_value().map(|(name, _)| name.as_str());
        let connection = self.connections.last_key_value().map(|(name, _)| name.as_str());
        topic.or(connection).filter(|_| self.has_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_of_all_shards_are_complete() {
        let question = Question::Topics { prefix: String::new(), after: String::new(), limit: 3 };
        let shard = |topics: &[(&str, u64)]| {
            let mut found = Found::default();
            for (topic, members) in topics {
                found.add_topic(&question, topic, *members);
            }
            found
        };
        let mut all = shard(&[("e", 1), ("a", 1), ("c", 5), ("d", 9)]);
        assert!(all.has_more);
        all.merge(&question, shard(&[("b", 2), ("c", 6), ("f", 1)]));
        let topics: Vec<_> = all.topics.iter().map(|(name, sum)| (name.as_str(), *sum)).collect();
        assert_eq!(topics, [("a", 1), ("b", 2), ("c", 11)]);
        assert_eq!(all.next(), Some("c"));
        let mut few = shard(&[("a", 1)]);
        few.merge(&question, shard(&[("a", 2)]));
        assert_eq!((few.topics["a"], few.next()), (3, None));
    }

    #[test]
    fn users_of_several_shards_are_added() {
        let question = Question::Online { users: vec!["7".to_owned()] };
        let (mut one, mut other) = (Found::default(), Found::default());
        one.add_user("7", 200);
        one.add_user("7", 300);
        other.add_user("7", 100);
        one.merge(&question, other);
        assert_eq!(one.users["7"], Online { connections: 3, since: 100 });
    }
}

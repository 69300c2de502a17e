//! Clients of topics with a history: what they send with a join, and the positions they receive.

use simurgh_channel::HistoryRule;
use simurgh_history::Position;

use super::*;

pub(crate) const OPTED_IN: &str = r#"{"simurgh":{"since":null}}"#;

pub(crate) fn since(position: &str) -> String {
    format!(r#"{{"simurgh":{{"since":"{position}"}}}}"#)
}

/// The first join of a client with an id, and its next behind a position.
pub(crate) const ANN: &str = r#"{"simurgh":{"id":"ann's tab","since":null}}"#;

pub(crate) fn as_ann(position: &str) -> String {
    format!(r#"{{"simurgh":{{"id":"ann's tab","since":"{position}"}}}}"#)
}

/// The key that proves a client's first join, of a reply.
pub(crate) fn key_of(joined: &str) -> &str {
    joined.split(r#""key":""#).nth(1).and_then(|rest| rest.split('"').next()).expect("a key")
}

pub(crate) fn position_of(text: &str) -> String {
    try_position(text).unwrap_or_else(|| panic!("a position in {text}")).to_owned()
}

pub(crate) fn try_position(text: &str) -> Option<&str> {
    text.split('"').find(|part| Position::parse(part).is_some())
}

/// The channel on every topic, each with a history.
pub(crate) fn keeping(channel: Scripted, rule: HistoryRule) -> UserSocket {
    let mut user_socket = channel.user_socket();
    if let Kind::Channels(routes) = &mut user_socket.kind {
        routes.iter_mut().for_each(|route| route.history = Some(rule));
    }
    user_socket
}

/// The first topic whose home is this one of two shards.
pub(crate) fn topic_at(shard: usize) -> String {
    let mut names = (0..).map(|n| format!("t{n}"));
    names.find(|name| simurgh_channel::home_shard(name, 2) == shard).expect("some name")
}

/// A channel that also broadcasts before it pushes and replies, and broadcasts bytes.
pub(crate) fn talking() -> Scripted {
    scripted(|ctx, heard| match heard {
        ChannelCall::In("say", payload) => {
            ctx.broadcast("news", payload.into_owned());
            ctx.push("behind", Payload::EMPTY_OBJECT);
            Outcome::ok(Payload::EMPTY_OBJECT)
        }
        ChannelCall::In("binary", _) => {
            ctx.broadcast("news", Payload::from_bytes(vec![1, 2, 3]));
            Outcome::NoReply
        }
        other => standard(ctx, other),
    })
}

/// A node of two shards: the first has all members, the second is the home of half of the topics.
pub(crate) struct TwoShards {
    pub(crate) test_shard: TestShard,
    pub(crate) other: Core<TestNode>,
    pub(crate) out: TestSockets,
    /// The first topics with their homes on the first and on the second shard.
    pub(crate) here: String,
    pub(crate) there: String,
}

impl TwoShards {
    pub(crate) fn new(node: TestNode) -> Self {
        let test_shard = TestShard::with_node(node);
        let other = Core::new(Arc::clone(&test_shard.node), 1, Arc::default(), 7);
        let (here, there) = (topic_at(0), topic_at(1));
        Self { test_shard, other, out: TestSockets::default(), here, there }
    }

    /// The core of a topic's home.
    pub(crate) fn home_of(&self, topic: &str) -> &Core<TestNode> {
        if topic == self.here { &self.test_shard.core } else { &self.other }
    }

    /// The second shard handles its mail.
    pub(crate) fn home_turn(&mut self) {
        let mail = std::mem::take(&mut self.test_shard.node.log().mail[1]);
        mail.into_iter().for_each(|it| self.other.mail(&mut self.out, it));
    }

    pub(crate) fn takes_turns(&mut self) {
        self.home_turn();
        self.test_shard.handles_mail();
    }

    pub(crate) fn settles(&mut self) {
        for _ in 0..10 {
            self.takes_turns();
            self.test_shard.core.channels().go_on_replaying(&mut self.test_shard.out);
            self.other.channels().go_on_replaying(&mut self.out);
        }
        self.test_shard.fans_out();
        // Broadcasts on their way to a broker stay charged.
        if self.test_shard.node.cluster().is_none() {
            assert_eq!(self.test_shard.node.charged(0), 0, "what was charged is given back");
        }
    }

    /// A client sends this, which is not handled further yet.
    pub(crate) fn writes(&mut self, key: Key, topic: &str, event: &str, payload: &str) {
        let text = match self.test_shard.out.peer(key).socket.wire() {
            Wire::V1 => {
                let refs = r#""ref":"1","join_ref":"1""#;
                format!(r#"{{"topic":"{topic}","event":"{event}","payload":{payload},{refs}}}"#)
            }
            _ => format!(r#"["1","1","{topic}","{event}",{payload}]"#),
        };
        self.test_shard.sends(key, &text);
    }

    pub(crate) fn receives(&mut self, key: Key) -> Vec<String> {
        self.test_shard.receives(key)
    }

    /// Time passes on both shards, which then have four turns each.
    pub(crate) fn advances(&mut self, time: Duration) {
        self.test_shard.advances(time);
        self.out.turn_ns = self.test_shard.out.turn_ns;
        for _ in 0..4 {
            self.test_shard.core.tick(&mut self.test_shard.out);
            self.other.tick(&mut self.out);
        }
    }
}

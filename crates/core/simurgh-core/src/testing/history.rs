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

/// Time passes on both shards of a node, which then have four turns each.
pub(crate) fn advance_both(
    shard: &mut TestShard,
    other: &mut Core<TestNode>,
    out: &mut TestSockets,
    time: Duration,
) {
    shard.advances(time);
    out.turn_ns = shard.out.turn_ns;
    for _ in 0..4 {
        shard.core.tick(&mut shard.out);
        other.tick(out);
    }
}

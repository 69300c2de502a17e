//! Channels that wait for their broadcasts to be kept: how they end, and that their sockets are
//! read again.

use super::*;

fn answering() -> Scripted {
    let it = scripted(|ctx, heard| match heard {
        ChannelCall::Out("news", payload) => {
            match payload.json() {
                Some("\"answer\"") => {
                    ctx.broadcast("answer", Payload::EMPTY_OBJECT);
                    ctx.push("behind", Payload::EMPTY_OBJECT);
                }
                Some("\"stop\"") => return Outcome::Stop(Stop::Normal),
                _ => ctx.push("seen", payload),
            }
            Outcome::NoReply
        }
        ChannelCall::In("say and stop", _) => {
            ctx.broadcast("other", Payload::EMPTY_OBJECT);
            Outcome::Stop(Stop::Abnormal)
        }
        ChannelCall::In("push and say", _) => {
            ctx.push("pushed", Payload::EMPTY_OBJECT);
            ctx.broadcast("other", Payload::EMPTY_OBJECT);
            Outcome::ok(Payload::EMPTY_OBJECT)
        }
        other => standard(ctx, other),
    });
    it.intercepting(&["news"])
}

impl Node {
    fn has_pending(&mut self, topic: &str, json: &'static str) {
        self.has_mail(topic, json);
        self.test_shard.handles_mail();
    }

    fn has_mail(&mut self, topic: &str, json: &'static str) {
        let broadcast = Broadcast::new(topic, "news", Payload::from_json(json));
        crate::Publisher::broadcast(&*self.test_shard.node, broadcast).expect("there is room");
        self.home_turn();
    }

    fn answers() -> (Self, Key, String) {
        let mut it = Self::running(answering());
        let topic = it.there.clone();
        let (key, _) = it.joins(Wire::V2, &topic, "{}");
        (it, key, topic)
    }

    fn hears_events(&mut self, key: Key) -> Vec<String> {
        events(&self.receives(key))
    }

    fn waits(&self) -> usize {
        self.test_shard.core.history_waits()
    }
}

/// The handle's broadcast arrives when the end waits already, and what is broadcast meanwhile finds
/// a channel that receives nothing more.
#[test]
fn waiting_channel_ends_despite_its_handle() {
    let (mut it, key, topic) = Node::answers();
    let channel = ChannelId { shard: 0, membership: 0, generation: 0 };
    it.has_pending(&topic, "1");
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","say and stop",{{}}]"#));
    it.test_shard.fans_out();
    let node = Arc::clone(&it.test_shard.node);
    node.broadcast_by(channel, "late", Payload::EMPTY_OBJECT, Audience::All).unwrap();
    assert_eq!(it.settled_events(key), ["phx_error", "you_left"]);
    assert!(!it.test_shard.out.is_held(key), "it is read again");
    assert_eq!(it.waits(), 0);
    assert_eq!(it.joins_again(key, &topic, "{}").len(), 1);
}

#[test]
fn leaving_client_is_read_although_its_interceptor_broadcasts() {
    let (mut it, key, topic) = Node::answers();
    it.has_pending(&topic, "\"answer\"");
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","phx_leave",{{}}]"#));
    assert!(!it.test_shard.out.is_held(key), "nobody waits any more");
    it.settles();
    assert_eq!(it.hears_events(key), ["phx_reply", "phx_close", "behind", "you_left"]);
    assert_eq!(it.waits(), 0);
    let (_, joined) = it.joins(Wire::V2, &topic, OPTED_IN);
    assert_eq!(positions(&joined[1..]).0, [2], "and what it broadcast is kept");
}

#[test]
fn rejoin_succeeds_although_its_interceptor_broadcasts() {
    let (mut it, key, topic) = Node::answers();
    it.has_pending(&topic, "\"answer\"");
    it.test_shard.sends(key, &format!(r#"["2","2","{topic}","phx_join",{{}}]"#));
    assert!(!it.test_shard.out.is_held(key), "nobody waits any more");
    assert_eq!(it.settled_events(key), ["phx_reply", "phx_close", "behind", "you_left", "answer"]);
    assert_eq!(it.waits(), 0);
}

/// It is brought up to date for a push, ends by what it intercepts, and has broadcast behind the
/// push.
#[test]
fn stopping_channel_ends_after_its_effects() {
    let (mut it, key, topic) = Node::answers();
    it.has_pending(&topic, "\"stop\"");
    it.has_mail(&topic, "1");
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","push and say",{{}}]"#));
    it.test_shard.handles_mail();
    it.test_shard.fans_out();
    assert_eq!(it.hears_events(key), ["pushed"]);
    assert_eq!(it.settled_events(key), ["phx_reply", "phx_close", "you_left"]);
    assert!(!it.test_shard.out.is_held(key));
    assert_eq!(it.waits(), 0);
}

/// The same, and its socket closes meanwhile.
#[test]
fn stopping_channel_of_a_closed_socket_leaves_no_state() {
    let (mut it, key, topic) = Node::answers();
    it.has_pending(&topic, "\"stop\"");
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","push and say",{{}}]"#));
    it.test_shard.disconnects(key);
    it.settles();
    assert_eq!(it.waits(), 0);
}

//! Clients that leave and join again, on the same connection or on the next: what they are given,
//! which gaps they receive, and what is remembered of them.

use super::*;

/// A channel whose broadcasts are also another's, and that broadcasts in `terminate`.
fn talkative() -> Scripted {
    scripted(|ctx, heard| match heard {
        ChannelCall::In("twice", _) => {
            ctx.broadcast("first", Payload::EMPTY_OBJECT);
            ctx.broadcast_from("second", Payload::EMPTY_OBJECT);
            Outcome::NoReply
        }
        ChannelCall::Ends(_) => {
            ctx.broadcast_from("last", Payload::EMPTY_OBJECT);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    })
}

fn passing() -> Scripted {
    let it = scripted(|ctx, heard| match heard {
        ChannelCall::Out(event, payload) => {
            ctx.push(event, payload);
            Outcome::NoReply
        }
        ChannelCall::In("say", payload) => {
            ctx.broadcast("mine", payload.into_owned());
            ctx.push("behind", Payload::EMPTY_OBJECT);
            Outcome::NoReply
        }
        other => standard(ctx, other),
    });
    it.intercepting(&["news"])
}

fn seen(since: &str, seen: &str) -> String {
    format!(r#"{{"simurgh":{{"since":"{since}","seen":"{seen}"}}}}"#)
}

fn lost(heard: &[String]) -> bool {
    heard.iter().any(|it| it.contains(r#"{"recovered":false,"reason":"lost","count":0}"#))
}

impl Node {
    fn is_told(&mut self, topic: &str, n: u32) {
        let payload = Payload::from_json(format!(r#"{{"n":{n}}}"#));
        let broadcast = Broadcast::new(topic, "news", payload);
        crate::Publisher::broadcast(&*self.test_shard.node, broadcast).expect("there is room");
        self.takes_turns();
        self.test_shard.fans_out();
    }

    fn remembers(&self) -> usize {
        self.test_shard.core.histories().departures.len()
    }
}

/// Its pushes wait for its own broadcast, but intercepted broadcasts do not: they would follow
/// newer ones, and its client would take the older for received.
#[test]
fn intercepted_messages_stay_in_order_while_the_channel_waits() {
    let mut it = Node::running(passing());
    let topic = it.there.clone();
    let (key, _) = it.joins(Wire::V2, &topic, OPTED_IN);
    it.test_shard.sends(key, &format!(r#"["1","2","{topic}","say",{{}}]"#));
    // Stored before it, and received while it is waited for.
    let mail = std::mem::take(&mut it.test_shard.node.log().mail[1]);
    it.is_told(&topic, 1);
    let heard = it.receives(key);
    let events: Vec<String> = heard.iter().map(|it| event(it)).collect();
    assert_eq!((positions(&heard).0, events), (vec![1], vec!["news".to_owned()]));
    mail.into_iter().for_each(|mail| it.other.mail(&mut it.out, mail));
    it.settles();
    let heard = it.receives(key);
    let events: Vec<String> = heard.iter().map(|it| event(it)).collect();
    assert_eq!((positions(&heard).0, events), (vec![2], vec!["mine".into(), "behind".into()]));
}

/// A client with an id is recognized by it when its old channel is gone.
#[test]
fn resuming_client_does_not_receive_its_own_last_broadcasts() {
    for (mut it, topic) in both(talkative()) {
        let (key, joined) = it.joins(Wire::V2, &topic, ANN);
        let first = position_of(&joined[1]);
        it.test_shard.sends(key, &format!(r#"["1","2","{topic}","twice",{{}}]"#));
        it.test_shard.disconnects(key);
        it.settles();
        let (other, heard) = it.joins(Wire::V2, &topic, &since(&first));
        assert_eq!(events(&heard)[2..], ["first", "second", "last"], "others hear them");
        let (key, heard) = it.recovers(&topic, &as_ann(&first), 1);
        assert_eq!(events(&heard)[2..], ["first", "simurgh:at"]);
        let last = position_of(heard.last().unwrap());
        let heard = it.joins_again(key, &topic, &as_ann(&last));
        assert!(!events(&heard).contains(&"last".to_owned()), "{heard:?}");
        assert_eq!(events(&it.receives(other)), ["last"]);
    }
}

#[test]
fn closed_client_leaves_no_state() {
    let mut it = Node::running(passing());
    let topics: Vec<String> = (0..20).map(|n| format!("r{n}")).collect();
    let key = it.test_shard.opens(Wire::V2);
    for topic in &topics {
        it.joins_again(key, topic, OPTED_IN);
        it.is_told(topic, 1);
    }
    assert_eq!(it.remembers(), topics.len(), "how far each interceptor has come");
    for topic in &topics {
        it.sends(key, topic, "phx_leave", "{}");
    }
    assert_eq!(it.remembers(), 1, "one connection");
    // After a rejoin with gaps and progress noted, it leaves without a message.
    let mut gaps = 0;
    for topic in &topics {
        let position = format!("{}.0", simurgh_history::Epoch::from_seed(7));
        gaps += usize::from(lost(&it.joins_again(key, topic, &seen(&position, &position))));
        it.is_told(topic, 2);
    }
    assert_eq!(gaps, 8, "of as many topics it is known that it had left them");
    it.test_shard.disconnects(key);
    it.settles();
    assert_eq!((it.remembers(), it.test_shard.core.history_waits()), (0, 0));
}

/// Its next channel would be taken to have received the gap, which it had not.
#[test]
fn gap_sent_to_an_ended_channel_is_sent_to_the_next() {
    let rule = HistoryRule { count: 1, ..HistoryRule::default() };
    for (mut it, topic) in both_with(scripted(standard), rule) {
        let (speaker, first) = it.opts_in(&topic);
        it.says(speaker, &topic, 1..4);
        let (key, _) = it.misses(&topic, &since(&first), "overwritten", 1);
        // It joined again before that arrived: its join states the same position.
        let heard = it.joins_again(key, &topic, &since(&first));
        assert!(lost(&heard), "{heard:?}");
        let last = position_of(heard.iter().rfind(|it| it.contains("resumed")).unwrap());
        let heard = it.joins_again(key, &topic, &since(&last));
        assert!(heard.last().unwrap().contains(r#"{"recovered":true,"count":0}"#), "{heard:?}");
    }
}

/// It has the old channel's join_ref, and the client that has joined again drops it.
#[test]
fn intercepted_messages_lost_by_a_rejoin_are_reported() {
    let rule = HistoryRule { age: Duration::from_secs(5), ..HistoryRule::default() };
    for (is_here, is_forgotten) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut it = Node::with(passing(), rule);
        let topic = if is_here { it.here.clone() } else { it.there.clone() };
        let (key, first) = it.opts_in(&topic);
        it.is_told(&topic, 1);
        assert_eq!(positions(&it.receives(key)).0, [1]);
        if is_forgotten {
            (0..4).for_each(|_| it.advances(Duration::from_secs(6)));
        }
        let heard = it.joins_again(key, &topic, &seen(&first, &first));
        assert!(lost(&heard), "forgotten: {is_forgotten}, {heard:?}");
    }
}

/// It leaves, drops what it receives, and joins and leaves again: whether what was sent once more
/// has arrived is unknown.
#[test]
fn message_in_transit_is_not_sent_a_third_time() {
    for (mut it, topic) in both(scripted(standard)) {
        let (key, first) = it.opts_in(&topic);
        it.is_told(&topic, 1);
        let last = position_of(&it.receives(key)[0]);
        let heard = it.joins_again(key, &topic, &seen(&first, &last));
        assert!(heard.iter().any(|it| it.contains(r#"{"recovered":true,"count":1}"#)), "{heard:?}");
        let heard = it.joins_again(key, &topic, &seen(&first, &last));
        assert!(lost(&heard), "{heard:?}");
        // The position of the next message shows what has arrived.
        it.is_told(&topic, 2);
        let newest = position_of(&it.receives(key)[0]);
        let heard = it.joins_again(key, &topic, &seen(&last, &newest));
        assert!(heard.iter().any(|it| it.contains(r#"{"recovered":true,"count":1}"#)), "{heard:?}");
    }
}

/// Messages withheld without its key do not count as sent when it sends the key.
#[test]
fn late_key_reports_the_withheld_messages() {
    let rule = HistoryRule { only_own: true, ..HistoryRule::default() };
    for (mut it, topic) in both_with(scripted(standard), rule) {
        let (ann, joined) = it.joins(Wire::V2, &topic, OPTED_IN);
        let first = position_of(&joined[1]);
        let key = key_of(&joined[1]);
        it.test_shard.disconnects(ann);
        it.is_told(&topic, 1);
        let (ann, _) = it.misses(&topic, &since(&first), "epoch", 0);
        let with = format!(r#"{{"simurgh":{{"since":"{first}","key":"{key}"}}}}"#);
        let heard = it.joins_again(ann, &topic, &with);
        assert!(lost(&heard), "{heard:?}");
    }
}

/// It would receive how much it has missed, and not the messages.
#[test]
fn driven_socket_gets_no_positions() {
    for (mut it, topic) in both(scripted(standard)) {
        it.is_told(&topic, 1);
        let since = since(&format!("{}.0", simurgh_history::Epoch::from_seed(7)));
        for params in ["{}", OPTED_IN, &since, r#"{"simurgh":7}"#] {
            let (key, joined) = it.joins(Wire::Values, &topic, params);
            assert_eq!(joined.len(), 1, "{params}: {joined:?}");
            assert!(joined[0].contains("ok"), "{params}: {joined:?}");
            it.is_told(&topic, 2);
            let heard = it.receives(key);
            assert_eq!(heard.len(), 1, "{params}: {heard:?}");
            assert!(heard[0].contains(r#"{"n":2}"#), "{params}: {heard:?}");
        }
    }
}

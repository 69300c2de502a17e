//! Leaves that are sent late, or with the join that follows.

use std::time::Duration;

use simurgh_channel::PresenceConfig;

use super::{Client, INTERVAL, present, sends, test_shard, turn, turn_after};
use crate::{Config, testing::TestShard};

/// A key that is soon back never left for the others; another leaves later.
#[test]
fn leave_is_delayed_until_the_member_cannot_return() {
    let delay = Duration::from_secs(5);
    let mut it = test_shard(PresenceConfig { leave_delay: delay, ..PresenceConfig::default() });
    let watcher = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    let mut client = Client::default();
    sends(&mut it, watcher, "state", "{}");
    let mut one = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    sends(&mut it, one, "track", r#""a""#);
    for _ in 0..3 {
        turn_after(&mut it, INTERVAL);
    }
    client.receives(&mut it, watcher);
    assert_eq!(client.keys(), ["a"]);
    let first = client.metas["a"][0]["phx_ref"].clone();
    it.core.peer_closed(&mut it.out, one, None);
    for _ in 0..20 {
        turn_after(&mut it, INTERVAL);
    }
    client.heard.clear();
    client.receives(&mut it, watcher);
    assert!(client.heard.is_empty() && client.keys() == ["a"], "{:?}", client.heard);
    one = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    sends(&mut it, one, "track", r#""a""#);
    client.receives_after(&mut it, watcher, INTERVAL);
    assert_eq!(client.heard, ["diff"], "both at once");
    assert_eq!(client.metas["a"].len(), 1);
    assert_ne!(client.metas["a"][0]["phx_ref"], first);
    it.core.peer_closed(&mut it.out, one, None);
    for time in [INTERVAL, delay - INTERVAL] {
        turn_after(&mut it, time);
    }
    client.receives(&mut it, watcher);
    assert_eq!(client.keys(), ["a"]);
    client.receives_after(&mut it, watcher, 2 * INTERVAL);
    assert!(client.keys().is_empty());
    it.core.peer_closed(&mut it.out, watcher, None);
    turn_after(&mut it, INTERVAL);
    assert!(it.core.presences().topics == 0, "nothing is left");
}

/// Clients that leave ever new topics would fill memory until the delay is over.
#[test]
fn oldest_leaves_are_sent_early_when_too_many_bytes_wait() {
    let leave_delay = Duration::from_secs(30);
    let presence = PresenceConfig { leave_delay, ..PresenceConfig::default() };
    let config = Config { presence, mailbox_bytes_max: 64 << 10, ..Config::default() };
    let mut it = TestShard::with(config, vec![present().user_socket()]);
    let watcher = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    let mut client = Client::default();
    sends(&mut it, watcher, "state", "{}");
    let meta = format!(r#"{{"pad":"{}"}}"#, "x".repeat(3_900));
    let (mut shown, mut most) = (0, 0);
    for topic in ["t".to_owned()].into_iter().chain((0..100).map(|n| format!("t{n}"))) {
        let key = it.joined_as(&format!(r#"[1,1,"{topic}","phx_join",{{}}]"#));
        it.sends(key, &format!(r#"[1,9,"{topic}","meta",{meta}]"#));
        turn_after(&mut it, INTERVAL);
        it.core.peer_closed(&mut it.out, key, None);
        turn_after(&mut it, INTERVAL);
        turn(&mut it);
        most = most.max(it.core.presences().topics);
        client.receives(&mut it, watcher);
        shown += usize::from(client.keys() == ["k"]);
    }
    assert!((10..20).contains(&shown) && (10..20).contains(&most), "{shown}, {most}");
    for time in [leave_delay, INTERVAL] {
        turn_after(&mut it, time);
    }
    assert!(it.core.presences() == crate::PresenceCounts::default());
}

//! Leaves that are sent late, or with the join that follows.

use std::time::Duration;

use simurgh_channel::PresenceConfig;

use super::{Client, INTERVAL, sends, test_shard, turn};

/// A key that is soon back never left for the others; another leaves later.
#[test]
fn a_leave_is_held_until_it_is_known_that_nobody_comes_back() {
    let delay = Duration::from_secs(5);
    let mut it = test_shard(PresenceConfig { leave_delay: delay, ..PresenceConfig::default() });
    let watcher = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    let mut client = Client::default();
    sends(&mut it, watcher, "state", "{}");
    let mut one = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    sends(&mut it, one, "track", r#""a""#);
    for _ in 0..3 {
        it.advances(INTERVAL);
        turn(&mut it);
    }
    client.receives(&mut it, watcher);
    assert_eq!(client.keys(), ["a"]);
    let first = client.metas["a"][0]["phx_ref"].clone();
    it.core.peer_closed(&mut it.out, one, None);
    for _ in 0..20 {
        it.advances(INTERVAL);
        turn(&mut it);
    }
    client.heard.clear();
    client.receives(&mut it, watcher);
    assert!(client.heard.is_empty() && client.keys() == ["a"], "{:?}", client.heard);
    one = it.joined_as(r#"[1,1,"t","phx_join",{}]"#);
    sends(&mut it, one, "track", r#""a""#);
    it.advances(INTERVAL);
    turn(&mut it);
    client.receives(&mut it, watcher);
    assert_eq!(client.heard, ["diff"], "both at once");
    assert_eq!(client.metas["a"].len(), 1);
    assert_ne!(client.metas["a"][0]["phx_ref"], first);
    it.core.peer_closed(&mut it.out, one, None);
    for time in [INTERVAL, delay - INTERVAL] {
        it.advances(time);
        turn(&mut it);
    }
    client.receives(&mut it, watcher);
    assert_eq!(client.keys(), ["a"]);
    it.advances(2 * INTERVAL);
    turn(&mut it);
    client.receives(&mut it, watcher);
    assert!(client.keys().is_empty());
    it.core.peer_closed(&mut it.out, watcher, None);
    it.advances(INTERVAL);
    turn(&mut it);
    assert!(it.core.presence.is_empty(), "nothing is left");
}

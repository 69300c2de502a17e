//! A reload: other settings and user sockets for a shard with members.

use std::time::Duration;

use crate::testing::*;
use crate::*;

fn counting(counts: bool) -> UserSocket {
    UserSocket { count_members: counts, ..scripted(standard).user_socket() }
}

fn limited(rate: Option<Rate>) -> UserSocket {
    let mut user_socket = scripted(standard).user_socket();
    user_socket.limits.messages = rate.map(RateLimit::from);
    user_socket
}

fn echoes(it: &mut TestShard, key: simurgh_data::Key) -> bool {
    it.sends(key, r#"[1,9,"t","echo",{}]"#);
    let heard = it.receives(key);
    let [answer] = &heard[..] else { panic!("{heard:?}") };
    !answer.contains("rate_limited")
}

#[test]
fn members_are_counted_once_their_user_socket_counts() {
    let mut it = TestShard::of(counting(false));
    let [ann, _] = [(); 2].map(|()| it.joined(&["t"]));
    assert_eq!(it.node.log().census.get("t"), None);
    it.reloads(Config::default(), vec![counting(true)]);
    it.joined(&["t"]);
    assert_eq!(it.node.log().census.get("t"), Some(&3));
    it.reloads(Config::default(), vec![counting(true)]);
    it.disconnects(ann);
    assert_eq!(it.node.log().census.get("t"), Some(&2));
}

#[test]
fn other_rates_apply_at_once_with_full_buckets() {
    let slow = Rate::every(2, Duration::from_secs(3600)).unwrap();
    let fast = Rate::per_second(5).unwrap();
    let mut it = TestShard::of(limited(None));
    let key = it.joined(&["t"]);
    assert!((0..9).all(|_| echoes(&mut it, key)));
    for (rate, count) in [(slow, 2), (fast, 5), (slow, 2)] {
        it.reloads(Config::default(), vec![limited(Some(rate))]);
        assert!((0..count).all(|_| echoes(&mut it, key)));
        assert!(!echoes(&mut it, key));
        // The same rates again are not a new bucket.
        it.reloads(Config::default(), vec![limited(Some(rate))]);
        assert!(!echoes(&mut it, key));
    }
    it.reloads(Config::default(), vec![limited(None)]);
    assert!((0..9).all(|_| echoes(&mut it, key)));
    assert!(!it.core.channels().is_limited());
}

#[test]
fn shorter_idle_timeout_applies_to_open_sockets() {
    let mut it = TestShard::new();
    let key = it.joined(&["t"]);
    let config = Config { idle_timeout: Some(Duration::from_secs(4)), ..Config::default() };
    it.reloads(config, vec![scripted(standard).user_socket()]);
    for _ in 0..4 {
        it.advances(Duration::from_secs(3));
        it.core.tick(&mut it.out);
    }
    assert!(it.counts().iter().any(|change| change.contains("idle_timeouts")));
    assert!(it.out.socket(key).is_none_or(|socket| !socket.is_open()));
}

//! Timeouts of sockets and channels: PROTOCOL §7.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use simurgh_data::{Key, Next};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;

use super::{CLOSES_NS, DRAIN_SWEEPS, SWEEP_RECORDS};
use crate::testing::*;
use crate::*;

const SECOND: Duration = Duration::from_secs(1);

fn config() -> Config {
    Config { hibernate_after: None, ..Config::default() }
}

fn test_shard() -> TestShard {
    TestShard::configured(config())
}

/// A round of the sweep after this time.
fn after(it: &mut TestShard, time: Duration) {
    it.core.tick(&mut it.out);
    it.advances(time);
    while it.core.tick(&mut it.out) == Next::Now {}
}

/// The actions on a connection in this state, exactly at its time and a tick later.
fn deeds_after(time: Duration, set_up: impl Fn(&mut TestShard) -> Key) -> Vec<String> {
    let mut it = test_shard();
    set_up(&mut it);
    it.out.deeds();
    after(&mut it, time);
    assert!(it.out.deeds().is_empty(), "it has all of its time");
    it.counts();
    after(&mut it, SECOND);
    let mut done = it.out.deeds();
    done.extend(it.counts());
    done
}

fn in_phase(it: &mut TestShard, phase: Phase) -> Key {
    it.out.connect(phase, Wire::V2)
}

/// Their channels may end with them, which takes long.
#[test]
fn silent_sockets_are_closed_in_several_turns_and_active_ones_stay() {
    let mut it = test_shard();
    let keys: Vec<Key> = (0..10).map(|_| it.opens(Wire::V2)).collect();
    it.core.tick(&mut it.out);
    it.advances(62 * SECOND);
    // A socket takes two readings of the clock.
    it.out.step_ns = CLOSES_NS / 4;
    assert_eq!(it.core.tick(&mut it.out), Next::Now);
    let is_closed = |it: &mut TestShard, key: &Key| !it.receives(*key).is_empty();
    let closed: Vec<bool> = keys.iter().map(|key| is_closed(&mut it, key)).collect();
    let count = closed.iter().filter(|closed| **closed).count();
    assert!((1..6).contains(&count), "{count}");
    let speaker = keys[closed.iter().position(|closed| !closed).unwrap()];
    let tick = it.out.now().tick;
    it.out.peer(speaker).socket.heard(tick);
    while it.core.tick(&mut it.out) == Next::Now {}
    for (key, was_closed) in keys.iter().zip(closed) {
        assert_eq!(is_closed(&mut it, key), !was_closed && *key != speaker);
    }
}

/// PROTOCOL row 74.
#[test]
fn silent_socket_is_closed() {
    let mut it = test_shard();
    let (silent, loud) = (it.opens(Wire::V2), it.opens(Wire::V2));
    after(&mut it, 60 * SECOND);
    it.out.peer(loud).socket.heard(600);
    it.counts();
    assert!(it.receives(silent).is_empty(), "a minute is what it has");
    after(&mut it, SECOND);
    assert_eq!(it.receives(silent), ["close 1002 protocol error or idle"]);
    assert!(it.receives(loud).is_empty());
    assert_eq!(it.counts(), ["sockets -1", "idle_timeouts +1"]);
}

#[test]
fn user_socket_sets_the_idle_timeout() {
    let user_socket =
        |idle_timeout| UserSocket { idle_timeout, ..scripted(standard).user_socket() };
    let user_sockets =
        vec![user_socket(Some(Some(SECOND))), user_socket(Some(None)), user_socket(None)];
    let mut it = TestShard::with(config(), user_sockets);
    let keys = [0, 1, 2, 9].map(|user_socket| {
        let key = it.out.connect(Phase::Connecting, Wire::V2);
        it.out.peer(key).socket.lead_to(user_socket, Wire::V2);
        it.core.opened(&mut it.out, key, SocketState::default());
        key
    });
    assert_eq!(it.core.tick(&mut it.out), Next::After(SECOND / 8), "an eighth of the shortest");
    let open = |it: &mut TestShard| keys.map(|key| it.out.peer(key).socket.is_open());
    after(&mut it, SECOND);
    assert_eq!(open(&mut it), [true; 4]);
    after(&mut it, SECOND);
    assert_eq!(open(&mut it), [false, true, true, true]);
    after(&mut it, 60 * SECOND);
    assert_eq!(open(&mut it), [false, true, false, true]);
    let mut it =
        TestShard::with(Config { idle_timeout: None, ..config() }, vec![user_socket(None)]);
    let key = it.opens(Wire::V2);
    assert_eq!(it.core.tick(&mut it.out), Next::After(3 * SECOND / 8));
    after(&mut it, 10_000 * SECOND);
    assert!(it.out.peer(key).socket.is_open());
}

/// A socket that has sent something, was not read, or cannot be lost, was not silent.
#[test]
fn time_without_reads_does_not_count_as_idle() {
    let mut it = TestShard::configured(Config {
        mailbox_bytes_max: 80,
        outbound_bytes_max: 200,
        ..config()
    });
    let keys = [it.joined(&["t"]), it.joined(&["t"]), it.opens(Wire::V2)];
    it.out.peer(keys[0]).has_input = true;
    it.sends(keys[1], r#"[1,2,"t","bcast",1]"#);
    assert!(it.core.is_held_back(keys[1]));
    it.out.peer(keys[2]).socket.transport = 0;
    after(&mut it, 61 * SECOND);
    let heard = keys.map(|key| it.out.peer(key).socket.last_heard());
    assert_eq!(heard, [610, 610, 0], "their time begins anew");
    assert!(keys.iter().all(|key| it.out.peer(*key).socket.is_open()));
    it.out.peer(keys[0]).has_input = false;
    it.fans_out();
    it.core.settle(&mut it.out);
    after(&mut it, 61 * SECOND);
    assert_eq!(keys.map(|key| it.out.peer(key).socket.is_open()), [false, false, true]);
}

/// A socket with a lifetime in seconds.
fn living(it: &mut TestShard, seconds: u64) -> Key {
    let lifetime = Some(Lifetime::from(Duration::from_secs(seconds)));
    it.opens_with(Wire::V2, SocketState { lifetime, ..SocketState::default() })
}

#[test]
fn expired_socket_is_closed() {
    let mut it = test_shard();
    let (brief, long, unlimited) = (living(&mut it, 10), living(&mut it, 40), it.opens(Wire::V2));
    let driven = living(&mut it, 10);
    it.out.peer(driven).socket.transport = 0;
    it.counts();
    after(&mut it, 9 * SECOND);
    assert!(it.counts().is_empty());
    after(&mut it, SECOND);
    assert_eq!(it.receives(brief), ["close 3000 token expired"]);
    assert!(!it.out.peer(driven).socket.is_open(), "whatever lies between");
    assert_eq!(it.counts(), ["sockets -2", "expirations +2"]);
    after(&mut it, 29 * SECOND);
    assert!(it.out.peer(long).socket.is_open());
    after(&mut it, 2 * SECOND);
    assert_eq!(it.receives(long), ["close 3000 token expired"]);
    let unlimited = &it.out.peer(unlimited).socket;
    assert!(unlimited.is_open() && unlimited.own.is_none(), "who has no end pays nothing");
}

/// A lifetime also runs while a join is decided; a channel or a join may replace it.
#[test]
fn expiry_of_a_socket_can_change() {
    let join = user_socket(|ctx, payload| {
        ctx.expire_in(payload.parse::<Option<u64>>().unwrap().map(Duration::from_secs));
        match ctx.topic() {
            "later" => Join::later(std::future::pending()),
            _ => Join::error(Payload::NULL),
        }
    });
    let mut it = TestShard::with(config(), vec![join]);
    let keys = [living(&mut it, 10), living(&mut it, 10), it.opens(Wire::V2), it.opens(Wire::V2)];
    it.sends(keys[0], r#"[1,1,"t","phx_join",20]"#);
    it.sends(keys[1], r#"[1,1,"t","phx_join",null]"#);
    it.sends(keys[2], r#"[1,1,"t","phx_join",5]"#);
    it.sends(keys[3], r#"[1,1,"later","phx_join",5]"#);
    let open = |it: &mut TestShard| keys.map(|key| it.out.peer(key).socket.is_open());
    after(&mut it, 4 * SECOND);
    assert_eq!(open(&mut it), [true; 4]);
    after(&mut it, SECOND);
    assert_eq!(open(&mut it), [true, true, false, false]);
    after(&mut it, 14 * SECOND);
    assert_eq!(open(&mut it), [true, true, false, false]);
    after(&mut it, 2 * SECOND);
    assert_eq!(open(&mut it), [false, true, false, false]);
}

#[test]
fn slow_upgrade_request_times_out() {
    for phase in [Phase::Head, Phase::Full] {
        let done = deeds_after(10 * SECOND, |it| in_phase(it, phase));
        assert_eq!(done, ["abandon Late 0", "handshake_timeouts +1"]);
    }
}

#[test]
fn undecided_connect_times_out() {
    let given_up = ["abandon Late 0", "errors_decision_timeout +1"];
    let done = deeds_after(30 * SECOND, |it| in_phase(it, Phase::Connecting));
    assert_eq!(done, given_up);
    let done = deeds_after(3 * SECOND, |it| {
        let key = in_phase(it, Phase::Connecting);
        it.out.peer(key).has_shut = true;
        key
    });
    assert_eq!(done, given_up, "nobody waits for it");
}

#[test]
fn undecided_join_gets_an_error_reply() {
    for (time, has_shut) in [(30 * SECOND, false), (3 * SECOND, true)] {
        let later = user_socket(|_, _| Join::later(async { Join::error(Payload::NULL) }));
        let (mut it, key) = TestShard::with(config(), vec![later]).opened();
        it.sends(key, r#"[1,1,"t","phx_join",{}]"#);
        it.out.peer(key).has_shut = has_shut;
        after(&mut it, time);
        assert!(it.receives(key).is_empty());
        after(&mut it, SECOND);
        assert_eq!(it.receives(key), [refused(1, 1, "t", "join timed out")]);
        let socket = &it.out.peer(key).socket;
        let heard = (time + SECOND).as_millis() as u32 / 100;
        assert_eq!((socket.phase(), socket.last_heard()), (Phase::Open, heard));
    }
}

#[test]
fn unanswered_close_ends_after_the_timeout() {
    let aborted = ["abort 0"];
    let done = deeds_after(3 * SECOND, |it| {
        let key = it.opens(Wire::V2);
        it.core.close(&mut it.out, key, CloseCode::RESTART);
        key
    });
    assert_eq!(done, aborted);
    let done = deeds_after(3 * SECOND, |it| {
        let key = it.opens(Wire::V2);
        it.core.fail(&mut it.out, key, CloseCode::INTERNAL);
        // Further input is discarded.
        it.out.peer(key).has_input = true;
        key
    });
    assert_eq!(done, aborted);
    let done = deeds_after(3 * SECOND, |it| {
        let key = it.opens(Wire::V2);
        it.core.close(&mut it.out, key, CloseCode::RESTART);
        it.out.peer(key).has_input = true;
        key
    });
    assert!(done.is_empty(), "that may be its answer");
}

#[test]
fn sweep_is_bounded_per_turn() {
    let mut it = test_shard();
    assert_eq!(it.core.tick(&mut it.out), Next::Idle, "there is nobody to look at");
    for _ in 0..=SWEEP_RECORDS {
        in_phase(&mut it, Phase::Head);
    }
    let every = 3 * SECOND / 8;
    assert_eq!(it.core.tick(&mut it.out), Next::After(every));
    it.advances(11 * SECOND);
    assert_eq!(it.core.tick(&mut it.out), Next::Now);
    assert_eq!(it.out.deeds().len(), SWEEP_RECORDS);
    assert_eq!(it.core.tick(&mut it.out), Next::After(every), "until the next round");
    assert_eq!(it.out.deeds().len(), 1);
}

/// A round that finds no socket left begins again.
#[test]
fn sweep_ends_with_the_last_connection() {
    let mut it = test_shard();
    let keys: Vec<Key> = (0..=SWEEP_RECORDS).map(|_| in_phase(&mut it, Phase::Head)).collect();
    it.core.tick(&mut it.out);
    it.advances(SECOND);
    assert_eq!(it.core.tick(&mut it.out), Next::Now);
    keys.iter().for_each(|key| it.disconnects(*key));
    assert_eq!(it.core.tick(&mut it.out), Next::Idle);
    it.opens(Wire::V2);
    assert_eq!(it.core.tick(&mut it.out), Next::Now, "from the first record on");
    assert_eq!(it.core.tick(&mut it.out), Next::After(3 * SECOND / 8));
}

/// PROTOCOL row 68: closed evenly over the time, and the rest is cut off after it.
#[test]
fn drain_closes_all_sockets_and_ends_the_shard() {
    let mut it = test_shard();
    let keys: Vec<Key> = (0..4).map(|_| it.opens(Wire::V2)).collect();
    assert_eq!(it.core.tick(&mut it.out), Next::After(3 * SECOND / 8));
    it.core.mail(&mut it.out, Mail::Drain(SECOND));
    assert_eq!(it.out.deeds(), ["stop listening"]);
    let five_ms = Duration::from_millis(5);
    let closed = |it: &mut TestShard| {
        keys.iter().filter(|key| it.out.peer(**key).socket.phase() == Phase::Closing).count()
    };
    assert_eq!(it.core.tick(&mut it.out), Next::After(five_ms));
    assert_eq!(
        (closed(&mut it), it.receives(keys[0])),
        (1, vec!["close 1012 server restarts".into()])
    );
    it.advances(five_ms / 5);
    assert_eq!(it.core.tick(&mut it.out), Next::After(five_ms * 4 / 5));
    it.advances(five_ms * 4 / 5);
    assert_eq!(it.core.tick(&mut it.out), Next::After(five_ms), "nobody is due");
    it.advances(SECOND / 4);
    it.core.tick(&mut it.out);
    assert_eq!(closed(&mut it), 2);
    it.advances(SECOND);
    it.core.tick(&mut it.out);
    assert_eq!(closed(&mut it), 4);
    it.out.deeds();
    keys[1..].iter().for_each(|key| it.disconnects(*key));
    it.core.tick(&mut it.out);
    assert!(it.out.deeds().is_empty());
    it.disconnects(keys[0]);
    it.core.tick(&mut it.out);
    assert_eq!(it.out.deeds(), ["stop"]);
}

#[test]
fn drain_ends_after_its_deadline() {
    let (mut it, key) = test_shard().opened();
    it.core.mail(&mut it.out, Mail::Drain(SECOND));
    it.core.tick(&mut it.out);
    it.out.deeds();
    it.advances(SECOND + DRAIN_GRACE);
    it.core.tick(&mut it.out);
    assert_eq!(it.out.deeds(), ["abort 0"], "its close was not answered");
    it.advances(Duration::from_nanos(1));
    it.core.tick(&mut it.out);
    assert_eq!(it.out.deeds(), ["stop"]);
    it.disconnects(key);
}

/// Each according to its phase.
#[test]
fn drain_closes_connections_in_every_phase() {
    let mut it = test_shard();
    let phases = [
        (Phase::Head, "close"),
        (Phase::Full, "close"),
        (Phase::Connecting, "abandon Drain"),
        (Phase::Open, "release"),
        (Phase::Waiting, "release"),
        (Phase::Closing, ""),
        (Phase::Ending, ""),
    ];
    for (phase, _) in phases {
        in_phase(&mut it, phase);
    }
    it.core.mail(&mut it.out, Mail::Drain(Duration::ZERO));
    it.out.deeds();
    it.core.tick(&mut it.out);
    let deeds = phases.iter().enumerate().filter(|(_, (_, deed))| !deed.is_empty());
    let deeds: Vec<String> = deeds.map(|(slot, (_, deed))| format!("{deed} {slot}")).collect();
    assert_eq!(it.out.deeds(), deeds);
}

/// A server that takes over would not get them, and the client would find a closed connection.
#[test]
fn drain_leaves_connections_without_a_session_until_its_time_is_over() {
    for phase in [Phase::Head, Phase::Full, Phase::Connecting] {
        let mut it = test_shard();
        in_phase(&mut it, phase);
        it.core.mail(&mut it.out, Mail::Drain(SECOND));
        it.out.deeds();
        it.core.drain_sockets(&mut it.out);
        it.advances(SECOND * 9 / 10);
        it.core.drain_sockets(&mut it.out);
        assert!(it.out.deeds().is_empty(), "{phase:?}");
        it.advances(SECOND / 10);
        it.core.drain_sockets(&mut it.out);
        assert_eq!(it.out.deeds().len(), 1, "{phase:?}");
    }
}

/// A step of a drain is a short turn, and the next continues where it ended.
#[test]
fn drain_is_bounded_per_turn() {
    let mut it = TestShard::with(Config { close_timeout: 100 * SECOND, ..config() }, Vec::new());
    let records = DRAIN_SWEEPS * SWEEP_RECORDS;
    for _ in 0..records {
        in_phase(&mut it, Phase::Closing);
    }
    let last = in_phase(&mut it, Phase::Open);
    it.core.mail(&mut it.out, Mail::Drain(Duration::ZERO));
    it.core.drain_sockets(&mut it.out);
    assert!(it.receives(last).is_empty());
    it.advances(Duration::from_millis(5));
    it.core.drain_sockets(&mut it.out);
    assert_eq!(it.receives(last), ["close 1012 server restarts"]);
}

#[test]
fn drain_closes_only_due_sockets() {
    let mut it = test_shard();
    let keys: Vec<Key> = (0..300).map(|_| in_phase(&mut it, Phase::Open)).collect();
    it.core.mail(&mut it.out, Mail::Drain(Duration::ZERO));
    let left = |it: &mut TestShard| {
        keys.iter().filter(|key| it.out.peer(**key).socket.phase() == Phase::Open).count()
    };
    for expected in [172, 44, 0] {
        it.core.drain_sockets(&mut it.out);
        assert_eq!(left(&mut it), expected);
        it.advances(Duration::from_millis(5));
    }
}

fn counting() -> (Scripted, Arc<AtomicU32>) {
    let slept = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&slept);
    let sleeps = move || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    (scripted(standard).sleeping(sleeps), slept)
}

/// Two passes without anything between them; broadcasts that are not intercepted do not count.
#[test]
fn idle_channel_hibernates_once() {
    let (sleeping, slept) = counting();
    let (mut it, [key]) = TestShard::running(sleeping).members();
    let round = |it: &mut TestShard| {
        it.advances(15 * SECOND);
        let next = it.core.hibernate_channels(&mut it.out);
        (slept.swap(0, Ordering::Relaxed), next)
    };
    assert_eq!(it.core.hibernate_channels(&mut it.out), Next::After(15 * SECOND));
    let again = Next::After(15 * SECOND);
    assert_eq!(round(&mut it), (0, again), "something may have happened since it came");
    it.sends(key, r#"[1,2,"t","noreply",{}]"#);
    it.core.take_released();
    assert_eq!(round(&mut it), (0, again));
    it.delivers("t", "news", "1");
    it.counts();
    assert_eq!(round(&mut it), (1, Next::Idle), "all sleep");
    assert_eq!(it.counts(), ["channels_hibernating +1"]);
    assert!(it.core.take_released() && !it.core.take_released());
    assert_eq!(round(&mut it), (0, Next::Idle));
    it.sends(key, r#"[1,3,"t","noreply",{}]"#);
    assert_eq!(it.counts(), ["channels_hibernating -1"]);
    assert_eq!(round(&mut it), (0, again));
    assert_eq!(round(&mut it), (1, Next::Idle));
}

#[test]
fn crash_while_hibernating_ends_the_channel() {
    let (mut it, [key]) = TestShard::running(scripted(standard).sleeping(|| crash())).members();
    it.core.hibernate_channels(&mut it.out);
    for _ in 0..2 {
        it.advances(15 * SECOND);
        it.counts();
        it.core.hibernate_channels(&mut it.out);
    }
    let crashed = r#"[1,1,"t","phx_error",{"reason":"channel_crash"}]"#;
    assert_eq!(it.receives(key), [crashed, r#"[1,null,"t","you_left",{}]"#]);
    let changes =
        "channels -1, topics -1, subscriptions -1, messages_out +2, errors_callback_panic +1";
    assert_eq!(it.changes(), changes);
}

/// A slice ends at the first reading of the clock that is late; the next continues there.
#[test]
fn hibernation_is_bounded_per_turn() {
    let (sleeping, slept) = counting();
    let mut it = TestShard::running(sleeping);
    for _ in 0..100 {
        it.joined(&["t"]);
    }
    it.core.hibernate_channels(&mut it.out);
    it.advances(15 * SECOND);
    assert_eq!(it.core.hibernate_channels(&mut it.out), Next::After(15 * SECOND), "it has time");
    it.advances(15 * SECOND);
    // The round before had a page of memberships, the step to the topics, and one of those.
    let steps = 256 + 1 + 1;
    it.out.step_ns = 200_000;
    let mut total = 0;
    for slice in 1..=9 {
        let next = it.core.hibernate_channels(&mut it.out);
        let by_now = (32 * slice - steps % 32).min(100);
        let expected = if slice == 9 { Next::Idle } else { Next::Now };
        total += slept.swap(0, Ordering::Relaxed);
        assert_eq!((total, next), (by_now, expected), "slice {slice}");
    }
}

/// A topic keeps no more memory than it uses, and the transport learns of released memory.
#[test]
fn topics_release_unused_memory() {
    let mut it = TestShard::new();
    let keys: Vec<Key> = (0..9).map(|_| it.joined(&["t"])).collect();
    keys[1..].iter().for_each(|key| it.disconnects(*key));
    it.core.hibernate_channels(&mut it.out);
    it.advances(15 * SECOND);
    assert!(!it.core.take_released());
    it.core.hibernate_channels(&mut it.out);
    assert!(it.core.take_released());
    it.sends(keys[0], r#"[1,2,"t","noreply",{}]"#);
    it.advances(15 * SECOND);
    it.core.hibernate_channels(&mut it.out);
    assert!(!it.core.take_released(), "there is nothing left to release");
}

/// A turn asks for the soonest of everything that is due.
#[test]
fn turn_ends_at_the_earliest_deadline() {
    let mut it = TestShard::new();
    assert_eq!(it.core.tick(&mut it.out), Next::Idle);
    it.joined(&["t"]);
    assert_eq!(it.core.tick(&mut it.out), Next::After(3 * SECOND / 8), "the sweep");
    let mut it =
        TestShard::configured(Config { hibernate_after: Some(SECOND / 10), ..Config::default() });
    it.joined(&["t"]);
    assert_eq!(it.core.tick(&mut it.out), Next::After(SECOND / 10), "hibernation");
    it.core.mail(&mut it.out, Mail::Drain(SECOND));
    assert_eq!(it.core.tick(&mut it.out), Next::After(Duration::from_millis(5)), "the drain");
}

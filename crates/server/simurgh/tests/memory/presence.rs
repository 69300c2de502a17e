//! Presence releases its memory: after a crowd has joined, tracked itself and left, none is in use.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::until;
use crate::{alone, heap};
use simurgh::driver::{Driver, Options, SocketId};
use simurgh::{
    ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket, json,
};

const MEMBERS: usize = 2_000;
/// What may remain of a crowd: queues and tables that have grown, not 9 bytes a member.
const LEFT_BYTES: usize = 16 << 10;

/// A member that tracks itself if it has a number.
struct Room(Option<usize>);

impl ShardChannel for Room {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let Some(n) = self.0 else { return };
        ctx.presence().track(&format!("user{n}"), json!({"online_at": "1764000000"})).unwrap();
        ctx.presence().push_state();
    }

    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
        Outcome::NoReply
    }
}

fn presences(endpoint: &Endpoint) -> u64 {
    endpoint.handle().metrics().iter().map(|shard| shard.presences.value()).sum()
}

/// Returns the heap in use while the sockets are there.
fn crowd(
    endpoint: &Endpoint,
    driver: &mut Driver,
    sockets: &[SocketId],
    (prefix, each): (&str, usize),
) -> usize {
    let topics = (0..sockets.len() / each).map(|n| format!("{prefix}:{n}"));
    let topics: Vec<(String, &[SocketId])> = topics.zip(sockets.chunks(each)).collect();
    for (topic, members) in &topics {
        driver.join_many(members, topic, json!({})).unwrap();
    }
    let present = if prefix == "room" { MEMBERS } else { 0 };
    until("all are present", || presences(endpoint) == present as u64);
    let most = settled(driver);
    for (topic, members) in &topics {
        driver.leave_many(members, topic).unwrap();
    }
    until("nobody is present", || presences(endpoint) == 0);
    most
}

/// The heap in use once it stays the same for a while.
fn settled(driver: &mut Driver) -> usize {
    let (mut last, mut same) = (heap(), 0);
    let since = Instant::now();
    while same < 5 {
        assert!(since.elapsed() < Duration::from_secs(20), "the heap goes on changing");
        std::thread::sleep(Duration::from_millis(25));
        driver.settle().unwrap();
        let now = heap();
        same = if now.abs_diff(last) < 1_024 { same + 1 } else { 0 };
        last = now;
    }
    last
}

#[test]
fn two_thousand_departed_members_leave_no_memory() {
    let _alone = alone();
    let next = AtomicUsize::new(0);
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("plain:*", |_, _| Join::ok(Room(None))))
        .channel(ChannelRoute::on_shard("room:*", move |_, _| {
            Join::ok(Room(Some(next.fetch_add(1, Relaxed))))
        }));
    let builder = Endpoint::builder().socket(user_socket).configure(|config| {
        config.shards = 2;
        config.presence.interval = Duration::from_millis(20);
        // A large topic is summarized at this interval, and not earlier.
        config.presence.summary_interval = Duration::from_millis(40);
    });
    let endpoint = builder.start_local().unwrap();
    let mut driver = Driver::with(&endpoint, {
        let mut options = Options::default();
        options.counts_only = true;
        options
    });
    let sockets = driver.connect_many(MEMBERS, "/socket", json!({})).unwrap();
    let sockets: Vec<SocketId> = sockets.into_iter().map(Result::unwrap).collect();
    // In topics with a list, and in one that is too large for it.
    for each in [50, MEMBERS] {
        // Allocations that happen once, and those that grow with the largest crowd.
        crowd(&endpoint, &mut driver, &sockets, ("plain", each));
        crowd(&endpoint, &mut driver, &sockets, ("room", each));
        let before = settled(&mut driver);
        let plain = crowd(&endpoint, &mut driver, &sockets, ("plain", each));
        settled(&mut driver);
        for round in 0..3 {
            let most = crowd(&endpoint, &mut driver, &sockets, ("room", each));
            let taken = most.saturating_sub(plain) / MEMBERS;
            let left = settled(&mut driver).saturating_sub(before);
            println!("{each} a topic, round {round}: {taken} B a presence, {left} B left of all");
            assert!(taken > 100, "{taken} B a presence: there is nothing to be given back");
            assert!(left < LEFT_BYTES, "{left} B are left of {MEMBERS} members, {each} a topic");
        }
    }
}

//! The memory of an asynchronous channel: none while it is idle, and little while a handler waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{alone, heap};
use simurgh::driver::{Driver, SocketId};
use simurgh::{
    Channel, ChannelRoute, Context, Endpoint, Join, Outcome, Payload, Reject, ShardChannel,
    ShardContext, UserSocket, json,
};
use tokio::sync::Semaphore;

const SOCKETS: usize = 2_000;
/// How much two equal thousands of sockets may differ by chance: tables that double.
const CHANCE_BYTES: usize = 24;

/// Implements both traits.
struct Room(Arc<Semaphore>);

impl ShardChannel for Room {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, _: &str, payload: Payload<'_>) -> Outcome {
        Outcome::ok(&payload)
    }
}

impl Channel for Room {
    async fn handle_in(
        &mut self,
        ctx: &mut Context,
        _: &str,
        payload: Payload<'static>,
    ) -> Result<Outcome, Reject> {
        ctx.push("waits", json!({}));
        self.0.acquire().await?.forget();
        Ok(Outcome::ok(payload))
    }
}

fn joined(driver: &mut Driver, topic: &str) -> (Vec<SocketId>, usize) {
    let sockets = driver.connect_many(SOCKETS, "/socket", json!({})).unwrap();
    let sockets: Vec<SocketId> = sockets.into_iter().map(Result::unwrap).collect();
    let before = heap();
    driver.join_many(&sockets, topic, json!({})).unwrap();
    for _ in 0..SOCKETS {
        driver.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    driver.settle().unwrap();
    (sockets, heap().saturating_sub(before) / SOCKETS)
}

#[test]
fn pending_handler_takes_less_than_a_kilobyte() {
    let _alone = alone();
    let gate = Arc::new(Semaphore::new(0));
    let (plain, waiting) = (Arc::clone(&gate), Arc::clone(&gate));
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("sync:*", move |_, _| Join::ok(Room(Arc::clone(&plain)))))
        .channel(ChannelRoute::new("async:*", move |_, _| {
            let room = Room(Arc::clone(&waiting));
            async { Ok(room) }
        }));
    let builder = Endpoint::builder().socket(user_socket).configure(|config| config.shards = 1);
    let endpoint = builder.start_local().unwrap();
    let mut driver = Driver::start(&endpoint);
    // Allocations that happen once.
    joined(&mut driver, "sync:0");
    joined(&mut driver, "async:0");
    let (_, idle_sync) = joined(&mut driver, "sync:1");
    let (sockets, idle_async) = joined(&mut driver, "async:1");
    println!("idle: {idle_sync} B and {idle_async} B a channel");
    assert!(idle_async <= idle_sync + CHANCE_BYTES, "{idle_async} B, not {idle_sync} B");

    let before = heap();
    driver.push_many(&sockets, "async:1", "wait", json!({"body": "hello"})).unwrap();
    for _ in 0..SOCKETS {
        driver.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    driver.settle().unwrap();
    let each = heap().saturating_sub(before) / SOCKETS;
    println!("waiting: {each} B a handler");
    assert!((100..=1024).contains(&each), "a handler that waits takes {each} B");

    gate.add_permits(SOCKETS);
    for _ in 0..SOCKETS {
        driver.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    // The last of tokio's tasks may still be ending.
    let until = Instant::now() + Duration::from_secs(5);
    while heap().saturating_sub(before) / SOCKETS > CHANCE_BYTES {
        assert!(Instant::now() < until, "{} B stay", heap().saturating_sub(before) / SOCKETS);
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! An idle channel is asked once to release what it can, and wakes with the next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::until;
use simurgh::driver::Driver;
use simurgh::{
    ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket, json,
};

struct Memory {
    said: Vec<String>,
    hibernated: Arc<AtomicU64>,
}

impl ShardChannel for Memory {
    fn handle_in(&mut self, _: &mut ShardContext<'_>, event: &str, _: Payload<'_>) -> Outcome {
        self.said.push(event.to_owned());
        Outcome::ok(json!(self.said.len()))
    }

    fn hibernate(&mut self) {
        self.said = Vec::new();
        self.hibernated.fetch_add(1, Relaxed);
    }
}

fn start(after: Option<Duration>) -> (Endpoint, Arc<AtomicU64>) {
    let hibernated = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&hibernated);
    let user_socket = UserSocket::new("/socket")
        .channel(ChannelRoute::on_shard("memory:*", move |_, _| {
            Join::ok(Memory { said: Vec::new(), hibernated: Arc::clone(&count) })
        }));
    let endpoint = Endpoint::builder()
        .socket(user_socket)
        .configure(|config| {
            config.shards = 1;
            config.hibernate_after = after;
        })
        .start_local()
        .unwrap();
    (endpoint, hibernated)
}

fn hibernating(endpoint: &Endpoint) -> u64 {
    endpoint.handle().metrics().iter().map(|shard| shard.channels_hibernating.value()).sum()
}

#[test]
fn channel_hibernates_once_and_wakes() {
    let (endpoint, hibernated) = start(Some(Duration::from_secs(2)));
    let mut driver = Driver::start(&endpoint);
    let socket = driver.connect("/socket", json!({})).unwrap();
    driver.join(socket, "memory:1", json!({})).unwrap();
    let mut says = |n: u64| {
        let said = driver.push(socket, "memory:1", "more", json!({})).unwrap();
        assert_eq!(driver.reply(said).unwrap().response, json!(n).into());
    };
    says(1);
    let began = Instant::now();
    says(2);
    until("it hibernates", || hibernated.load(Relaxed) == 1);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1_995), "{took:?}");
    assert_eq!(hibernating(&endpoint), 1);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(hibernated.load(Relaxed), 1, "it hibernates already");
    // Only what was released is gone.
    says(1);
    assert_eq!(hibernating(&endpoint), 0);
    until("it hibernates", || hibernated.load(Relaxed) == 2);
    let last = driver.leave(socket, "memory:1").unwrap();
    driver.reply(last).unwrap();
    assert_eq!(hibernating(&endpoint), 0);
}

#[test]
fn hibernation_can_be_off() {
    let (endpoint, hibernated) = start(None);
    let mut driver = Driver::start(&endpoint);
    let socket = driver.connect("/socket", json!({})).unwrap();
    driver.join(socket, "memory:1", json!({})).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((hibernated.load(Relaxed), hibernating(&endpoint)), (0, 0));
}

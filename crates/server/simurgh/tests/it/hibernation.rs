//! An idle channel is asked once to release what it can, and wakes with the next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use simurgh::driver::{Driver, What};
use simurgh::{
    ChannelRoute, Endpoint, Join, Outcome, Payload, ShardChannel, ShardContext, UserSocket, json,
};

const WAIT_MAX: Duration = Duration::from_secs(10);

struct Memory {
    said: Vec<String>,
    hibernated: Arc<AtomicU64>,
    panics: bool,
}

impl ShardChannel for Memory {
    fn handle_in(&mut self, ctx: &mut ShardContext<'_>, event: &str, _: Payload<'_>) -> Outcome {
        if event == "all" {
            ctx.broadcast("news", json!({}));
        }
        self.said.push(event.to_owned());
        Outcome::ok(json!(self.said.len()))
    }

    fn hibernate(&mut self) {
        if self.panics {
            panic!("as asked");
        }
        self.said = Vec::new();
        self.hibernated.fetch_add(1, Relaxed);
    }
}

fn start(after: Option<Duration>) -> (Endpoint, Arc<AtomicU64>) {
    let hibernated = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&hibernated);
    let user_socket =
        UserSocket::new("/socket").channel(ChannelRoute::on_shard("memory:*", move |ctx, _| {
            let panics = ctx.subtopic() == "panics";
            Join::ok(Memory { said: Vec::new(), hibernated: Arc::clone(&count), panics })
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

fn await_that(condition: impl Fn() -> bool) {
    let until = Instant::now() + WAIT_MAX;
    while !condition() {
        assert!(Instant::now() < until, "it did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn hibernating(endpoint: &Endpoint) -> u64 {
    endpoint.handle().metrics().iter().map(|shard| shard.channels_hibernating.value()).sum()
}

#[test]
fn it_hibernates_once_and_wakes() {
    let (endpoint, hibernated) = start(Some(Duration::from_millis(500)));
    let mut driver = Driver::start(&endpoint);
    let socket = driver.connect("/socket", json!({})).unwrap();
    driver.join(socket, "memory:1", json!({})).unwrap();
    let mut says = |n: u64| {
        let said = driver.push(socket, "memory:1", "more", json!({})).unwrap();
        assert_eq!(driver.reply(said).unwrap().response, json!(n).into());
    };
    says(1);
    says(2);
    let began = Instant::now();
    await_that(|| hibernated.load(Relaxed) == 1);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(495), "{took:?}");
    assert_eq!(hibernating(&endpoint), 1);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(hibernated.load(Relaxed), 1, "it hibernates already");
    // Only what was released is gone.
    says(1);
    assert_eq!(hibernating(&endpoint), 0);
    await_that(|| hibernated.load(Relaxed) == 2);
    let last = driver.leave(socket, "memory:1").unwrap();
    driver.reply(last).unwrap();
    assert_eq!(hibernating(&endpoint), 0);
}

#[test]
fn who_speaks_stays_awake_and_who_listens_does_not() {
    let (endpoint, hibernated) = start(Some(Duration::from_secs(1)));
    let mut driver = Driver::start(&endpoint);
    let sockets = driver.connect_many(1000, "/socket", json!({})).unwrap();
    let sockets: Vec<_> = sockets.into_iter().map(Result::unwrap).collect();
    driver.join_many(&sockets, "memory:all", json!({})).unwrap();
    let began = Instant::now();
    while hibernating(&endpoint) < 999 && began.elapsed() < WAIT_MAX {
        driver.push(sockets[0], "memory:all", "all", json!({})).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((hibernated.load(Relaxed), hibernating(&endpoint)), (999, 999));
    await_that(|| hibernating(&endpoint) == 1000);
}

#[test]
fn a_panic_ends_its_channel_and_nothing_else() {
    let (endpoint, hibernated) = start(Some(Duration::from_millis(50)));
    let mut driver = Driver::start(&endpoint);
    let socket = driver.connect("/socket", json!({})).unwrap();
    for topic in ["memory:panics", "memory:fine"] {
        let joined = driver.join(socket, topic, json!({})).unwrap();
        driver.reply(joined).unwrap();
    }
    let event = driver.recv_timeout(WAIT_MAX).unwrap();
    assert_eq!(event.what, What::ChannelCrashed { topic: "memory:panics".into() });
    await_that(|| hibernated.load(Relaxed) == 1 && hibernating(&endpoint) == 1);
}

#[test]
fn off_is_off() {
    let (endpoint, hibernated) = start(None);
    let mut driver = Driver::start(&endpoint);
    let socket = driver.connect("/socket", json!({})).unwrap();
    driver.join(socket, "memory:1", json!({})).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((hibernated.load(Relaxed), hibernating(&endpoint)), (0, 0));
}

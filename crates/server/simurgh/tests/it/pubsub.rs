//! Code outside of channels subscribes and broadcasts, whichever shards the members are on.

use std::thread;
use std::time::Duration;

use crate::support::{handled, serving, until};
use simurgh::driver::Driver;
use simurgh::pubsub::{RecvError, SUBSCRIPTION_BYTES_MAX};
use simurgh::{
    Broadcast, BroadcastError, Endpoint, Outcome, Payload, PubSub, ShardContext, Subscription, json,
};

fn room(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    match event {
        "shout" => ctx.broadcast("shouted", &payload),
        "tell" => ctx.broadcast_from("told", &payload),
        "handle" => {
            let handle = ctx.handle::<()>();
            let sent = handle.broadcast("handled", &payload);
            let told = handle.broadcast_from("handed", &payload);
            return Outcome::ok(json!([sent.is_ok(), told.is_ok()]));
        }
        _ => return Outcome::unknown_event(),
    }
    Outcome::NoReply
}

fn start() -> (Endpoint, Driver, PubSub) {
    let builder = serving(handled("room:*", room)).configure(|config| config.shards = 3);
    let endpoint = builder.start_local().unwrap();
    let (driver, pubsub) = (Driver::start(&endpoint), endpoint.pubsub());
    (endpoint, driver, pubsub)
}

fn said(broadcast: &Broadcast) -> String {
    format!("{} {}", broadcast.event(), broadcast.payload().json().unwrap())
}

fn hears(subscription: &mut Subscription, count: usize) -> Vec<String> {
    (0..count).map(|_| said(&subscription.blocking_recv().unwrap())).collect()
}

fn nothing(subscription: &mut Subscription) -> Option<RecvError> {
    subscription.try_recv().err()
}

#[test]
fn subscription_receives_each_broadcast_once() {
    let (endpoint, mut driver, pubsub) = start();
    let mut all = pubsub.subscribe("room:1");
    let mut again = endpoint.handle().pubsub().subscribe(String::from("room:1"));
    let mut other = pubsub.subscribe("room:2");
    assert_eq!(all.topic(), "room:1");
    assert_eq!(nothing(&mut all), Some(RecvError::Empty));
    // One on each shard.
    for _ in 0..3 {
        let socket = driver.connect("/socket", json!({})).unwrap();
        driver.join(socket, "room:1", json!({})).unwrap();
        driver.push(socket, "room:1", "shout", json!(1)).unwrap();
        driver.push(socket, "room:1", "tell", json!(2)).unwrap();
        let asked = driver.push(socket, "room:1", "handle", json!(3)).unwrap();
        assert_eq!(driver.reply(asked).unwrap().response, json!([true, true]).into());
        let expected = ["shouted 1", "told 2", "handled 3", "handed 3"];
        assert_eq!(hears(&mut all, 4), expected);
        assert_eq!(hears(&mut again, 4), expected);
    }
    pubsub.broadcast("room:1", "outside", json!(4)).unwrap();
    endpoint.broadcast("room:1", "outside", json!(5)).unwrap();
    assert_eq!(hears(&mut all, 2), ["outside 4", "outside 5"]);
    driver.settle().unwrap();
    assert_eq!([&mut all, &mut other].map(nothing), [Some(RecvError::Empty); 2]);
}

#[test]
fn subscription_does_not_receive_its_own_broadcast_from() {
    let (_endpoint, mut driver, pubsub) = start();
    let (mut one, mut two) = (pubsub.subscribe("room:1"), pubsub.subscribe("room:1"));
    let socket = driver.connect("/socket", json!({})).unwrap();
    driver.join(socket, "room:1", json!({})).unwrap();
    driver.settle().unwrap();
    pubsub.broadcast_from(&one, "mine", json!(1)).unwrap();
    pubsub.broadcast("room:1", "all", json!(2)).unwrap();
    assert_eq!(hears(&mut one, 1), ["all 2"]);
    assert_eq!(hears(&mut two, 2), ["mine 1", "all 2"]);
    assert_eq!(driver.message(socket, "mine").unwrap().payload(), &json!(1).into());
}

#[test]
fn node_is_addressed_by_its_name() {
    let (_endpoint, _driver, pubsub) = start();
    let mut all = pubsub.subscribe("t");
    assert_eq!(pubsub.node_name(), "simurgh");
    pubsub.direct("simurgh", "t", "here", json!(1)).unwrap();
    let unknown = pubsub.direct("elsewhere", "t", "there", json!(2));
    assert_eq!(unknown, Err(BroadcastError::UnknownNode));
    assert_eq!(hears(&mut all, 1), ["here 1"]);
}

/// No sender waits for a subscription: it loses what exceeds its limit, and learns how much.
#[test]
fn unread_subscription_reports_lost_broadcasts() {
    let (_endpoint, mut driver, pubsub) = start();
    let mut slow = pubsub.subscribe("t");
    let bytes = 1 << 20;
    let fits = SUBSCRIPTION_BYTES_MAX / (bytes + 100);
    for n in 0..fits + 5 {
        let payload = Payload::from_bytes(vec![n as u8; bytes]);
        until("there is room", || pubsub.broadcast("t", "large", &payload).is_ok());
    }
    driver.settle().unwrap();
    for n in 0..fits {
        let heard = slow.try_recv().unwrap();
        assert_eq!(heard.payload().binary().map(|it| it[0]), Some(n as u8));
    }
    assert_eq!(nothing(&mut slow), Some(RecvError::Lagged(5)));
    assert_eq!(nothing(&mut slow), Some(RecvError::Empty));
    pubsub.broadcast("t", "small", json!(1)).unwrap();
    assert_eq!(hears(&mut slow, 1), ["small 1"]);
}

#[test]
fn subscription_ends_with_the_server() {
    let (endpoint, driver, pubsub) = start();
    let mut waits = pubsub.subscribe("t");
    let waiting = thread::spawn(move || waits.blocking_recv().map(|it| said(&it)));
    drop((driver, endpoint));
    assert_eq!(waiting.join().unwrap(), Err(RecvError::Ended));
    // So does a late subscription, without waiting.
    let mut late = pubsub.subscribe("t");
    let heard = late.blocking_recv().map(|it| said(&it));
    assert_eq!(heard, Err(RecvError::Ended));
    let _ = pubsub.broadcast("t", "nobody", json!(1));
}

/// Tasks can wait for a broadcast.
#[test]
fn subscription_can_be_awaited() {
    let (_endpoint, _driver, pubsub) = start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut all = pubsub.subscribe("t");
        let to = pubsub.clone();
        let speaks = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            to.broadcast("t", "soon", json!(1))
        });
        assert_eq!(said(&all.recv().await.unwrap()), "soon 1");
        speaks.await.unwrap().unwrap();
    });
}

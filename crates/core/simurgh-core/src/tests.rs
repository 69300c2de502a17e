//! Plain data: its queries, and how it is shown in a log.

mod components;
mod handles;
mod reload;

use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::metrics::{Counter, ShardMetrics};
use simurgh_proto::message::Payload;
use simurgh_proto::topic::Pattern;

use crate::fanout::Delivery;
use crate::registry::Topic;
use crate::testing::*;
use crate::*;

#[test]
fn watchdog_names_the_running_callback() {
    let numbers: Vec<u8> = Callback::ALL.iter().map(|it| *it as u8).collect();
    assert_eq!(numbers, (1..=9).collect::<Vec<u8>>());
    let names: Vec<_> = Callback::ALL.iter().map(|it| it.name()).collect();
    let expected = "connect join after_join handle_in handle_info handle_out handle_broadcast \
        terminate hibernate";
    assert_eq!(names.join(" "), expected);
}

/// Above its limit, and not at it; a node is relieved at half of it.
#[test]
fn node_reports_bytes_in_flight() {
    let config = Config { mailbox_bytes_max: 1000, ..Config::default() };
    let node = TestNode::new(2, config, Vec::new());
    for (bytes, is_relieved, is_congested, is_jammed) in [
        (500, true, false, false),
        (501, false, false, false),
        (1000, false, false, false),
        (1001, false, true, false),
        (4000, false, true, false),
        (4001, false, true, true),
    ] {
        for all in [vec![0, bytes], vec![bytes, 0]] {
            node.log().bytes = all;
            let found = (node.is_relieved(), node.is_congested(), node.is_jammed());
            assert_eq!(found, (is_relieved, is_congested, is_jammed), "{bytes} bytes");
        }
    }
}

#[test]
fn errors_name_the_remedy() {
    let too_large = BroadcastError::TooLarge { bytes: 9, bytes_max: 8 };
    assert!(too_large.to_string().contains("9 bytes is too large: the maximum is 8"));
    assert!(BroadcastError::Congested.to_string().contains("try again later"));
}

#[test]
fn weight_of_a_broadcast_covers_its_frame() {
    let broadcast = Broadcast::new("topic", "event", Payload::from_json("[1,2]"));
    assert_eq!(broadcast.weight(), 5 + 5 + 5 + 64);
    let config = Config::default();
    assert_eq!(config.broadcast_bytes_max(), 12 << 20);
    assert_eq!(config.flow_bytes_max(), 2 << 20);
}

#[test]
fn clock_counts_nanoseconds_and_never_goes_back() {
    assert_eq!(nanoseconds(Duration::from_micros(7)), 7_000);
    assert_eq!(nanoseconds(Duration::MAX), u64::MAX);
    assert_eq!((until(9, 4), until(4, 9)), (Duration::from_nanos(5), Duration::ZERO));
}

#[test]
fn counters_are_described_in_the_order_of_their_fields() {
    let metrics = ShardMetrics::default();
    metrics.sockets.set(7);
    metrics.slow_callbacks.add(2);
    metrics.slow_callbacks.add(3);
    let values: Vec<u64> = ShardMetrics::ALL.iter().map(|(.., value)| value(&metrics)).collect();
    assert_eq!((values.first(), values.last()), (Some(&7), Some(&5)));
    let (name, kind, help, _) = ShardMetrics::ALL[0];
    assert_eq!((name, kind, help.trim()), ("sockets", "gauge", "Open sockets."));
    let counter = Counter::default();
    counter.set(u64::MAX);
    counter.add(2);
    assert_eq!(counter.value(), 1, "it wraps");
}

/// The memory of many sockets is computed with these.
#[test]
fn records_have_their_documented_sizes() {
    assert_eq!((size_of::<Socket>(), SUBSCRIPTION_BYTES), (24, 64 + 16));
    assert_eq!(TOPIC_BYTES, size_of::<Topic<Delivery>>() + 100);
}

/// It shows what a log needs, and none of the application's secrets.
#[test]
fn debug_output_is_readable() {
    let state = SocketState {
        id: Some("id".into()),
        assigns: Some(Arc::new("secret")),
        ..SocketState::default()
    };
    assert_eq!(format!("{state:?}"), r#"SocketState { id: Some("id"), .. }"#);
    let tells =
        [info(7), ToChannel::Push("e".into(), Payload::NULL), ToChannel::Stop(Stop::Normal)];
    assert_eq!(format!("{tells:?}"), "[Message, Push, Stop]");
    let joins = [
        Join::ok(scripted(standard)),
        Join::error(Payload::NULL),
        Join::later(async { Join::error(Payload::NULL) }),
    ];
    assert_eq!(format!("{joins:?}"), "[Join::ok, Join::error, Join::later]");
    assert_eq!(format!("{:?}", FanoutPermits::new(1, 1)), "FanoutPermits");
    let join: JoinFn = Arc::new(|_, _| Join::error(Payload::NULL));
    let plain = UserSocket::new(Kind::Plain { topic: "chat".into(), join: Arc::clone(&join) });
    assert!(format!("{plain:?}").contains(r#"Plain("chat")"#) && plain.route("chat").is_none());
    assert_eq!((plain.channels_max, plain.count_members, plain.idle_timeout), (100, false, None));
    let pattern = Pattern::parse("a:*").unwrap();
    let route = Route::new(pattern, join);
    assert!(format!("{route:?}").starts_with("Route { pattern: Prefix(\"a:\")"));
    assert_eq!(format!("{:?}", Kind::Channels(vec![route])), "Channels(1)");
    let mut it = TestShard::running(scripted(|ctx, _| {
        assert_eq!(format!("{ctx:?}"), r#"Context { topic: "t", .. }"#);
        let handle = format!("{:?}", ctx.handle::<Scripted>());
        assert!(handle.starts_with("ChannelHandle(ChannelId { shard: 0,"));
        Outcome::NoReply
    }));
    it.joined(&["t"]);
    assert_eq!(it.core.metrics().errors_callback_panic.value(), 0);
}

#[test]
fn unused_callbacks_have_defaults() {
    struct Least;
    impl ShardChannel for Least {
        fn handle_in(&mut self, ctx: &mut ShardContext<'_>, _: &str, _: Payload<'_>) -> Outcome {
            ctx.subscribe("u");
            ctx.handle::<Scripted>().send(());
            Outcome::unknown_event()
        }
    }
    let (mut it, [key]) = TestShard::of(user_socket(|_, _| Join::ok(Least))).members();
    it.delivers("t", "e", "1");
    assert_eq!(it.receives(key), [r#"[null,null,"t","e",1]"#], "nothing is intercepted");
    it.sends(key, r#"[1,2,"t","e",{}]"#);
    it.handles_mail();
    assert_eq!(it.receives(key), [r#"[1,1,"t","phx_error",{"reason":"channel_crash"}]"#]);
    assert!(!Least.intercept().contains(&"e"));
    Least.hibernate();
}

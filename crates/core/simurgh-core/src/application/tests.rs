//! The application's code, as a shard runs it.

use simurgh_channel::guarded;
use std::sync::Arc;
use std::time::Duration;

use simurgh_channel::{Config, Join, JoinFn, Outcome, Stop};
use simurgh_proto::message::Payload;
use simurgh_proto::ws::CloseCode;

use super::*;
use crate::testing::*;

fn application() -> (Application<TestNode>, Arc<ShardMetrics>, Arc<TestNode>) {
    let node = Arc::new(TestNode::new(1, Config::default(), Vec::new()));
    let metrics = Arc::<ShardMetrics>::default();
    (Application::new(Arc::clone(&node), Arc::clone(&metrics), 0), metrics, node)
}

fn about(socket: Option<&SocketState>) -> Subject<'_> {
    let channel = ChannelId { shard: 0, membership: 3, generation: 5 };
    let (message, prepared, resume) = (None, None, None);
    Subject { socket, topic: "rooms:lobby:1", channel, message, prepared, resume }
}

#[test]
fn slow_callback_is_counted() {
    let (mut application, metrics, node) = application();
    let limit = Config::default().callback_warning;
    for (took, count) in [(limit, 0), (limit + Duration::from_nanos(1), 1)] {
        node.log().slowness = took;
        assert_eq!(application.run(about(None), Callback::HandleIn, |_| 7).0, Some(7));
        assert_eq!(metrics.slow_callbacks.value(), count);
    }
    assert_eq!(metrics.errors_callback_panic.value(), 0);
}

#[test]
fn effects_of_a_callback_are_applied_even_if_it_panics() {
    let (mut application, metrics, node) = application();
    for is_crash in [false, true] {
        let (result, effects) = application.run(about(None), Callback::HandleIn, |ctx| {
            ctx.push("e", Payload::NULL);
            if is_crash {
                crash();
            }
        });
        assert_eq!((result.is_none(), effects.len()), (is_crash, 1));
        assert_eq!(metrics.errors_callback_panic.value(), u64::from(is_crash));
    }
    assert_eq!(node.log().callbacks, [Callback::HandleIn, Callback::HandleIn]);
}

#[test]
fn short_effect_lists_are_reused() {
    let (mut application, _, _) = application();
    application.keep(Vec::with_capacity(SPARE_EFFECTS_MAX + 1));
    assert!(application.spare.is_empty(), "one that grew is not kept");
    for _ in 0..=SPARE_MAX {
        application.keep(Vec::with_capacity(SPARE_EFFECTS_MAX));
    }
    assert_eq!(application.spare.len(), SPARE_MAX);
    let (_, effects) = application.run(about(None), Callback::HandleIn, |_| ());
    assert_eq!((application.spare.len(), effects.capacity()), (SPARE_MAX - 1, SPARE_EFFECTS_MAX));
}

/// No join allocates a list of effects that another callback has used, nor loses one.
#[test]
fn join_without_effects_keeps_its_list() {
    let mut it = TestShard::new();
    it.core.application().keep(Vec::with_capacity(SPARE_EFFECTS_MAX));
    for _ in 0..3 {
        it.joined(&["t"]);
        let spare: Vec<_> = it.core.application().spare.iter().map(Vec::capacity).collect();
        assert_eq!(spare, [SPARE_EFFECTS_MAX]);
    }
}

#[test]
fn callback_knows_its_topic_and_shard() {
    let (mut application, metrics, node) = application();
    node.log().census.insert("rooms:lobby:1".into(), 4);
    let state = SocketState {
        id: Some("id".into()),
        assigns: Some(Arc::new("text")),
        ..SocketState::default()
    };
    let (result, effects) = application.run(about(Some(&state)), Callback::HandleIn, |ctx| {
        assert_eq!((ctx.topic(), ctx.subtopic()), ("rooms:lobby:1", "lobby:1"));
        assert_eq!((ctx.socket_id(), ctx.assigns()), (Some("id"), Some(&"text")));
        assert_eq!(ctx.member_count(), Some(4));
        ctx.count_wrong_payload();
        ctx.handle::<Scripted>().stop(Stop::Normal);
    });
    assert!(result.is_some() && effects.is_empty());
    assert_eq!(metrics.errors_wrong_payload.value(), 1);
    let mail = format!("{:?}", node.log().mail[0]);
    assert_eq!(mail, "[ToChannel(ChannelId { shard: 0, membership: 3, generation: 5 }, Stop)]");
    let plain = Subject { topic: "plain", ..about(None) };
    application.run(plain, Callback::HandleIn, |ctx| {
        assert_eq!((ctx.subtopic(), ctx.socket_id()), ("plain", None));
        assert_eq!((ctx.assigns::<u8>(), ctx.member_count()), (None, None));
    });
}

#[test]
fn each_call_of_a_callback_is_one_effect() {
    let (mut application, _, _) = application();
    let (_, effects) = application.run(about(None), Callback::HandleIn, |ctx| {
        ctx.broadcast("a", Payload::NULL);
        ctx.broadcast_from("b", Payload::NULL);
        ctx.broadcast_to("t", "c", Payload::NULL);
        ctx.disconnect("id");
        ctx.subscribe("u");
        ctx.unsubscribe("v");
        ctx.close_socket(CloseCode::NORMAL);
    });
    let broadcast = |topic: Option<&str>, event: &str, payload, audience| {
        Effect::Broadcast(topic.map(Into::into), event.into(), payload, audience)
    };
    use crate::Audience::{All, Others};
    let expected = [
        broadcast(None, "a", Payload::NULL, All),
        broadcast(None, "b", Payload::NULL, Others),
        broadcast(Some("t"), "c", Payload::NULL, All),
        broadcast(Some("id"), "disconnect", Payload::EMPTY_OBJECT, All),
        Effect::Subscribe("u".into()),
        Effect::Unsubscribe("v".into()),
        Effect::Close(CloseCode::NORMAL),
    ];
    assert_eq!(format!("{effects:?}"), format!("{expected:?}"));
}

/// A join function runs before there is a channel: its channel is one that does not exist.
#[test]
fn join_function_has_no_channel() {
    let (mut application, _, node) = application();
    let join: JoinFn = Arc::new(|ctx, payload| {
        ctx.handle::<Scripted>().stop(Stop::Normal);
        assert!(ctx.reply_ref().is_none() && ctx.take_prepared::<u8>() == Some(9));
        Join::error(payload.into_owned())
    });
    let prepared = Some(Box::new(9_u8) as Prepared);
    let channel = application.nobody();
    let about =
        Subject { socket: None, topic: "t", channel, message: None, prepared, resume: None };
    let (answer, _) = application.run(about, Callback::Join, |ctx| join(ctx, Payload::NULL));
    assert_eq!(format!("{answer:?}"), "Some(Join::error)");
    let nobody = ChannelId { shard: 0, membership: NO_MEMBERSHIP, generation: 0 };
    assert_eq!(application.nobody(), nobody);
    assert_eq!(format!("{:?}", node.log().mail[0]), format!("[ToChannel({nobody:?}, Stop)]"));
    assert_eq!(node.log().callbacks, [Callback::Join]);
}

/// Hibernation has no context, and is timed all the same.
#[test]
fn panic_in_hibernate_ends_the_channel() {
    let (application, metrics, node) = application();
    let quiet = || Outcome::NoReply;
    let mut well = scripted(move |_, _| quiet());
    let mut ill = scripted(move |_, _| quiet()).sleeping(|| crash());
    assert!(application.hibernate(&mut well));
    assert_eq!(metrics.errors_callback_panic.value(), 0);
    assert!(!application.hibernate(&mut ill));
    assert_eq!(metrics.errors_callback_panic.value(), 1);
    assert_eq!(node.log().callbacks, [Callback::Hibernate, Callback::Hibernate]);
}

/// The drop of the panic's value is application code, too, and so is the drop of what that throws.
#[test]
fn panic_while_dropping_a_panic_is_contained() {
    struct Again(#[allow(dead_code, reason = "for its drop")] Bomb);
    impl Drop for Again {
        fn drop(&mut self) {}
    }
    assert_eq!(guarded(|| 7), Some(7));
    assert_eq!(guarded(|| std::panic::resume_unwind(Box::new(Again(Bomb)))), None::<()>);
    struct Deep;
    impl Drop for Deep {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new(Bomb));
        }
    }
    assert_eq!(guarded(|| std::panic::resume_unwind(Box::new(Deep))), None::<()>);
}

#[test]
fn ended_channel_has_no_effects() {
    let (mut application, _, node) = application();
    let speaker = Speaker {
        conn: simurgh_data::Key { slot: 0, generation: 0 },
        wire: crate::wire::Wire::V2,
        topic: "t".into(),
        join_ref: simurgh_proto::message::OwnedRef::NULL,
        is_given: false,
        id: application.nobody(),
        client: 0,
    };
    assert!(application.terminate(None, &speaker, None, Reason::Left).is_empty());
    assert!(node.log().callbacks.is_empty());
}

//! Replies of declared channels, and refused declarations.

use serde_json::{Value, json};
use simurgh_channel::{Kind, LimitPolicy, Outcome, Rate, SizeLimit};
use simurgh_proto::message::{Message, Payload, Ref, events};

use super::member::*;
use super::template::{Identity, Source};
use super::*;
use crate::shape::Misfit;
use crate::socket::Payloads as _;

fn spec(value: Value) -> ChannelSpec {
    serde_json::from_value(value).expect("a spec")
}

fn compiled(value: Value) -> Declared {
    let mut all = check::compile(&[spec(value)], Defaults::default(), &[]).expect("no mistake");
    match all.remove(0) {
        Compiled::Declared(declared) => *declared,
        Compiled::Supabase(_) => panic!("it is a Supabase channel"),
    }
}

fn chat() -> Declared {
    compiled(json!({
        "topic": "rooms:*",
        "announce_join": "user:entered",
        "announce_payload": {"user": "$user"},
        "event": [{"name": "new:msg", "broadcast": "all", "reply": {"msg": "$body"}}],
    }))
}

impl Declared {
    /// Decides a join of a client without a token.
    fn admits(
        &self,
        topic: &str,
        members: impl Fn() -> u32,
        payload: &Payload<'_>,
        prepared: Option<Welcome>,
    ) -> Result<Welcome, Refusal> {
        let prepared = prepared.map(Prepared::Join);
        let source = Source { identity: Identity::default(), payload, topic, event: events::JOIN };
        self.admit(&source, members, prepared)
    }

    /// The effect of an event; a refusal as the error that its sender gets.
    fn told(&self, topic: &str, event: &str, payload: Payload<'_>) -> Answer {
        let refused = |refusal: Refusal| Outcome::error(refusal.response());
        let checked = self.check_event(event, &payload).map_err(Refusal::from);
        checked
            .and_then(|()| self.answer(Identity::default(), topic, event, payload))
            .unwrap_or_else(|refusal| Answer { broadcast: None, outcome: refused(refusal) })
    }
}

fn message(event: &'static str, payload: Payload<'static>) -> Message<'static> {
    let (join_ref, msg_ref) = (Ref::Null, Ref::Null);
    Message { join_ref, msg_ref, topic: "rooms:a".into(), event: event.into(), payload }
}

fn payload(value: Value) -> Payload<'static> {
    value.into()
}

#[track_caller]
fn replied(answer: &Answer, status: &str, response: Value) {
    let Outcome::Reply(reply) = &answer.outcome else { panic!("no reply: {answer:?}") };
    assert_eq!((reply.status(), reply.response()), (status, &payload(response)));
}

#[test]
fn chat_broadcasts_and_replies() {
    let text = r#"{"user":"ann","body":"hello ü","more":[1.0]}"#;
    let answer = chat().told("rooms:lobby", "new:msg", Payload::checked(text).unwrap());
    replied(&answer, "ok", json!({"msg": "hello ü"}));
    let (reach, payload) = answer.broadcast.expect("a broadcast");
    assert_eq!((reach, payload.json()), (Reach::All, Some(text)));
}

#[test]
fn joins_are_announced_in_small_topics() {
    let chat = chat();
    for (members, announced) in [(0, true), (99, true), (100, false), (5_000, false)] {
        let joins = payload(json!({"user": 7, "x": 1}));
        let welcome = chat.admits("rooms:a", || members, &joins, None);
        let announcement = announced.then(|| payload(json!({"user": 7})));
        let expected = Ok(Welcome { reply: Payload::EMPTY_OBJECT, announcement, present: None });
        assert_eq!(welcome, expected);
        let message = &mut message("phx_join", joins.clone());
        let Prepared::Join(prepared) = chat.prepare(message) else { panic!("a join") };
        assert_eq!(chat.admits("rooms:a", || members, &joins, Some(prepared)), expected);
    }
}

#[test]
fn joins_are_refused_by_topic_payload_and_size() {
    let rooms = compiled(json!({
        "topic": "rooms:*", "deny": ["rooms:private*", "rooms:x"],
        "members_max": 3, "join_reply": {"at": "$topic", "who": "$u"},
    }));
    let because = |reason| Err(Refusal::Because(reason));
    let join = |topic: &str, members, given| rooms.admits(topic, || members, &payload(given), None);
    for topic in ["rooms:private", "rooms:private:1", "rooms:x"] {
        assert_eq!(join(topic, 0, json!({})), because("unauthorized"));
    }
    assert_eq!(join("rooms:a", 3, json!({})), because("full"));
    let reply = join("rooms:xy", 2, json!({"u": 1})).expect("is let in").reply;
    assert_eq!(reply, payload(json!({"at": "rooms:xy", "who": 1})));
}

#[test]
fn undeclared_events_get_the_declared_response() {
    let answer = chat().told("rooms:a", "dance", payload(json!({})));
    replied(&answer, "error", json!({"reason": "unknown event"}));
    assert!(answer.broadcast.is_none());
    for (other_events, debug) in [("ignore", "NoReply"), ("crash", "Stop(Abnormal)")] {
        let channel = compiled(json!({"topic": "a", "other_events": other_events}));
        let answer = channel.told("a", "dance", payload(json!({})));
        assert_eq!(format!("{:?}", answer.outcome), debug);
    }
}

#[test]
fn any_event_matches_all_unreserved_events() {
    let channel = compiled(json!({"topic": "a", "payload_shape": "json", "event": [
        {"name": "*", "broadcast": "others", "payload": {"is": "$event", "p": "$payload"}},
        {"name": "quiet"},
        {"name": "no", "reply": "why", "status": "never"},
    ]}));
    let answer = channel.told("a", "dance", payload(json!(1)));
    assert!(matches!(answer.outcome, Outcome::NoReply));
    let expected = payload(json!({"is": "dance", "p": 1}));
    assert_eq!(answer.broadcast, Some((Reach::Others, expected)));
    assert!(channel.told("a", "quiet", payload(json!(1))).broadcast.is_none());
    replied(&channel.told("a", "no", payload(json!(1))), "never", json!("why"));
    for reserved in ["phx_close", "phx_error", "phx_reply", "disconnect"] {
        let answer = channel.told("a", reserved, payload(json!({})));
        assert!(answer.broadcast.is_none(), "{reserved} ends the channels of others");
    }
}

#[test]
fn member_cannot_send_the_announcement_of_joins() {
    let channel = compiled(json!({"topic": "a", "announce_join": "in", "event": [
        {"name": "*", "broadcast": "all"}, {"name": "in", "broadcast": "all"},
    ]}));
    let answer = channel.told("a", "in", payload(json!({"user": "alice"})));
    replied(&answer, "error", json!({"reason": "unknown event"}));
    assert!(answer.broadcast.is_none());
    assert!(channel.told("a", "into", payload(json!({}))).broadcast.is_some());
}

#[test]
fn payloads_over_the_limit_are_refused() {
    let reply = |bytes_max| SizeLimit { bytes_max, policy: LimitPolicy::Reply };
    let short = json!({"topic": "a", "payload_bytes_max": "1KiB", "payload_shape": "any"});
    assert_eq!(limits_of(std::slice::from_ref(&short)), [Some(reply(1024))]);
    // Refused messages are not prepared.
    let channel = compiled(short);
    let prepared = |bytes| channel.prepare(&mut message("e", Payload::from_bytes(vec![0; bytes])));
    assert!(matches!(prepared(1024), Prepared::Event(_)));
    assert!(matches!(prepared(1025), Prepared::Refused(Refusal::Because(_))));
    let long = json!({"topic": "a", "limits": {"payload_bytes": {"max": 9, "policy": "drop"}}});
    let expected = SizeLimit { bytes_max: 9, policy: LimitPolicy::Drop };
    assert_eq!(limits_of(&[long]), [Some(expected)]);
    // A message within the limit of another channel is refused by its own channel's limit.
    let [small, large] = [("a", 200), ("b", 300)]
        .map(|(topic, bytes)| json!({"topic": topic, "message_bytes_max": bytes}));
    assert_eq!(limits_of(&[small.clone(), large]), [Some(reply(200)), None]);
    assert_eq!(limits_of(&[small]), [None]);
}

fn limits_of(specs: &[Value]) -> Vec<Option<SizeLimit>> {
    let specs: Vec<ChannelSpec> = specs.iter().cloned().map(spec).collect();
    let user_socket = user_socket("/socket", &specs, Defaults::default()).expect("a user socket");
    let Kind::Channels(routes) = &user_socket.parts().channels.kind else { panic!("channels") };
    routes.iter().map(|route| route.limits.payload_bytes).collect()
}

#[test]
fn events_per_second_is_short_for_messages() {
    let messages = |value: Value| {
        let user_socket =
            user_socket("/socket", &[spec(value)], Defaults::default()).expect("a user socket");
        user_socket.parts().channels.route("a").expect("a route").limits.messages
    };
    let twenty = Some(Rate::per_second(20).expect("a rate").into());
    assert_eq!(messages(json!({"topic": "a", "events_per_second": 20})), twenty);
    assert_eq!(messages(json!({"topic": "a", "limits": {"messages": 20}})), twenty);
    assert_eq!(messages(json!({"topic": "a"})), None);
    refused(
        json!([{"topic": "a", "events_per_second": 20, "payload_bytes_max": 5,
                "limits": {"messages": 20, "payload_bytes": 5}}]),
        &[
            "channel 1, events_per_second: is short for messages of limits, which is also set",
            "channel 1, payload_bytes_max: is short for payload_bytes of limits, which is also set",
        ],
    );
}

fn misfits() -> [(Payload<'static>, &'static str); 6] {
    [
        (payload(json!(null)), "null"),
        (payload(json!([1])), "array"),
        (payload(json!(7)), "number"),
        (payload(json!("x")), "string"),
        (payload(json!(true)), "boolean"),
        (Payload::from_bytes(vec![1, 2]), "binary"),
    ]
}

#[test]
fn payload_that_is_not_an_object_is_refused_with_a_reply() {
    for (payload, found) in misfits() {
        let wrong = Misfit::Shape { expected: PayloadShape::Object, found }.into();
        assert_eq!(chat().admits("rooms:a", || 0, &payload, None), Err(wrong));
        let answer = chat().told("rooms:a", "new:msg", payload);
        assert!(answer.broadcast.is_none(), "{found}");
        let Outcome::Reply(reply) = &answer.outcome else { panic!("no reply: {answer:?}") };
        let told = json!({"reason": "wrong_payload", "expected": "object", "found": found});
        assert_eq!((reply.status(), reply.response().parse::<Value>().unwrap()), ("error", told));
    }
}

#[test]
fn payload_shape_is_set_per_channel_and_event() {
    let channel = compiled(json!({"topic": "a", "payload_shape": "any", "event": [
        {"name": "any", "broadcast": "all"},
        {"name": "json", "broadcast": "all", "payload_shape": "json"},
        {"name": "object", "broadcast": "all", "payload_shape": "object"},
    ]}));
    let passes = |event: &str, payload: &Payload<'static>| {
        channel.told("a", event, payload.clone()).broadcast.is_some()
    };
    for (payload, found) in misfits() {
        assert!(channel.admits("a", || 0, &payload, None).is_ok(), "{found}");
        assert!(passes("any", &payload), "{found}");
        assert_eq!(passes("json", &payload), found != "binary", "{found}");
        assert!(!passes("object", &payload), "{found}");
    }
    assert!(passes("object", &payload(json!({}))));
    let array = payload(json!([]));
    assert!(channel.check("object", &array).is_err() && channel.check("other", &array).is_ok());
}

#[test]
fn message_limit_of_a_user_socket_is_the_largest_of_its_channels() {
    let of = |specs: Value, frame_bytes_max| {
        let specs: Vec<ChannelSpec> = serde_json::from_value(specs).expect("specs");
        let defaults = Defaults { frame_bytes_max, ..Defaults::default() };
        let limits =
            user_socket("/socket", &specs, defaults).expect("a user socket").parts().limits;
        limits.map(|limits| (limits.message_bytes_max, limits.frame_bytes_max))
    };
    let small = json!({"topic": "a", "message_bytes_max": "64KiB"});
    assert_eq!(of(json!([{"topic": "b"}]), None), None, "the endpoint's own");
    assert_eq!(of(json!([small]), None), Some((65_536, 65_536)));
    assert_eq!(of(json!([small]), Some(1_000)), Some((65_536, 1_000)));
    assert_eq!(of(json!([small]), Some(1 << 20)), Some((65_536, 65_536)));
    let default = Defaults::default().message_bytes_max;
    assert_eq!(of(json!([small, {"topic": "b"}]), None), Some((default, default)));
}

/// The mistakes, as `key: first words`.
#[track_caller]
fn refused(specs: Value, expected: &[&str]) {
    let specs: Vec<ChannelSpec> = serde_json::from_value(specs).expect("specs");
    let mistakes = user_socket("/socket", &specs, Defaults::default()).expect_err("mistakes");
    let lines: Vec<_> = mistakes.iter().map(Mistake::to_string).collect();
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line:?} does not begin with {expected:?}");
    }
}

#[test]
fn all_mistakes_are_reported_together() {
    refused(
        json!([
            {"topic": "rooms*:", "members_max": 0, "event": [{}, {"name": "a"}, {"name": "a"}]},
            {},
            {"topic": "rooms:*", "join_reply": "$", "announce_payload": {}},
        ]),
        &[
            "channel 1, topic: \"rooms*:\"",
            "channel 1, members_max: must be at least 1",
            "channel 1, event 1, name: is missing",
            "channel 1, event 3, name: \"a\" is declared twice",
            "channel 2, topic: is missing",
            "channel 3, join_reply: \"$\" is not a form",
            "channel 3, announce_payload: has no effect without announce_join",
        ],
    );
}

#[test]
fn unreachable_topics_are_mistakes() {
    refused(
        json!([
            {"topic": "a:*"}, {"topic": "a:*"}, {"topic": "a:b"}, {"topic": "a:b:*"},
            {"topic": "a"}, {"topic": "phoenix"}, {"topic": "b", "deny": ["b*", "c", "**"]},
        ]),
        &[
            "channel 2, topic: \"a:*\" is declared twice",
            "channel 3, topic: \"a:b\" is never used, because \"a:*\" above",
            "channel 4, topic: \"a:b:*\" is never used",
            "channel 6, topic: \"phoenix\" is reserved",
            "channel 7, deny: \"c\" matches no topic of \"b\"",
            "channel 7, deny: \"**\"",
        ],
    );
}

#[test]
fn setting_without_effect_is_a_mistake() {
    refused(
        json!([{
            "topic": "a", "announce_join": "phx_close", "announce_joins_up_to": 0,
            "events_per_second": 0, "payload_bytes_max": 0, "message_bytes_max": 124, "event": [
                {"name": "phx_reply"},
                {"name": "e", "payload": {}, "status": "ok"},
                {"name": "f", "broadcast": "all", "payload": {"a": "$b.c"}, "reply": ["$ "]},
            ],
        }]),
        &[
            "channel 1, announce_join: \"phx_close\" is reserved, as are all names",
            "channel 1, announce_joins_up_to: must be at least 1",
            "channel 1, payload_bytes_max: must be at least 1",
            "channel 1, message_bytes_max: must be at least 125",
            "channel 1, events_per_second: must be 1 to 100000",
            "channel 1, event 1, name: \"phx_reply\"",
            "channel 1, event 2, payload: has no effect without broadcast",
            "channel 1, event 2, status: has no effect without a reply",
            "channel 1, event 3, payload: \"$b.c\" is not a form",
            "channel 1, event 3, reply: \"$ \" is not a form",
        ],
    );
}

#[test]
fn supabase_channel_needs_only_its_kind() {
    let specs = [spec(json!({"kind": "supabase"})), spec(json!({"topic": "rooms:*"}))];
    let user_socket = user_socket("/socket", &specs, Defaults::default()).unwrap();
    assert_eq!(user_socket.is_supabase("realtime:lobby"), Some(true));
    assert_eq!(
        (user_socket.is_supabase("rooms:a"), user_socket.is_supabase("lobby")),
        (Some(false), None)
    );
    let hosted = hosted(&user_socket).unwrap();
    assert_eq!(
        (&*user_socket.parts().path, &*hosted.parts().path),
        ("/socket/websocket", "/realtime/v1/websocket")
    );
    let phoenix = super::user_socket("/socket", &specs[1..], Defaults::default()).unwrap();
    assert!(super::hosted(&phoenix).is_none());
}

#[test]
fn setting_that_supabase_channels_lack_is_refused() {
    for (more, key, why) in [
        (json!({"topic": "rooms:*"}), "topic", "begin with \"realtime:\""),
        (json!({"event": [{"name": "e"}]}), "event", "does not apply to kind"),
        (json!({"presence": true}), "presence", "does not apply to kind"),
        (json!({"join_reply": {}}), "join_reply", "does not apply to kind"),
        (json!({"payload_shape": "any"}), "payload_shape", "does not apply to kind"),
        (json!({"members_max": 5}), "members_max", "does not apply to kind"),
        (json!({"events_per_second": 0}), "events_per_second", "must be 1 to"),
        (json!({"payload_bytes_max": 0}), "payload_bytes_max", "must be at least 1"),
    ] {
        let mut value = json!({"kind": "supabase"});
        value.as_object_mut().unwrap().append(more.clone().as_object_mut().unwrap());
        let mistakes = user_socket("/socket", &[spec(value)], Defaults::default()).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].key == key && mistakes[0].message.contains(why), "{mistakes:?}");
    }
    let unknown = serde_json::from_value::<ChannelSpec>(json!({"kind": "firebase"}));
    assert!(unknown.unwrap_err().to_string().contains("phoenix"), "it says what there is");
}

//! Users of other servers' protocols.

use super::*;

#[test]
fn connect_is_complete_with_the_welcome_of_the_server() {
    let steps = "steps = [{ connect = \"/app/key\", capture = { id = \"socket_id\" } }, \
                 { join = \"private-a\", \
                   payload = { auth = '{{hmac_sha256 \"s\" \"{{id}}\"}}' } }, \
                 { push = \"client-x\", reply = false }, { receive = \"end\" }]";
    let mut user = Driven::new("pusher", "", steps);
    user.upgrade();
    let sent = user.done();
    let [Done::Dial, Done::Sent(request)] = sent.as_slice() else { panic!("{sent:?}") };
    assert!(request.starts_with("GET /app/key?protocol=7&client=simurgh-load "), "{request}");
    assert_eq!(user.user.state, UserState::AwaitUpgrade);
    user.wait_ms(5);
    user.text(r#"{"event":"pusher:connection_established","data":"{\"socket_id\":\"1.2\"}"}"#);
    assert_eq!(user.times_of(Metric::Upgrade), [5000]);
    // HMAC-SHA256 of "1.2" with the key "s".
    let auth = simurgh_load_scenario::answer::hmac_sha256_hex(b"s", b"1.2");
    let join = format!(
        r#"{{"event":"pusher:subscribe","data":{{"channel":"private-a","auth":"{auth}"}}}}"#
    );
    assert_eq!(user.frames(), [join]);
    user.wait_ms(3);
    user.text(r#"{"event":"pusher_internal:subscription_succeeded","channel":"private-a"}"#);
    assert_eq!(user.times_of(Metric::Join), [3000]);
    assert_eq!(
        user.frames(),
        [r#"{"event":"client-x","channel":"private-a","data":{}}"#],
        "the push follows, and nothing is awaited"
    );
    user.text(r#"{"event":"pusher:ping","data":{}}"#);
    assert_eq!(user.frames(), [r#"{"event":"pusher:pong","data":{}}"#]);
    assert_eq!((user.user.state, user.log.errors.len()), (UserState::Receiving, 0));
    assert_eq!(user.count_of(Count::FramesUnsolicited), 0);
}

#[test]
fn refused_connection_is_an_error_with_the_reason() {
    let steps = "steps = [{ connect = \"/\", payload = { token = \"x\" } }, { join = \"a\" }]";
    let mut user = Driven::new("centrifuge", "", steps);
    user.upgrade();
    assert_eq!(user.frames(), [r#"{"id":4294967295,"connect":{"token":"x"}}"#]);
    user.text(r#"{"id":4294967295,"error":{"code":109,"message":"token expired"}}"#);
    assert_eq!(user.log.errors, [ErrorKind::UpgradeWrong]);
    assert_eq!(user.done().last(), Some(&Done::Left(Ended::Aborted)));
}

#[test]
fn each_line_of_a_frame_is_a_message() {
    let steps = "steps = [{ connect = \"/\" }, { join = \"a\" }, { join = \"b\" }, \
                 { receive = \"end\", count = 2, match = { event = \"publication\" } }, \
                 { leave = \"a\" }, { receive = \"end\" }]";
    let mut user = Driven::new("centrifuge", "", steps);
    user.upgrade();
    user.text("{\"id\":4294967295,\"connect\":{}}\n{}\n");
    let join = |id: u32, topic| format!(r#"{{"id":{id},"subscribe":{{"channel":"{topic}"}}}}"#);
    assert_eq!(user.frames()[1..], [join(1, "a"), "{}".to_owned()]);
    user.text(r#"{"id":1,"subscribe":{}}"#);
    assert_eq!(user.frames(), [join(2, "b")]);
    let message = r#"{"push":{"channel":"a","pub":{"data":1}}}"#;
    user.text(&format!("{{\"id\":2,\"subscribe\":{{}}}}\n{message}\n{message}"));
    assert_eq!(user.frames(), [r#"{"id":3,"unsubscribe":{"channel":"a"}}"#]);
    assert_eq!(user.user.state, UserState::AwaitRef);
    user.text(r#"{"id":3,"unsubscribe":{}}"#);
    assert!(!user.user.client.holds("a") && user.user.client.holds("b"));
    assert_eq!(user.log.errors, []);
}

#[test]
fn refused_join_ends_the_user_with_the_reason() {
    let mut user = Driven::new("socket.io", "", "steps = [{ connect = \"/\" }, { join = \"/a\" }]");
    user.upgrade();
    user.text(r#"0{"sid":"x"}"#);
    user.text(r#"44/a,{"message":"not invited"}"#);
    assert_eq!(user.log.errors, [ErrorKind::JoinRefused]);
    assert_eq!(user.user.state, UserState::Left);
}

#[test]
fn topics_are_joined_again_after_a_lost_connection() {
    let session = "reconnect = { min = \"100ms\", max = \"1s\" }\n\
                   steps = [{ connect = \"/\" }, { join = \"/\" }, { receive = \"end\" }]";
    let mut user = Driven::new("socket.io", "", session);
    user.upgrade();
    user.text("0{}");
    user.text("40");
    user.text("1");
    assert_eq!(user.log.errors, [ErrorKind::ReplyError], "the server ends the session");
    user.log.open.clear();
    let kind = ErrorKind::EndOfStream;
    user.step(Input::Ended { purpose: Purpose::User, kind, in_handshake: false });
    user.timer();
    user.log.errors.clear();
    user.done();
    user.upgrade();
    user.text("0{}");
    assert_eq!(user.frames(), ["40"]);
    user.text("40");
    assert_eq!((user.user.state, user.count_of(Count::Reconnects)), (UserState::Receiving, 1));
    user.text(r#"42["say",1]"#);
    assert_eq!(user.log.errors, []);
}

#[test]
fn subscription_without_a_confirmation_is_joined_when_it_is_sent() {
    let steps = "steps = [{ connect = \"/\" }, { join = \"a\", payload = { query = \"q\" }, \
                 reply = false }, { receive = \"end\" }]";
    let mut user = Driven::new("graphql-ws", "", steps);
    user.step(Input::Connected(Purpose::User));
    let sent = user.done();
    let [Done::Dial, Done::Sent(request)] = sent.as_slice() else { panic!("{sent:?}") };
    assert!(request.contains("Sec-WebSocket-Protocol: graphql-transport-ws\r\n"), "{request}");
    user.accept("");
    user.text(r#"{"type":"connection_ack"}"#);
    assert_eq!(user.count_of(Count::JoinsOk), 1);
    assert!(user.user.client.is_joined("a"));
    user.text(r#"{"id":"a","type":"error","payload":[{"message":"no"}]}"#);
    assert_eq!(user.log.errors, [ErrorKind::ChannelClosed]);
}

#[test]
fn waiting_users_have_no_further_memory_than_those_of_phoenix() {
    for (protocol, frames) in [
        ("socket.io", ["0{}", "40", r#"42["say",1]"#]),
        (
            "pusher",
            [
                r#"{"event":"pusher:connection_established","data":"{}"}"#,
                r#"{"event":"pusher_internal:subscription_succeeded","channel":"/"}"#,
                r#"{"event":"client-x","channel":"/","data":{}}"#,
            ],
        ),
        (
            "actioncable",
            [
                r#"{"type":"welcome"}"#,
                r#"{"type":"confirm_subscription","identifier":"/"}"#,
                r#"{"identifier":"/","message":1}"#,
            ],
        ),
        (
            "centrifuge",
            [
                r#"{"id":4294967295,"connect":{}}"#,
                r#"{"id":1,"subscribe":{}}"#,
                r#"{"push":{"channel":"/","pub":{"data":1}}}"#,
            ],
        ),
        (
            "graphql-ws",
            [
                r#"{"type":"connection_ack"}"#,
                r#"{"type":"ping"}"#,
                r#"{"id":"/","type":"next","payload":{}}"#,
            ],
        ),
    ] {
        let steps = format!(
            "reconnect = {{ min = \"1s\" }}\nsteps = [{{ connect = \"/\" }}, \
             {{ join = \"/\", reply = {} }}, {{ receive = \"end\" }}]",
            protocol != "graphql-ws"
        );
        let mut user = Driven::new(protocol, "", &steps);
        user.step(Input::Connected(Purpose::User));
        user.accept("");
        frames.iter().for_each(|frame| user.text(frame));
        assert!(user.user.client.is_joined("/"), "{protocol}");
        assert_eq!((user.user.state, user.log.timer_tick), (UserState::Receiving, None));
        // All of a user is in its record of 80 bytes.
        assert!(user.user.held.is_none(), "{protocol}");
        assert_eq!(user.log.errors, [], "{protocol}");
    }
}

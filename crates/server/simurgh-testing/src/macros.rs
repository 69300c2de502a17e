//! The public macros of assertions; `grammar` and `check` do their work.

/// Waits until an event is pushed to a channel, or to a socket on any of its topics, and returns
/// its payload. Broadcasts are pushed, too: as a client does, the test cannot tell them apart.
///
/// A message is found only once; earlier messages in the mailbox stay for later assertions, as in
/// Phoenix.
///
/// ```
#[doc = include_str!("example.md")]
/// #[derive(serde::Deserialize)]
/// struct Message {
///     body: String,
///     id: Option<u32>,
/// }
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// let hi = || room.push("new_msg", json!({"body": "hi", "by": {"name": "Ann"}}));
/// (0..6).for_each(|_| drop(hi()));
///
/// // The named members have to match, `_` is any value; the JSON is returned.
/// let message = assert_push!(room, "new_msg", {"body": "hi", "by": {"name": _}});
/// assert_eq!(message["by"]["name"], "Ann");
/// // A pattern binds its names. The payload is read as the type that it names.
/// assert_push!(room, "new_msg", Message { body, id: None } if body.len() == 2);
/// assert_eq!(body, "hi");
/// // A type alone, which is returned.
/// let message = assert_push!(room, "new_msg", as Message);
/// assert_eq!(message.body, "hi");
/// // Whatever a closure is true for, as JSON or as a type.
/// assert_push!(room, "new_msg", |it: &Message| it.body.starts_with('h'));
/// // Exactly this, JSON or bytes; the payload is returned.
/// assert_push!(room, "new_msg", == json!({"body": "hi", "by": {"name": "Ann"}}));
/// // Anything, under one of these events, within half a second.
/// assert_push!(room, "new_msg" | "old_msg", timeout_ms = 500);
/// ```
///
/// # Expectations
///
/// | written | matches | returns |
/// |---|---|---|
/// | nothing | every payload | the [`Payload`](simurgh::Payload) |
/// | `{"body": "hi", "id": _}` | an object with these members, and perhaps others | the JSON |
/// | `[1, _, ..]` | an array that begins so; without `..` it ends there | the JSON |
/// | `"hi"`, `7`, `true`, `null` | this value | the JSON |
/// | `Message { body, .. } if body != ""` | what reads as the type and matches | binds the names |
/// | `as Message` | what reads as the type | the value |
/// | `\|it: &Message\| it.id > 3` | what the closure is true for | the value |
/// | `\|it\| it["id"] == 3` | what the closure is true for, as JSON | the JSON |
/// | `== json!({})`, `== vec![0, 1]` | exactly this | the payload |
///
/// Inside braces and brackets other expressions stand for their values, which must be equal:
/// `{"id": user.id}`. An event is an expression, several literals between bars, or `_` for any. An
/// optional `timeout_ms = 500` at the end sets the time; the default is 100 ms
/// ([`set_assert_timeout`](crate::TestServer::set_assert_timeout)).
///
/// # Panics
/// No matching message came in time. The panic message shows what was received instead.
#[macro_export]
macro_rules! assert_push {
    ($who:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(assert ($crate::asserts::HasPushes::pushes(&$who)) $($($rest)*)?)
    };
}

/// Waits for the reply to a push or to the join of a channel, and returns its response.
/// Expectations are written as in [`assert_push!`].
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// let reply = assert_reply!(room.push("new_msg", json!({"body": "hi"})), "ok", {"id": _});
/// assert_eq!(reply["id"], 7);
/// ```
///
/// # Panics
/// No reply came in time, or a different one.
#[macro_export]
macro_rules! assert_reply {
    ($asked:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(assert ($crate::asserts::HasReply::replies(&$asked)) $($($rest)*)?)
    };
}

/// Waits until an event is broadcast on the topic of a channel that was joined with
/// [`subscribe_and_join`](crate::TestSocket::subscribe_and_join), or of a
/// [`TestSubscription`](crate::TestSubscription), and returns its payload. Expectations are written
/// as in
/// [`assert_push!`]. The test receives the original broadcast, even if channels intercept it.
///
/// ```
#[doc = include_str!("example.md")]
/// let socket = TestServer::start(user_socket()).connect(());
/// let room = socket.subscribe_and_join("rooms:1", json!({}));
/// room.push("new_msg", json!({"body": "hi"}));
/// assert_broadcast!(room, "new_msg", {"body": "hi"});
/// ```
///
/// # Panics
/// No matching broadcast came in time, or the test is not subscribed to the topic.
#[macro_export]
macro_rules! assert_broadcast {
    ($of:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(
            assert ($crate::asserts::HasBroadcasts::broadcasts(&$of)) $($($rest)*)?
        )
    };
}

/// Waits until the join of a channel is accepted, and returns the response. Expectations are
/// written as in [`assert_push!`].
///
/// ```
#[doc = include_str!("example.md")]
/// let socket = TestServer::start(user_socket()).connect(());
/// let room = socket.begin_join("rooms:slow", json!({}));
/// assert_joined!(room, {"members": 1});
/// ```
///
/// # Panics
/// The join was not decided in time or was refused, or the response does not match.
#[macro_export]
macro_rules! assert_joined {
    ($channel:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_payload!(
            assert ($crate::asserts::joined(&$channel))
            ($crate::asserts::Words::one("ok")) $($($rest)*)?
        )
    };
}

/// Waits until a channel (`phx_close`) or a socket is closed as intended, and panics if it is not.
/// For a socket it returns the close code, or checks the code that is given.
///
/// ```
#[doc = include_str!("example.md")]
/// let socket = TestServer::start(user_socket()).connect(());
/// let room = socket.join("rooms:1", json!({}));
/// room.leave();
/// assert_closed!(room);
/// socket.close();
/// assert_closed!(socket, 1000);
/// ```
#[macro_export]
macro_rules! assert_closed {
    ($who:expr $(, timeout_ms = $time:expr)? $(,)?) => {
        $crate::asserts::Ends::assert_closed(&$who, $crate::__testing_time!($($time)?))
    };
    ($who:expr, $code:expr $(, timeout_ms = $time:expr)? $(,)?) => {
        $crate::asserts::closed_with(&$who, $code, $crate::__testing_time!($($time)?))
    };
}

/// Waits until a channel crashes (`phx_error`), because a callback panicked or did not know the
/// event. Panics if it does not.
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// room.push("no such event", json!({}));
/// assert_crashed!(room);
/// ```
#[macro_export]
macro_rules! assert_crashed {
    ($channel:expr $(, timeout_ms = $time:expr)? $(,)?) => {
        $crate::asserts::crashed(&$channel, $crate::__testing_time!($($time)?))
    };
}

/// Checks that an event is not pushed to a channel, or to a socket on any of its topics, and panics
/// if it is. The unwanted message is written as in [`assert_push!`]; without an event, any push
/// fails the test. Messages that earlier assertions have found do not count.
///
/// It waits for 100 ms at most ([`set_refute_timeout`]), and ends as soon as nothing more can come:
/// the shards are idle, no task runs on tokio, and the application holds no
/// [`ChannelHandle`](simurgh::ChannelHandle) or [`Handle`](simurgh::Handle). That is at once,
/// unless the application acts by itself.
///
/// ```
#[doc = include_str!("example.md")]
/// let server = TestServer::start(user_socket());
/// let (ann, bob) = (server.connect(()), server.connect(()));
/// let (here, there) = (ann.join("rooms:1", json!({})), bob.join("rooms:2", json!({})));
/// here.push("new_msg", json!({"body": "hi"}));
/// refute_push!(there, "new_msg");
/// refute_push!(here, "new_msg", {"body": "ho"});
/// ```
///
/// [`set_refute_timeout`]: crate::TestServer::set_refute_timeout
#[macro_export]
macro_rules! refute_push {
    ($who:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(refute ($crate::asserts::HasPushes::pushes(&$who)) $($($rest)*)?)
    };
}

/// Checks that a push or a join gets no reply, or no matching one, and panics if it does; waits as
/// [`refute_push!`] does.
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// refute_reply!(room.push("text", json!({})));
/// refute_reply!(room.push("echo", json!({})), "error");
/// ```
#[macro_export]
macro_rules! refute_reply {
    ($asked:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(refute ($crate::asserts::HasReply::replies(&$asked)) $($($rest)*)?)
    };
}

/// Checks that an event is not broadcast on a topic that the test receives; waits as
/// [`refute_push!`] does.
///
/// ```
#[doc = include_str!("example.md")]
/// let socket = TestServer::start(user_socket()).connect(());
/// let room = socket.subscribe_and_join("rooms:1", json!({}));
/// room.push("echo", json!({}));
/// refute_broadcast!(room);
/// ```
///
/// # Panics
/// It was broadcast, or the test is not subscribed to the topic.
#[macro_export]
macro_rules! refute_broadcast {
    ($of:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(
            refute ($crate::asserts::HasBroadcasts::broadcasts(&$of)) $($($rest)*)?
        )
    };
}

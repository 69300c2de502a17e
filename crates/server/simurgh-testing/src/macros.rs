//! The assertions' macros: they say what is looked for, and leave the rest to `grammar` and
//! `check`.

/// Waits until a channel, or a socket on any of its topics, is pushed an event, and goes on with
/// what it carries. Broadcasts are pushed, too: as with a client there is no telling them apart.
///
/// What was found is not found again; what stands before it in the mailbox stays for later
/// assertions, as in Phoenix.
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
/// # What may be expected
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
/// Inside of braces and brackets other expressions stand for their values, which then have to be
/// the same: `{"id": user.id}`. An event is an expression, some literals between bars, or `_` for
/// any. `timeout_ms = 500` may stand at the end; without it an assertion waits up to 100 ms
/// ([`set_assert_timeout`](crate::TestServer::set_assert_timeout)).
///
/// # Panics
/// Nothing that matches came in time. The message shows what came instead.
#[macro_export]
macro_rules! assert_push {
    ($who:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(assert ($crate::asserts::pushes(&$who)) $($($rest)*)?)
    };
}

/// Waits for the reply to a push, or to the join of a channel, and goes on with its response, which
/// is expected in the same ways as a payload of [`assert_push!`].
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// let reply = assert_reply!(room.push("new_msg", json!({"body": "hi"})), "ok", {"id": _});
/// assert_eq!(reply["id"], 7);
/// ```
///
/// # Panics
/// No reply came in time, or another one.
#[macro_export]
macro_rules! assert_reply {
    ($asked:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(assert ($crate::asserts::replies(&$asked)) $($($rest)*)?)
    };
}

/// Waits until an event is broadcast on the topic of a channel that was joined with
/// [`subscribe_and_join`](crate::TestSocket::subscribe_and_join), or of a
/// [`Subscription`](crate::Subscription), and goes on with what it carries, which is
/// expected in the same ways as that of [`assert_push!`]. It is found as it was broadcast: whether
/// channels intercept it does not matter.
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
/// Nothing that matches came in time, or the test is not subscribed to the topic.
#[macro_export]
macro_rules! assert_broadcast {
    ($of:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(assert ($crate::asserts::broadcasts(&$of)) $($($rest)*)?)
    };
}

/// Waits until a channel has been let in, and goes on with the response to its join, which is
/// expected in the same ways as the payload of [`assert_push!`].
///
/// ```
#[doc = include_str!("example.md")]
/// let socket = TestServer::start(user_socket()).connect(());
/// let room = socket.begin_join("rooms:slow", json!({}));
/// assert_joined!(room, {"members": 1});
/// ```
///
/// # Panics
/// It was not decided in time, or refused, or the response does not match.
#[macro_export]
macro_rules! assert_joined {
    ($channel:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_payload!(
            assert ($crate::asserts::joined(&$channel))
            ($crate::asserts::Words::one("ok")) $($($rest)*)?
        )
    };
}

/// Waits until a channel is closed as intended (`phx_close`), or a socket, whose close code is
/// returned, or may be expected.
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
///
/// # Panics
/// It did not end so in time.
#[macro_export]
macro_rules! assert_closed {
    ($who:expr $(, timeout_ms = $time:expr)? $(,)?) => {
        $crate::asserts::closed(&$who, $crate::__testing_time!($($time)?))
    };
    ($who:expr, $code:expr $(, timeout_ms = $time:expr)? $(,)?) => {
        $crate::asserts::closed_with(&$who, $code, $crate::__testing_time!($($time)?))
    };
}

/// Waits until a channel crashes (`phx_error`): a callback panicked, or did not know an event.
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// room.push("no such event", json!({}));
/// assert_crashed!(room);
/// ```
///
/// # Panics
/// It did not crash in time.
#[macro_export]
macro_rules! assert_crashed {
    ($channel:expr $(, timeout_ms = $time:expr)? $(,)?) => {
        $crate::asserts::crashed(&$channel, $crate::__testing_time!($($time)?))
    };
}

/// Makes sure that a channel, or a socket on any of its topics, is not pushed an event. What is not
/// wanted is written as what is expected in [`assert_push!`]; without an event nothing is to be
/// pushed. What earlier assertions have found does not count.
///
/// It waits for 100 ms at most ([`set_refute_timeout`]), and ends as soon as nothing can come any
/// more: when the shards have nothing under way, no work is under way on tokio, and nobody else
/// holds a [`ChannelHandle`](simurgh::ChannelHandle) or a [`Handle`](simurgh::Handle). That is at
/// once, unless the application does something of its own accord.
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
///
/// # Panics
/// It came.
#[macro_export]
macro_rules! refute_push {
    ($who:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(refute ($crate::asserts::pushes(&$who)) $($($rest)*)?)
    };
}

/// Makes sure that there is no reply to a push or a join, or none that matches; waits as
/// [`refute_push!`] does.
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// refute_reply!(room.push("text", json!({})));
/// refute_reply!(room.push("echo", json!({})), "error");
/// ```
///
/// # Panics
/// It came.
#[macro_export]
macro_rules! refute_reply {
    ($asked:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(refute ($crate::asserts::replies(&$asked)) $($($rest)*)?)
    };
}

/// Makes sure that an event is not broadcast on a topic that the test receives; waits as
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
/// It came, or the test is not subscribed to the topic.
#[macro_export]
macro_rules! refute_broadcast {
    ($of:expr $(, $($rest:tt)*)?) => {
        $crate::__testing_words!(refute ($crate::asserts::broadcasts(&$of)) $($($rest)*)?)
    };
}

//! The handles of a test: sockets, channels, and pushed messages.

use std::fmt;
use std::sync::Arc;

use simurgh::driver::{Driver, DriverError, MessageRef, ReceivedReply, SocketId, What};
use simurgh_proto::message::Payload;

use crate::check::{Check, Sort, Words, report};
use crate::expect::Anything;
use crate::listener;
use crate::state::{Shared, WAIT_MAX};
use crate::{fail, or_fail};

/// A socket that a test has opened. Clones refer to the same socket. It stays open until it is
/// [closed](Self::close), or until the server's last handle is dropped.
///
/// ```
#[doc = include_str!("example.md")]
/// let server = TestServer::start(user_socket());
/// let (ann, bob) = (server.connect(()), server.connect(()));
/// ann.join("rooms:1", json!({}));
/// let room = bob.join("rooms:1", json!({}));
/// room.push("new_msg", json!({"body": "hi"}));
/// assert_push!(ann, "new_msg", {"body": "hi"});
/// ann.close();
/// assert_closed!(ann, 1000);
/// ```
#[derive(Clone)]
pub struct TestSocket {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: usize,
    pub(crate) id: SocketId,
    number: usize,
}

/// A channel that a socket has joined. Clones refer to the same channel.
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// assert_eq!(room.topic(), "rooms:1");
/// let asked = room.push("new_msg", json!({"body": "hi"}));
/// assert_reply!(asked, "ok", {"id": 7});
/// ```
#[derive(Clone)]
pub struct TestChannel {
    socket: TestSocket,
    topic: Arc<str>,
    pub(crate) join: MessageRef,
}

/// A message that was pushed, for [`assert_reply!`](crate::assert_reply).
///
/// ```
#[doc = include_str!("example.md")]
/// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
/// let (first, second) = (room.push("echo", json!(1)), room.push("echo", json!(2)));
/// assert_reply!(second, "ok", 2);
/// assert_reply!(first, "ok", 1);
/// ```
#[derive(Clone)]
pub struct Push {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: usize,
    pub(crate) topic: Box<str>,
    pub(crate) to: MessageRef,
}

/// A topic whose broadcasts the test receives; from [`TestServer::subscribe`](crate::TestServer).
///
/// ```
#[doc = include_str!("example.md")]
/// let server = TestServer::start(user_socket());
/// let room = server.subscribe("rooms:1");
/// server.broadcast("rooms:1", "news", json!({"n": 1}));
/// assert_broadcast!(room, "news", {"n": 1});
/// ```
#[derive(Clone)]
pub struct TestSubscription {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: usize,
    pub(crate) topic: Box<str>,
}

impl TestSocket {
    pub(crate) fn new(shared: &Arc<Shared>, id: SocketId) -> Self {
        let mut state = shared.lock();
        let at = state.opened(id, false);
        let number = state.numbered;
        drop(state);
        Self { shared: Arc::clone(shared), at, id, number }
    }

    /// Joins a topic, and waits until the join is accepted. Panics if it is refused, or not decided
    /// within 5 s.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let room = socket.join("rooms:1", json!({}));
    /// assert_joined!(room, {"members": _});
    /// ```
    #[track_caller]
    pub fn join(&self, topic: &str, payload: impl Into<Payload<'static>>) -> TestChannel {
        match self.try_join(topic, payload) {
            Ok(channel) => channel,
            Err(reply) => fail(&report::not_joined(topic, &reply.status, &reply.response)),
        }
    }

    /// As `join`, but returns a reply other than `ok` as an error.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let refused = socket.try_join("rooms:private", json!({})).unwrap_err();
    /// assert_eq!(refused.response, json!({"reason": "unauthorized"}).into());
    /// ```
    #[track_caller]
    pub fn try_join(
        &self,
        topic: &str,
        payload: impl Into<Payload<'static>>,
    ) -> Result<TestChannel, ReceivedReply> {
        let channel = self.begin_join(topic, payload);
        let sort = Sort::Reply(channel.join, topic.into());
        let replies = Check { shared: Arc::clone(&self.shared), at: self.at, sort };
        match replies.find(&Words::any(), &Anything, WAIT_MAX) {
            Some((_, status)) if *status == *"ok" => Ok(channel),
            Some((response, status)) => {
                Err(ReceivedReply { to: Some(channel.join), topic: topic.into(), status, response })
            }
            None => fail(&replies.missing(&Words::any(), &Anything, WAIT_MAX)),
        }
    }

    /// Sends a join without waiting for the reply: use `assert_joined!`, or `assert_reply!`, which
    /// takes the channel as its join.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let (slow, quick) = (socket.begin_join("rooms:slow", json!({})), socket.clone());
    /// assert_joined!(slow, {"members": _});
    /// let refused = quick.begin_join("rooms:private", json!({}));
    /// assert_reply!(refused, "error", {"reason": "unauthorized"});
    /// ```
    #[track_caller]
    pub fn begin_join(&self, topic: &str, payload: impl Into<Payload<'static>>) -> TestChannel {
        let (id, payload) = (self.id, payload.into());
        let event = simurgh_proto::message::events::JOIN;
        let join = self.say(event, |driver| driver.join(id, topic, payload.clone()));
        TestChannel { socket: self.clone(), topic: topic.into(), join }
    }

    /// As [`join`](Self::join), after subscribing the test to the topic for
    /// [`assert_broadcast!`](crate::assert_broadcast).
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let room = socket.subscribe_and_join("rooms:1", json!({}));
    /// room.push("new_msg", json!({"body": "hi"}));
    /// assert_broadcast!(room, "new_msg", {"body": "hi"});
    /// ```
    #[track_caller]
    pub fn subscribe_and_join(
        &self,
        topic: &str,
        payload: impl Into<Payload<'static>>,
    ) -> TestChannel {
        listener::subscribe(&self.shared, topic);
        self.join(topic, payload)
    }

    /// Pushes an event on a topic, joined or not.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let astray = socket.push("rooms:1", "echo", json!({}));
    /// assert_reply!(astray, "error", {"reason": "unmatched topic"});
    /// ```
    #[track_caller]
    pub fn push(&self, topic: &str, event: &str, payload: impl Into<Payload<'static>>) -> Push {
        let (id, payload) = (self.id, payload.into());
        let to = self.say(event, |driver| driver.push(id, topic, event, payload.clone()));
        Push { shared: Arc::clone(&self.shared), at: self.at, topic: topic.into(), to }
    }

    /// Sends a text on a [plain user socket](simurgh::UserSocket::plain), which has no events.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(UserSocket::plain("/plain", "plain", |_, _| Join::ok(Room)));
    /// let socket = server.connect(());
    /// socket.send_text("hello");
    /// assert_push!(socket, "text", "hello");
    /// ```
    #[track_caller]
    pub fn send_text(&self, text: impl Into<String>) {
        self.push("", "text", Payload::from_json(text.into()));
    }

    /// Sends bytes on a [plain user socket](simurgh::UserSocket::plain).
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(UserSocket::plain("/plain", "plain", |_, _| Join::ok(Room)));
    /// let socket = server.connect(());
    /// socket.send_binary([0, 255]);
    /// assert_push!(socket, "binary", == [0, 255]);
    /// ```
    #[track_caller]
    pub fn send_binary(&self, bytes: impl Into<Vec<u8>>) {
        self.push("", "binary", bytes.into());
    }

    /// Closes the socket as a client does. Use [`assert_closed!`](crate::assert_closed) to wait for
    /// the end.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// socket.close();
    /// assert_closed!(socket, 1000);
    /// ```
    #[track_caller]
    pub fn close(&self) {
        let id = self.id;
        or_fail(self.shared.ask(|driver| driver.close(id)));
    }

    /// Takes all received messages that no assertion has found, without waiting.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let room = socket.join("rooms:1", json!({}));
    /// assert_reply!(room.push("new_msg", json!({"body": "hi"})), "ok");
    /// assert_eq!(socket.flush().len(), 1, "its own message, which nothing asked for");
    /// refute_push!(room);
    /// ```
    pub fn flush(&self) -> Vec<What> {
        let mut state = self.shared.lock();
        state.take_in();
        state.mailboxes.get_mut(self.at).map(|mailbox| mailbox.take_all()).unwrap_or_default()
    }

    /// Pushes a message, and keeps its event for the failure messages.
    #[track_caller]
    fn say(
        &self,
        event: &str,
        say: impl FnMut(&mut Driver) -> Result<MessageRef, DriverError>,
    ) -> MessageRef {
        let to = or_fail(self.shared.ask(say));
        self.shared.lock().asked.insert(to, event.into());
        to
    }
}

impl TestChannel {
    /// Its topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Its socket.
    pub fn socket(&self) -> &TestSocket {
        &self.socket
    }

    /// Pushes an event, as a client does.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
    /// assert_reply!(room.push("echo", vec![1, 2]), "ok", == [1, 2]);
    /// ```
    #[track_caller]
    pub fn push(&self, event: &str, payload: impl Into<Payload<'static>>) -> Push {
        self.socket.push(&self.topic, event, payload)
    }

    /// Leaves the channel. The reply is `ok`, and the channel is closed.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
    /// assert_reply!(room.leave(), "ok");
    /// assert_closed!(room);
    /// ```
    #[track_caller]
    pub fn leave(&self) -> Push {
        let (socket, topic) = (&self.socket, &*self.topic);
        let event = simurgh_proto::message::events::LEAVE;
        let to = socket.say(event, |driver| driver.leave(socket.id, topic));
        Push { shared: Arc::clone(&socket.shared), at: socket.at, topic: topic.into(), to }
    }

    /// Broadcasts to all members of the topic, this one included, as the application does from
    /// outside.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let room = TestServer::start(user_socket()).connect(()).join("rooms:1", json!({}));
    /// room.broadcast("news", json!({"n": 1}));
    /// assert_push!(room, "news", {"n": 1});
    /// ```
    #[track_caller]
    pub fn broadcast(&self, event: &str, payload: impl Into<Payload<'static>>) {
        listener::broadcast(&self.socket.shared, &self.topic, event, payload.into());
    }

    /// As [`broadcast`](Self::broadcast), but a subscribed test does not receive the original:
    /// `assert_broadcast!` then finds what channels made of it.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let socket = TestServer::start(user_socket()).connect(());
    /// let room = socket.subscribe_and_join("rooms:1", json!({}));
    /// room.broadcast_from("news", json!({"n": 1}));
    /// assert_push!(room, "news", {"n": 1});
    /// refute_broadcast!(room, "news");
    /// ```
    #[track_caller]
    pub fn broadcast_from(&self, event: &str, payload: impl Into<Payload<'static>>) {
        listener::broadcast_from(&self.socket.shared, &self.topic, event, payload.into());
    }
}

impl TestSubscription {
    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

impl fmt::Display for TestSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "socket {}", self.number)
    }
}

impl fmt::Debug for TestSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestSocket({})", self.number)
    }
}

impl fmt::Debug for TestChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestChannel({} of {})", self.topic, self.socket)
    }
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Push").field(&self.to).finish()
    }
}

impl fmt::Debug for TestSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestSubscription").field(&self.topic).finish()
    }
}

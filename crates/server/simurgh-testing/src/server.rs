//! A server under test.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use simurgh::driver::{DriverError, Options};
use simurgh::{Builder, Endpoint, UserSocket};
use simurgh_channel::Kind;
use simurgh_proto::message::Payload;

use crate::check::report;
use crate::listener;
use crate::socket::{TestSocket, TestSubscription};
use crate::state::{Shared, WAIT_MAX};
use crate::{fail, or_fail};

/// A server for one test, without a port. It ends when its last handle is dropped.
///
/// ```
#[doc = include_str!("example.md")]
/// let server = TestServer::start(user_socket());
/// let room = server.connect(()).join("rooms:1", json!({}));
/// assert_reply!(room.push("echo", json!({"n": 1})), "ok", {"n": 1});
/// ```
pub struct TestServer {
    shared: Arc<Shared>,
}

/// The application that a [`TestServer`] serves: a [`UserSocket`], on one shard, or a [`Builder`],
/// on as many shards as it sets. The addresses of a builder are ignored.
///
/// ```
#[doc = include_str!("example.md")]
/// let endpoint = simurgh::Endpoint::builder().socket(user_socket()).configure(|it| it.shards = 2);
/// for app in [App::from(user_socket()), App::from(endpoint)] {
///     TestServer::start(app).connect(());
/// }
/// ```
#[derive(Debug)]
pub struct App(Builder);

impl From<UserSocket> for App {
    /// One shard; presence changes are sent before assertions time out.
    fn from(user_socket: UserSocket) -> Self {
        Self(Endpoint::builder().socket(user_socket).configure(|config| {
            config.shards = 1;
            config.presence.interval = Duration::from_millis(10);
        }))
    }
}

impl From<Builder> for App {
    fn from(builder: Builder) -> Self {
        Self(builder)
    }
}

impl TestServer {
    /// Starts a server for a [`UserSocket`] or a [`Builder`]. Panics if the system has no threads
    /// or descriptors left, or if no user socket is mounted.
    #[track_caller]
    pub fn start(app: impl Into<App>) -> Self {
        Self::with(app, Options::default())
    }

    /// Like [`start`](Self::start), with options of the driver. With a serializer, for example,
    /// every message passes it and WebSocket frames.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let mut options = simurgh::driver::Options::default();
    /// options.serializer = Some(simurgh::Serializer::V1);
    /// let room = TestServer::with(user_socket(), options).connect(()).join("rooms:1", json!({}));
    /// assert_reply!(room.push("echo", json!({"n": 1})), "ok", {"n": 1});
    /// ```
    #[track_caller]
    pub fn with(app: impl Into<App>, mut options: Options) -> Self {
        // Assertions need the messages, not only their counts.
        options.counts_only = false;
        let App(builder) = app.into();
        let Some(path) = builder.user_sockets().first().map(path_of) else {
            fail("no user socket is mounted")
        };
        let builder = builder.socket(listener::user_socket()).configure(|config| {
            config.listen.clear();
            config.tls = None;
            config.admin_listen = None;
        });
        let endpoint = or_fail(builder.start_local());
        Self { shared: Arc::new(Shared::new(endpoint, options, path)) }
    }

    /// Connects to the first user socket; panics if it is refused. All params arrive as strings, as
    /// those of a URL do; `()` means none.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// let socket = server.connect(json!({"token": "ann"}));
    /// server.disconnect("users:ann");
    /// assert_closed!(socket, 1001);
    /// ```
    #[track_caller]
    pub fn connect(&self, params: impl Into<Value>) -> TestSocket {
        let path = self.shared.path.clone();
        self.connect_to(&path, params)
    }

    /// As [`connect`](Self::connect), but returns a refusal as an error.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// let refused = server.try_connect(json!({"token": "wrong"})).unwrap_err();
    /// assert_eq!(refused.status, 403);
    /// ```
    #[track_caller]
    pub fn try_connect(&self, params: impl Into<Value>) -> Result<TestSocket, Refused> {
        let path = self.shared.path.clone();
        self.try_connect_to(&path, params)
    }

    /// Connects to the user socket at `path`, with the values of its variables; panics if it is
    /// refused.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let app =
    /// simurgh::Endpoint::builder().socket(user_socket()).socket(UserSocket::new("/of/:tenant"));
    /// let server = TestServer::start(app); server.connect_to("/socket", ());
    /// server.connect_to("/of/acme", ());
    /// ```
    #[track_caller]
    pub fn connect_to(&self, path: &str, params: impl Into<Value>) -> TestSocket {
        match self.try_connect_to(path, params) {
            Ok(socket) => socket,
            Err(Refused { status, body }) => {
                fail(&report::refused(path, &DriverError::Refused { status, body }))
            }
        }
    }

    /// As [`connect_to`](Self::connect_to), but returns a refusal as an error.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// assert_eq!(server.try_connect_to("/elsewhere", ()).unwrap_err().status, 404);
    /// ```
    #[track_caller]
    pub fn try_connect_to(
        &self,
        path: &str,
        params: impl Into<Value>,
    ) -> Result<TestSocket, Refused> {
        let params = params.into();
        match self.shared.ask(|driver| driver.connect(path, params.clone())) {
            Err(DriverError::Refused { status, body }) => Err(Refused { status, body }),
            id => Ok(TestSocket::new(&self.shared, or_fail(id))),
        }
    }

    /// Subscribes the test to the broadcasts on a topic, for
    /// [`assert_broadcast!`](crate::assert_broadcast). The test does not become a member: presence,
    /// counts and the channels' state do not change. The first subscription takes one of the
    /// server's [`max_connections`](simurgh::Config::max_connections).
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// let topic = server.subscribe("rooms:1");
    /// server.connect(()).join("rooms:1", json!({})).push("new_msg", json!({"body": "hi"}));
    /// assert_broadcast!(topic, "new_msg", {"body": "hi"});
    /// ```
    #[track_caller]
    pub fn subscribe(&self, topic: &str) -> TestSubscription {
        let at = listener::subscribe(&self.shared, topic);
        TestSubscription { shared: Arc::clone(&self.shared), at, topic: topic.into() }
    }

    /// Broadcasts to all members of a topic, as the application does from outside.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// let room = server.connect(()).join("rooms:1", json!({}));
    /// server.broadcast("rooms:1", "news", json!({"n": 1}));
    /// assert_push!(room, "news", {"n": 1});
    /// ```
    #[track_caller]
    pub fn broadcast(&self, topic: &str, event: &str, payload: impl Into<Payload<'static>>) {
        listener::broadcast(&self.shared, topic, event, payload.into());
    }

    /// Closes every socket with this id, with 1001.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// let socket = server.connect(json!({"token": "ann"}));
    /// server.disconnect("users:ann");
    /// assert_closed!(socket, 1001);
    /// ```
    #[track_caller]
    pub fn disconnect(&self, socket_id: &str) {
        let event = simurgh_proto::message::events::DISCONNECT;
        listener::broadcast(&self.shared, socket_id, event, Payload::EMPTY_OBJECT);
    }

    /// Waits until the shards have done all their work, broadcasts included, but not for tasks that
    /// the application has spawned. Panics after 5 s.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// server.connect(()).join("rooms:1", json!({})).push("echo", json!({}));
    /// server.settle();
    /// let metrics = server.endpoint().handle();
    /// assert_eq!(metrics.metrics()[0].messages_in.value(), 2);
    /// ```
    #[track_caller]
    pub fn settle(&self) {
        if !self.shared.settle(WAIT_MAX) {
            fail("the server did not finish its work within 5 s");
        }
    }

    /// Sets how long asserts without a `timeout_ms` wait. Default 100 ms.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// server.set_assert_timeout(std::time::Duration::from_secs(1));
    /// ```
    pub fn set_assert_timeout(&self, time: Duration) {
        self.shared.lock().assert_time = time;
    }

    /// Sets how long refutations without a `timeout_ms` wait at most. Default 100 ms.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// server.set_refute_timeout(std::time::Duration::from_secs(1));
    /// ```
    pub fn set_refute_timeout(&self, time: Duration) {
        self.shared.lock().refute_time = time;
    }

    /// The server itself, to broadcast, drain and read metrics. While a test keeps a
    /// [`Handle`](simurgh::Handle) of it, refutations wait their whole time.
    ///
    /// ```
    #[doc = include_str!("example.md")]
    /// let server = TestServer::start(user_socket());
    /// let room = server.connect(()).join("rooms:1", json!({}));
    /// let pubsub = server.endpoint().pubsub();
    /// std::thread::spawn(move || pubsub.broadcast("rooms:1", "news", json!({"n": 1})));
    /// assert_push!(room, "news", {"n": 1});
    /// ```
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestServer").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// A connection that the server or the application has refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// The body of the response.
    pub body: String,
}

fn path_of(user_socket: &UserSocket) -> String {
    let path = match user_socket.parts().channels.kind {
        Kind::Channels(_) => user_socket.parts().path.strip_suffix("/websocket"),
        Kind::Plain { .. } => None,
    };
    path.unwrap_or(&user_socket.parts().path).to_owned()
}

//! Tests of an application's channels, like `Phoenix.ChannelTest` for Phoenix.
//!
//! A [`TestServer`] is a whole server with shards, connect functions, channels and broadcasts, but
//! without a port; its sockets are [driven](simurgh::driver). Starting one takes about a
//! millisecond, so each test starts its own: tests run side by side and need no cleanup.
//!
//! ```
//! use simurgh_testing::{TestServer, assert_closed, assert_push, assert_reply, refute_push};
//! use simurgh::{
//!     Channel, ChannelRoute, Connect, ConnectRequest, Context, JoinContext, Outcome, Payload,
//!     Reject, UserSocket, json,
//! };
//!
//! struct Room;
//!
//! impl Channel for Room {
//!     async fn handle_in(
//!         &mut self,
//!         ctx: &mut Context,
//!         event: &str,
//!         payload: Payload<'static>,
//!     ) -> Result<Outcome, Reject> {
//!         match event {
//!             "new:msg" => {
//!                 ctx.broadcast(event, payload);
//!                 Ok(Outcome::ok(json!({"id": 1})))
//!             }
//!             _ => Err(Reject::unknown_event()),
//!         }
//!     }
//! }
//!
//! async fn connect(request: ConnectRequest) -> Result<Connect, Reject> {
//!     let user = request.param("user").ok_or_else(|| Reject::new("no user"))?;
//!     Ok(Connect::ok().id(format!("users:{user}")))
//! }
//!
//! async fn join(ctx: JoinContext, _: Payload<'static>) -> Result<Room, Reject> {
//!     match ctx.subtopic() {
//!         "private" => Err(Reject::new("unauthorized")),
//!         _ => Ok(Room),
//!     }
//! }
//!
//! fn chat() -> UserSocket {
//!     UserSocket::new("/socket")
//!         .connect(connect)
//!         .channel(ChannelRoute::new("rooms:*", join))
//! }
//!
//! # #[derive(serde::Deserialize)]
//! # struct Message { body: String }
//! # /*
//! #[test]
//! # */
//! fn members_receive_each_message() {
//!     let server = TestServer::start(chat());
//!     assert_eq!(server.try_connect(json!({})).unwrap_err().status, 403);
//!     let ann = server.connect(json!({"user": "ann"}));
//!     let bob = server.connect(json!({"user": "bob"}));
//!     let room = ann.join("rooms:1", json!({}));
//!     bob.join("rooms:1", json!({}));
//!     let refused = bob.try_join("rooms:private", json!({})).unwrap_err();
//!     assert_eq!(refused.response, json!({"reason": "unauthorized"}).into());
//!
//!     let said = room.push("new:msg", json!({"body": "hi", "by": "ann"}));
//!     assert_reply!(said, "ok", {"id": _});
//!     assert_push!(bob, "new:msg", {"body": "hi"});
//!     assert_push!(ann, "new:msg", Message { body, .. });
//!     assert_eq!(body, "hi");
//!
//!     assert_reply!(room.leave(), "ok");
//!     server.broadcast("rooms:1", "new:msg", json!({"body": "bye"}));
//!     refute_push!(ann);
//!     server.disconnect("users:bob");
//!     assert_closed!(bob, 1001);
//! }
//! # members_receive_each_message();
//! ```
//!
//! A failed assertion shows what was expected, how the nearest message differs, everything that the
//! socket has received, and possible reasons:
//!
//! ```text
//! no push "new:msg" to socket 2 on rooms:1 arrived within 100 ms
//!
//! expected: {"body": "hi", "id": _}
//!
//! closest match: message 2
//!   body: expected "hi", found "ho"
//!   id: expected _, found nothing
//!
//! socket 2 received (* used by an earlier assertion):
//!   *  1. rooms:1 reply to phx_join: ok {}
//!      2. rooms:1 "new:msg" {"body":"ho"}
//! ```
//!
//! # Compared with Phoenix
//!
//! | Phoenix.ChannelTest | here |
//! |---|---|
//! | `connect` | [`TestServer::connect`], [`TestServer::try_connect`] |
//! | `join` | [`TestSocket::join`], [`TestSocket::try_join`] |
//! | `subscribe_and_join!` | [`TestSocket::subscribe_and_join`] |
//! | `push`, `leave` | [`TestChannel::push`], [`TestChannel::leave`] |
//! | `close` | [`TestSocket::close`] |
//! | `broadcast_from!` | [`TestChannel::broadcast_from`] |
//! | `assert_push`, `refute_push` | [`assert_push!`], [`refute_push!`] |
//! | `assert_reply`, `refute_reply` | [`assert_reply!`], [`refute_reply!`] |
//! | `assert_broadcast`, `refute_broadcast` | [`assert_broadcast!`], [`refute_broadcast!`] |
//! | `assert_receive %Message{event: "phx_close"}` | [`assert_closed!`], [`assert_crashed!`] |
//!
//! - Asserts check one socket or one channel, not the test's process.
//! - A socket always passes its connect function, which sets its assigns.
//! - Asserts wait up to 100 ms, as in Phoenix. Refutations end as soon as nothing more can come,
//!   which is mostly at once ([`refute_push!`]).
//! - Handles are cheap to clone and may be used from any thread. The server ends when the last one
//!   is dropped.

/// The README's examples must compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[doc(hidden)]
pub mod asserts;
mod check;
mod expect;
mod grammar;
mod listener;
mod macros;
mod pattern;
mod server;
mod socket;
mod state;

pub use server::{App, Refused, TestServer};
pub use simurgh::driver::{ReceivedReply, What};
pub use socket::{Push, TestChannel, TestSocket, TestSubscription};

/// Fails the test, and reports the line that called the assertion.
#[track_caller]
#[allow(clippy::panic, reason = "a helper of tests fails the test")]
fn fail(text: &str) -> ! {
    panic!("{text}")
}

/// Fails the test with an error.
#[track_caller]
fn or_fail<T>(result: Result<T, impl std::fmt::Display>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(&error.to_string()),
    }
}

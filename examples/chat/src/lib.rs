//! A chat: all members of `rooms:<name>` receive each other's messages.
//!
//! It is a single channel type. [`page`](page()) is the browser's side; it uses the official
//! `phoenix` client, and could as well be served from elsewhere.

use serde::Deserialize;
use serde_json::Value;
use simurgh::{
    ChannelRoute, Join, LongPoll, Outcome, Payload, ShardChannel, ShardContext, UserSocket,
    history::History, json,
};

mod page;

pub use page::{client_scripts, page};

/// Rooms announce new members while they have at most this many. In a lobby of n members, n
/// announcements to all members are n²/2 deliveries: fine for ten, ruinous for ten thousand.
pub const ANNOUNCE_JOINS_UP_TO: u32 = 100;

/// The chat's socket: every client may connect, and join any room.
pub fn user_socket() -> UserSocket {
    let history = History { on_join: 50, ..History::default() };
    UserSocket::new("/socket")
        .longpoll(LongPoll::new())
        // So that a room knows when it has become too large for announcements.
        .count_members(true)
        .channel(ChannelRoute::on_shard("rooms:*", RoomChannel::join).history(history))
}

/// One member of one room. Its user socket must [count
/// members](simurgh::UserSocket::count_members), or rooms never seem to grow.
pub struct RoomChannel {
    /// A new member's name, until it has been announced. Members who only listen keep nothing.
    newcomer: Option<Value>,
}

/// The payload of a join. `user` may be any JSON (it is only passed on), or be missing; a text in
/// `presence` is the name under which the member is present.
#[derive(Deserialize, Default)]
struct JoinParams {
    user: Option<Value>,
    presence: Option<Value>,
}

/// A message. Other fields are passed through unread.
#[derive(Deserialize)]
struct Message {
    body: Value,
}

impl RoomChannel {
    /// Lets every client into every room. A real application would check permissions here.
    pub fn join(ctx: &mut ShardContext<'_>, params: Payload<'_>) -> Join {
        let params: JoinParams = params.parse().unwrap_or_default();
        if let Some(name) = params.presence.as_ref().and_then(Value::as_str) {
            // Carried out when the newcomer is a member.
            if let Err(error) = ctx.presence().track(name, json!({})) {
                return Join::error(json!({"reason": error.to_string()}));
            }
            ctx.presence().push_state();
        }
        Join::ok(Self { newcomer: params.user })
    }
}

impl ShardChannel for RoomChannel {
    /// Not in [`join`](Self::join): only here the newcomer is a member, and receives it too.
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let user = self.newcomer.take();
        if ctx.member_count().is_some_and(|members| members <= ANNOUNCE_JOINS_UP_TO) {
            ctx.broadcast("user:entered", json!({"user": user}));
        }
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "new:msg" => {
                let Ok(message) = payload.parse::<Message>() else {
                    return Outcome::error(json!({"reason": "a message has a body"}));
                };
                // Unchanged: one encoding serves the whole room.
                ctx.broadcast(event, payload.into_owned());
                Outcome::ok(json!({"msg": message.body}))
            }
            _ => Outcome::unknown_event(),
        }
    }
}

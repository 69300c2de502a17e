//! Rooms that count their messages.

use simurgh::{
    ChannelRoute, Join, Outcome, Payload, Reason, ShardChannel, ShardContext, UserSocket, json,
};

/// A member of a room.
struct Room {
    said: u64,
}

impl ShardChannel for Room {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "new:msg" => {
                self.said += 1;
                ctx.broadcast(event, payload.into_owned());
                Outcome::ok(json!({"said": self.said}))
            }
            _ => Outcome::unknown_event(),
        }
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, _: &Reason) {
        ctx.broadcast_from("left", json!({"said": self.said}));
    }
}

fn join(ctx: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    match ctx.subtopic() {
        "private" => Join::error(json!({"reason": "unauthorized"})),
        _ => Join::ok(Room { said: 0 }),
    }
}

/// The socket that serves the rooms.
pub fn user_socket() -> UserSocket {
    UserSocket::new("/socket").channel(ChannelRoute::on_shard("rooms:*", join))
}

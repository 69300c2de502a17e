//! `rooms:*`: a chat, with a few ways to end a channel.

use serde_json::Value;
use simurgh::{Join, Outcome, Payload, ShardChannel, ShardContext, Stop, json};

struct Room {
    user: Value,
}

/// Rooms whose names begin with `private` are closed to all clients.
pub(crate) fn join(ctx: &mut ShardContext<'_>, params: Payload<'_>) -> Join {
    if ctx.subtopic().starts_with("private") {
        return Join::error(json!({"reason": "unauthorized"}));
    }
    let params: Value = params.parse().unwrap_or_default();
    Join::ok(Room { user: params["user"].clone() })
}

impl ShardChannel for Room {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        ctx.broadcast("user:entered", json!({"user": self.user}));
        ctx.push("join", json!({"status": "connected"}));
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "new:msg" => {
                let message: Value = payload.parse().unwrap_or_default();
                ctx.broadcast(event, payload.into_owned());
                Outcome::ok(json!({"msg": message["body"]}))
            }
            // A payload of bytes is answered with bytes.
            "bin" => Outcome::ok(payload.into_owned()),
            "stop" => Outcome::Stop(Stop::Normal),
            #[expect(
                clippy::panic,
                reason = "shows that a panic ends this channel and nothing else"
            )]
            "crash" => panic!("the client asked for it"),
            _ => Outcome::unknown_event(),
        }
    }
}

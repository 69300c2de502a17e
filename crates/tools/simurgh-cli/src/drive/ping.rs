//! The example channel of the sockets driver from 2016: a join is answered with hello, the event
//! `ping` with the event `pong`.

use simurgh::{Join, Outcome, Payload, ShardChannel, ShardContext, json};

pub(super) const TOPICS: &str = "ping_topic*";

struct Ping;

pub(super) fn join(_: &mut ShardContext<'_>, _: Payload<'_>) -> Join {
    Join::ok(Ping).reply(Payload::from_json(r#"{"response":"hello"}"#))
}

impl ShardChannel for Ping {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            "ping" => {
                ctx.push("pong", payload.into_owned());
                Outcome::NoReply
            }
            _ => Outcome::error(json!({"reason": "unknown event"})),
        }
    }
}

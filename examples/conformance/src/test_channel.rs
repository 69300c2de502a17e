//! `test:*` and `exact`: one event for each feature of a channel.

use std::time::Duration;

use serde_json::{Map, Value};
use simurgh::{
    Broadcast, CloseCode, Join, Outcome, Payload, Reason, Reply, ShardChannel, ShardContext, Stop,
    json,
};
use tokio::time::sleep;

use crate::visitor::Visitor;

const EMPTY: Payload<'static> = Payload::EMPTY_OBJECT;

struct Test {
    /// The client's name; its shouts are addressed by it.
    name: Value,
}

/// Most topics are joined normally; some names make the join go differently.
pub(crate) fn join(ctx: &mut ShardContext<'_>, params: Payload<'_>) -> Join {
    let params: Value = params.parse().unwrap_or_default();
    let test = Test { name: params["name"].clone() };
    match ctx.topic() {
        "test:error" => Join::error(json!({"reason": params["reason"]})),
        "test:reply" => Join::ok(test).reply(json!({"got": params})),
        // Only this socket waits for the answer.
        "test:slow" => Join::later(async {
            sleep(Duration::from_millis(1500)).await;
            Join::ok(test)
        }),
        #[expect(clippy::panic, reason = "shows that a panic refuses this join and nothing else")]
        "test:crash" => panic!("the client asked for it"),
        _ => Join::ok(test),
    }
}

impl ShardChannel for Test {
    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        match event {
            // Answers. A payload is sent back unchanged: JSON as JSON, bytes as bytes.
            "echo" | "bin" => Outcome::ok(payload.into_owned()),
            "status_only" => Outcome::ok(EMPTY),
            "error_only" => Outcome::error(EMPTY),
            "fail" => Outcome::error(json!({"reason": field(&payload, "reason")})),
            "custom_status" => Outcome::Reply(Reply::new("weird", json!({"a": 1}))),
            "noreply" => Outcome::NoReply,
            "async" => answer_later(ctx, payload.into_owned()),
            "whoami" => Outcome::ok(json!(ctx.assigns::<Visitor>())),

            // For this member, or for all members.
            "push_me" => push(ctx, "pushed", payload),
            "bin_push" => push(ctx, "bin_pushed", payload),
            "bcast" => broadcast(ctx, "news", payload),
            "bin_bcast" => broadcast(ctx, "bin_news", payload),
            "shout" => broadcast(ctx, event, payload),
            "secret" => {
                ctx.broadcast(event, payload.into_owned());
                Outcome::ok(EMPTY)
            }
            "bcast_from" => {
                ctx.broadcast_from("news", payload.into_owned());
                Outcome::ok(EMPTY)
            }
            "subscribe" => {
                ctx.subscribe(field(&payload, "topic").as_str().unwrap_or_default());
                Outcome::ok(EMPTY)
            }

            // Ends: of this channel, of this socket, of all sockets of a user.
            "stop" => Outcome::Stop(Stop::Normal),
            "stop_shutdown" => Outcome::Stop(Stop::Shutdown),
            "stop_bad" => Outcome::Stop(Stop::Abnormal),
            "stop_reply" => Outcome::ReplyAndStop(Reply::ok(payload.into_owned()), Stop::Normal),
            #[expect(clippy::panic, reason = "shows that a panic ends this channel only")]
            "crash" => panic!("the client asked for it"),
            "drain_me" => {
                ctx.close_socket(CloseCode::RESTART);
                Outcome::NoReply
            }
            "disconnect_me" => {
                ctx.disconnect(field(&payload, "id").as_str().unwrap_or_default());
                Outcome::NoReply
            }
            _ => Outcome::unknown_event(),
        }
    }

    fn intercept(&self) -> &'static [&'static str] {
        &["shout", "secret"]
    }

    /// Each member is addressed by name; a secret is dropped by pushing nothing.
    fn handle_out(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: &Payload<'_>,
    ) -> Outcome {
        if event == "shout" {
            let mut shout: Map<String, Value> = payload.parse().unwrap_or_default();
            shout.insert("to".to_owned(), self.name.clone());
            ctx.push(event, Value::from(shout));
        }
        Outcome::NoReply
    }

    /// Broadcasts of subscribed topics reach the client on the topic it has joined.
    fn handle_broadcast(&mut self, ctx: &mut ShardContext<'_>, broadcast: &Broadcast) -> Outcome {
        ctx.push(broadcast.event(), broadcast.payload());
        Outcome::NoReply
    }

    fn terminate(&mut self, ctx: &mut ShardContext<'_>, _: &Reason) {
        ctx.push("you_left", json!({"message": "bye!"}));
    }
}

/// The channel is free meanwhile, and handles messages in between.
fn answer_later(ctx: &mut ShardContext<'_>, payload: Payload<'static>) -> Outcome {
    if let Some(message) = ctx.reply_ref() {
        let channel = ctx.handle::<Test>();
        ctx.spawn(async move {
            sleep(Duration::from_millis(50)).await;
            channel.reply(message, Reply::ok(payload));
        });
    }
    Outcome::NoReply
}

fn push(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    ctx.push(event, payload.into_owned());
    Outcome::NoReply
}

fn broadcast(ctx: &mut ShardContext<'_>, event: &str, payload: Payload<'_>) -> Outcome {
    ctx.broadcast(event, payload.into_owned());
    Outcome::NoReply
}

fn field(payload: &Payload<'_>, name: &str) -> Value {
    payload.parse::<Value>().unwrap_or_default()[name].clone()
}

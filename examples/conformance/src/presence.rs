//! `presence:*`: the present members, with a status that each member sets.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use simurgh::{Join, Outcome, Payload, ShardChannel, ShardContext, json};

/// One member, present under its user's name.
struct Present {
    user: String,
    online_at: String,
}

/// `{user}`, a string or a number, is the key.
pub(crate) fn join(_: &mut ShardContext<'_>, params: Payload<'_>) -> Join {
    let params: Value = params.parse().unwrap_or_default();
    let user = match &params["user"] {
        Value::String(user) => user.clone(),
        // Keys are texts.
        Value::Number(user) => user.to_string(),
        _ => return Join::error(json!({"reason": "user is a string or a number"})),
    };
    Join::ok(Present { user, online_at: unix_seconds() })
}

impl ShardChannel for Present {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        let meta = json!({"online_at": self.online_at});
        if let Err(error) = ctx.presence().track(&self.user, meta) {
            ctx.push("not_tracked", json!({"reason": error.to_string()}));
        }
        ctx.presence().push_state();
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        if event != "status" {
            return Outcome::unknown_event();
        }
        let params: Value = payload.parse().unwrap_or_default();
        let meta = json!({"online_at": self.online_at, "status": params["status"]});
        match ctx.presence().update(&self.user, meta) {
            Ok(()) => Outcome::ok(Payload::EMPTY_OBJECT),
            Err(error) => Outcome::error(json!({"reason": error.to_string()})),
        }
    }
}

/// As text, as in a channel made by Phoenix's generator.
fn unix_seconds() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs().to_string()
}

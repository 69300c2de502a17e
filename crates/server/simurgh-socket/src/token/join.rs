//! Tokens in a join, which are valid for its topic alone.
//!
//! Such a channel ends when its token expires. A tokio task waits for that: few channels are joined
//! in this way, and the others cost nothing more.

use std::time::Instant;

use serde_json::json;
use simurgh_channel::{Join, ShardContext, Stop};
use simurgh_token::Claims;

use super::TokenPolicy;

impl TokenPolicy {
    /// Decides a join by its own token, for join functions. It calls `then` if the token is valid,
    /// and its channel ends with `phx_error` when the token expires. Clients then join again, the
    /// official ones with a new payload if that is a function. The socket and its claims do not
    /// change.
    ///
    /// An invalid token is answered `error` with [`TokenError::reason`] as `reason`.
    ///
    /// ```
    /// use simurgh::token::{Rule, TokenPolicy};
    /// use simurgh::{ShardChannel, ShardContext, Join, Payload, json};
    ///
    /// # struct Room;
    /// # impl ShardChannel for Room {
    /// #     fn handle_in(
    /// #         &mut self, _: &mut ShardContext<'_>, _: &str, _: Payload<'_>,
    /// #     ) -> simurgh::Outcome {
    /// #         simurgh::Outcome::unknown_event()
    /// #     }
    /// # }
    /// #[derive(serde::Deserialize)]
    /// struct Ticket {
    ///     token: Option<String>,
    /// }
    ///
    /// fn join(
    ///     ctx: &mut ShardContext<'_>, payload: &Payload<'_>, policy: &TokenPolicy, rule: &Rule,
    /// ) -> Join {
    ///     let token = payload.parse::<Ticket>().ok().and_then(|ticket| ticket.token);
    ///     policy.join(ctx, token.as_deref(), |ctx, claims| {
    ///         match rule.allows(ctx.topic(), &claims) {
    ///             true => Join::ok(Room),
    ///             false => Join::error(json!({"reason": "unauthorized"})),
    ///         }
    ///     })
    /// }
    /// ```
    ///
    /// [`TokenError::reason`]: super::TokenError::reason
    pub fn join(
        &self,
        ctx: &mut ShardContext<'_>,
        token: Option<&str>,
        then: impl FnOnce(&mut ShardContext<'_>, Claims) -> Join,
    ) -> Join {
        let claims = match self.verify_on_shard(ctx, token) {
            Ok(claims) => claims,
            Err(reason) => {
                ctx.count_unauthorized();
                return Join::error(json!({ "reason": reason }));
            }
        };
        // Computed before the join function, which may take its time.
        let end = self.lifetime(&claims).and_then(|time| Instant::now().checked_add(time));
        let join = then(ctx, claims);
        match end {
            Some(end) => join.on_start(move |ctx| end_at(ctx, end)),
            None => join,
        }
    }
}

/// Ends the channel at this time.
fn end_at(ctx: &mut ShardContext<'_>, end: Instant) {
    let handle = ctx.handle::<()>();
    ctx.spawn_linked(async move {
        tokio::time::sleep_until(end.into()).await;
        handle.stop(Stop::Expired);
    });
}

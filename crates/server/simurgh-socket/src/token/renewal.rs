//! Fresh tokens for open sockets: the event `access_token`, as Supabase's clients send it.
//!
//! A wrapper around the application's channel handles it, so that channels of user sockets without
//! renewals are not affected.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use simurgh_channel::{JoinFn, Outcome, PARSED_BYTES_MAX, ShardChannel, ShardContext};
use simurgh_proto::message::Payload;
use simurgh_token::Claims;

use super::TokenPolicy;

const ACCESS_TOKEN: &str = "access_token";

/// Wraps the channels of a join function so that they accept renewals.
pub(crate) fn renewing(policy: &Arc<TokenPolicy>, join: JoinFn) -> JoinFn {
    let policy = Arc::clone(policy);
    Arc::new(move |ctx, payload| {
        let policy = Arc::clone(&policy);
        join(ctx, payload).wrap(|within| Box::new(Renewing { within, policy }))
    })
}

struct Renewing {
    within: Box<dyn ShardChannel>,
    policy: Arc<TokenPolicy>,
}

const _: () = assert!(size_of::<Renewing>() <= 24, "what a channel costs that takes renewals");

#[derive(Deserialize)]
struct AccessToken {
    access_token: String,
}

impl Renewing {
    /// The claims of a fresh token, or the reason for its client.
    fn renew(&self, ctx: &ShardContext<'_>, payload: &Payload<'_>) -> Result<Claims, &'static str> {
        if payload.len() > PARSED_BYTES_MAX {
            return Err("malformed");
        }
        let fresh = payload.parse::<AccessToken>().map_err(|_| "missing")?;
        let claims = self.policy.verify_on_shard(ctx, Some(&fresh.access_token))?;
        match ctx.assigns::<Claims>() {
            Some(before) if is_same(before, &claims) => Ok(claims),
            _ => Err("wrong_subject"),
        }
    }
}

/// Whether both are of the same user: a subject is unique only for its issuer.
pub(crate) fn is_same(before: &Claims, now: &Claims) -> bool {
    before.subject().is_some()
        && before.subject() == now.subject()
        && before.get("iss") == now.get("iss")
}

impl ShardChannel for Renewing {
    fn after_join(&mut self, ctx: &mut ShardContext<'_>) {
        self.within.after_join(ctx);
    }

    fn handle_in(
        &mut self,
        ctx: &mut ShardContext<'_>,
        event: &str,
        payload: Payload<'_>,
    ) -> Outcome {
        if event != ACCESS_TOKEN {
            return self.within.handle_in(ctx, event, payload);
        }
        match self.renew(ctx, &payload) {
            Ok(claims) => {
                ctx.expire_in(self.policy.lifetime(&claims));
                ctx.assign(claims);
                Outcome::ok(json!({}))
            }
            Err(reason) => {
                ctx.count_unauthorized();
                Outcome::error(json!({ "reason": reason }))
            }
        }
    }

    super::pass_on_to_inner!();
}

//! Fresh tokens for open sockets: the event `access_token`, as Supabase's clients send it.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use simurgh_channel::{Outcome, PARSED_BYTES_MAX, RenewFn, ShardContext};
use simurgh_proto::message::Payload;
use simurgh_token::Claims;

use super::TokenPolicy;
use crate::identity;

#[derive(Deserialize)]
struct AccessToken {
    access_token: String,
}

impl TokenPolicy {
    /// Handles fresh tokens of its sockets; `None`: they cannot be renewed.
    pub(crate) fn renewal(self: &Arc<Self>) -> Option<RenewFn> {
        if !self.renews() {
            return None;
        }
        let policy = Arc::clone(self);
        Some(Arc::new(move |ctx, payload| policy.renew(ctx, payload)))
    }

    fn renew(&self, ctx: &mut ShardContext<'_>, payload: &Payload<'_>) -> Outcome {
        match self.fresh_claims(ctx, payload) {
            Ok(claims) => {
                ctx.expire_in(self.lifetime(&claims));
                identity::assign(ctx, claims);
                Outcome::ok(json!({}))
            }
            Err(reason) => {
                ctx.count_unauthorized();
                Outcome::error(json!({ "reason": reason }))
            }
        }
    }

    /// The claims of a fresh token, or the reason for its client.
    fn fresh_claims(
        &self,
        ctx: &ShardContext<'_>,
        payload: &Payload<'_>,
    ) -> Result<Claims, &'static str> {
        if payload.len() > PARSED_BYTES_MAX {
            return Err("malformed");
        }
        let fresh = payload.parse::<AccessToken>().map_err(|_| "missing")?;
        let claims = self.verify_on_shard(ctx, Some(&fresh.access_token))?;
        match identity::claims(ctx) {
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

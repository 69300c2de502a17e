//! Read and write access by tokens (PROTOCOL §11.4).

use std::sync::Arc;

use simurgh_channel::ShardContext;

use super::config::JoinConfig;
use super::{Pass, Refusal, not_permitted};
use crate::connect::is_project_key;
use crate::identity;
use crate::token::{Claims, Rule, TokenPolicy, is_same};

/// The rules of a pattern of topics, and the policy of its user socket.
#[derive(Debug)]
pub(super) struct Access {
    join: Vec<Rule>,
    publish: Vec<Rule>,
    pub(super) policy: Option<Arc<TokenPolicy>>,
}

pub(super) enum Renewed {
    Pass(Pass),
    /// There is no token to verify, or its key is not loaded yet.
    Unchanged,
    Refused(String),
}

/// The reason of a token whose key is not loaded and may be soon.
const UNKNOWN_KEY: &str = "unknown_key";

impl Access {
    pub(super) fn new(join: Vec<Rule>, publish: Vec<Rule>) -> Self {
        Self { join, publish, policy: None }
    }

    /// Decides a join by its own token, else by its socket's.
    pub(super) fn join(
        &self,
        ctx: &mut ShardContext<'_>,
        config: &JoinConfig,
    ) -> Result<Pass, Refusal> {
        let own = match (&self.policy, users(config.token.as_deref())) {
            (Some(policy), Some(token)) => {
                let claims = policy.verify_on_shard(ctx, Some(token));
                Some(claims.map_err(|reason| {
                    ctx.count_unauthorized();
                    refusal(reason)
                })?)
            }
            _ => None,
        };
        let lifetime = own.as_ref().and_then(|claims| self.policy.as_ref()?.lifetime(claims));
        let is_private = !self.join.is_empty();
        if is_private && !config.private {
            ctx.count_unauthorized();
            let why = "This topic only allows private channels".to_owned();
            return Err(Refusal("PrivateOnly", why));
        }
        let claims = own.as_ref().or_else(|| identity::claims(ctx));
        let may_join = if is_private { allow(&self.join, ctx, claims) } else { !config.private };
        let may_publish = self.publish.is_empty() || allow(&self.publish, ctx, claims);
        match may_join {
            true => Ok(Pass { may_publish, lifetime }),
            false => Err(not_permitted(ctx)),
        }
    }

    /// Whether tokens decide anything here.
    pub(super) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    pub(super) fn renew(&self, ctx: &mut ShardContext<'_>, token: Option<&str>) -> Renewed {
        let (Some(policy), Some(token)) = (&self.policy, users(token)) else {
            return Renewed::Unchanged;
        };
        let claims = match policy.verify_on_shard(ctx, Some(token)) {
            Ok(claims) => claims,
            // The keys are read again; the member's permissions stay valid as long as before.
            Err(UNKNOWN_KEY) => return Renewed::Unchanged,
            Err(reason) => {
                ctx.count_unauthorized();
                return Renewed::Refused(refusal(reason).1);
            }
        };
        if !self.join.is_empty() && !allow(&self.join, ctx, Some(&claims)) {
            return Renewed::Refused(not_permitted(ctx).1);
        }
        let may_publish = self.publish.is_empty() || allow(&self.publish, ctx, Some(&claims));
        let lifetime = policy.lifetime(&claims);
        let is_of_socket = identity::claims(ctx).is_some_and(|before| is_same(before, &claims));
        if policy.renews() && is_of_socket {
            ctx.expire_in(lifetime);
            identity::assign(ctx, claims);
        }
        Renewed::Pass(Pass { may_publish, lifetime })
    }
}

/// A token of a user, not of a project.
fn users(token: Option<&str>) -> Option<&str> {
    token.filter(|token| !is_project_key(token))
}

fn allow(rules: &[Rule], ctx: &ShardContext<'_>, claims: Option<&Claims>) -> bool {
    claims.is_some_and(|claims| rules.iter().any(|rule| rule.allows(ctx.topic(), claims)))
}

fn refusal(reason: &'static str) -> Refusal {
    match reason {
        "expired" => Refusal("InvalidJWTToken", "Token has expired".to_owned()),
        UNKNOWN_KEY => Refusal("JwtSignatureError", "Failed to validate JWT signature".to_owned()),
        "invalid" | "missing" => {
            Refusal("MalformedJWT", "The token provided is not a valid JWT".to_owned())
        }
        reason => Refusal("InvalidJWTToken", format!("The token was refused: {reason}")),
    }
}

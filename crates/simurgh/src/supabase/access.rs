//! Who may read and who may write, by tokens (PROTOCOL §11.4).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::config::JoinConfig;
use super::{Refusal, not_permitted};
use crate::Context;
use crate::token::{Claims, Rule, TokenError, TokenPolicy, is_same};

/// The rules of a pattern of topics, and the policy by which its mount lets in.
#[derive(Debug)]
pub(super) struct Access {
    join: Vec<Rule>,
    publish: Vec<Rule>,
    policy: OnceLock<Arc<TokenPolicy>>,
}

/// What a token allows a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    /// To broadcast, and to be present.
    pub(super) may_publish: bool,
    /// For how long, if the token is the channel's own and ends.
    pub(super) lifetime: Option<Duration>,
}

/// What comes of a fresh token.
pub(super) enum Renewed {
    /// It is good for this.
    Pass(Pass),
    /// There is nothing to be judged, or not yet.
    Unchanged,
    /// It is not good, for this reason.
    Refused(String),
}

/// Keys of a project, which are no tokens of a user.
const PROJECT_KEY: &str = "sb_";

impl Access {
    pub(super) fn new(join: Vec<Rule>, publish: Vec<Rule>) -> Self {
        Self { join, publish, policy: OnceLock::new() }
    }

    pub(super) fn judge_by(&self, policy: &Arc<TokenPolicy>) {
        // A mount at two paths has one policy.
        let _ = self.policy.set(Arc::clone(policy));
    }

    /// Judges a join by its own token, or else by that of its socket.
    pub(super) fn join(&self, ctx: &mut Context<'_>, config: &JoinConfig) -> Result<Pass, Refusal> {
        let own = match (self.policy.get(), users(config.token.as_deref())) {
            (Some(policy), Some(token)) => {
                Some(self.verify(ctx, policy, token).map_err(|error| {
                    ctx.count_unauthorized();
                    refusal(&error)
                })?)
            }
            _ => None,
        };
        let lifetime = own.as_ref().and_then(|claims| self.policy.get()?.lifetime(claims));
        let is_private = !self.join.is_empty();
        if is_private && !config.private {
            ctx.count_unauthorized();
            let why = "This topic only allows private channels".to_owned();
            return Err(Refusal("PrivateOnly", why));
        }
        let claims = own.as_ref().or_else(|| ctx.assigns::<Claims>());
        let may_join = if is_private { allow(&self.join, ctx, claims) } else { !config.private };
        let may_publish = self.publish.is_empty() || allow(&self.publish, ctx, claims);
        match may_join {
            true => Ok(Pass { may_publish, lifetime }),
            false => Err(not_permitted(ctx)),
        }
    }

    /// Judges a token that a member sends.
    pub(super) fn renew(&self, ctx: &mut Context<'_>, token: Option<&str>) -> Renewed {
        let (Some(policy), Some(token)) = (self.policy.get(), users(token)) else {
            return Renewed::Unchanged;
        };
        let claims = match self.verify(ctx, policy, token) {
            Ok(claims) => claims,
            // Keys are read again; what the member has is good for as long as it was.
            Err(error) if error.is_unknown_key() => return Renewed::Unchanged,
            Err(error) => {
                ctx.count_unauthorized();
                return Renewed::Refused(refusal(&error).1);
            }
        };
        if !self.join.is_empty() && !allow(&self.join, ctx, Some(&claims)) {
            return Renewed::Refused(not_permitted(ctx).1);
        }
        let may_publish = self.publish.is_empty() || allow(&self.publish, ctx, Some(&claims));
        let lifetime = policy.lifetime(&claims);
        let is_of_socket = ctx.assigns::<Claims>().is_some_and(|before| is_same(before, &claims));
        if policy.renews() && is_of_socket {
            ctx.expire_in(lifetime);
            ctx.assign(claims);
        }
        Renewed::Pass(Pass { may_publish, lifetime })
    }

    fn verify(
        &self,
        ctx: &Context<'_>,
        policy: &TokenPolicy,
        token: &str,
    ) -> Result<Claims, TokenError> {
        policy.verify(Some(token)).inspect_err(|error| {
            let topic = ctx.topic();
            tracing::debug!(topic, reason = error.reason(), "token refused: {error}");
            // The client joins again.
            if error.is_unknown_key()
                && let Some(work) = policy.newer_keys()
            {
                ctx.spawn(work);
            }
        })
    }
}

/// A token that is of a user.
fn users(token: Option<&str>) -> Option<&str> {
    token.filter(|token| !token.starts_with(PROJECT_KEY))
}

fn allow(rules: &[Rule], ctx: &Context<'_>, claims: Option<&Claims>) -> bool {
    claims.is_some_and(|claims| rules.iter().any(|rule| rule.allows(ctx.topic(), claims)))
}

/// In Supabase's words.
fn refusal(error: &TokenError) -> Refusal {
    match error.reason() {
        "expired" => Refusal("InvalidJWTToken", "Token has expired".to_owned()),
        "unknown_key" => {
            Refusal("JwtSignatureError", "Failed to validate JWT signature".to_owned())
        }
        "invalid" | "missing" => {
            Refusal("MalformedJWT", "The token provided is not a valid JWT".to_owned())
        }
        reason => Refusal("InvalidJWTToken", format!("The token is not taken: {reason}")),
    }
}

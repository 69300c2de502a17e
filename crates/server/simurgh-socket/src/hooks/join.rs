//! Joins: a rule or the answer to the connect decides if it allows them, else the question `join`.

use std::sync::Arc;

use simurgh_channel::{Join, ShardContext};
use simurgh_hooks::{
    Answer, Asked, CacheInputs, JoinAnswer, Kind, Publish as Published, Question, Verdict,
};
use simurgh_proto::message::Payload;

use super::question::{Data, Subject};
use super::{HookedSocket, UNANSWERED, unavailable};
use crate::declared::{Declared, Grant, Kept, Present, Publish, Refusal};

/// Decides a join of a channel that has a hook for them.
pub(crate) fn join(
    declared: &Arc<Declared>,
    hook: usize,
    ctx: &mut ShardContext<'_>,
    payload: &Payload<'_>,
) -> Join {
    if let Err(refusal) = declared.may_ask(ctx.topic(), payload) {
        return Join::error(refusal.counted(ctx));
    }
    let Some(socket) = ctx.assigns::<HookedSocket>() else {
        return declared.join_by_rules(ctx, payload);
    };
    let by_rule = declared.rules.let_in(ctx);
    let is_allowed = by_rule == Some(true) || socket.may_join(ctx.topic());
    if is_allowed && !declared.asks_always {
        return declared.join_allowed(ctx, payload, Grant::default());
    }
    let question = question(socket, ctx, hook, payload);
    let unasked = Unasked { hook, is_refused: by_rule == Some(false) };
    match socket.set.clone().ask(hook, question) {
        Asked::Now(verdict) => decided(declared, ctx, payload, &unasked, verdict),
        Asked::Later(answer) => {
            let (declared, payload) = (Arc::clone(declared), payload.borrow().into_owned());
            Join::later(async move {
                let verdict = answer.await;
                Join::on_shard(move |ctx| decided(&declared, ctx, &payload, &unasked, verdict))
            })
        }
    }
}

/// What holds if the hook does not answer.
struct Unasked {
    hook: usize,
    /// Whether the channel has rules, and none allows the join.
    is_refused: bool,
}

fn decided(
    declared: &Arc<Declared>,
    ctx: &mut ShardContext<'_>,
    payload: &Payload<'_>,
    unasked: &Unasked,
    verdict: Verdict,
) -> Join {
    let answer = match verdict {
        Verdict::Allowed(answer) => answer,
        Verdict::Refused(refusal) => {
            ctx.count_unauthorized();
            return Join::error(Payload::from_json(refusal.response.clone()));
        }
        Verdict::Failed(failure) => {
            let set = ctx.assigns::<HookedSocket>().map(|socket| Arc::clone(&socket.set));
            if !set.is_some_and(|set| set.allows_failure(unasked.hook)) {
                return Join::error(unavailable(&failure));
            }
            if unasked.is_refused {
                ctx.count_unauthorized();
                return Join::error(Refusal::Because("unauthorized").response());
            }
            return declared.join_allowed(ctx, payload, Grant::default());
        }
    };
    match &*answer {
        Answer::Join(answer) => declared.join_allowed(ctx, payload, grant(declared, answer)),
        _ => Join::error(unavailable(&UNANSWERED)),
    }
}

fn grant(declared: &Declared, answer: &JoinAnswer) -> Grant {
    let publish = match &answer.publish {
        None | Some(Published::All) => Publish::All,
        Some(Published::None) => Publish::Only(Vec::new()),
        Some(Published::Events(events)) => Publish::Only(events.clone()),
    };
    let present = answer.presence.as_ref().filter(|_| declared.presence.is_some());
    Grant {
        kept: Kept { claims: None, assigns: answer.assigns.clone(), publish },
        reply: answer.reply.as_ref().map(|reply| Payload::from_json(reply.get().to_owned())),
        present: present.and_then(Present::granted),
        subscribe: answer.subscribe.clone(),
    }
}

fn question(
    socket: &HookedSocket,
    ctx: &ShardContext<'_>,
    hook: usize,
    payload: &Payload<'_>,
) -> Question {
    let (topic, user) = (ctx.topic(), socket.user());
    let claims = socket.claims.as_deref().map(simurgh_token::Claims::claims);
    let data = Data {
        connection: socket.about.connection.as_deref(),
        ip: socket.about.ip,
        user,
        id: ctx.socket_id(),
        claims,
        subject: Subject::Join { topic },
    };
    let params = payload.json().unwrap_or("{}");
    let cache = user.map(|user| CacheInputs {
        key: vec![
            user.as_bytes().to_vec(),
            claims.and_then(|claims| serde_json::to_vec(claims).ok()).unwrap_or_default(),
            topic.as_bytes().to_vec(),
            without_position(params),
        ],
        user: Some(user.to_owned()),
        client: socket.about.ip,
    });
    Question {
        kind: Kind::Join,
        data: data.text_with("params", params),
        forwarded: socket.forwarded(hook),
        traceparent: socket.about.traceparent.clone(),
        cache,
    }
}

/// The params without the position from which the client resumes, which differs in each join.
fn without_position(params: &str) -> Vec<u8> {
    if params.contains("\"simurgh\"")
        && let Ok(mut fields) =
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(params)
    {
        fields.remove("simurgh");
        return serde_json::to_vec(&fields).unwrap_or_default();
    }
    params.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_positions_do_not_change_the_key_of_a_join() {
        let first = without_position(r#"{"room":7}"#);
        assert_eq!(without_position(r#"{"room":7,"simurgh":{"at":"5-9"}}"#), first);
        assert_ne!(without_position(r#"{"room":8,"simurgh":{"at":"5-9"}}"#), first);
    }
}

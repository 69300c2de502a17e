//! Joins of channels with a hook: a rule or the answer to the connect decides if it allows them,
//! else the question `join`.

use std::sync::Arc;

use simurgh_channel::{Join, ShardContext};
use simurgh_hooks::{Answer, Asked, Failure, JoinAnswer, Publish as Published, Verdict};
use simurgh_proto::message::Payload;

use super::member::{Declared, Grant, Kept, Publish, Refusal, TOO_LONG};
use super::presence::Present;
use crate::hooks::{Asking, unavailable};
use crate::socket::SHORT_TEXT_BYTES;

/// Decides a join of a channel that has a hook for them.
pub(super) fn join(
    declared: &Arc<Declared>,
    hook: usize,
    ctx: &mut ShardContext<'_>,
    payload: &Payload<'_>,
) -> Join {
    let is_long = declared.has_schema() && payload.len() > SHORT_TEXT_BYTES;
    let checked =
        if is_long { Err(Refusal::Because(TOO_LONG)) } else { declared.may_ask(ctx.topic()) };
    let checked = checked.and_then(|()| declared.check_join(payload).map_err(Refusal::from));
    if let Err(refusal) = checked {
        return Join::error(refusal.counted(ctx));
    }
    // It connected before a reload brought the first hook: nobody can be asked about it.
    let Some(socket) = ctx.assigned().and_then(Asking::of) else {
        return Join::error(unavailable(&Failure::NOBODY));
    };
    let by_rule = declared.rules.let_in(ctx);
    let is_allowed = by_rule == Some(true) || socket.may_join(ctx.topic());
    if is_allowed && !declared.asks_always {
        return declared.join_allowed(ctx, payload, Grant::default());
    }
    let (id, topic, params) = (ctx.socket_id(), ctx.topic(), payload.json().unwrap_or("{}"));
    let question = socket.about_join(hook, id, topic, params);
    // The channel has rules, and none of them allows the join.
    let is_refused = by_rule == Some(false);
    match socket.ask(hook, question) {
        Asked::Now(verdict) => decided(declared, ctx, payload, is_refused, verdict),
        Asked::Later(question) => {
            let data = socket.join_data(id, topic, params);
            let (declared, payload) = (Arc::clone(declared), payload.borrow().into_owned());
            Join::asked(move |done| {
                Box::new(question.send(data, move |verdict| {
                    done(Join::on_shard(move |ctx| {
                        decided(&declared, ctx, &payload, is_refused, verdict)
                    }));
                }))
            })
        }
    }
}

fn decided(
    declared: &Arc<Declared>,
    ctx: &mut ShardContext<'_>,
    payload: &Payload<'_>,
    is_refused: bool,
    verdict: Verdict,
) -> Join {
    let answer = match verdict {
        Verdict::Allowed(answer) => answer,
        Verdict::Refused(refusal) => {
            ctx.count_unauthorized();
            return Join::error(Payload::from_json(refusal.response.clone()));
        }
        Verdict::Failed(failure) if !failure.allows => {
            return Join::error(unavailable(&failure));
        }
        Verdict::Failed(_) if is_refused => {
            ctx.count_unauthorized();
            return Join::error(Refusal::Because("unauthorized").response());
        }
        Verdict::Failed(_) => return declared.join_allowed(ctx, payload, Grant::default()),
    };
    let Answer::Join(answer) = &*answer else {
        return Join::error(unavailable(&Failure::NOBODY));
    };
    if let (Some(limits), Some(socket)) = (&answer.limits, ctx.assigned().and_then(Asking::of)) {
        socket.limit(limits);
    }
    declared.join_allowed(ctx, payload, grant(declared, answer))
}

fn grant(declared: &Declared, answer: &JoinAnswer) -> Grant {
    let publish = match &answer.publish {
        None | Some(Published::All(true)) => Publish::All,
        Some(Published::All(false)) => Publish::Only(Vec::new()),
        Some(Published::Events(events)) => Publish::Only(events.clone()),
    };
    let present = answer.presence.as_ref().filter(|_| declared.presence.is_some());
    Grant {
        kept: Kept { claims: None, assigns: answer.assigns.clone(), publish },
        reply: answer.reply.as_ref().map(|reply| Payload::from_json(reply.get().to_owned())),
        present: present.map(Present::granted),
        subscribe: answer.subscribe.clone(),
    }
}

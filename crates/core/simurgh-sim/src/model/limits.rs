//! Limits of what clients send (PROTOCOL §6.7): buckets, each with its content and the time of
//! that, and the consequences of requests over a limit.

use crate::kit::delivery::{Delivery, Request, RequestKind};
use crate::kit::payload;
use simurgh_core::{LimitPolicy, Wire};

use super::{Action, Call, CallbackEnd, CallbackRecord, Model};
use crate::limits::{KINDS, Limited, Limits, Quota, RATES};
use crate::model::presence::PresenceAction;
use crate::model::steps::Input;

/// Bytes of a whole message (refs, topic, event and payload), and of its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) payload: usize,
}

/// A bucket. It counts parts of tokens: a token has as many parts as its period has nanoseconds, so
/// each nanosecond adds as many parts as a period adds tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    left: Option<u128>,
    at_ns: u64,
}

impl Bucket {
    /// Takes this many tokens, or returns after how many milliseconds they would be there, if ever.
    fn take(&mut self, quota: &Quota, cost: u64, now_ns: u64) -> Result<(), Option<u64>> {
        let token = u128::from(quota.period_ms) * 1_000_000;
        let (full, cost) = (u128::from(quota.burst) * token, u128::from(cost) * token);
        let passed = u128::from(now_ns.saturating_sub(self.at_ns));
        let left = self.left.map_or(full, |it| it + passed * u128::from(quota.count)).min(full);
        (self.left, self.at_ns) = (Some(left), now_ns);
        if cost <= left {
            self.left = Some(left - cost);
            return Ok(());
        }
        let wait_ns = (cost - left).div_ceil(u128::from(quota.count));
        Err((cost <= full).then(|| wait_ns.div_ceil(1_000_000) as u64))
    }
}

type Buckets = [Bucket; RATES];

#[derive(Debug, Default)]
pub(crate) struct RateUse {
    all: Buckets,
    topics: Vec<(u8, Buckets)>,
}

impl RateUse {
    fn on(&mut self, topic: u8) -> Option<&mut Buckets> {
        if !self.topics.iter().any(|(it, _)| *it == topic) {
            self.topics.push((topic, Buckets::default()));
        }
        self.topics.iter_mut().find(|(it, _)| *it == topic).map(|(_, it)| it)
    }
}

#[derive(Clone, Copy, Debug)]
struct Over {
    what: Limited,
    policy: LimitPolicy,
    wait_ms: Option<u64>,
}

impl Over {
    /// The number of an error reply's response.
    fn response(self) -> u32 {
        let limit = self.what.name();
        let json = match (self.what, self.wait_ms) {
            (Limited::PayloadBytes, _) => return payload::TOO_LARGE,
            (_, None) => format!("{{\"reason\":\"rate_limited\",\"limit\":\"{limit}\"}}"),
            (_, Some(ms)) => format!(
                "{{\"reason\":\"rate_limited\",\"limit\":\"{limit}\",\"retry_after_ms\":{ms}}}"
            ),
        };
        payload::said(json.as_bytes())
    }
}

/// Takes all that is asked for, or nothing of it.
fn take(
    buckets: &mut Buckets,
    quotas: &[Option<Quota>; RATES],
    asked: &[(Limited, u64)],
    now_ns: u64,
) -> Result<(), Over> {
    let mut after = *buckets;
    for &(what, cost) in asked {
        let places = (after.get_mut(what as usize), quotas.get(what as usize));
        let (Some(bucket), Some(Some(quota))) = places else { continue };
        let policy = quota.policy;
        bucket.take(quota, cost, now_ns).map_err(|wait_ms| Over { what, policy, wait_ms })?;
    }
    *buckets = after;
    Ok(())
}

impl Model {
    /// Whether a message is over a limit; then only the consequences of that are due.
    pub(super) fn is_over_a_limit(&mut self, conn: u32, asked: Request, size: Size) -> bool {
        let Some(limits) = self.limits else { return false };
        let Request { kind, topic, join_ref, msg_ref, .. } = asked;
        let joined = self.joined(conn, topic);
        let current = joined.and_then(|it| self.chan(it)).map(|it| it.join_ref);
        let is_meant = joined.is_some() && (join_ref == 0 || current == Some(join_ref));
        let is_event = kind == RequestKind::Event && is_meant;
        let Err(over) = self.charge(conn, asked, is_event, size, &limits) else { return false };
        let closes = over.policy == LimitPolicy::Close;
        if matches!(kind, RequestKind::Heartbeat | RequestKind::Leave) && !closes {
            self.counts.count("heartbeats and leaves that pass although", 1);
            return false;
        }
        self.is_limited(conn, over.what);
        if kind == RequestKind::Join {
            self.refuses(conn);
        }
        self.input = Input::Message(None);
        self.note(|| format!("#{conn}: {kind:?} on {topic} is {over:?}"));
        let is_plain = self.conn(conn).is_some_and(|it| it.wire == Wire::Plain);
        let response = over.response();
        let line = |join_ref| Delivery::reply(join_ref, msg_ref, b'e', response);
        match (over.policy, joined) {
            (LimitPolicy::Close, _) => self.closes_for(conn, over.what),
            (LimitPolicy::Drop, _) => {}
            (LimitPolicy::Reply, _) if is_plain => {}
            (LimitPolicy::Reply, _) if kind == RequestKind::Join => {
                self.expect(conn, topic, line(join_ref), false);
            }
            (LimitPolicy::Reply, None) => self.expect(conn, topic, line(0), false),
            (LimitPolicy::Reply, Some(chan)) if is_meant => {
                self.replies_to(chan, msg_ref, response)
            }
            (LimitPolicy::Reply, Some(_)) => {}
        }
        true
    }

    fn charge(
        &mut self,
        conn: u32,
        asked: Request,
        is_event: bool,
        size: Size,
        limits: &Limits,
    ) -> Result<(), Over> {
        let (now_ns, Request { kind, topic, .. }) = (self.now.ns, asked);
        let has_route = self.topics.is_room(topic);
        let Some(it) = self.conns.get_mut(conn as usize) else { return Ok(()) };
        let messages = [(Limited::Messages, 1), (Limited::Bytes, size.bytes)];
        let join = [(Limited::Joins, 1), (Limited::Messages, 1), (Limited::Bytes, size.bytes)];
        let of_socket = if kind == RequestKind::Join { &join[..] } else { &messages[..] };
        let said = it.said.get_or_insert_default();
        take(&mut said.all, &limits.socket, of_socket, now_ns)?;
        if !has_route {
            return Ok(());
        }
        if let Some((bytes_max, policy)) = limits.payload
            && (is_event || kind == RequestKind::Join)
            && size.payload > bytes_max
        {
            return Err(Over { what: Limited::PayloadBytes, policy, wait_ms: None });
        }
        match said.on(topic).filter(|_| is_event) {
            Some(buckets) => take(buckets, &limits.channel, &messages, now_ns),
            None => Ok(()),
        }
    }

    fn is_limited(&mut self, conn: u32, what: Limited) {
        self.counts.count("over a limit", 1);
        let count = self.shard_of_conn(conn).and_then(|it| it.limited.get_mut(what as usize));
        if let Some(count) = count {
            *count += 1;
        }
    }

    pub(super) fn closes_for(&mut self, conn: u32, what: Limited) {
        self.counts.count("closes for that", 1);
        self.may_close(conn, 1008);
        self.now.closing.push(conn);
        self.conns[conn as usize].over = Some(what);
    }

    /// Removes a handler's presence effects beyond its limits, and adds the consequences.
    pub(super) fn within_limits(&mut self, did: &mut CallbackRecord) {
        let Some(limits) = self.limits else { return };
        let CallbackRecord { chan, conn, call, effects, out, .. } = did;
        let is_handler =
            matches!(call, Call::HandleIn(_) | Call::ShardHandleInfo(_) | Call::Done(_));
        let Some(topic) = self.chan(*chan).map(|it| it.topic).filter(|_| is_handler) else {
            return;
        };
        let has_route = self.topics.is_room(topic);
        let (now_ns, mut last, before) = (self.now.ns, None, effects.len());
        let Some(it) = self.conns.get_mut(*conn as usize) else { return };
        let is_answered = it.wire != Wire::Plain;
        let said = it.said.get_or_insert_default();
        effects.retain(|effect| {
            let Action::Present(
                PresenceAction::Track(..) | PresenceAction::Update(..) | PresenceAction::Ask,
            ) = effect
            else {
                return true;
            };
            let one = [(Limited::PresenceCalls, 1)];
            let mut taken = take(&mut said.all, &limits.socket, &one, now_ns);
            if let Some(buckets) = said.on(topic).filter(|_| taken.is_ok() && has_route) {
                taken = take(buckets, &limits.channel, &one, now_ns);
            }
            taken.map_err(|over| last = Some(over)).is_ok()
        });
        let (Some(over), left_out) = (last, before - effects.len()) else { return };
        match over.policy {
            LimitPolicy::Close => effects.push(Action::Exceed(over.what)),
            LimitPolicy::Reply
                if is_answered && matches!(out, CallbackEnd::Nothing | CallbackEnd::Reply(..)) =>
            {
                *out = CallbackEnd::Reply(b'e', over.response());
            }
            LimitPolicy::Reply | LimitPolicy::Drop => {}
        }
        let (conn, text) = (*conn, format!("channel {chan}, #{conn}: {over:?}"));
        (0..left_out).for_each(|_| self.is_limited(conn, over.what));
        self.note(|| text);
    }

    /// A close frame because of a limit names it, and no other close frame does.
    pub(crate) fn seen_reason(&mut self, conn: u32, reason: &str) {
        let Some(over) = self.conn(conn).map(|it| it.over) else { return };
        let named = Limited::ALL.into_iter().find(|it| match it {
            Limited::PayloadBytes => reason == "payload_too_large",
            it => reason.strip_prefix("rate_limited: ") == Some(it.name()),
        });
        // The socket may have been closed in the same step for another reason, with another code.
        if named.is_some() && named != over {
            self.fail("limit", format!("socket {conn} is closed for {reason}, not {over:?}"));
        }
    }
}

pub(crate) type Counted = [u64; KINDS];

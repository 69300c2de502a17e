//! Limits of what clients send (PROTOCOL §6.7): buckets, each with its content and the time of
//! that, and the consequences of requests over a limit.

use super::*;
pub(crate) use crate::world::app::{LIMITS, Limited, RATES};

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
        let added = passed * u128::from(quota.count);
        let left = self.left.map_or(full, |left| left + added).min(full);
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
pub(super) struct RateUse {
    all: Buckets,
    topics: BTreeMap<u8, Buckets>,
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
            (Limited::PayloadBytes, _) => return payload::reason("payload_too_large"),
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

impl Ledger {
    /// Whether a message is over a limit; then only the consequences of that are due.
    pub(super) fn is_over_a_limit(&mut self, conn: u32, asked: Request, size: Size) -> bool {
        let Request { kind, topic, join_ref, msg_ref, .. } = asked;
        let joined = self.sessions.joined(conn, topic);
        let current = joined.and_then(|chan| self.sessions.chan(chan)).map(|chan| chan.join_ref);
        let is_meant = joined.is_some() && (join_ref == 0 || current == Some(join_ref));
        let is_event = kind == RequestKind::Event && is_meant;
        let Err(over) = self.charge(conn, asked, is_event, size) else { return false };
        let closes = over.policy == LimitPolicy::Close;
        if matches!(kind, RequestKind::Heartbeat | RequestKind::Leave) && !closes {
            self.count("heartbeats and leaves that pass although", 1);
            return false;
        }
        self.is_limited(conn, over.what);
        if kind == RequestKind::Join {
            self.refuses(conn);
        }
        self.note(|| format!("#{conn}: {kind:?} on {topic} is {over:?}"));
        let from = self.line(self.sessions.shard_of(conn), topic).len();
        let response = over.response();
        match (over.policy, joined) {
            (LimitPolicy::Close, _) => self.closes_for(conn, over.what),
            (LimitPolicy::Drop, _) => {}
            (LimitPolicy::Reply, _) if self.is_plain(conn) => {}
            (LimitPolicy::Reply, _) if kind == RequestKind::Join => {
                let line = Delivery::reply(join_ref, msg_ref, b'e', response);
                self.promise(conn, topic, line, from);
            }
            (LimitPolicy::Reply, None) => {
                self.promise(conn, topic, Delivery::reply(0, msg_ref, b'e', response), 0);
            }
            (LimitPolicy::Reply, Some(chan)) if is_meant => {
                self.replies(chan, msg_ref, b'e', response, from);
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
    ) -> Result<(), Over> {
        let Some(limits) = self.plan.app.limits else { return Ok(()) };
        let (now_ns, Request { kind, topic, .. }) = (self.now_ns, asked);
        let has_route = self.plan.topics.is_room(topic);
        let Some(it) = self.sessions.conn_mut(conn) else { return Ok(()) };
        let messages = [(Limited::Messages, 1), (Limited::Bytes, size.bytes)];
        let join = [(Limited::Joins, 1), (Limited::Messages, 1), (Limited::Bytes, size.bytes)];
        let of_socket = if kind == RequestKind::Join { &join[..] } else { &messages[..] };
        let rates = it.rates.get_or_insert_default();
        take(&mut rates.all, &limits.socket, of_socket, now_ns)?;
        if !has_route {
            return Ok(());
        }
        if let Some((bytes_max, policy)) = limits.payload
            && (is_event || kind == RequestKind::Join)
            && size.payload > bytes_max
        {
            return Err(Over { what: Limited::PayloadBytes, policy, wait_ms: None });
        }
        let buckets = rates.topics.entry(topic).or_default();
        if is_event { take(buckets, &limits.channel, &messages, now_ns) } else { Ok(()) }
    }

    fn is_limited(&mut self, conn: u32, what: Limited) {
        self.count("over a limit", 1);
        let shard = self.sessions.shard_of(conn);
        self.sessions.shards[shard].limited[what as usize] += 1;
    }

    pub(super) fn closes_for(&mut self, conn: u32, what: Limited) {
        self.count("closes for that", 1);
        self.sessions.must_close(conn, 1008);
        self.sessions.conns[conn as usize].over = Some(what);
    }

    /// Removes a handler's presence effects beyond its limits, and adds the consequences.
    pub(super) fn within_limits(&mut self, called: &mut Called) {
        let Some(limits) = self.plan.app.limits else { return };
        let Called { chan, conn, call, acts, end, .. } = called;
        if !matches!(call, Call::HandleIn(_) | Call::HandleInfo(_)) {
            return;
        }
        let Some(topic) = self.sessions.chan(*chan).map(|chan| chan.topic) else { return };
        let has_route = self.plan.topics.is_room(topic);
        let (now_ns, mut last, before) = (self.now_ns, None, acts.len());
        let is_answered = !self.is_plain(*conn);
        let Some(it) = self.sessions.conn_mut(*conn) else { return };
        let rates = it.rates.get_or_insert_default();
        acts.retain(|act| {
            if !matches!(act, Act::Track(_) | Act::Update(_) | Act::AskState) {
                return true;
            }
            let one = [(Limited::PresenceCalls, 1)];
            let mut taken = take(&mut rates.all, &limits.socket, &one, now_ns);
            if taken.is_ok() && has_route {
                let buckets = rates.topics.entry(topic).or_default();
                taken = take(buckets, &limits.channel, &one, now_ns);
            }
            taken.map_err(|over| last = Some(over)).is_ok()
        });
        let (Some(over), left_out) = (last, before - acts.len()) else { return };
        match over.policy {
            LimitPolicy::Close => acts.push(Act::Exceed(over.what)),
            LimitPolicy::Reply if is_answered && end.reason.is_none() => {
                end.reply = Some((b'e', over.response()));
            }
            LimitPolicy::Reply | LimitPolicy::Drop => {}
        }
        let conn = *conn;
        (0..left_out).for_each(|_| self.is_limited(conn, over.what));
    }

    /// A close frame because of a limit names it, and no other close frame does.
    pub(super) fn check_close_reason(&mut self, conn: u32, over: Option<Limited>, reason: &str) {
        let named = Limited::ALL.into_iter().find(|limit| match limit {
            Limited::PayloadBytes => reason == "payload_too_large",
            limit => reason.strip_prefix("rate_limited: ") == Some(limit.name()),
        });
        // The socket may have been closed in the same step for another reason, with another code.
        if named.is_some() && named != over {
            self.fail("limit", format!("socket {conn} is closed for {reason}, not {over:?}"));
        }
    }
}

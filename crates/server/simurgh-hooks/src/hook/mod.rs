//! One hook: from a question to its verdict.

mod notify;
mod record;
mod send;
mod state;
mod unanswered;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use ring::hmac;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::record::Record;
use self::state::{Equal, State};
pub use self::unanswered::{Asked, Place, Unanswered};
use crate::answer::{Answer, grant};
use crate::breaker::BreakerState;
use crate::cache::{Granted, Hit};
use crate::client::Client;
use crate::config::{HookConfig, OnFailure};
use crate::figures::HookFigures;
use crate::question::{CacheInputs, Kind, Question};
use crate::request::Template;
use crate::shared::{Shared, lock, ms, unix_ms};
use crate::verdict::{Failure, FailureKind, RETRY_MS, Verdict};

/// One hook. Obtained by [`Hooks::hook`](crate::Hooks::hook).
pub struct Hook {
    config: HookConfig,
    template: Template,
    client: Client,
    shared: Arc<Shared>,
    cache_key: hmac::Key,
    state: Mutex<State>,
    record: Mutex<Record>,
    /// Wakes the thread: something waits, or has left.
    wake: Notify,
    started: Instant,
}

impl Hook {
    /// A hook that is served by [`Hook::serve`], or the mistake in its settings.
    pub(crate) fn new(
        config: HookConfig,
        node: &str,
        shared: &Arc<Shared>,
    ) -> Result<Self, String> {
        Ok(Self {
            template: Template::new(&config, node).map_err(|problem| format!("url: {problem}"))?,
            client: Client::new(&config)?,
            cache_key: shared.cache_key(&config),
            state: Mutex::new(State::new(&config)),
            record: Mutex::default(),
            wake: Notify::new(),
            started: Instant::now(),
            shared: Arc::clone(shared),
            config,
        })
    }

    /// Answers from the cache, or because nothing can be asked now. Never blocks; any thread may
    /// call it.
    pub fn ask(self: &Arc<Self>, mut question: Question) -> Asked {
        let kind = question.kind;
        let asked = SystemTime::now();
        let inputs = question.cache.take().filter(|_| self.config.cache_max.is_some());
        let equal = inputs.map(|inputs| self.equal(kind, *inputs));
        if let Some(equal) = &equal {
            let cached = self.cached(equal, question.client, asked);
            if let Some(verdict) = cached {
                self.record().of(kind).cache_hits += 1;
                return Asked::Now(verdict);
            }
            self.record().of(kind).cache_misses += 1;
        }
        let refused = self.lock().refusal(question.client, 0, self.now_ms());
        match refused {
            Some(kind) => Asked::Now(self.fail(question.kind, equal.as_ref(), kind)),
            None => Asked::Later(Unanswered { hook: Arc::clone(self), question, equal, asked }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its settings.
    pub fn config(&self) -> &HookConfig {
        &self.config
    }

    /// Counts and gauges.
    pub fn figures(&self) -> HookFigures {
        let figures = self.record().figures.clone();
        let cache_bytes = self.shared.cache_bytes();
        let state = self.lock();
        HookFigures {
            in_flight: state.limiter.in_flight(),
            waiting: state.queue.len(),
            limit: state.limiter.limit(),
            breaker: state.breaker.state(),
            cache_bytes,
            ..figures
        }
    }

    /// State of its breaker.
    pub fn state(&self) -> BreakerState {
        self.lock().breaker.state()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }

    fn now_ms(&self) -> u64 {
        ms(self.started.elapsed())
    }

    fn equal(&self, kind: Kind, inputs: CacheInputs) -> Equal {
        let mut mac = hmac::Context::with_key(&self.cache_key);
        mac.update(kind.word().as_bytes());
        for input in &inputs.key {
            mac.update(&input.len().to_le_bytes());
            mac.update(input);
        }
        let key = mac.sign().as_ref().try_into().unwrap_or_default();
        let [user, id] = [inputs.user, inputs.id].map(|name| name.map(String::into_boxed_str));
        Equal { key, user, id, leads: false }
    }

    fn cached(&self, equal: &Equal, client: IpAddr, now: SystemTime) -> Option<Verdict> {
        let hit = self.shared.cache(&equal.key).find(equal.key, client, unix_ms(now))?;
        match hit {
            Hit::Refused(refusal) => Some(Verdict::Refused(refusal)),
            Hit::Granted(granted) if self.shared.voids().is_void(&granted) => None,
            Hit::Granted(granted) => {
                self.answer(&granted).map(|answer| Verdict::Allowed(Arc::new(answer)))
            }
        }
    }

    fn answer(&self, Granted { kind, body, answered_ms, .. }: &Granted) -> Option<Answer> {
        let grant = grant(*kind, body.as_bytes(), answered_ms / 1000, &self.config.limits);
        Some(grant.ok()?.answer)
    }

    /// The answer of an expired grant. Its own end, if past, moves to the end of `stale_for`.
    fn stale_answer(&self, granted: &Granted, now_ms: u64) -> Option<Answer> {
        let mut answer = self.answer(granted)?;
        if let Answer::Connect(connect) = &mut answer
            && let Some(expires_at) = &mut connect.expires_at
            && *expires_at <= now_ms / 1000
        {
            *expires_at = granted.stale_until_ms.div_ceil(1000);
        }
        Some(answer)
    }

    /// The verdict about a question without an answer: an expired grant counts.
    fn fail(&self, asked: Kind, equal: Option<&Equal>, kind: FailureKind) -> Verdict {
        let now_ms = unix_ms(SystemTime::now());
        let key = equal.map(|equal| equal.key);
        let stale = key.and_then(|key| self.shared.cache(&key).find_stale(key, now_ms));
        let stale = stale.filter(|granted| !self.shared.voids().is_void(granted));
        if let Some(answer) = stale.and_then(|granted| self.stale_answer(&granted, now_ms)) {
            self.record().of(asked).stale += 1;
            return Verdict::Allowed(Arc::new(answer));
        }
        self.record().failed(asked, kind);
        let now_ms = self.now_ms();
        let state = self.lock();
        let pause_ms = state.paused_until_ms.saturating_sub(now_ms);
        let wait_ms = state.breaker.wait_ms(now_ms).max(pause_ms);
        let kind = match kind {
            FailureKind::Open if state.breaker.rejects() => FailureKind::Rejected,
            kind => kind,
        };
        let allows = self.config.on_failure == OnFailure::Allow && kind != FailureKind::Rejected;
        Verdict::Failed(Failure { kind, retry_after_ms: wait_ms.max(RETRY_MS), allows })
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("config", &self.config).finish_non_exhaustive()
    }
}

//! The question `refresh`: whether a socket stays open after its grant has expired.
//!
//! Only a socket whose grant expires, and whose hook refreshes, costs something: one entry in an
//! ordered table, which does not own the socket's values.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use simurgh_hooks::{Answer, Asked, ConnectAnswer, Kind, Verdict};
use tokio::sync::Notify;

use super::connect::{patterns, time_until, unix_s};
use super::{Asking, Client, HookSet};
use crate::identity::{HookedSocket, Regrant};
use crate::token::Claims;

/// The time after which a failed question is repeated.
const AGAIN: Duration = Duration::from_secs(5);

/// Brings changes to a connection.
pub type RegrantFn = Box<dyn Fn(&str, Regrant) + Send + Sync>;

/// The sockets whose grants expire, in the order of their questions.
#[derive(Default)]
pub(super) struct Refreshes {
    due: Mutex<Due>,
    wake: Notify,
    pub(super) regrant: OnceLock<RegrantFn>,
}

#[derive(Default)]
struct Due {
    entries: BTreeMap<(Instant, u64), Entry>,
    added: u64,
}

/// A socket whose grant expires.
#[derive(Clone)]
pub(super) struct Entry {
    /// Gone if the socket has closed, or its client has renewed its token.
    pub(super) socket: Weak<HookedSocket>,
    pub(super) id: Option<Box<str>>,
    pub(super) hook: usize,
    pub(super) granted: Duration,
    /// Unix time in seconds.
    pub(super) expires_at: u64,
    /// Seconds that the grant lasts longer if its question fails; 0 once that is used.
    pub(super) stale_for: u64,
}

impl Refreshes {
    /// Asks about this socket at 90 % ± 5 % of its time: sockets that came together do not ask
    /// together.
    pub(super) fn add(&self, entry: Entry) {
        let random = RandomState::new().hash_one(0) % 101;
        let part = 0.85 + 0.001 * random as f64;
        self.add_at(Instant::now() + entry.granted.mul_f64(part), entry);
    }

    fn add_at(&self, at: Instant, entry: Entry) {
        let mut due = self.lock();
        due.added += 1;
        let number = due.added;
        due.entries.insert((at, number), entry);
        drop(due);
        self.wake.notify_one();
    }

    /// The sockets that are due, and when to look again.
    fn take(&self, now: Instant) -> (Vec<Entry>, Option<Instant>) {
        let mut due = self.lock();
        let later = due.entries.split_off(&(now, u64::MAX));
        let taken = std::mem::replace(&mut due.entries, later);
        let next = due.entries.keys().next().map(|(at, _)| *at);
        (taken.into_values().collect(), next)
    }

    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HookSet {
    /// Asks for sockets whose grants end, for as long as the server runs; `regrant` brings the
    /// answers to their shards.
    pub async fn refresh(self: Arc<Self>, regrant: RegrantFn) {
        // It runs once, for this set and those of reloads.
        if self.running.refreshes.regrant.set(regrant).is_err() {
            return;
        }
        loop {
            let (due, next) = self.running.refreshes.take(Instant::now());
            for entry in due {
                let set = Arc::clone(&self);
                tokio::spawn(async move { set.refresh_one(entry).await });
            }
            let woken = self.running.refreshes.wake.notified();
            match next {
                Some(at) => drop(tokio::time::timeout_at(at.into(), woken).await),
                None => woken.await,
            }
        }
    }

    async fn refresh_one(&self, entry: Entry) {
        let Some(socket) = entry.socket.upgrade() else { return };
        let Some(asking) = Asking::of_socket(&socket) else { return };
        let Some(connection) = asking.client.connection.as_deref() else { return };
        let question = asking.question(Kind::Refresh, entry.hook);
        let data = asking.refresh_data(entry.id.as_deref(), entry.expires_at);
        let verdict = match self.ask(entry.hook, question) {
            Asked::Now(verdict) => verdict,
            Asked::Later(question) => question.verdict(data).await,
        };
        let grant = match &verdict {
            Verdict::Allowed(answer) => match &**answer {
                Answer::Connect(answer) if is_same_user(answer, &asking) => {
                    let (socket, entry) = granted_again(&socket, asking.client, answer, entry);
                    let limits = answer.limits.as_deref().map(Into::into);
                    let grant = lasting(time_until(entry.expires_at));
                    self.running.refreshes.add(entry);
                    Regrant { value: Some(socket), limits, ..grant }
                }
                _ => {
                    tracing::warn!("an answer to a refresh names another user: the socket closes");
                    lasting(Duration::ZERO)
                }
            },
            Verdict::Refused(_) => lasting(Duration::ZERO),
            Verdict::Failed(_) => {
                let ends = entry.expires_at.saturating_add(entry.stale_for);
                if unix_s() < ends {
                    let entry = Entry { expires_at: ends, stale_for: 0, ..entry };
                    self.running.refreshes.add_at(Instant::now() + AGAIN, entry);
                }
                lasting(time_until(ends))
            }
        };
        if let Some(regrant) = self.running.refreshes.regrant.get() {
            regrant(connection, grant);
        }
    }
}

fn lasting(time: Duration) -> Regrant {
    Regrant { lifetime: Some(time.into()), ..Regrant::default() }
}

/// An answer without a user means the same one.
fn is_same_user(answer: &ConnectAnswer, asking: &Asking<'_>) -> bool {
    let before = asking.claims.and_then(Claims::subject);
    answer.user.as_deref().is_none_or(|user| before == Some(user))
}

/// The socket's new value. Fields that the answer lacks do not change; the time is granted again.
fn granted_again(
    socket: &HookedSocket,
    client: &Client,
    answer: &ConnectAnswer,
    entry: Entry,
) -> (Arc<HookedSocket>, Entry) {
    let expires_at = answer.expires_at.unwrap_or(unix_s() + entry.granted.as_secs());
    let user =
        socket.claims.as_ref().and_then(|claims| claims.subject()).or(answer.user.as_deref());
    let claims = match (answer.claims.is_empty(), &socket.claims) {
        (true, Some(before)) => Some(Arc::clone(before)),
        (true, None) if user.is_none() => None,
        _ => {
            Some(Arc::new(Claims::granted(user, &answer.claims, Some(unix_s()), Some(expires_at))))
        }
    };
    let topics = match answer.topics.is_empty() {
        true => client.topics.clone(),
        false => patterns(answer),
    };
    let client = Client { topics, ..client.clone() };
    let socket = Arc::new(HookedSocket { claims, asker: Arc::new(client) });
    let entry = Entry {
        socket: Arc::downgrade(&socket),
        granted: Duration::from_secs(expires_at.saturating_sub(unix_s())),
        expires_at,
        stale_for: answer.stale_for,
        ..entry
    };
    (socket, entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seconds: u64) -> Entry {
        let granted = Duration::from_secs(seconds);
        Entry { socket: Weak::new(), id: None, hook: 0, granted, expires_at: 0, stale_for: 0 }
    }

    #[test]
    fn refreshes_are_due_at_90_percent_of_the_granted_time() {
        let refreshes = Refreshes::default();
        let now = Instant::now();
        for _ in 0..100 {
            refreshes.add(entry(1_000));
        }
        assert_eq!(refreshes.take(now + Duration::from_secs(850)).0.len(), 0);
        let (early, next) = refreshes.take(now + Duration::from_secs(900));
        assert!((10..90).contains(&early.len()), "{}", early.len());
        assert!(next.unwrap() > now + Duration::from_secs(900));
        let (late, next) = refreshes.take(now + Duration::from_secs(960));
        assert_eq!((early.len() + late.len(), next), (100, None));
    }
}

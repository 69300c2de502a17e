//! What all parts of a run share, and what a test makes go wrong in it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use simurgh_core::{Config, LimitPolicy, TICK};

use crate::handlers;
use crate::limits::Limits;
use crate::model::home::Rules;
use crate::model::presence::Presence;
use crate::model::{Answer, Intent, Model, Topics};
use crate::profile::Profile;
use crate::ready;
use crate::world::ticks;

/// What a deliberately wrong world gets wrong, to see that it is noticed; `0` the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The transport loses, doubles, or holds back what is said.
    Lose,
    Double,
    Swap,
    /// A mailbox loses a mail, or has it twice.
    LoseMail,
    DoubleMail,
    /// A permit is lost on its way.
    LosePermit,
    /// Bytes are given back that were not.
    Forget,
    /// The census, or the seats, miss one.
    Miscount,
    Seat,
    /// The application does more than it says.
    Lie,
    /// A payload becomes another.
    Garble,
    /// A message is handed in twice.
    Repeat,
    /// A listener misses what it hears.
    Deafen,
    /// The transport hands in a message of a socket that waits.
    Hasten,
    /// An envelope of another node is lost without a word, or comes behind the next.
    LoseEnvelope,
    SwapEnvelopes,
    /// What an engine has kept does not come to its home, or not that something is missing; or
    /// what it has not kept is said to be.
    LoseKept,
    HideGap,
    Promise,
    /// Linked work is not told its end.
    Unlink,
    /// A server that starts again has forgotten what it kept; or believes whatever is proved to it.
    Amnesia,
    Believe,
    /// What presence tells all does not come to a shard; or the home does not hear of something.
    Absent,
    Untold,
    /// Buckets of the core hold one more; a limit drops what it is to answer, or nothing at all.
    Overfill,
    Silence,
    Unlimit,
    /// The core does not hear how long a socket may stay.
    Outstay,
}

/// What all parts of a run share.
#[derive(Debug)]
pub(crate) struct Stage {
    model: Mutex<Model>,
    pub(crate) profile: Profile,
    /// What is being sent with a handle.
    pub(crate) intent: Mutex<Option<(u32, Intent)>>,
    /// What a join that was left to be decided later was just decided to be.
    pub(crate) answer: Mutex<Option<Answer>>,
    /// The work that is being linked.
    pub(crate) linking: Mutex<Option<u32>>,
    /// What is kept with sockets, and not dropped.
    pub(crate) assigned: handlers::Count,
    /// What was made of long messages, and not dropped.
    pub(crate) ready: ready::Count,
    fault: Mutex<Option<(Fault, u32)>>,
}

impl Stage {
    pub(crate) fn new(profile: Profile, fault: Option<(Fault, u32)>) -> Self {
        let bytes_max = profile.config.broadcast_bytes_max();
        let channels_max = usize::from(profile.channels_max);
        let topics = Topics::new(profile.topics, profile.extras.long_names);
        let mut model = Model::new(topics, profile.shards, channels_max, bytes_max);
        let config = &profile.config;
        model.waits_max = [config.decision_timeout, config.close_timeout].map(ticks);
        let count = model.topics.names.len();
        let rules = Rules { config: config.presence.clone(), bytes_max };
        model.presence = Presence::new(rules, count, profile.shards);
        model.limits = profile.limits().copied();
        model.clock.every_ns = sweep_ns(config);
        Self {
            model: Mutex::new(model),
            profile,
            intent: Mutex::default(),
            answer: Mutex::default(),
            linking: Mutex::default(),
            assigned: handlers::Count::default(),
            ready: ready::Count::default(),
            fault: Mutex::new(fault),
        }
    }

    /// The account of everything. Nobody panics while it is held.
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        locked(&self.model)
    }

    /// The limits that the core hears of.
    pub(crate) fn mistaken(&self, mut limits: Limits) -> Limits {
        if self.is_faulty(Fault::Unlimit) {
            return Limits::default();
        }
        let (is_more, is_silent) =
            (self.is_faulty(Fault::Overfill), self.is_faulty(Fault::Silence));
        for quota in limits.socket.iter_mut().chain(&mut limits.channel).flatten() {
            quota.burst += u64::from(is_more);
            if is_silent && quota.policy == LimitPolicy::Reply {
                quota.policy = LimitPolicy::Drop;
            }
        }
        limits
    }

    /// Whether this is to go wrong now.
    #[inline]
    pub(crate) fn is_faulty(&self, what: Fault) -> bool {
        if !cfg!(test) {
            return false;
        }
        let mut fault = locked(&self.fault);
        match &mut *fault {
            Some((it, 0)) if *it == what => {
                *fault = None;
                true
            }
            Some((it, left)) if *it == what => {
                *left -= 1;
                false
            }
            _ => false,
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a server looks whose time is over (PROTOCOL §7.2).
pub(crate) fn sweep_ns(config: &Config) -> u64 {
    let Config { handshake_timeout, close_timeout, decision_timeout, idle_timeout, .. } = config;
    let others = handshake_timeout.min(close_timeout).min(decision_timeout);
    let shortest = idle_timeout.as_ref().unwrap_or(others).min(others);
    (*shortest / 8).clamp(TICK, Duration::from_secs(5)).as_nanos() as u64
}

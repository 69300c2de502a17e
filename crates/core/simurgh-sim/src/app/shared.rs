//! What all parts of a run share, and the planted faults of tests.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::kit::fault::{Fault, Faults};
use crate::kit::setup::{Setup, locked};
use crate::kit::topics::Topics;
use simurgh_core::{ChannelHandle, Config, LimitPolicy, TICK};

use super::Member;
use crate::limits::Limits;
use crate::model::presence::Presence;
use crate::model::{Answer, Intent, Model};
use crate::profile::Profile;

#[derive(Debug)]
pub(crate) struct Shared {
    model: Mutex<Model>,
    pub(crate) profile: Profile,
    pub(crate) intent: Mutex<Option<(u32, Intent)>>,
    /// The latest decision about a join that was left open.
    pub(crate) answer: Mutex<Option<Answer>>,
    handles: Mutex<HashMap<u32, ChannelHandle<Member>>>,
    pub(crate) linking: Mutex<Option<u32>>,
    /// How many values are kept with sockets and not dropped.
    pub(crate) assigned: AtomicI64,
    /// How many values prepared from long messages are not dropped.
    pub(crate) ready: AtomicI64,
    pub(crate) setup: Arc<Setup>,
}

impl Shared {
    pub(crate) fn new(profile: Profile, fault: Option<(Fault, u32)>) -> Self {
        let bytes_max = profile.config.broadcast_bytes_max();
        let channels_max = usize::from(profile.channels_max);
        let topics = Topics::new(profile.topics, profile.features.long_names);
        let setup = Setup {
            config: profile.config.clone(),
            jump_ns: profile.jump_ns,
            topics: topics.clone(),
            faults: Faults::new(fault),
        };
        let mut model = Model::new(topics, profile.shards, channels_max, bytes_max);
        let config = &profile.config;
        model.waits_max = [config.decision_timeout, config.close_timeout].map(ticks);
        let count = model.topics.names.len();
        model.presence = Presence::new(config.presence.clone(), bytes_max, count);
        model.limits = profile.limits().copied();
        model.clock.every_ns = sweep_ns(config);
        Self {
            model: Mutex::new(model),
            profile,
            intent: Mutex::default(),
            answer: Mutex::default(),
            handles: Mutex::default(),
            linking: Mutex::default(),
            assigned: AtomicI64::default(),
            ready: AtomicI64::default(),
            setup: Arc::new(setup),
        }
    }

    /// Locks the model. No code panics while it holds this lock.
    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        locked(&self.model)
    }

    pub(super) fn keep(&self, chan: u32, handle: ChannelHandle<Member>) {
        locked(&self.handles).insert(chan, handle);
    }

    pub(crate) fn handle(&self, chan: u32) -> Option<ChannelHandle<Member>> {
        locked(&self.handles).get(&chan).cloned()
    }

    pub(crate) fn forget(&self, chan: u32) {
        let handle = locked(&self.handles).remove(&chan);
        drop(handle);
    }

    pub(crate) fn forget_all(&self) {
        let handles = std::mem::take(&mut *locked(&self.handles));
        drop(handles);
    }

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

    #[inline]
    pub(crate) fn is_faulty(&self, what: Fault) -> bool {
        self.setup.faults.happens(what)
    }
}

/// How often a server looks for ended lifetimes (PROTOCOL §7.2).
pub(crate) fn sweep_ns(config: &Config) -> u64 {
    let Config { handshake_timeout, close_timeout, decision_timeout, idle_timeout, .. } = config;
    let others = handshake_timeout.min(close_timeout).min(decision_timeout);
    let shortest = idle_timeout.as_ref().unwrap_or(others).min(others);
    (*shortest / 8).clamp(TICK, Duration::from_secs(5)).as_nanos() as u64
}

pub(crate) fn ticks(time: Duration) -> u32 {
    (time.as_nanos() / TICK.as_nanos()) as u32
}

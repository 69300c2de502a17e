//! A world whose topics are kept (docs/HISTORY.md): clients leave, drop and come back, and have
//! heard everything once, in the order in which it was stored, or were told that this is
//! impossible.
//!
//! It has an account of its own. The one in [`model`](crate::model) has each broadcast in the line
//! of its members as soon as a shard takes it, and what a callback does take place at once: where
//! broadcasts are kept, neither is so. Transport and payloads are those of the other world.

mod account;
mod app;
mod client;
mod node;
mod rest;
mod restart;
#[cfg(test)]
mod tests;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fastrand::Rng;
use simurgh_core::{HistoryConfig, HistoryRule, ReplayLimits};

pub(crate) use self::account::Tally;
use self::world::World;
use crate::extras::Extras;
use crate::model::{Failure, NONE};
use crate::profile::Profile;
use crate::run::Era;
use crate::shrink::fewest;
use crate::stage::Fault;

/// All that a seed decides before the first operation.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) shards: usize,
    pub(crate) clients: usize,
    pub(crate) topics: usize,
    pub(crate) rule: HistoryRule,
    pub(crate) limits: HistoryConfig,
    mailbox_bytes_max: usize,
    pub(crate) window: usize,
    jump_ns: u32,
    pub(crate) pad: usize,
    pub(crate) has_binary: bool,
    /// Times pass that are longer than a channel waits for its broadcasts to be kept.
    pub(crate) waits_long: bool,
    /// Clients say what has arrived while they had left.
    pub(crate) says_seen: bool,
    /// And do not join again before they are told what they have missed.
    pub(crate) is_calm: bool,
    /// Of 256 clients, how many have an id, opt in, intercept.
    habits: [u8; 3],
    pub(crate) fault: Option<(Fault, u32)>,
    leaves: bool,
    purges: bool,
    /// Clients say what is no such thing as what they have heard.
    pub(crate) says_bad: bool,
    /// And a key that is not theirs, or none.
    pub(crate) forges: bool,
    /// The server drains and starts again.
    restarts: bool,
}

impl Plan {
    /// What a seed makes.
    pub(crate) fn of(seed: u64) -> Self {
        let mut plan = Self::early(seed);
        let mut rng = Rng::with_seed(seed ^ 0x4d_4f_52_45);
        if rng.bool() {
            plan.rule.only_own = rng.u8(..) < 90;
            (plan.says_bad, plan.forges) = (rng.bool(), rng.bool());
            plan.restarts = rng.bool();
        }
        if rng.u8(..) < 100 {
            plan.limits.portion = ReplayLimits {
                count: rng.usize(1..=4),
                bytes: if rng.bool() { 300 } else { 64 << 10 },
            };
        }
        plan
    }

    /// The same without what came to the simulator later.
    pub(crate) fn early(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x4b_45_50_54);
        let rule = HistoryRule {
            count: [2, 5, 30, 1000][rng.usize(..4)],
            bytes: [1_000, 5_000, 1 << 20][rng.usize(..3)],
            age: [Duration::from_secs(2), Duration::from_secs(300)][rng.usize(..2)],
            only_own: false,
        };
        let limits = HistoryConfig {
            bytes_max: if rng.u8(..) < 60 { 3_000 } else { 256 << 20 },
            replay_count: if rng.u8(..) < 60 { 4 } else { 1000 },
            replay_bytes: if rng.u8(..) < 60 { 900 } else { 1 << 20 },
            ..HistoryConfig::default()
        };
        Self {
            seed,
            shards: rng.usize(1..=4),
            clients: rng.usize(1..=6),
            topics: rng.usize(1..=4),
            rule,
            limits,
            mailbox_bytes_max: if rng.u8(..) < 40 { 8_000 } else { 16 << 20 },
            window: [1 << 20, 4_000, 300][rng.usize(..3)],
            jump_ns: [50, 5_000, 300_000][rng.usize(..3)],
            pad: [0, 200, 3_000][rng.usize(..3)],
            has_binary: rng.bool(),
            waits_long: rng.u8(..) < 60,
            says_seen: rng.bool(),
            is_calm: rng.bool(),
            habits: [[0, 128, 255][rng.usize(..3)], 200, [0, 0, 90][rng.usize(..3)]],
            fault: None,
            leaves: rng.bool(),
            purges: rng.u8(..) < 40,
            says_bad: false,
            forges: false,
            restarts: false,
        }
    }

    /// What the transport and the core are to be like.
    pub(crate) fn profile(&self) -> Profile {
        let mut it = Profile::early(self.seed);
        (it.shards, it.window, it.jump_ns) = (self.shards, self.window, self.jump_ns);
        it.extras = Extras::default();
        it.config.idle_timeout = None;
        it.config.hibernate_after = None;
        it.config.outbound_bytes_max = 24 << 20;
        it.config.slow_after = Duration::from_secs(1_000);
        it.config.mailbox_bytes_max = self.mailbox_bytes_max;
        it.config.history = self.limits.clone();
        it
    }

    pub(crate) fn topic(&self, number: u8) -> String {
        format!("rooms:{number}")
    }

    pub(crate) fn topic_of(&self, name: &str) -> Option<usize> {
        name.strip_prefix("rooms:")?.parse().ok()
    }

    /// A client's id, whether it opts in, and whether its channels intercept.
    pub(crate) fn client(&self, number: u32) -> (u32, bool, bool) {
        let mut rng = Rng::with_seed(self.seed.rotate_left(17) ^ u64::from(number));
        let [has_id, opts_in, intercepts] = self.habits.map(|it| rng.u8(..) < it);
        let id = if has_id && opts_in { number } else { NONE };
        (id, opts_in, intercepts)
    }
}

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A client connects.
    Connect,
    /// It joins topic `b`, for the first time or again.
    Join,
    Push,
    Leave,
    /// Some of its messages are read.
    Read,
    /// It takes what has come.
    Take,
    /// Shard `a` takes mail.
    Mail,
    /// It comes to the end of its turn.
    Turn,
    /// A join is decided.
    Decide,
    /// A client is gone.
    Vanish,
    /// A shard hears of that.
    Notice,
    /// Somebody outside broadcasts.
    Publish,
    /// A handle does.
    Speak,
    /// Somebody has a topic forgotten.
    Purge,
    /// Time passes.
    Wait,
    /// Everything comes to rest, and is looked at.
    Rest,
    /// The server drains, ends and starts again; mostly with what it has saved.
    Restart,
}

const WEIGHTS: [(What, u32); 17] = [
    (What::Connect, 40),
    (What::Join, 70),
    (What::Push, 120),
    (What::Leave, 20),
    (What::Read, 200),
    (What::Take, 120),
    (What::Mail, 200),
    (What::Turn, 120),
    (What::Decide, 40),
    (What::Vanish, 12),
    (What::Notice, 10),
    (What::Publish, 30),
    (What::Speak, 15),
    (What::Purge, 4),
    (What::Wait, 20),
    (What::Rest, 3),
    (What::Restart, 4),
];

/// One operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) a: u16,
    pub(crate) b: u16,
    pub(crate) c: u32,
}

/// The operations of a seed.
pub(crate) fn operations(plan: &Plan, count: usize) -> Vec<Op> {
    let mut rng = Rng::with_seed(plan.seed);
    let is_on = |what: What| match what {
        What::Leave => plan.leaves,
        What::Purge => plan.purges,
        What::Restart => plan.restarts,
        _ => true,
    };
    let weights: Vec<_> = WEIGHTS.into_iter().filter(|(what, _)| is_on(*what)).collect();
    let all: u32 = weights.iter().map(|(_, weight)| weight).sum();
    let draw = |_| {
        let mut at = rng.u32(..all);
        let found = weights.iter().find(|(_, weight)| match at.checked_sub(*weight) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        });
        let what = found.map_or(What::Turn, |(what, _)| *what);
        Op { what, a: rng.u16(..), b: rng.u16(..), c: rng.u32(..) }
    };
    (0..count).map(draw).collect()
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    pub(crate) tally: Tally,
    /// What happened, if somebody wanted to know.
    pub(crate) log: Vec<String>,
}

/// Runs operations, and has everybody go.
pub(crate) fn run(plan: &Plan, ops: &[Op], is_told: bool) -> Outcome {
    let run = || {
        let mut world = World::new(plan);
        world.shared.account().log = is_told.then(Vec::new);
        for op in ops {
            if world.has_failed() {
                break;
            }
            if is_told {
                let text = format!("{op:?}");
                world.shared.account().note(|| text);
            }
            world.run(*op);
        }
        world.ends();
        let mut account = world.shared.account();
        // They know the node, which knows them.
        account.handles.clear();
        let (failure, tally) = (account.failure.clone(), account.tally.clone());
        Outcome { failure, tally, log: account.log.take().unwrap_or_default() }
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        let text = text.unwrap_or_else(|| "of another kind".to_owned());
        let failure = Some(Failure { rule: "panic", text, step: 0 });
        Outcome { failure, tally: Tally::default(), log: Vec::new() }
    })
}

/// Runs seeds, each with as many operations; prints what was met, and the story of the first that
/// fails. Whether none did.
pub(crate) fn run_seeds(seeds: impl Iterator<Item = (u64, u64, Era)>) -> bool {
    let (mut count, mut all) = (0_u64, Tally::default());
    for (seed, steps, era) in seeds {
        let plan = if era == Era::Early { Plan::early(seed) } else { Plan::of(seed) };
        let ops = operations(&plan, usize::try_from(steps).unwrap_or(usize::MAX));
        let outcome = run(&plan, &ops, false);
        if let Some(failure) = outcome.failure {
            let at = format!("step {} of {steps}", failure.step);
            println!("FAILED: history, seed {seed}, {at}: {}", failure.rule);
            println!("  {}", failure.text);
            println!("  cargo xtask sim --history --seed {seed} --steps {steps}");
            let fails = |ops: &[Op]| {
                run(&plan, ops, false).failure.is_some_and(|it| it.rule == failure.rule)
            };
            let ops = fewest(ops, 6_000, fails);
            println!("shrunk to {} operations, of {plan:?}", ops.len());
            let told = run(&plan, &ops, true);
            told.log.iter().for_each(|line| println!("  {line}"));
            println!("{:?}", told.failure);
            return false;
        }
        count += 1;
        all.add(&outcome.tally);
    }
    println!("{count} seeds with histories: {all}");
    true
}

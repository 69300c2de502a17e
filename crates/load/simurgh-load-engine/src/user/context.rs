//! State shared by the users of one worker.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use simurgh_load_record::Names;
use simurgh_load_scenario::answer::PatternCache;
use simurgh_load_scenario::{Dump, Follow};

use super::deliveries::Followed;
use super::presence::LastDiff;
use super::values::Values;
use crate::program::Program;
use crate::shared::Shared;
use crate::spread::ServerSpread;
use crate::stamp::Stamps;

pub(crate) struct Context {
    pub(crate) values: Values,
    pub(crate) spread: ServerSpread,
    /// The stamped messages that users got, if they are followed.
    pub(super) followed: Followed,
    pub(super) stamps: Stamps,
    pub(super) last_diff: LastDiff,
    pub(super) patterns: PatternCache,
    pub(super) names: Names,
    pub(super) dump: Dump,
    pub(super) thread: u16,
    /// When the run began; pauses move it.
    pub(crate) started_ns: u64,
    /// Buffers for rendering and encoding, reused.
    pub(super) rendered: Vec<u8>,
    pub(super) message: Vec<u8>,
}

impl Context {
    /// For worker `index`, in thread `thread` of its host, in the run with number `run` in stamps.
    /// `unix_zero`: the time of day at 0 of the worker's clock.
    pub(crate) fn new(
        program: &Rc<Program>,
        shared: Arc<Shared>,
        run: u32,
        (index, thread): (u64, u16),
        unix_zero: Duration,
    ) -> Self {
        let scenario = &program.scenario;
        Self {
            values: Values {
                program: Rc::clone(program),
                shared,
                seed: scenario.seed,
                run,
                stamps: 0,
                goes_to: None,
                numbered: None,
                unnumbered: 0,
                undefined: 0,
                now_ns: 0,
                clock_offset_ns: 0,
                unix_zero,
            },
            spread: ServerSpread::new(scenario.spread, &scenario.targets, scenario.seed, index),
            followed: Followed::new(scenario.follow_stamps() == Follow::Exactly),
            stamps: Stamps::new(run),
            last_diff: LastDiff::default(),
            patterns: PatternCache::default(),
            names: Names::of(scenario),
            dump: scenario.tsung.as_ref().map_or(Dump::Off, |tsung| tsung.dump),
            thread,
            started_ns: 0,
            rendered: Vec::new(),
            message: Vec::new(),
        }
    }
}

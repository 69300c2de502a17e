//! The storm at the end of a road: all clients vanish at once, then all come back at once.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use simurgh_load::record::{Count, Metric};

use super::machine::Machine;
use super::measure::Walkers;
use super::plan::BYSTANDERS;
use super::processes::Load;
use super::ticks::{Stretch, Ticks};

/// How often the server is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the kernel may take to end a process with millions of sockets.
const VANISH_TIMEOUT: Duration = Duration::from_secs(300);
/// How long memory may take to be free after that.
const FREE_WITHIN: Duration = Duration::from_secs(10);
/// How long all may take to come back.
const BACK_TIMEOUT: Duration = Duration::from_secs(900);

/// What a storm has shown.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Storm {
    /// Members that vanished.
    pub(super) vanished: u64,
    /// Seconds until the server had noticed the last of them.
    pub(super) noticed_s: f64,
    /// Of what the server's memory had grown by, the part that was still there 10 s later.
    pub(super) memory_left: f64,
    /// The same of the kernel's records.
    pub(super) slab_left: f64,
    /// Sockets of the machine that were still there then, less those from before the road: below
    /// zero if others, such as those of a road just before, were still closing at its start.
    pub(super) sockets_left: i64,
    /// The slowest heartbeat of those who stood by, µs.
    pub(super) heartbeat_max_us: u64,
    /// How late they themselves began one at most, which is part of its time, µs: what the cores
    /// are short of, and no fault of the server's.
    pub(super) heartbeat_lag_max_us: u64,
    /// Heartbeats of those who stood by that failed.
    pub(super) heartbeats_failed: u64,
    /// Seconds until all had joined again.
    pub(super) back_s: f64,
    /// Connections that were tried in vain meanwhile, each tried again.
    pub(super) tries_in_vain: u64,
    /// The slowest heartbeat while they came back, µs.
    pub(super) back_heartbeat_max_us: u64,
    /// How late one began at most, µs.
    pub(super) back_heartbeat_lag_max_us: u64,
    /// Members that had joined when something was said to all in the middle of it.
    pub(super) members_then: u64,
    /// How many heard it: all of those, and some who came meanwhile.
    pub(super) receivers: u64,
}

impl Walkers {
    /// Has all members vanish and come back; everybody must be there.
    pub(super) fn storm(&mut self, members: u64, dashboard: &str) -> Result<Storm, String> {
        let mut seen = Storm { vanished: members, ..Storm::default() };
        self.vanish(&mut seen)?;
        self.come_back(members, dashboard, &mut seen)?;
        Ok(seen)
    }

    fn vanish(&mut self, seen: &mut Storm) -> Result<(), String> {
        let full = (self.nodes.resident()?, Machine::now()?.slab);
        self.bystander_ticks.new_ones()?;
        let begun = Instant::now();
        self.crowd.kill();
        // While all cores are busy with what the kernel does to end a process with millions of
        // sockets, the answer may be late.
        let left = || self.nodes.metrics().map_or(u64::MAX, |it| it.count("simurgh_sockets"));
        while left() > BYSTANDERS {
            if begun.elapsed() > VANISH_TIMEOUT {
                return Err("the server has not noticed that its clients are gone".to_owned());
            }
            thread::sleep(POLL_INTERVAL);
        }
        seen.noticed_s = begun.elapsed().as_secs_f64();
        let noticed = Instant::now();
        loop {
            thread::sleep(POLL_INTERVAL);
            let now = Machine::now()?;
            let left = |now: u64, start: u64, full: u64| {
                (now as f64 - start as f64) / full.saturating_sub(start).max(1) as f64
            };
            let resident = self.nodes.resident()?;
            seen.memory_left = left(resident, self.start.server, full.0);
            seen.slab_left = left(now.slab, self.start.machine.slab, full.1);
            seen.sockets_left =
                now.sockets.cast_signed() - self.start.machine.sockets.cast_signed();
            let is_free =
                seen.memory_left <= 0.05 && seen.slab_left <= 0.1 && seen.sockets_left <= 0;
            if is_free || noticed.elapsed() >= FREE_WITHIN {
                break;
            }
        }
        let beats = self.heartbeats()?;
        seen.heartbeat_max_us = beats.times(Metric::Push).max();
        seen.heartbeat_lag_max_us = beats.times(Metric::StepLag).max();
        seen.heartbeats_failed = beats.errors();
        Ok(())
    }

    fn come_back(&mut self, members: u64, dashboard: &str, seen: &mut Storm) -> Result<(), String> {
        let scenario = self.plan.at_once(members);
        let dir = self.crowd.dir.with_file_name("crowd-again");
        self.crowd = Load::start("crowd", &scenario, dir, dashboard)?;
        self.crowd_ticks = Ticks::of(&self.crowd.dir);
        self.joined = 0;
        let begun = Instant::now();
        let mut stretch = Stretch::default();
        let mut told = false;
        // The one who speaks joins a second channel.
        while self.joined < members + 1 {
            thread::sleep(POLL_INTERVAL / 5);
            self.nodes.must_run()?;
            self.crowd.must_run()?;
            self.hear(&mut stretch)?;
            if !told && self.joined >= members / 2 {
                told = true;
                seen.members_then = self.joined - 1;
                self.cue()?;
            }
            if begun.elapsed() > BACK_TIMEOUT {
                return Err(format!("{} of {members} have come back", self.joined));
            }
        }
        seen.back_s = begun.elapsed().as_secs_f64();
        let broadcast = loop {
            if let Some(broadcast) = stretch.broadcast(0) {
                break broadcast;
            }
            thread::sleep(POLL_INTERVAL);
            self.crowd.must_run()?;
            self.hear(&mut stretch)?;
            if begun.elapsed() > BACK_TIMEOUT {
                return Err("what was said in the storm did not come to its end".to_owned());
            }
        };
        seen.receivers = u64::from(broadcast.receivers);
        seen.tries_in_vain = stretch.errors();
        let beats = self.heartbeats()?;
        seen.back_heartbeat_max_us = beats.times(Metric::Push).max();
        seen.back_heartbeat_lag_max_us = beats.times(Metric::StepLag).max();
        seen.heartbeats_failed += beats.errors();
        if stretch.count(Count::DeliveriesDuplicate) > 0 {
            return Err("somebody heard twice what was said in the storm".to_owned());
        }
        self.count_all(members)
    }

    /// The heartbeats of those who stand by since the last look.
    fn heartbeats(&mut self) -> Result<Stretch, String> {
        // The last second is closed a little after its end.
        thread::sleep(Duration::from_millis(1300));
        self.bystanders.must_run()?;
        let mut beats = Stretch::default();
        beats.add(self.bystander_ticks.new_ones()?);
        Ok(beats)
    }
}

//! At the end of a test all clients vanish at once, then all reconnect at once.

use std::thread;
use std::time::{Duration, Instant};

use simurgh_load::record::{Count, Metric};

use super::journal::{Interval, JournalReader};
use super::processes::{Load, wait_until};
use super::results::ReconnectResult;
use super::run::CapacityTest;
use super::scenarios::PROBES;
use super::usage::Usage;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the kernel may take to end a process with millions of sockets.
const VANISH_TIMEOUT: Duration = Duration::from_secs(300);
/// How long memory may take to be freed after that.
const FREE_WITHIN: Duration = Duration::from_secs(10);
const BACK_TIMEOUT: Duration = Duration::from_secs(900);

impl CapacityTest {
    /// Fails unless all members are back.
    pub(super) fn reconnect_all(&mut self, dashboard: &str) -> Result<ReconnectResult, String> {
        let mut seen = ReconnectResult { vanished: self.members, ..ReconnectResult::default() };
        self.vanish(&mut seen)?;
        self.come_back(dashboard, &mut seen)?;
        Ok(seen)
    }

    fn vanish(&mut self, seen: &mut ReconnectResult) -> Result<(), String> {
        let sum = |each: Vec<u64>| each.into_iter().sum::<u64>();
        let full = (sum(self.servers.resident_each()?), Usage::now()?.slab);
        self.probes_journal.read()?;
        let begun = Instant::now();
        if self.workload.tun {
            // The kernel closes no connection without a socket: the clients reset them, as below.
            self.clients.run_last();
            self.clients.stop(VANISH_TIMEOUT)?;
        } else {
            self.clients.kill();
        }
        // A request may fail while the kernel keeps all cores busy with closing sockets.
        let left = || self.servers.metrics().map_or(u64::MAX, |it| it.count("simurgh_sockets"));
        let late = "the server did not notice that its clients disconnected";
        wait_until(|| Ok(left() <= PROBES), VANISH_TIMEOUT, POLL_INTERVAL, late)?;
        seen.noticed_s = begun.elapsed().as_secs_f64();
        let noticed = Instant::now();
        loop {
            thread::sleep(POLL_INTERVAL);
            let now = Usage::now()?;
            let left = |now: u64, start: u64, full: u64| {
                (now as f64 - start as f64) / full.saturating_sub(start).max(1) as f64
            };
            let resident = sum(self.servers.resident_each()?);
            seen.memory_left = left(resident, self.baseline.servers.iter().sum(), full.0);
            seen.slab_left = left(now.slab, self.baseline.machine.slab, full.1);
            seen.sockets_left =
                now.sockets.cast_signed() - self.baseline.machine.sockets.cast_signed();
            let is_free =
                seen.memory_left <= 0.05 && seen.slab_left <= 0.1 && seen.sockets_left <= 0;
            if is_free || noticed.elapsed() >= FREE_WITHIN {
                break;
            }
        }
        let beats = self.probe_heartbeats()?;
        seen.heartbeat_max_us = beats.times(Metric::Push).max();
        seen.heartbeat_lag_max_us = beats.times(Metric::StepLag).max();
        seen.heartbeats_failed = beats.errors();
        Ok(())
    }

    fn come_back(&mut self, dashboard: &str, seen: &mut ReconnectResult) -> Result<(), String> {
        let members = self.members;
        let scenario = self.workload.at_once(members);
        let dir = self.clients.dir.with_file_name("crowd-again");
        self.clients = Load::crowd(&self.workload, &scenario, dir, dashboard)?;
        self.clients_journal = JournalReader::new(&self.clients.dir);
        self.joined = 0;
        let begun = Instant::now();
        let mut interval = Interval::default();
        let mut is_asked = false;
        // The speaker joins a second channel.
        while self.joined < members + 1 {
            self.poll(&mut interval)?;
            if !is_asked && self.joined >= members / 2 {
                is_asked = true;
                seen.members_then = self.joined - 1;
                self.ask_speaker()?;
            }
            if begun.elapsed() > BACK_TIMEOUT {
                return Err(format!("only {} of {members} clients reconnected", self.joined));
            }
        }
        seen.back_s = begun.elapsed().as_secs_f64();
        let broadcast = loop {
            if let Some(broadcast) = interval.broadcast(0) {
                break broadcast;
            }
            self.poll(&mut interval)?;
            if begun.elapsed() > BACK_TIMEOUT {
                return Err("the broadcast during the reconnect did not finish".to_owned());
            }
        };
        seen.receivers = u64::from(broadcast.receivers);
        seen.tries_in_vain = interval.errors();
        let beats = self.probe_heartbeats()?;
        seen.back_heartbeat_max_us = beats.times(Metric::Push).max();
        seen.back_heartbeat_lag_max_us = beats.times(Metric::StepLag).max();
        seen.heartbeats_failed += beats.errors();
        if interval.count(Count::DeliveriesDuplicate) > 0 {
            return Err("a client received the broadcast during the reconnect twice".to_owned());
        }
        self.check_counts(members)
    }

    /// The heartbeats of the probes since the last call.
    fn probe_heartbeats(&mut self) -> Result<Interval, String> {
        // The last second is closed a little after its end.
        thread::sleep(Duration::from_millis(1300));
        self.probes.process.must_run()?;
        Ok(Interval { ticks: self.probes_journal.read()? })
    }
}

//! The climb from one milestone to the next and its measurements, and heartbeats of all members.

use std::thread;
use std::time::{Duration, Instant};

use simurgh_load::record::Metric;

use super::journal::Interval;
use super::results::{HeartbeatResult, Milestone, NodeMemory};
use super::run::{CapacityTest, us_each};
use super::scenarios::{LOBBY, START_HEARTBEATS};
use super::usage::{self, Usage};

/// A climb without a join for this long is given up.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Rest before memory is read.
const REST: Duration = Duration::from_secs(3);

impl CapacityTest {
    /// Lets members join until there are `to`, and measures; `progress` gets the number that
    /// joined.
    pub(super) fn climb(
        &mut self,
        to: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Milestone, String> {
        let mut seen = Milestone { members: to, came: to - self.members, ..Default::default() };
        let before = self.cpu_ns()?;
        let mut interval = Interval::default();
        for to in self.workload.steps(self.members.max(1), to) {
            self.clients.command("resume")?;
            let took = self.wait_for_members(to, &mut interval, progress)?;
            seen.climb_s += took.as_secs_f64();
        }
        let after = self.cpu_ns()?;
        seen.joins_per_s = seen.came as f64 / seen.climb_s;
        seen.server_us_per_join = us_each(after.0 - before.0, seen.came);
        seen.client_us_per_join = us_each(after.1 - before.1, seen.came);
        seen.join = interval.times(Metric::Join).stats();
        self.members = to;
        thread::sleep(REST);
        self.check_counts(to)?;
        self.measure_memory(&mut seen)?;
        seen.broadcast = self.broadcast_to_all()?;
        Ok(seen)
    }

    /// Returns the time from the first join to the last.
    fn wait_for_members(
        &mut self,
        to: u64,
        interval: &mut Interval,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Duration, String> {
        let (mut first, mut last) = (None, Instant::now());
        // The speaker has joined a second channel.
        while self.joined < to + 1 {
            let before = self.joined;
            self.poll(interval)?;
            if self.joined > before {
                last = Instant::now();
                // The second that was just closed is part of the climb.
                first.get_or_insert(last - Duration::from_secs(1));
                progress(self.joined);
            }
            if last.elapsed() > WAIT_MAX {
                return Err(format!(
                    "only {} of {to} clients joined, none in the last {WAIT_MAX:?}; errors: {} {}",
                    self.joined,
                    interval.errors(),
                    interval.details().join("; ")
                ));
            }
        }
        Ok(last.duration_since(first.unwrap_or(last)).max(Duration::from_millis(100)))
    }

    fn measure_memory(&self, seen: &mut Milestone) -> Result<(), String> {
        let (now, baseline) = (Usage::now()?, &self.baseline);
        let rise = |now: u64, before: u64| now.saturating_sub(before) as f64 / seen.members as f64;
        let each = self.servers.resident_each()?;
        seen.server_bytes = rise(each.iter().sum(), baseline.servers.iter().sum());
        seen.engine_memory = self.servers.engine()?.map(|(_, bytes)| bytes);
        seen.client_bytes = rise(usage::resident(self.clients.process.pid())?, baseline.clients);
        let sockets = if self.workload.tun { 1.0 } else { 2.0 };
        seen.kernel_bytes = rise(now.slab, baseline.machine.slab) / sockets;
        seen.memory_available = now.available;
        if each.len() > 1 {
            let memory = each.iter().zip(&baseline.servers);
            let nodes = self.servers.metrics_each()?.into_iter().zip(memory);
            let node = nodes.map(|(metrics, (now, before))| {
                let sockets = metrics.count("simurgh_sockets");
                let bytes = now.saturating_sub(*before) as f64 / sockets.max(1) as f64;
                NodeMemory { sockets, bytes }
            });
            seen.nodes = node.collect();
        }
        Ok(())
    }

    /// Each member sends a heartbeat at this interval; the measurement takes twice that time.
    pub(super) fn measure_heartbeats(
        &mut self,
        every: Duration,
    ) -> Result<HeartbeatResult, String> {
        self.read_journal(&mut Interval::default())?;
        let payload = format!("{{\"body\":\"{START_HEARTBEATS}\"}}");
        self.servers.broadcast(LOBBY, "new:msg", &payload)?;
        let senders = self.members.saturating_sub(1);
        let mut begun = Interval::default();
        let until = self.deadline(every * 2);
        while begun.times(Metric::Push).count() < senders {
            self.poll(&mut begun)?;
            if Instant::now() > until {
                let sent = begun.times(Metric::Push).count();
                return Err(format!("only {sent} of {senders} clients have sent a heartbeat"));
            }
        }
        let (mut measured, from) = (Interval::default(), Instant::now());
        let before = self.cpu_ns()?;
        while from.elapsed() < every * 2 {
            self.poll(&mut measured)?;
        }
        let after = self.cpu_ns()?;
        let (seconds, times) = (from.elapsed().as_secs_f64(), measured.times(Metric::Push));
        let answered = times.count();
        Ok(HeartbeatResult {
            every_s: every.as_secs_f64(),
            senders,
            answered,
            per_s: answered as f64 / seconds,
            server_us: us_each(after.0 - before.0, answered),
            client_us: us_each(after.1 - before.1, answered),
            failed: measured.errors(),
            times: times.stats(),
        })
    }
}

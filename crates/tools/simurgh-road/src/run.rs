//! The state of a test: its processes, usage before it began, and the clients' journal.

use std::thread;
use std::time::{Duration, Instant};

use simurgh_load::record::Count;

use super::journal::{Interval, JournalReader};
use super::processes::Load;
use super::scenarios::{CONTROL_TOPIC, PROBES, START_BROADCAST, Workload};
use super::servers::Servers;
use super::usage::{self, Usage};

const STOP_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time of a broadcast for each member, in addition to a minute.
const PER_MEMBER: Duration = Duration::from_micros(50);

pub(super) struct CapacityTest {
    pub(super) servers: Servers,
    /// The scenario of the clients, to start them again.
    pub(super) workload: Workload,
    pub(super) clients: Load,
    pub(super) probes: Load,
    pub(super) clients_journal: JournalReader,
    pub(super) probes_journal: JournalReader,
    pub(super) baseline: Baseline,
    /// Members so far.
    pub(super) members: u64,
    pub(super) broadcasts: u32,
    /// Joins that were answered.
    pub(super) joined: u64,
    /// Connections over time: seconds since the clients' start, number.
    pub(super) users: Vec<(f64, u64)>,
}

/// Memory before the first client joined, bytes.
pub(super) struct Baseline {
    pub(super) servers: Vec<u64>,
    pub(super) clients: u64,
    pub(super) machine: Usage,
}

impl CapacityTest {
    /// Called with running processes, before the first client has joined.
    pub(super) fn new(
        workload: Workload,
        servers: Servers,
        clients: Load,
        probes: Load,
    ) -> Result<Self, String> {
        Ok(Self {
            baseline: Baseline {
                servers: servers.resident_each()?,
                clients: usage::resident(clients.process.pid())?,
                machine: Usage::now()?,
            },
            servers,
            workload,
            clients_journal: JournalReader::new(&clients.dir),
            probes_journal: JournalReader::new(&probes.dir),
            clients,
            probes,
            members: 0,
            broadcasts: 0,
            joined: 0,
            users: Vec::new(),
        })
    }

    /// The machine's memory that one more connection takes, both ends, from those that exist.
    pub(super) fn bytes_per_connection(&self) -> Result<Option<f64>, String> {
        let used = self.baseline.machine.available.saturating_sub(Usage::now()?.available);
        // With few members, memory that is allocated once would be most of it.
        Ok((self.members >= 10_000).then(|| used as f64 / self.members as f64))
    }

    /// Waits a little, and reads the clients' journal; fails if a server or the clients have ended.
    pub(super) fn poll(&mut self, interval: &mut Interval) -> Result<(), String> {
        thread::sleep(POLL_INTERVAL);
        self.servers.must_run()?;
        self.clients.process.must_run()?;
        self.read_journal(interval)
    }

    pub(super) fn read_journal(&mut self, interval: &mut Interval) -> Result<(), String> {
        let ticks = self.clients_journal.read()?;
        for tick in &ticks {
            self.joined += tick.all.counts[Count::JoinsOk];
            self.users.push((tick.at_ms as f64 / 1000.0, tick.all.connected));
        }
        interval.ticks.extend(ticks);
        Ok(())
    }

    /// Checks that clients and servers count the same number.
    pub(super) fn check_counts(&self, members: u64) -> Result<(), String> {
        let metrics = self.servers.metrics()?;
        let (sockets, channels) =
            (metrics.count("simurgh_sockets"), metrics.count("simurgh_channels"));
        if (sockets, channels) == (members + PROBES, members + 1) {
            return Ok(());
        }
        Err(format!(
            "the servers count {sockets} sockets and {channels} channels, but {members} members, \
             one of them in two channels, and {PROBES} probes are connected"
        ))
    }

    /// The deadline of a broadcast to all, plus `beyond`.
    pub(super) fn deadline(&self, beyond: Duration) -> Instant {
        let each = PER_MEMBER * self.members.min(1 << 30) as u32;
        Instant::now() + Duration::from_secs(60) + each + beyond
    }

    pub(super) fn ask_speaker(&self) -> Result<(), String> {
        let payload = format!("{{\"body\":\"{START_BROADCAST}\"}}");
        self.servers.broadcast(CONTROL_TOPIC, "new:msg", &payload)
    }

    /// CPU time of servers and clients, nanoseconds.
    pub(super) fn cpu_ns(&self) -> Result<(u64, u64), String> {
        Ok((self.servers.cpu_each()?.into_iter().sum(), usage::cpu_ns(self.clients.process.pid())?))
    }
}

impl Drop for CapacityTest {
    fn drop(&mut self) {
        if self.workload.tun {
            // A killed process would leave the server's sockets to their timeouts.
            let _ = self.clients.stop(STOP_TIMEOUT);
        }
    }
}

pub(super) fn us_each(ns: u64, count: u64) -> f64 {
    ns as f64 / 1000.0 / count.max(1) as f64
}

//! One broadcast to all members: its times and its costs.

use std::thread;
use std::time::{Duration, Instant};

use simurgh_load::record::{Count, Metric};

use super::journal::Interval;
use super::results::{BroadcastResult, InFlight, NodeDeliveries};
use super::run::{CapacityTest, us_each};
use super::servers::Servers;
use super::usage::{self, Usage};

impl CapacityTest {
    /// The speaker broadcasts to all; waits until all have received it.
    pub(super) fn broadcast_to_all(&mut self) -> Result<BroadcastResult, String> {
        thread::sleep(Duration::from_millis(200));
        self.read_journal(&mut Interval::default())?;
        self.probes_journal.read()?;
        let mut peak = PeakMemory::new(&self.servers)?;
        let before = self.spent()?;
        self.ask_speaker()?;
        let number = self.broadcasts;
        self.broadcasts += 1;
        let (mut interval, until) = (Interval::default(), self.deadline(Duration::ZERO));
        let broadcast = loop {
            self.poll(&mut interval)?;
            peak.update(&self.servers)?;
            if let Some(broadcast) = interval.broadcast(number) {
                break broadcast;
            }
            if Instant::now() > until {
                let members = self.members;
                return Err(format!("broadcast {number} to {members} members did not finish"));
            }
        };
        let spent = self.spent()?.since(&before);
        self.probes.process.must_run()?;
        let probes = Interval { ticks: self.probes_journal.read()? };
        let result = BroadcastResult {
            receivers: u64::from(broadcast.receivers),
            first_us: broadcast.first_us,
            last_us: broadcast.last_us,
            delivery: interval.times(Metric::Delivery).stats(),
            heartbeats: probes.times(Metric::Push).stats(),
            in_flight: peak.most,
            ..spent.result(self.members)
        };
        self.check_deliveries(&result, interval.count(Count::DeliveriesDuplicate))?;
        Ok(result)
    }

    /// Checks by the counts of both sides that each member received it exactly once.
    fn check_deliveries(&self, result: &BroadcastResult, twice: u64) -> Result<(), String> {
        let members = self.members;
        let BroadcastResult { receivers, delivered, .. } = *result;
        if (receivers, delivered, twice) == (members, members, 0) {
            return Ok(());
        }
        let counts = self.servers.metrics()?;
        let lost = counts.count("simurgh_cluster_lost_total");
        let dropped = counts.count("simurgh_cluster_dropped_total");
        let between = match self.servers.count() {
            1 => String::new(),
            _ => format!("; nodes count {lost} losses and {dropped} dropped between them"),
        };
        Err(format!(
            "of {members} members {receivers} received the broadcast, {twice} of them twice; the \
             servers count {delivered} deliveries{between}"
        ))
    }

    fn spent(&self) -> Result<Spent, String> {
        let each = self.servers.metrics_each()?;
        let delivered = each.iter().map(|metrics| metrics.count("simurgh_deliveries_total"));
        Ok(Spent {
            delivered: delivered.collect(),
            server_ns: self.servers.cpu_each()?,
            client_ns: usage::cpu_ns(self.clients.process.pid())?,
            engine_ns: self.servers.engine()?.map(|(ns, _)| ns),
        })
    }
}

struct PeakMemory {
    server: u64,
    buffers: u64,
    most: InFlight,
}

impl PeakMemory {
    fn new(servers: &Servers) -> Result<Self, String> {
        let (server, buffers) = (servers.resident_about()?, Usage::now()?.buffers);
        Ok(Self { server, buffers, most: InFlight::default() })
    }

    fn update(&mut self, servers: &Servers) -> Result<(), String> {
        let server = servers.resident_about()?.saturating_sub(self.server);
        let buffers = Usage::now()?.buffers.saturating_sub(self.buffers);
        self.most.server = self.most.server.max(server);
        self.most.buffers = self.most.buffers.max(buffers);
        Ok(())
    }
}

/// CPU time and deliveries so far; a list has those of each server.
struct Spent {
    delivered: Vec<u64>,
    server_ns: Vec<u64>,
    client_ns: u64,
    engine_ns: Option<u64>,
}

impl Spent {
    fn since(self, before: &Self) -> Self {
        let less = |now: Vec<u64>, before: &[u64]| {
            now.into_iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect()
        };
        Self {
            delivered: less(self.delivered, &before.delivered),
            server_ns: less(self.server_ns, &before.server_ns),
            client_ns: self.client_ns.saturating_sub(before.client_ns),
            engine_ns: self.engine_ns.zip(before.engine_ns).map(|(now, it)| now.saturating_sub(it)),
        }
    }

    fn result(self, members: u64) -> BroadcastResult {
        let both = self.delivered.iter().zip(&self.server_ns);
        let nodes = both.map(|(delivered, ns)| NodeDeliveries {
            delivered: *delivered,
            server_us: us_each(*ns, *delivered),
        });
        BroadcastResult {
            // Without the message that asked the speaker.
            delivered: self.delivered.iter().sum::<u64>().saturating_sub(1),
            server_us: us_each(self.server_ns.iter().sum(), members),
            client_us: us_each(self.client_ns, members),
            nodes: if self.server_ns.len() > 1 { nodes.collect() } else { Vec::new() },
            engine_us: self.engine_ns.map(|ns| ns as f64 / 1e3),
            ..BroadcastResult::default()
        }
    }
}

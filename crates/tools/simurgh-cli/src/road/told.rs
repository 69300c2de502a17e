//! One broadcast to everybody, and what it took.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use simurgh_load::record::{Count, Metric, Stats};

use super::machine::{self, Machine};
use super::measure::{Walkers, each};
use super::nodes::Nodes;
use super::ticks::Stretch;

/// What a broadcast to everybody has shown.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Told {
    /// How many got it.
    pub(super) receivers: u64,
    /// By the server's count.
    pub(super) delivered: u64,
    /// From the stamp of the one who spoke to the first who heard.
    pub(super) first_us: u64,
    /// To the last.
    pub(super) last_us: u64,
    /// To all: the median and the rest.
    pub(super) delivery: Stats,
    /// CPU time of the server for each delivery, µs.
    pub(super) server_us: f64,
    /// CPU time of the load generator for each, µs.
    pub(super) client_us: f64,
    /// Heartbeats of those who stood by in the same seconds.
    pub(super) heartbeats: Stats,
    /// What was on its way at most.
    pub(super) in_flight: InFlight,
    /// Each server, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<ToldNode>,
    /// CPU time of the engine between them meanwhile, µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine_us: Option<f64>,
}

/// What a broadcast to everybody was for one server of several.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ToldNode {
    /// By its count; what told the one who speaks to do so is among them.
    pub(super) delivered: u64,
    /// Its CPU time for each, µs.
    pub(super) server_us: f64,
}

/// The most memory that was seen to be used beside what was used before, bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct InFlight {
    /// Of the server.
    pub(super) server: u64,
    /// Of TCP's buffers, on both ends.
    pub(super) buffers: u64,
}

/// Looks at what a broadcast has on its way.
struct Watch {
    server: u64,
    buffers: u64,
    most: InFlight,
}

impl Watch {
    fn new(nodes: &Nodes) -> Result<Self, String> {
        let (server, buffers) = (nodes.resident_about()?, Machine::now()?.buffers);
        Ok(Self { server, buffers, most: InFlight::default() })
    }

    fn look(&mut self, nodes: &Nodes) -> Result<(), String> {
        let server = nodes.resident_about()?.saturating_sub(self.server);
        let buffers = Machine::now()?.buffers.saturating_sub(self.buffers);
        self.most.server = self.most.server.max(server);
        self.most.buffers = self.most.buffers.max(buffers);
        Ok(())
    }
}

impl Walkers {
    /// Has the one who speaks say something to all, and waits until all have heard it.
    pub(super) fn tell_all(&mut self) -> Result<Told, String> {
        thread::sleep(Duration::from_millis(200));
        let (mut heard, mut beats) = (Stretch::default(), Stretch::default());
        // What was before is not wanted.
        self.hear(&mut Stretch::default())?;
        self.bystander_ticks.new_ones()?;
        let mut in_flight = Watch::new(&self.nodes)?;
        let before = self.spent()?;
        self.cue()?;
        let number = self.told;
        self.told += 1;
        let until = self.patience(Duration::ZERO);
        let broadcast = loop {
            self.look(&mut heard)?;
            in_flight.look(&self.nodes)?;
            if let Some(broadcast) = heard.broadcast(number) {
                break broadcast;
            }
            if Instant::now() > until {
                let members = self.members;
                return Err(format!("broadcast {number} to {members} did not come to its end"));
            }
        };
        let spent = self.spent()?.since(&before);
        self.bystanders.must_run()?;
        beats.add(self.bystander_ticks.new_ones()?);
        let twice = heard.count(Count::DeliveriesDuplicate);
        let told = Told {
            receivers: u64::from(broadcast.receivers),
            first_us: broadcast.first_us,
            last_us: broadcast.last_us,
            delivery: heard.times(Metric::Delivery).stats(),
            heartbeats: beats.times(Metric::Push).stats(),
            in_flight: in_flight.most,
            ..spent.told(self.members)
        };
        self.counts_agree(&told, twice)?;
        Ok(told)
    }

    /// Everybody has to have heard it, and nobody twice, by the count of either side.
    fn counts_agree(&self, told: &Told, twice: u64) -> Result<(), String> {
        let members = self.members;
        let Told { receivers, delivered, .. } = *told;
        if (receivers, delivered, twice) == (members, members, 0) {
            return Ok(());
        }
        let counts = self.nodes.metrics()?;
        let lost = counts.count("simurgh_cluster_lost_total");
        let dropped = counts.count("simurgh_cluster_dropped_total");
        let between = match self.nodes.count() {
            1 => String::new(),
            _ => format!("; nodes count {lost} losses and {dropped} dropped between them"),
        };
        Err(format!(
            "of {members} members {receivers} heard what was said to all, {twice} of them twice; \
             on the side of servers there are {delivered} deliveries{between}"
        ))
    }

    /// What all have used so far.
    fn spent(&self) -> Result<Spent, String> {
        let each = self.nodes.each()?;
        let delivered = each.iter().map(|metrics| metrics.count("simurgh_deliveries_total"));
        Ok(Spent {
            delivered: delivered.collect(),
            server_ns: self.nodes.cpu_each()?,
            client_ns: machine::cpu_ns(self.crowd.pid())?,
            engine_ns: self.nodes.engine()?.map(|(ns, _)| ns),
        })
    }
}

/// CPU time and deliveries, of each server where it is a list.
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

    /// For a broadcast to so many.
    fn told(self, members: u64) -> Told {
        let both = self.delivered.iter().zip(&self.server_ns);
        let nodes = both.map(|(delivered, ns)| ToldNode {
            delivered: *delivered,
            server_us: each(*ns, *delivered),
        });
        Told {
            // The one who speaks was told as well.
            delivered: self.delivered.iter().sum::<u64>().saturating_sub(1),
            server_us: each(self.server_ns.iter().sum(), members),
            client_us: each(self.client_ns, members),
            nodes: if self.server_ns.len() > 1 { nodes.collect() } else { Vec::new() },
            engine_us: self.engine_ns.map(|ns| ns as f64 / 1e3),
            ..Told::default()
        }
    }
}

//! The climb from one milestone to the next, and what is measured there.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use simurgh_load::record::{Count, Metric, Stats};

use super::machine::{self, Machine};
use super::metrics::Metrics;
use super::nodes::Nodes;
use super::plan::{BEAT, BYSTANDERS, CUE, CUES, Crowd, LOBBY};
use super::processes::Load;
use super::ticks::{Stretch, Ticks};
use super::told::Told;

/// How often the journals are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Without anybody new for so long a climb is given up.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Rest before memory is read.
const REST: Duration = Duration::from_secs(3);
/// What a broadcast may take for each member, beside a minute.
const PER_MEMBER: Duration = Duration::from_micros(50);

/// What one milestone has shown. Bytes are per connection, of one end; times in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Milestone {
    /// Members of the one channel, each on a connection of its own.
    pub(super) members: u64,
    /// How many of them came in this climb.
    pub(super) came: u64,
    /// Seconds from the first of these to the last, as seen each 0.1 s.
    pub(super) climb_s: f64,
    /// These per second.
    pub(super) joins_per_s: f64,
    /// CPU time of the server for each, µs.
    pub(super) server_us_per_join: f64,
    /// CPU time of the load generator for each, µs.
    pub(super) client_us_per_join: f64,
    /// From a join to its reply.
    pub(super) join: Stats,
    /// Resident memory of the server less what it had without anybody.
    pub(super) server_bytes: f64,
    /// The same of the load generator.
    pub(super) client_bytes: f64,
    /// The kernel's records (slab) for each socket; there are two to a connection.
    pub(super) kernel_bytes: f64,
    /// What is left.
    pub(super) memory_available: u64,
    /// One broadcast to all.
    pub(super) broadcast: Told,
    /// Each server, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) nodes: Vec<OfNode>,
    /// Resident memory of the engine between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) engine_memory: Option<u64>,
}

/// One server of several.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct OfNode {
    /// Connections.
    pub(super) sockets: u64,
    /// Resident memory less what it had without anybody, for each.
    pub(super) bytes: f64,
}

/// What heartbeats of all have shown, over twice the time between two of the same member.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Beats {
    /// Seconds between two heartbeats of the same member.
    pub(super) every_s: f64,
    /// Members that send them.
    pub(super) senders: u64,
    /// How many were answered.
    pub(super) answered: u64,
    /// These per second.
    pub(super) per_s: f64,
    /// CPU time of the server for each, µs.
    pub(super) server_us: f64,
    /// CPU time of the load generator for each, µs.
    pub(super) client_us: f64,
    /// Errors of members meanwhile.
    pub(super) failed: u64,
    /// From the time a heartbeat was meant to be sent to its reply.
    pub(super) times: Stats,
}

/// Everybody on the road.
pub(super) struct Walkers {
    pub(super) nodes: Nodes,
    /// What the crowd is made of, to make another one.
    pub(super) plan: Crowd,
    pub(super) crowd: Load,
    pub(super) bystanders: Load,
    pub(super) crowd_ticks: Ticks,
    pub(super) bystander_ticks: Ticks,
    /// Before anybody came.
    pub(super) start: Start,
    /// Members so far, and broadcasts.
    pub(super) members: u64,
    pub(super) told: u32,
    /// Joins that the crowd has seen answered.
    pub(super) joined: u64,
    /// Users over time: seconds since the start of the crowd, connections.
    pub(super) users: Vec<(f64, u64)>,
}

/// Memory before anybody came, bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Start {
    pub(super) server: u64,
    /// Of each server.
    each: Vec<u64>,
    client: u64,
    pub(super) machine: Machine,
}

impl Walkers {
    /// All processes are there; nobody has come yet.
    pub(super) fn new(
        plan: Crowd,
        nodes: Nodes,
        crowd: Load,
        bystanders: Load,
    ) -> Result<Self, String> {
        let (crowd_ticks, bystander_ticks) = (Ticks::of(&crowd.dir), Ticks::of(&bystanders.dir));
        let each = nodes.resident_each()?;
        let start = Start {
            server: each.iter().sum(),
            each,
            client: machine::resident(crowd.pid())?,
            machine: Machine::now()?,
        };
        let (members, told, joined) = (0, 0, 0);
        let users = Vec::new();
        Ok(Self {
            nodes,
            plan,
            crowd,
            bystanders,
            crowd_ticks,
            bystander_ticks,
            start,
            members,
            told,
            joined,
            users,
        })
    }

    /// Members so far.
    pub(super) fn members(&self) -> u64 {
        self.members
    }

    /// What a further connection will take of the machine's memory, both ends, by what those that
    /// are there took.
    pub(super) fn bytes_per_connection(&self) -> Result<Option<f64>, String> {
        let used = self.start.machine.available.saturating_sub(Machine::now()?.available);
        // What is set up once would be most of it where there are few.
        Ok((self.members >= 10_000).then(|| used as f64 / self.members as f64))
    }

    /// Lets members come until there are so many, and measures.
    pub(super) fn climb(&mut self, to: u64, say: &mut dyn FnMut(u64)) -> Result<Milestone, String> {
        self.crowd.tell("resume")?;
        let mut seen = Milestone { members: to, came: to - self.members, ..Default::default() };
        let (server_ns, client_ns) = self.cpu()?;
        let climb = self.wait_for_members(to, say)?;
        let (server_then, client_then) = self.cpu()?;
        seen.climb_s = climb.took.as_secs_f64();
        seen.joins_per_s = seen.came as f64 / seen.climb_s;
        seen.server_us_per_join = each(server_then - server_ns, seen.came);
        seen.client_us_per_join = each(client_then - client_ns, seen.came);
        seen.join = climb.stretch.times(Metric::Join).stats();
        self.members = to;
        thread::sleep(REST);
        self.count_all(to)?;
        self.memory(&mut seen)?;
        seen.broadcast = self.tell_all()?;
        Ok(seen)
    }

    fn wait_for_members(&mut self, to: u64, say: &mut dyn FnMut(u64)) -> Result<Climb, String> {
        // The one who speaks has joined a second channel.
        let target = to + 1;
        let mut climb = Climb { stretch: Stretch::default(), took: Duration::ZERO };
        let (mut first, mut last) = (None, Instant::now());
        while self.joined < target {
            let before = self.joined;
            self.look(&mut climb.stretch)?;
            if self.joined > before {
                last = Instant::now();
                // The second that was just closed is part of the climb.
                first.get_or_insert(last - Duration::from_secs(1));
                say(self.joined);
            }
            if last.elapsed() > WAIT_MAX {
                let details = climb.stretch.details().join("; ");
                return Err(format!(
                    "{} of {to} have joined, then nobody for {WAIT_MAX:?}; errors: {} {details}",
                    self.joined,
                    climb.stretch.errors()
                ));
            }
        }
        climb.took = last.duration_since(first.unwrap_or(last)).max(POLL_INTERVAL);
        Ok(climb)
    }

    /// Takes up what the crowd has written since.
    pub(super) fn hear(&mut self, stretch: &mut Stretch) -> Result<(), String> {
        let ticks = self.crowd_ticks.new_ones()?;
        for tick in &ticks {
            self.joined += tick.all.counts[Count::JoinsOk];
            self.users.push((tick.at_ms as f64 / 1000.0, tick.all.connected));
        }
        stretch.add(ticks);
        Ok(())
    }

    /// Both sides have to agree on who is there.
    pub(super) fn count_all(&mut self, members: u64) -> Result<(), String> {
        let metrics = self.nodes.metrics()?;
        let (sockets, channels) =
            (metrics.count("simurgh_sockets"), metrics.count("simurgh_channels"));
        if (sockets, channels) == (members + BYSTANDERS, members + 1) {
            return Ok(());
        }
        Err(format!(
            "on the side of servers there are {sockets} sockets and {channels} channels; \
             {members} members, one of them in two channels, and {BYSTANDERS} bystanders are there"
        ))
    }

    fn memory(&self, seen: &mut Milestone) -> Result<(), String> {
        let now = Machine::now()?;
        let members = seen.members as f64;
        let rise = |now: u64, before: u64| now.saturating_sub(before) as f64 / members;
        let each = self.nodes.resident_each()?;
        seen.server_bytes = rise(each.iter().sum(), self.start.server);
        if self.nodes.count() > 1 {
            seen.nodes = self.of_nodes(&each)?;
        }
        seen.engine_memory = self.nodes.engine()?.map(|(_, bytes)| bytes);
        seen.client_bytes = rise(machine::resident(self.crowd.pid())?, self.start.client);
        seen.kernel_bytes = rise(now.slab, self.start.machine.slab) / 2.0;
        seen.memory_available = now.available;
        Ok(())
    }

    /// Each server, by what it has now.
    fn of_nodes(&self, resident: &[u64]) -> Result<Vec<OfNode>, String> {
        let before = resident.iter().zip(&self.start.each);
        let of_node = |(metrics, (now, before)): (Metrics, (&u64, &u64))| {
            let sockets = metrics.count("simurgh_sockets");
            let bytes = now.saturating_sub(*before) as f64 / sockets.max(1) as f64;
            OfNode { sockets, bytes }
        };
        Ok(self.nodes.each()?.into_iter().zip(before).map(of_node).collect())
    }

    /// Has all send heartbeats, `every` so often each, and measures two such times of it.
    pub(super) fn beat_all(&mut self, every: Duration) -> Result<Beats, String> {
        self.hear(&mut Stretch::default())?;
        self.nodes.broadcast(LOBBY, "new:msg", &format!("{{\"body\":\"{BEAT}\"}}"))?;
        // The one who speaks sends none.
        let senders = self.members.saturating_sub(1);
        let mut begun = Stretch::default();
        let until = self.patience(every * 2);
        while begun.times(Metric::Push).count() < senders {
            self.look(&mut begun)?;
            if Instant::now() > until {
                let sent = begun.times(Metric::Push).count();
                return Err(format!("of {senders} members {sent} have sent a heartbeat"));
            }
        }
        let (mut beats, from) = (Stretch::default(), Instant::now());
        let (server_ns, client_ns) = self.cpu()?;
        while from.elapsed() < every * 2 {
            self.look(&mut beats)?;
        }
        let (server_then, client_then) = self.cpu()?;
        let (seconds, times) = (from.elapsed().as_secs_f64(), beats.times(Metric::Push));
        let answered = times.count();
        Ok(Beats {
            every_s: every.as_secs_f64(),
            senders,
            answered,
            per_s: answered as f64 / seconds,
            server_us: each(server_then - server_ns, answered),
            client_us: each(client_then - client_ns, answered),
            failed: beats.errors(),
            times: times.stats(),
        })
    }

    /// Waits a little, and takes up what the crowd has written; both ends must run.
    pub(super) fn look(&mut self, stretch: &mut Stretch) -> Result<(), String> {
        thread::sleep(POLL_INTERVAL);
        self.nodes.must_run()?;
        self.crowd.must_run()?;
        self.hear(stretch)
    }

    /// Until when something said to all is waited for, and as long as it takes beyond that.
    pub(super) fn patience(&self, beyond: Duration) -> Instant {
        let each = PER_MEMBER * self.members.min(1 << 30) as u32;
        Instant::now() + Duration::from_secs(60) + each + beyond
    }

    /// Has the one who speaks say something to all.
    pub(super) fn cue(&self) -> Result<(), String> {
        self.nodes.broadcast(CUES, "new:msg", &format!("{{\"body\":\"{CUE}\"}}"))
    }

    /// CPU time of servers and crowd, nanoseconds.
    fn cpu(&self) -> Result<(u64, u64), String> {
        Ok((self.nodes.cpu_ns()?, machine::cpu_ns(self.crowd.pid())?))
    }
}

struct Climb {
    stretch: Stretch,
    took: Duration,
}

/// Microseconds each.
pub(super) fn each(ns: u64, number: u64) -> f64 {
    ns as f64 / 1000.0 / number.max(1) as f64
}

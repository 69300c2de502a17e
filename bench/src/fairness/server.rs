//! The server under attack: what it serves, how it is started, and whether it still serves.

use std::fs;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::crowd::{Crowd, Pace};
use super::memory::Watch;
use super::talk::{Event, Room, Wire};
use simurgh_bench_kit::target::{Running, Target, metric, metric_sum};

/// The one place that says what is served. Channels that are declared may have large messages
/// whatever the built-in chat allows; all else is as a server has it that was told nothing.
const SETTINGS: &str = r#"
frame_bytes_max = "10MB"
message_bytes_max = "10MB"
inbound_budget = "256MiB"

[[channel]]
topic = "rooms:*"
join_reply = {}
payload_bytes_max = "10MB"

[[channel.event]]
name = "new:msg"
broadcast = "all"
reply = { msg = "$body" }

[[channel.event]]
name = "say"
broadcast = "all"
reply = {}

[[channel.event]]
name = "hush"
reply = {}
"#;
/// `inbound_budget` of [`SETTINGS`].
pub(super) const INBOUND_BUDGET: usize = 256 << 20;
/// The address space of a server that must survive.
pub(super) const NARROW: u64 = 1000 << 20;
/// The address space of all others: a server that takes everything must not take the machine.
const WIDE: u64 = 8 << 30;

/// How a server is started.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Shards, all on one core.
    pub(super) shards: u32,
    /// As the flag takes it.
    pub(super) idle_timeout: &'static str,
    /// With [`NARROW`] instead of [`WIDE`].
    pub(super) is_narrow: bool,
}

/// One shard, and nobody is closed for being silent.
pub(super) const USUAL: How = How { shards: 1, idle_timeout: "off", is_narrow: false };

/// A server that runs, and who watches its memory.
pub(super) struct Served {
    /// The process.
    pub(super) running: Running,
    /// Its memory.
    pub(super) watch: Watch,
}

impl Served {
    /// A fresh process.
    pub(super) fn start(bench: &Bench<'_>, how: How) -> Result<Self> {
        let settings = bench.scratch.join("simurgh.toml");
        fs::write(&settings, SETTINGS)?;
        let target = Target::serve(&bench.program, how.shards, how.idle_timeout)?
            .with_settings(&settings)
            .within(if how.is_narrow { NARROW } else { WIDE });
        let running = target.start(&bench.scratch.join("server-log"))?;
        let watch = Watch::start(running.pid())?;
        Ok(Self { running, watch })
    }

    /// A room there.
    pub(super) fn room(&self, wire: Wire, name: &str, event: Event) -> Rc<Room> {
        Rc::new(Room::new(self.running.address, wire, name, event))
    }

    /// A metric summed over all shards.
    pub(super) fn sum(&self, name: &str) -> Result<f64> {
        let lines = self.running.metrics()?;
        metric_sum(&lines, name).with_context(|| format!("no {name} in /metrics"))
    }

    /// The longest turn of the first shard by its own CPU time, ms.
    pub(super) fn turn_cpu_ms(&self) -> Option<f64> {
        let lines = self.running.metrics().ok()?;
        let name = "simurgh_shard_turn_cpu_max_seconds{shard=\"0\"}";
        metric(&lines, name).map(|seconds| seconds * 1e3)
    }

    /// How it ended, if it has; `None`: it runs.
    pub(super) fn ending(&mut self) -> Result<Option<String>> {
        Ok(self.running.ending()?.map(|status| status.to_string()))
    }

    /// Somebody new comes, says something, and has to get the answer and what was said.
    pub(super) fn serves_a_newcomer(&self) -> Result<()> {
        let mut crowd = Crowd::new(|_| 64)?;
        let room = self.room(Wire::V2, "newcomer", Event::Say);
        let newcomer = crowd.join(&room, Pace::Reads)?;
        crowd.say(newcomer, 0, 1);
        let is_served = crowd.until(Duration::from_secs(10), |crowd| {
            crowd.client(newcomer).is_some_and(|it| it.heard.said == 1 && it.heard.answered == 1)
        })?;
        ensure!(is_served, "a newcomer got no answer within 10 s");
        Ok(())
    }
}

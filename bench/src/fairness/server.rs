//! The server under attack: its settings, its start, and whether it still serves.

use std::fs;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Bench;
use super::clients::{Clients, Pace};
use super::memory::MemoryWatch;
use super::messages::{Event, Room, Serializer};
use simurgh_bench_kit::target::{self, Server};

/// Declared channels may have large messages whatever the built-in chat allows.
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
/// The address space of all others: one without bound must not take the machine's memory.
const WIDE: u64 = 8 << 30;

#[derive(Clone, Copy)]
pub(super) struct Setup {
    /// Shards, all on one core.
    pub(super) shards: u32,
    /// As the flag takes it.
    pub(super) idle_timeout: &'static str,
    /// With [`NARROW`] instead of [`WIDE`].
    pub(super) is_narrow: bool,
}

/// One shard, and no silent client is closed.
pub(super) const USUAL: Setup = Setup { shards: 1, idle_timeout: "off", is_narrow: false };

/// A running server, and a watch of its memory.
pub(super) struct Target {
    pub(super) server: Server,
    pub(super) memory: MemoryWatch,
}

impl Target {
    pub(super) fn start(bench: &Bench<'_>, setup: Setup) -> Result<Self> {
        let settings = bench.scratch.join("simurgh.toml");
        fs::write(&settings, SETTINGS)?;
        let target = target::Target::serve(&bench.program, setup.shards, setup.idle_timeout)?
            .with_settings(&settings)
            .within(if setup.is_narrow { NARROW } else { WIDE });
        let server = target.start(&bench.scratch.join("server-log"))?;
        let memory = MemoryWatch::start(server.pid())?;
        Ok(Self { server, memory })
    }

    pub(super) fn room(&self, serializer: Serializer, name: &str, event: Event) -> Rc<Room> {
        Rc::new(Room::new(self.server.address, serializer, name, event))
    }

    /// The longest turn of the first shard in its own CPU time, ms.
    pub(super) fn turn_cpu_ms(&self) -> Option<f64> {
        let name = "simurgh_shard_turn_cpu_max_seconds{shard=\"0\"}";
        self.server.metric(name).ok().map(|seconds| seconds * 1e3)
    }

    /// How it ended; `None` while it runs.
    pub(super) fn ending(&mut self) -> Result<Option<String>> {
        Ok(self.server.process.status()?.map(|status| status.to_string()))
    }

    /// A new client connects and publishes, and must receive the answer and its message.
    pub(super) fn serves_a_newcomer(&self) -> Result<()> {
        let mut clients = Clients::new(|_| 64)?;
        let room = self.room(Serializer::V2, "newcomer", Event::Say);
        let newcomer = clients.join(&room, Pace::Reads)?;
        clients.publish(newcomer, 0, 1);
        let is_served = clients.until(Duration::from_secs(10), |clients| {
            clients
                .client(newcomer)
                .is_some_and(|it| it.received.broadcasts == 1 && it.received.answered == 1)
        })?;
        ensure!(is_served, "a newcomer got no answer within 10 s");
        Ok(())
    }
}

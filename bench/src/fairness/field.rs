//! The server under attack, its clients, and the figures that every attack has.

use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::clients::{Clients, Pace};
use super::messages::{Event, Room, Serializer};
use super::{Bench, Sample};
use simurgh_bench_kit::target::{Server, Target};

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

pub(super) struct Field<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) sample: &'a mut Sample,
    /// The beginning of the names of its figures.
    pub(super) name: &'static str,
    pub(super) server: Server,
    pub(super) clients: Clients,
    is_narrow: bool,
    /// Memory before the attack.
    idle: Option<u64>,
}

/// Runs an attack against a fresh server, and adds the figures that every attack has.
pub(super) fn attack(
    bench: &Bench<'_>,
    sample: &mut Sample,
    name: &'static str,
    setup: Setup,
    run: impl FnOnce(&mut Field<'_>) -> Result<()>,
) -> Result<()> {
    let settings = bench.scratch.join("simurgh.toml");
    fs::write(&settings, SETTINGS)?;
    let Setup { shards, idle_timeout, is_narrow } = setup;
    let server = Target::serve(&bench.program, shards, idle_timeout)?
        .with_settings(&settings)
        .within(if is_narrow { NARROW } else { WIDE })
        .start(&bench.scratch.join("server-log"))?;
    let clients = Clients::new()?;
    let mut field = Field { bench, sample, name, server, clients, is_narrow, idle: None };
    run(&mut field)?;
    field.end()
}

impl Field<'_> {
    pub(super) fn room(&self, serializer: Serializer, name: &str, event: Event) -> Rc<Room> {
        Rc::new(Room::new(self.server.address, serializer, name, event))
    }

    pub(super) fn put(&mut self, what: &str, value: f64) {
        self.sample.put(format!("{}_{what}", self.name), value);
    }

    pub(super) fn note(&mut self, text: &str) {
        self.sample.note(format!("{}: {text}", self.name));
    }

    /// Lets the clients rest. The attack begins then, and its memory counts.
    pub(super) fn begin(&mut self, calm: Duration) -> Result<Instant> {
        self.clients.rest(calm)?;
        self.idle = Some(self.server.at_rest()?);
        Ok(Instant::now())
    }

    /// Runs the clients until `done`; notes it if nothing more comes for `wait_max`.
    pub(super) fn until(
        &mut self,
        wait_max: Duration,
        done: impl Fn(&Clients) -> bool,
    ) -> Result<()> {
        if !self.clients.until(wait_max, done)? {
            self.note(&format!("nothing more came for {} s", wait_max.as_secs()));
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        if let Some(mb) = self.idle.and_then(|idle| self.server.peak_mb(idle)) {
            self.put("memory_mb", mb);
        }
        // The first shard's own CPU time.
        let turn = self.server.metric("simurgh_shard_turn_cpu_max_seconds{shard=\"0\"}");
        turn.into_iter().for_each(|seconds| self.put("turn_cpu_ms", seconds * 1e3));
        let endings = self.clients.endings();
        if !endings.is_empty() {
            self.note(&format!("connections closed, by code: {endings:?}"));
        }
        self.sample.check_wrong(self.name, self.clients.wrong());
        let newcomer = self.serves_a_newcomer();
        let ending = self.server.process.status()?;
        self.put("ended", f64::from(u8::from(ending.is_some())));
        self.put("newcomer_failed", f64::from(u8::from(newcomer.is_err())));
        if let Some(ending) = ending {
            let space = self.is_narrow.then(|| format!(" in {} MiB", NARROW >> 20));
            self.note(&format!("the server ended{}: {ending}", space.unwrap_or_default()));
        } else if let Err(error) = newcomer {
            self.note(&format!("{error:#}"));
        }
        Ok(())
    }

    /// A new client connects and publishes, and must receive the answer and its message.
    fn serves_a_newcomer(&self) -> Result<()> {
        let mut clients = Clients::new()?;
        let room = self.room(Serializer::V2, "newcomer", Event::Say);
        let newcomer = clients.join(&room, Pace::Reads)?;
        clients.publish(newcomer, 0, 1);
        let is_served = clients.until(Duration::from_secs(10), |clients| {
            let all = clients.clients().iter().map(|it| &it.received);
            all.into_iter().all(|it| it.broadcasts == 1 && it.answered == 1)
        })?;
        ensure!(is_served, "a newcomer got no answer within 10 s");
        Ok(())
    }
}

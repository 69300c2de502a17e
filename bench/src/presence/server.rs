//! The server: what it serves, how it is started, and what it says of itself.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::clients::Clients;
use crate::sys::{self, Cpu};
use crate::target::{Running, Target, metric_sum};

/// The one topic of the rows that have one.
pub(super) const TOPIC: &str = "rooms:crowd";

/// How a server is told to treat presences.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Members are tracked, and get the list.
    pub(super) presence: bool,
    /// More are told by their number.
    pub(super) list_max: usize,
}

/// As a server has it that was told nothing.
pub(super) const LIST_MAX: usize = 1_000;

/// The one place that says what is served: with presence members are tracked under their `user`.
fn settings(how: How) -> String {
    let How { presence, list_max } = how;
    let presence = if presence { "presence = true\n" } else { "" };
    format!(
        r#"presence_list_max = {list_max}

[[channel]]
topic = "rooms:*"
join_reply = {{}}
{presence}
[[channel.event]]
name = "new:msg"
broadcast = "all"
reply = {{}}
"#
    )
}

pub(super) struct Served {
    pub(super) running: Running,
}

impl Served {
    /// A fresh process of `program`, with its files in `scratch`.
    pub(super) fn start(program: &Path, scratch: &Path, how: How) -> Result<Self> {
        let file = scratch.join("simurgh.toml");
        fs::write(&file, settings(how))?;
        let target = Target::simurgh(program, 1)?.with_settings(&file);
        Ok(Self { running: target.start(&scratch.join("server-log"))? })
    }

    pub(super) fn clients(&self) -> Result<Clients> {
        Clients::new(self.running.address)
    }

    pub(super) fn cpu(&self) -> Result<Cpu> {
        Cpu::of(self.running.pid())
    }

    pub(super) fn resident(&self) -> Result<u64> {
        sys::resident(self.running.pid())
    }

    /// A metric summed over all shards.
    pub(super) fn sum(&self, name: &str) -> Result<f64> {
        let lines = self.running.metrics()?;
        metric_sum(&lines, name).with_context(|| format!("no {name} in /metrics"))
    }

    pub(super) fn presences(&self) -> Result<f64> {
        self.sum("simurgh_presences")
    }

    pub(super) fn presence_events(&self) -> Result<f64> {
        self.sum("simurgh_presence_events_total")
    }
}

/// Longer than an interval, so that the next change is told at once, and nothing else is under way.
pub(super) const QUIET: Duration = Duration::from_millis(130);

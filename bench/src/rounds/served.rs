//! A server of a row: how it is started, and what it says of itself.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Bench;
use crate::members::Clients;
use crate::sys::{self, Cpu};
use crate::target::{Running, Target, metric_sum};

pub(crate) struct Served {
    pub(crate) running: Running,
}

impl Served {
    /// A fresh process with these settings and so many shards, all on one core.
    pub(crate) fn start(bench: &Bench<'_>, settings: &str, shards: u32) -> Result<Self> {
        let file = bench.scratch.join("simurgh.toml");
        fs::write(&file, settings)?;
        let target = Target::simurgh(&bench.program, shards)?.with_settings(&file);
        Ok(Self { running: target.start(&bench.scratch.join("server-log"))? })
    }

    pub(crate) fn clients(&self) -> Result<Clients> {
        Clients::new(self.running.address)
    }

    pub(crate) fn cpu(&self) -> Result<Cpu> {
        Cpu::of(self.running.pid())
    }

    /// Nanoseconds that it has run since then.
    pub(crate) fn spent(&self, since: &Cpu) -> Result<u64> {
        let (ran, ended) = self.cpu()?.since(since);
        ensure!(ended == 0, "{ended} threads ended, and their time is lost");
        Ok(ran)
    }

    pub(crate) fn resident(&self) -> Result<u64> {
        sys::resident(self.running.pid())
    }

    /// A metric summed over all shards.
    pub(crate) fn sum(&self, name: &str) -> Result<f64> {
        let lines = self.running.metrics()?;
        metric_sum(&lines, name).with_context(|| format!("no {name} in /metrics"))
    }
}

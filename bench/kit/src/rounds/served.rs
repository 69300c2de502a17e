//! A server of a row: how it is started, and what it says of itself.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bench;
use crate::members::Clients;
use crate::sys::{self, Cpu};
use crate::target::{Running, Target, metric_sum};

/// How long a request may take: longer than the server's own limit.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A server of a row.
pub struct Served {
    /// Its process.
    pub running: Running,
}

impl Served {
    /// A fresh process with these settings and so many shards, all on one core.
    pub fn start(bench: &Bench<'_>, settings: &str, shards: u32) -> Result<Self> {
        let file = bench.scratch.join("simurgh.toml");
        fs::write(&file, settings)?;
        let target = Target::simurgh(&bench.program, shards)?.with_settings(&file);
        Ok(Self { running: target.start(&bench.scratch.join("server-log"))? })
    }

    /// Clients of it; none is connected yet.
    pub fn clients(&self) -> Result<Clients> {
        Clients::new(self.running.address)
    }

    /// CPU time of its threads so far.
    pub fn cpu(&self) -> Result<Cpu> {
        Cpu::of(self.running.pid())
    }

    /// That of the threads alone whose name begins so.
    pub fn cpu_of(&self, thread: &str) -> Result<Cpu> {
        Cpu::of_threads(self.running.pid(), thread)
    }

    /// Nanoseconds that it has run since then.
    pub fn spent(&self, since: &Cpu) -> Result<u64> {
        let (ran, ended) = self.cpu()?.since(since);
        ensure!(ended == 0, "{ended} threads ended, and their time is lost");
        Ok(ran)
    }

    /// Its resident bytes.
    pub fn resident(&self) -> Result<u64> {
        sys::resident(self.running.pid())
    }

    /// A metric summed over all shards.
    pub fn sum(&self, name: &str) -> Result<f64> {
        let lines = self.running.metrics()?;
        metric_sum(&lines, name).with_context(|| format!("no {name} in /metrics"))
    }

    /// What it answers to a back end that posts JSON.
    pub fn post(&self, path: &str, body: &str) -> Result<Value> {
        let length = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        self.request("POST", path, &length, body)
    }

    /// What it answers to a back end that asks.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.request("GET", path, "Accept: application/json", "")
    }

    fn request(&self, method: &str, path: &str, header: &str, body: &str) -> Result<Value> {
        let address = self.running.address;
        let mut stream = TcpStream::connect_timeout(&address.into(), WAIT_MAX)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer bench\r\n\
             {header}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut text = String::new();
        stream.take(4 << 20).read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 20"), "{head}: {body}");
        serde_json::from_str(body).with_context(|| body.to_owned())
    }
}

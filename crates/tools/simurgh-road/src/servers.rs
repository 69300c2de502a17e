//! The tested servers: one, or several nodes of a cluster with a broker between them.

use std::path::Path;
use std::time::Duration;

use super::engine::{Engine, Program};
use super::metrics::Metrics;
use super::processes::{Identity, Server, wait_until};
use super::usage;

/// The channels of all compared servers: the built-in chat without histories, which need JetStream
/// in a cluster.
const LOBBY: &str = include_str!("lobby.toml");
const KNOW_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Servers {
    /// Never empty.
    servers: Vec<Server>,
    engine: Option<Engine>,
}

impl Servers {
    /// One server, `simurgh serve` or the program `instead`, with its own settings.
    pub(super) fn one(
        instead: Option<&str>,
        tls: Option<&Identity>,
        sockets: u64,
        dir: &Path,
    ) -> Result<Self, String> {
        let server = Server::start(instead, tls, sockets, dir, "server")?;
        Ok(Self { servers: vec![server], engine: None })
    }

    /// One server with the settings of nodes, except the cluster.
    pub(super) fn alone(tls: Option<&Identity>, sockets: u64, dir: &Path) -> Result<Self, String> {
        let home = dir.join("node");
        settings(&home, LOBBY)?;
        let server = Server::start(None, tls, sockets, &home, "server")?;
        Ok(Self { servers: vec![server], engine: None })
    }

    /// Nodes for this many sockets each, after they have found each other.
    pub(super) fn several(
        count: u32,
        tls: Option<&Identity>,
        sockets: u64,
        dir: &Path,
        program: &Program,
    ) -> Result<Self, String> {
        let engine = Engine::start(program, &dir.join("engine"))?;
        let url = engine.url();
        let mut nodes = Self { servers: Vec::new(), engine: Some(engine) };
        for number in 1..=count {
            let name = format!("node-{number}");
            let home = dir.join(&name);
            let cluster = format!(
                "{LOBBY}\n[cluster]\nengine = \"nats\"\nprefix = \"road\"\nname = \"{name}\"\n\
                 servers = [\"{url}\"]\nrequired = \"30s\"\n"
            );
            settings(&home, &cluster)?;
            nodes.servers.push(Server::start(None, tls, sockets, &home, "node")?);
        }
        nodes.wait_until_known()?;
        Ok(nodes)
    }

    /// Waits until each has found all others: a broadcast before that would not reach all.
    fn wait_until_known(&mut self) -> Result<(), String> {
        let others = self.servers.len() as u64 - 1;
        let alive = "simurgh_cluster_nodes{state=\"alive\"}";
        let are_known = || {
            self.must_run()?;
            Ok(self.metrics_each()?.iter().all(|metrics| metrics.count_of(alive) == others))
        };
        let late = format!("the nodes did not find each other within {KNOW_TIMEOUT:?}");
        wait_until(are_known, KNOW_TIMEOUT, Duration::from_millis(50), &late)
    }

    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// Where clients connect, without a path.
    pub(super) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.url.clone()).collect()
    }

    pub(super) fn must_run(&mut self) -> Result<(), String> {
        if let Some(engine) = &mut self.engine {
            engine.process.must_run()?;
        }
        self.servers.iter_mut().try_for_each(|server| server.process.must_run())
    }

    pub(super) fn metrics_each(&self) -> Result<Vec<Metrics>, String> {
        self.servers.iter().map(Server::metrics).collect()
    }

    pub(super) fn metrics(&self) -> Result<Metrics, String> {
        let mut all = Metrics::default();
        self.metrics_each()?.into_iter().for_each(|one| all.add(one));
        Ok(all)
    }

    /// Broadcasts through the first of them.
    pub(super) fn broadcast(&self, topic: &str, event: &str, payload: &str) -> Result<(), String> {
        match self.servers.first() {
            Some(first) => first.broadcast(topic, event, payload),
            None => Err("there is no server".to_owned()),
        }
    }

    /// Resident bytes of each, exactly.
    pub(super) fn resident_each(&self) -> Result<Vec<u64>, String> {
        self.servers.iter().map(|server| usage::resident(server.process.pid())).collect()
    }

    /// Resident bytes of all: cheap, and off by some pages.
    pub(super) fn resident_about(&self) -> Result<u64, String> {
        self.servers.iter().map(|server| usage::resident_about(server.process.pid())).sum()
    }

    /// CPU time of each, nanoseconds.
    pub(super) fn cpu_each(&self) -> Result<Vec<u64>, String> {
        self.servers.iter().map(|server| usage::cpu_ns(server.process.pid())).collect()
    }

    /// CPU time of the broker, nanoseconds, and its resident bytes; `None`: there is none.
    pub(super) fn engine(&self) -> Result<Option<(u64, u64)>, String> {
        let seen = |engine: &Engine| {
            Ok((usage::cpu_ns(engine.process.pid())?, usage::resident(engine.process.pid())?))
        };
        self.engine.as_ref().map(seen).transpose()
    }
}

fn settings(home: &Path, text: &str) -> Result<(), String> {
    let whole = format!("# Written by `simurgh road`.\n{text}\n");
    std::fs::create_dir(home)
        .and_then(|()| std::fs::write(home.join("simurgh.toml"), whole))
        .map_err(|error| format!("cannot write {}: {error}", home.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lobby_settings_equal_those_of_bench_chat_toml() {
        let keys = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
            lines.map(str::to_owned).collect()
        };
        assert_eq!(keys(LOBBY), keys(include_str!("../../../../bench/chat.toml")));
    }
}

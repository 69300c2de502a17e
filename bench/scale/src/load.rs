//! The clients' load, and the machines for it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Deserialize;

const FILE: &str = include_str!("../loads.toml");

/// Where the members of a room are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// On any node.
    #[default]
    Random,
    /// In one region, but for the rooms that are `mixed`.
    Regional,
}

/// The publishers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Publisher {
    /// Members, by a push that is answered.
    #[default]
    Clients,
    /// Somebody else, by `POST /api/broadcast`.
    Backend,
}

/// The load of the clients.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Its name.
    pub name: String,
    /// Its description in words.
    #[serde(default)]
    pub what: String,
    /// Clients connected at a time.
    pub clients: f64,
    /// Topics that have members.
    pub rooms: f64,
    /// Members of each, the mean.
    pub room_size: f64,
    /// Messages a second in each.
    pub rate: f64,
    /// Bytes of each message.
    pub payload: f64,
    /// Members of one more topic, the hottest.
    #[serde(default)]
    pub hot_size: f64,
    /// Messages a second in it.
    #[serde(default)]
    pub hot_rate: f64,
    /// The share of rooms with presence.
    #[serde(default)]
    pub presence: f64,
    /// Seconds that a client stays.
    pub session: f64,
    /// The share of rooms that keep messages.
    #[serde(default)]
    pub kept: f64,
    /// Messages that each of these keeps.
    #[serde(default = "kept_count")]
    pub kept_count: f64,
    /// Seconds for which they are kept.
    #[serde(default = "kept_age")]
    pub kept_age: f64,
    /// The publishers.
    #[serde(default)]
    pub from: Publisher,
    /// Where members of a room are.
    #[serde(default)]
    pub spread: Spread,
    /// The share of rooms that have members in all regions, where `spread` is regional.
    #[serde(default)]
    pub mixed: f64,
}

fn kept_count() -> f64 {
    100.0
}

fn kept_age() -> f64 {
    300.0
}

impl Load {
    /// The loads of the repository, or of a file; an error if one is unreadable or impossible.
    pub fn all(own: Option<&Path>) -> Result<Vec<Self>> {
        #[derive(Deserialize)]
        struct Table {
            load: Vec<Load>,
        }
        let (text, name) = match own {
            None => (FILE.to_owned(), "loads.toml".to_owned()),
            Some(path) => {
                let name = path.display().to_string();
                (std::fs::read_to_string(path).with_context(|| name.clone())?, name)
            }
        };
        let table: Table = toml::from_str(&text).with_context(|| name.clone())?;
        table.load.iter().try_for_each(Self::check).with_context(|| name)?;
        Ok(table.load)
    }

    /// An error if a number is not finite, negative, or larger than the number of clients.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("clients", self.clients),
            ("rooms", self.rooms),
            ("room_size", self.room_size),
            ("session", self.session),
        ];
        for (name, value) in positive {
            ensure!(value.is_finite() && value > 0.0, "{}: {name} is {value}", self.name);
        }
        let others = [
            ("rate", self.rate),
            ("payload", self.payload),
            ("hot_size", self.hot_size),
            ("hot_rate", self.hot_rate),
            ("kept_count", self.kept_count),
            ("kept_age", self.kept_age),
        ];
        for (name, value) in others {
            ensure!(value.is_finite() && value >= 0.0, "{}: {name} is {value}", self.name);
        }
        for (name, value) in
            [("presence", self.presence), ("kept", self.kept), ("mixed", self.mixed)]
        {
            ensure!((0.0..=1.0).contains(&value), "{}: {name} is a share, not {value}", self.name);
        }
        for (name, size) in [("room_size", self.room_size), ("hot_size", self.hot_size)] {
            ensure!(size <= self.clients, "{}: {name} is more than all clients", self.name);
        }
        Ok(())
    }

    /// Topics of a client, the mean.
    pub fn topics_each(&self) -> f64 {
        (self.rooms * self.room_size + self.hot_size) / self.clients
    }

    /// Messages published in a second.
    pub fn published(&self) -> f64 {
        self.rooms * self.rate + self.hot_rate
    }

    /// Messages sent to clients in a second.
    pub fn delivered(&self) -> f64 {
        self.rooms * self.rate * self.room_size + self.hot_rate * self.hot_size
    }

    /// Members that join or leave rooms with presence in a second.
    pub fn presence_changes(&self) -> f64 {
        2.0 * self.rooms * self.room_size * self.presence / self.session
    }

    /// Presence changes sent to members in a second: each change to all of the room.
    pub fn presence_delivered(&self) -> f64 {
        self.presence_changes() * self.room_size
    }

    /// Messages that a kept room holds.
    pub fn kept_each(&self) -> f64 {
        self.kept_count.min(self.rate * self.kept_age)
    }

    /// Members of the largest topic.
    pub fn hottest(&self) -> (f64, f64) {
        match self.hot_size > self.room_size {
            true => (self.hot_size, self.hot_rate),
            false => (self.room_size, self.rate),
        }
    }
}

/// The machines for a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    /// Cores of a node.
    pub node_cores: f64,
    /// Bytes of a node.
    pub node_memory: f64,
    /// Bits a second of a node's network card.
    pub node_bits: f64,
    /// Clients of a node at most, once a region is lost.
    pub node_clients: f64,
    /// Descriptors of one table; each shard has its own.
    pub descriptors: f64,
    /// Cores of a broker.
    pub broker_cores: f64,
    /// Bytes of a broker.
    pub broker_memory: f64,
    /// Bits a second of a broker's network card.
    pub broker_bits: f64,
    /// Copies of kept messages.
    pub replicas: f64,
    /// The share of CPU and network that may be in use, once a region is lost.
    pub fill: f64,
    /// The share of memory that may be in use.
    pub memory_fill: f64,
    /// Regions; one of them may be lost, if there are more.
    pub regions: f64,
    /// Clusters without connections to each other; topics are split over them.
    pub cells: f64,
    /// Machines in a rack.
    pub rack: f64,
    /// Whether proxies end TLS before the nodes.
    pub proxies: bool,
    /// Seconds from a region's loss until its clients are sent elsewhere.
    pub redirect: f64,
}

impl Default for Machines {
    fn default() -> Self {
        Self {
            node_cores: 16.0,
            node_memory: 64e9,
            node_bits: 10e9,
            node_clients: 1e6,
            descriptors: 1_048_576.0,
            broker_cores: 16.0,
            broker_memory: 32e9,
            broker_bits: 10e9,
            replicas: 3.0,
            fill: 0.6,
            memory_fill: 0.8,
            regions: 3.0,
            cells: 1.0,
            rack: 10.0,
            proxies: true,
            redirect: 15.0,
        }
    }
}

impl Machines {
    /// Regions that have to be enough.
    pub fn regions_left(&self) -> f64 {
        (self.regions - 1.0).max(1.0)
    }

    /// Whether each cell is within a region.
    pub fn cells_are_regional(&self, load: &Load) -> bool {
        load.spread == Spread::Regional && self.cells >= self.regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loads_by_name_are_a_hundred_million_clients_each() {
        let all = Load::all(None).unwrap();
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["lobby", "chat", "notifications", "pages"]);
        for load in &all {
            assert!((load.clients - 1e8).abs() < 0.5, "{}", load.name);
            assert!((load.topics_each() - 1.0).abs() < 0.01, "{}", load.name);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        let good = Load::all(None).unwrap().remove(1);
        let refused = |change: fn(&mut Load)| {
            let mut load = good.clone();
            change(&mut load);
            load.check().unwrap_err().to_string()
        };
        assert_eq!(refused(|it| it.clients = 0.0), "chat: clients is 0");
        assert_eq!(refused(|it| it.rate = f64::NAN), "chat: rate is NaN");
        assert_eq!(refused(|it| it.kept = 1.5), "chat: kept is a share, not 1.5");
        assert_eq!(refused(|it| it.hot_size = 2e8), "chat: hot_size is more than all clients");
    }

    #[test]
    fn a_rate_of_each_room_is_a_rate_of_all() {
        let chat = Load::all(None).unwrap().remove(1);
        assert!((chat.published() - 200_000.0).abs() < 1e-6);
        assert!((chat.delivered() - 10_000_000.0).abs() < 1e-3);
        assert!((chat.presence_changes() - 2e8 / 1800.0).abs() < 1e-3);
    }
}

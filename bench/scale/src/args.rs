//! The flags of the program.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Args, Parser};

use crate::load::{Load, Machines, Publisher, Spread};

/// Computes how many machines a load takes, and which assumption of that breaks first.
///
/// Without flags: the loads and tables of docs/SCALE.md. Numbers are as 100e6 or 2_000_000.
#[derive(Debug, Default, Parser)]
#[command(name = "cargo xtask scale")]
pub struct Options {
    /// Loads by name; all of them, or chat where something is changed by flags
    #[arg(value_name = "LOAD")]
    pub names: Vec<String>,
    /// Loads of your own, in the form of bench/scale/loads.toml
    #[arg(long, value_name = "FILE")]
    pub loads: Option<PathBuf>,
    /// Prices of your own, in the form of bench/scale/prices.toml; those that it names
    #[arg(long, value_name = "FILE")]
    pub prices: Option<PathBuf>,
    /// What clients do
    #[command(flatten)]
    pub load: LoadOptions,
    /// What there is for them
    #[command(flatten)]
    pub machines: MachineOptions,
    /// What you pay
    #[command(flatten)]
    pub costs: Costs,
    /// Of what is played through
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Only what is computed: nothing is played through
    #[arg(long)]
    pub formulas_only: bool,
    /// Puts the tables into docs/SCALE.md
    #[arg(long)]
    pub write: bool,
}

/// Changes of a load.
#[derive(Debug, Default, PartialEq, Args)]
pub struct LoadOptions {
    /// Clients at a time
    #[arg(long, value_parser = number)]
    clients: Option<f64>,
    /// Topics with members
    #[arg(long, value_parser = number)]
    rooms: Option<f64>,
    /// Members of each
    #[arg(long, value_parser = number)]
    room_size: Option<f64>,
    /// Messages a second in each
    #[arg(long, value_parser = number)]
    rate: Option<f64>,
    /// Bytes of a message
    #[arg(long, value_parser = number)]
    payload: Option<f64>,
    /// Members of the hottest topic
    #[arg(long, value_parser = number)]
    hot_size: Option<f64>,
    /// Messages a second in it
    #[arg(long, value_parser = number)]
    hot_rate: Option<f64>,
    /// Share of rooms with presence
    #[arg(long, value_parser = number)]
    presence: Option<f64>,
    /// Seconds that a client stays
    #[arg(long, value_parser = number)]
    session: Option<f64>,
    /// Share of rooms that are kept
    #[arg(long, value_parser = number)]
    kept: Option<f64>,
    /// Messages that each keeps
    #[arg(long, value_parser = number)]
    kept_count: Option<f64>,
    /// Seconds for which it does
    #[arg(long, value_parser = number)]
    kept_age: Option<f64>,
    /// Who publishes
    #[arg(long)]
    from: Option<Publisher>,
    /// Where members of a room are
    #[arg(long)]
    spread: Option<Spread>,
    /// Share of rooms with members in all regions, if spread is regional
    #[arg(long, value_parser = number)]
    mixed: Option<f64>,
}

/// Changes of the machines.
#[derive(Debug, Default, PartialEq, Args)]
pub struct MachineOptions {
    /// GB of a node (64)
    #[arg(long, value_parser = number, value_name = "GB")]
    nodes_memory: Option<f64>,
    /// Cores of a node (16)
    #[arg(long, value_parser = number)]
    nodes_cores: Option<f64>,
    /// Gbit/s of a node (10)
    #[arg(long, value_parser = number, value_name = "GBIT")]
    nodes_network: Option<f64>,
    /// Clients of a node at most, once a region is lost (1e6)
    #[arg(long, value_parser = number, value_name = "N")]
    nodes_clients: Option<f64>,
    /// Cores of a broker (16)
    #[arg(long, value_parser = number)]
    brokers_cores: Option<f64>,
    /// GB of a broker (32)
    #[arg(long, value_parser = number, value_name = "GB")]
    brokers_memory: Option<f64>,
    /// Gbit/s of a broker (10)
    #[arg(long, value_parser = number, value_name = "GBIT")]
    brokers_network: Option<f64>,
    /// Copies of what is kept (3)
    #[arg(long, value_parser = number)]
    replicas: Option<f64>,
    /// Share of CPU and network that may be in use, once a region is lost (0.6)
    #[arg(long, value_parser = number)]
    fill: Option<f64>,
    /// Regions, of which one may be lost (3)
    #[arg(long, value_parser = number)]
    regions: Option<f64>,
    /// Clusters over which topics are split (1)
    #[arg(long, value_parser = number)]
    cells: Option<f64>,
    /// Machines in a rack (10)
    #[arg(long, value_parser = number)]
    rack: Option<f64>,
    /// Seconds from a region's loss until its clients are sent elsewhere (15)
    #[arg(long, value_parser = number)]
    redirect: Option<f64>,
    /// Nothing ends TLS before the nodes
    #[arg(long)]
    no_proxies: bool,
}

/// Prices that only who pays them knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Args)]
pub struct Costs {
    /// What a core costs in an hour
    #[arg(long, value_parser = number)]
    pub core_hour: Option<f64>,
    /// What a GB of memory costs in a month
    #[arg(long, value_parser = number)]
    pub gb_month: Option<f64>,
    /// What a TB that leaves a region costs
    #[arg(long, value_parser = number)]
    pub tb: Option<f64>,
}

fn number(text: &str) -> Result<f64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("neither a number nor 0 or more".to_owned()),
    }
}

fn set<T>(to: &mut T, from: Option<T>) {
    if let Some(value) = from {
        *to = value;
    }
}

impl LoadOptions {
    fn change(&self, load: &mut Load) {
        set(&mut load.clients, self.clients);
        set(&mut load.rooms, self.rooms);
        set(&mut load.room_size, self.room_size);
        set(&mut load.rate, self.rate);
        set(&mut load.payload, self.payload);
        set(&mut load.hot_size, self.hot_size);
        set(&mut load.hot_rate, self.hot_rate);
        set(&mut load.presence, self.presence);
        set(&mut load.session, self.session);
        set(&mut load.kept, self.kept);
        set(&mut load.kept_count, self.kept_count);
        set(&mut load.kept_age, self.kept_age);
        set(&mut load.mixed, self.mixed);
        set(&mut load.from, self.from);
        set(&mut load.spread, self.spread);
    }
}

impl Options {
    /// The loads that are meant.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be.
    pub fn loads(&self) -> Result<Vec<Load>> {
        let all = Load::all(self.loads.as_deref())?;
        for name in &self.names {
            let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
            ensure!(names.contains(&name.as_str()), "no load {name:?}: {}", names.join(", "));
        }
        let is_changed = self.load != LoadOptions::default();
        let is_meant = |load: &Load| match self.names.is_empty() {
            true => !is_changed || self.loads.is_some() || load.name == "chat",
            false => self.names.contains(&load.name),
        };
        let mut meant: Vec<Load> = all.into_iter().filter(is_meant).collect();
        for load in &mut meant {
            self.load.change(load);
            load.check()?;
        }
        Ok(meant)
    }

    /// The machines that are meant.
    ///
    /// # Errors
    /// There would be none, or nothing may be in use.
    pub fn machines(&self) -> Result<Machines> {
        let own = &self.machines;
        let mut it = Machines { proxies: !own.no_proxies, ..Machines::default() };
        set(&mut it.node_memory, own.nodes_memory.map(|gb| gb * 1e9));
        set(&mut it.node_cores, own.nodes_cores);
        set(&mut it.node_bits, own.nodes_network.map(|gbit| gbit * 1e9));
        set(&mut it.node_clients, own.nodes_clients);
        set(&mut it.broker_cores, own.brokers_cores);
        set(&mut it.broker_memory, own.brokers_memory.map(|gb| gb * 1e9));
        set(&mut it.broker_bits, own.brokers_network.map(|gbit| gbit * 1e9));
        set(&mut it.replicas, own.replicas);
        set(&mut it.fill, own.fill);
        set(&mut it.regions, own.regions);
        set(&mut it.cells, own.cells);
        set(&mut it.rack, own.rack);
        set(&mut it.redirect, own.redirect);
        let all = [
            ("--nodes-memory", it.node_memory),
            ("--nodes-cores", it.node_cores),
            ("--nodes-network", it.node_bits),
            ("--nodes-clients", it.node_clients),
            ("--brokers-cores", it.broker_cores),
            ("--brokers-memory", it.broker_memory),
            ("--brokers-network", it.broker_bits),
            ("--fill", it.fill),
            ("--replicas", it.replicas),
            ("--rack", it.rack),
        ];
        if let Some((name, _)) = all.iter().find(|it| it.1 <= 0.0) {
            bail!("{name} is 0");
        }
        ensure!(it.fill <= 1.0, "--fill is a share, not {}", it.fill);
        for (name, value) in [("--regions", it.regions), ("--cells", it.cells)] {
            let is_whole = value >= 1.0 && value.fract() == 0.0 && value <= 10_000.0;
            ensure!(is_whole, "{name} is a number from 1 to 10000, not {value}");
        }
        Ok(it)
    }

    /// Whether these are the tables of the document.
    pub fn is_plain(&self) -> bool {
        self.load == LoadOptions::default()
            && self.machines == MachineOptions::default()
            && self.costs == Costs::default()
            && self.names.is_empty()
            && self.loads.is_none()
            && self.prices.is_none()
            && self.seed == 1
            && !self.formulas_only
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(flags: &[&str]) -> Options {
        Options::parse_from(["scale"].iter().chain(flags))
    }

    fn names(flags: &[&str]) -> Vec<String> {
        options(flags).loads().unwrap().into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn without_flags_all_loads_are_meant_and_with_changes_chat_alone() {
        assert_eq!(names(&[]).len(), 4);
        assert_eq!(names(&["--clients", "1e6", "--rooms", "20_000"]), ["chat"]);
        assert_eq!(names(&["pages", "lobby"]), ["lobby", "pages"]);
        assert!(options(&[]).is_plain() && !options(&["--rate", "1"]).is_plain());
        assert!(!options(&["--cells", "3"]).is_plain());
    }

    #[test]
    fn what_is_given_is_taken() {
        let load = options(&["chat", "--rate", "2.5", "--spread", "regional", "--mixed", "0.1"]);
        let load = load.loads().unwrap().remove(0);
        assert!((load.rate - 2.5).abs() < 1e-9 && load.spread == Spread::Regional);
        let machines = options(&["--nodes-memory", "8", "--no-proxies"]).machines().unwrap();
        assert!((machines.node_memory - 8e9).abs() < 1.0 && !machines.proxies);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
        let refused = |flags: &[&str]| {
            let options = options(flags);
            let both = options.loads().map(|_| ()).and(options.machines().map(|_| ()));
            both.unwrap_err().to_string()
        };
        assert!(refused(&["nothing"]).contains("no load \"nothing\": lobby, chat"));
        assert_eq!(refused(&["--rooms", "0"]), "chat: rooms is 0");
        assert_eq!(refused(&["--nodes-cores", "0"]), "--nodes-cores is 0");
        assert_eq!(refused(&["--cells", "1.5"]), "--cells is a number from 1 to 10000, not 1.5");
        assert_eq!(refused(&["--fill", "2"]), "--fill is a share, not 2");
        assert!(Options::try_parse_from(["scale", "--rate", "-1"]).is_err());
        assert!(Options::try_parse_from(["scale", "--rate", "inf"]).is_err());
    }
}

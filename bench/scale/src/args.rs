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
    /// Who does
    #[command(flatten)]
    pub room: RoomOptions,
    /// What there is for them
    #[command(flatten)]
    pub machines: MachineOptions,
    /// Nothing ends TLS before the nodes
    #[arg(long)]
    pub no_proxies: bool,
    /// What you pay
    #[command(flatten)]
    pub costs: Costs,
    /// Of what is simulated
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Only what is computed: nothing is simulated
    #[arg(long)]
    pub formulas_only: bool,
    /// Puts the tables into docs/SCALE.md
    #[arg(long)]
    pub write: bool,
}

/// Flags, each of which changes a field of `$of` if it is given: `flag (name of its value) =>
/// field`, times a factor.
macro_rules! changes {
    ($(#[$about:meta])* $name:ident of $of:ty;
     $($(#[$help:meta])* $flag:ident $(($value:literal))? => $field:ident
       $(* $factor:literal)?;)*) => {
        $(#[$about])*
        #[derive(Debug, Default, PartialEq, Args)]
        pub struct $name {
            $($(#[$help])*
            #[arg(long, value_parser = number $(, value_name = $value)?)]
            $flag: Option<f64>,)*
        }

        impl $name {
            fn change(&self, it: &mut $of) {
                $(if let Some(value) = self.$flag {
                    it.$field = value $(* $factor)?;
                })*
            }
        }
    };
}

changes! {
    /// Changes of a load.
    LoadOptions of Load;
    /// Clients at a time
    clients => clients;
    /// Topics with members
    rooms => rooms;
    /// Members of each
    room_size => room_size;
    /// Messages a second in each
    rate => rate;
    /// Bytes of a message
    payload => payload;
    /// Members of the hottest topic
    hot_size => hot_size;
    /// Messages a second in it
    hot_rate => hot_rate;
    /// Share of rooms with presence
    presence => presence;
    /// Seconds that a client stays
    session => session;
    /// Share of rooms that are kept
    kept => kept;
    /// Messages that each keeps
    kept_count => kept_count;
    /// Seconds for which it does
    kept_age => kept_age;
    /// Share of rooms with members in all regions, if spread is regional
    mixed => mixed;
}

/// Changes of who publishes, and to whom.
#[derive(Debug, Default, PartialEq, Args)]
pub struct RoomOptions {
    /// Who publishes
    #[arg(long)]
    from: Option<Publisher>,
    /// Where members of a room are
    #[arg(long)]
    spread: Option<Spread>,
}

changes! {
    /// Changes of the machines.
    MachineOptions of Machines;
    /// GB of a node (64)
    nodes_memory("GB") => node_memory * 1e9;
    /// Cores of a node (16)
    nodes_cores => node_cores;
    /// Gbit/s of a node (10)
    nodes_network("GBIT") => node_bits * 1e9;
    /// Clients of a node at most, once a region is lost (1e6)
    nodes_clients("N") => node_clients;
    /// Cores of a broker (16)
    brokers_cores => broker_cores;
    /// GB of a broker (32)
    brokers_memory("GB") => broker_memory * 1e9;
    /// Gbit/s of a broker (10)
    brokers_network("GBIT") => broker_bits * 1e9;
    /// Copies of what is kept (3)
    replicas => replicas;
    /// Share of CPU and network that may be in use, once a region is lost (0.6)
    fill => fill;
    /// Regions, of which one may be lost (3)
    regions => regions;
    /// Clusters over which topics are split (1)
    cells => cells;
    /// Machines in a rack (10)
    rack => rack;
    /// Seconds from a region's loss until its clients are sent elsewhere (15)
    redirect => redirect;
}

/// Prices that only those who pay them know.
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

impl Options {
    /// The selected loads; an error if a name is unknown or a load is impossible.
    pub fn loads(&self) -> Result<Vec<Load>> {
        let all = Load::all(self.loads.as_deref())?;
        for name in &self.names {
            let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
            ensure!(names.contains(&name.as_str()), "no load {name:?}: {}", names.join(", "));
        }
        let is_changed = !self.has_plain_load();
        let is_meant = |load: &Load| match self.names.is_empty() {
            true => !is_changed || self.loads.is_some() || load.name == "chat",
            false => self.names.contains(&load.name),
        };
        let mut meant: Vec<Load> = all.into_iter().filter(is_meant).collect();
        for load in &mut meant {
            self.load.change(load);
            load.from = self.room.from.unwrap_or(load.from);
            load.spread = self.room.spread.unwrap_or(load.spread);
            load.check()?;
        }
        Ok(meant)
    }

    /// The selected machines; an error if there are none, or none of their capacity may be used.
    pub fn machines(&self) -> Result<Machines> {
        let mut it = Machines { proxies: !self.no_proxies, ..Machines::default() };
        self.machines.change(&mut it);
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

    fn has_plain_load(&self) -> bool {
        self.load == LoadOptions::default() && self.room == RoomOptions::default()
    }

    /// Whether these are the options of the document's tables.
    pub fn is_plain(&self) -> bool {
        self.has_plain_load()
            && self.machines == MachineOptions::default()
            && !self.no_proxies
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

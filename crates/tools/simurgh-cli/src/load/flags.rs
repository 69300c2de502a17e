//! The flags of `simurgh load`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use simurgh_load::scenario::{AddressRange, Overrides, Spread, Threshold};
use simurgh_text::{Choice, duration, word_or};

use super::http::HttpFlags;
use super::values::{Cores, cores, map, threshold, users, workers};
use crate::settings::values::address;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = AFTER_HELP
)]
pub(crate) struct Load {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) run: RunFlags,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Explains a scenario, or reports its mistakes; starts nothing.
    Check {
        #[command(flatten)]
        scenario: ScenarioFlags,
        #[command(flatten)]
        workers: WorkerFlags,
    },
    /// Writes an example scenario with comments.
    Init {
        /// File to write; an existing file is not overwritten. Default: standard output.
        file: Option<PathBuf>,
    },
    /// Converts a scenario, such as a Tsung file, to TOML.
    Convert {
        #[command(flatten)]
        scenario: ScenarioFlags,
    },
    /// Prints the reference of the TOML form: every key with its default and an example.
    Reference,
    /// Makes the reports of a run from its journal, for example after a crash.
    Report {
        /// The directory of the run.
        dir: PathBuf,
    },
    /// Runs users for a controller on another host.
    Agent(AgentFlags),
    /// Repeats one HTTP request, as fast as possible or at a fixed rate, like wrk.
    Http(Box<HttpFlags>),
}

/// The scenario, and changes to it.
#[derive(Debug, Args)]
pub(super) struct ScenarioFlags {
    /// Scenario file: TOML, or Tsung's XML.
    #[arg(value_name = "FILE", required = true)]
    pub(super) file: Option<PathBuf>,
    /// Replaces a host, or host:port, of the scenario by another one. Repeatable.
    #[arg(long, value_name = "HOST=ADDR", value_parser = map)]
    map: Vec<(String, String)>,
    /// Server to use instead of those in the scenario: ws://HOST:PORT (or wss, http, https).
    /// Repeatable.
    #[arg(long, value_name = "URL", value_parser = simurgh_load::toml::target_url)]
    target: Vec<String>,
    /// How to spread users over several servers. round-robin: the next server for each connection.
    /// sticky: each user keeps its server. elsewhere: like sticky, but a user goes to the next
    /// server after a broken or refused connection. random: each user keeps a random server.
    #[arg(long, value_name = "HOW", value_parser = simurgh_load::toml::spread)]
    spread: Option<Spread>,
    /// Runs everything on this host instead of agents or the client hosts of a Tsung file.
    #[arg(long)]
    local: bool,
    /// Rejects everything that Tsung's DTD rejects, instead of repairing it.
    #[arg(long)]
    strict: bool,
    /// Maximum number of users in the whole run.
    #[arg(long, value_name = "N", value_parser = users)]
    max_users: Option<u64>,
    /// Ends the run and all its users after this time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Users per second in all phases, also 60/min or 100/h.
    #[arg(long, value_name = "RATE", value_parser = simurgh_load::toml::rate)]
    rate: Option<f64>,
    /// Seed of all random choices; the same seed repeats a run.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Source addresses: 10.0.0.2 or 10.0.0.2-10.0.0.9. Repeatable.
    #[arg(long, value_name = "RANGE", value_parser = simurgh_load::toml::address_range)]
    source: Vec<AddressRange>,
    /// How users connect. sockets: as the scenario has it, by default with a socket each. tun:
    /// without sockets, over a TUN device for each worker. Needs root, and a server on this
    /// machine. --source is its network then, by default 10.200.0.0-10.201.255.255.
    #[arg(long, value_name = "HOW", value_parser = ["sockets", "tun"], default_value = "sockets",
          hide_possible_values = true)]
    transport: String,
    /// First part of the names of the TUN devices.
    #[arg(long, value_name = "NAME", default_value = "simurgh")]
    tun_device: String,
    /// Accepts any TLS certificate.
    #[arg(long)]
    insecure: bool,
    /// Skips the steps with this tag. Repeatable.
    #[arg(short = 'x', long, value_name = "TAG")]
    exclude_tag: Vec<String>,
}

impl ScenarioFlags {
    pub(super) fn overrides(&self) -> Overrides {
        Overrides {
            map: self.map.clone(),
            targets: self.target.clone(),
            spread: self.spread,
            local: self.local,
            strict: self.strict,
            exclude_tags: self.exclude_tag.clone(),
            users_max: self.max_users,
            duration: self.duration,
            rate: self.rate,
            seed: self.seed,
            sources: self.source.clone(),
            tun: (self.transport == "tun").then(|| self.tun_device.clone()),
            insecure: self.insecure,
        }
    }
}

/// The workers of this host.
#[derive(Debug, Clone, Args)]
pub(super) struct WorkerFlags {
    /// Worker threads. Default: one per core, or more if the sockets need more descriptors.
    #[arg(long, value_name = "N", value_parser = workers)]
    pub(super) workers: Option<usize>,
    /// Pins workers to these cores in turn: 2,3 or 4-7.
    #[arg(long, value_name = "LIST", value_parser = cores)]
    pub(super) cores: Option<Cores>,
    /// Compares receive times with the kernel's and reports the difference as `stamp_error`.
    #[arg(long)]
    pub(super) kernel_stamps: bool,
}

/// All flags of a run.
#[derive(Debug, Args)]
pub(super) struct RunFlags {
    #[command(flatten)]
    pub(super) scenario: ScenarioFlags,
    #[command(flatten)]
    pub(super) workers: WorkerFlags,
    /// Output directory. Default: ./simurgh-load-NAME-DATE-TIME.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Sends the figures of each second to Prometheus, as to http://127.0.0.1:9090/api/v1/write.
    #[arg(long, value_name = "URL")]
    pub(super) remote_write: Option<String>,
    /// Allows an output directory that is not empty.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Address of the live dashboard, or off. If the port is taken, the next free one is used.
    #[arg(long, value_name = "ADDRESS", value_parser = word_or("off", address),
          default_value = "127.0.0.1:8091")]
    pub(super) dashboard: Choice<SocketAddr>,
    /// Prints no progress, only the summary.
    #[arg(long)]
    pub(super) quiet: bool,
    /// Reports the servers' CPU time: asks /metrics once a second for simurgh's or
    /// process_cpu_seconds_total. Not over TLS.
    #[arg(long)]
    pub(super) server_cpu: bool,
    /// A condition as in `pass`, such as "errors == 0" or "http_p99 < 50ms". Repeatable.
    #[arg(long, value_name = "CONDITION", value_parser = threshold)]
    pub(super) pass: Vec<Threshold>,
    /// Reads commands from standard input, one per line: pause, resume, rate FACTOR, stop.
    #[arg(long)]
    pub(super) commands: bool,
}

#[derive(Debug, Args)]
pub(super) struct AgentFlags {
    /// Address to listen on for the controller.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(super) listen: SocketAddr,
    /// Secret that the controller must send; $NAME reads an environment variable.
    #[arg(long, value_name = "TOKEN", env = "SIMURGH_LOAD_TOKEN", hide_env_values = true)]
    pub(super) token: String,
}

const AFTER_HELP: &str = "\
Exit status: 0 if all conditions hold, 1 if the run failed, its results could not be written or\n\
nothing worked, 2 if the scenario or a flag is wrong, 3 if a condition does not hold. The first\n\
SIGINT or SIGTERM ends the run with its reports, a second one ends it at once.";

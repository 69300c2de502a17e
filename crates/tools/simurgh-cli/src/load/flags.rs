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
    /// Says what a scenario would do, and what is wrong with it; runs nothing.
    Check {
        #[command(flatten)]
        scenario: ScenarioFlags,
        #[command(flatten)]
        workers: WorkerFlags,
    },
    /// Writes a scenario with comments, to start from.
    Init {
        /// Where to; a file that is there already is left alone. Default: standard output.
        file: Option<PathBuf>,
    },
    /// Prints a scenario, Tsung's XML for example, in the native language.
    Convert {
        #[command(flatten)]
        scenario: ScenarioFlags,
    },
    /// Prints the reference of the scenario language: every key, with its default and an example.
    Reference,
    /// Makes the reports of a run again from what it wrote, if it was killed for example.
    Report {
        /// The directory of the run.
        dir: PathBuf,
    },
    /// Takes part in runs that another host controls.
    Agent(AgentFlags),
    /// Sends one HTTP request again and again, as fast as it is answered or at a fixed rate.
    Http(Box<HttpFlags>),
}

/// The scenario, and changes to it.
#[derive(Debug, Args)]
pub(super) struct ScenarioFlags {
    /// Scenario, in TOML or in Tsung's XML.
    #[arg(value_name = "FILE", required = true)]
    pub(super) file: Option<PathBuf>,
    /// Puts another host, or host:port, in the place of one that the scenario names; may be
    /// repeated.
    #[arg(long, value_name = "HOST=ADDR", value_parser = map)]
    map: Vec<(String, String)>,
    /// A server, in the place of all that the scenario names: ws://HOST:PORT, or wss, http, https;
    /// may be repeated for several.
    #[arg(long, value_name = "URL", value_parser = simurgh_load::toml::target_url)]
    target: Vec<String>,
    /// How users are spread over several servers: round-robin takes the next one for each
    /// connection, sticky keeps a user with its own, elsewhere has it take the next one after its
    /// connection broke, was cut or was refused, random has it draw one and keep it.
    #[arg(long, value_name = "HOW", value_parser = simurgh_load::toml::spread)]
    spread: Option<Spread>,
    /// Lets this host do all: agents and the clients of a Tsung file become workers here.
    #[arg(long)]
    local: bool,
    /// Rejects what Tsung's DTD rejects, and repairs nothing.
    #[arg(long)]
    strict: bool,
    /// No more users than this in the whole run.
    #[arg(long, value_name = "N", value_parser = users)]
    max_users: Option<u64>,
    /// Ends the run after this time, users and all.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Users per second, in all phases; also 60/min, 100/h.
    #[arg(long, value_name = "RATE", value_parser = simurgh_load::toml::rate)]
    rate: Option<f64>,
    /// Makes another run of the same scenario; the same seed makes the same.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Addresses to connect from, 10.0.0.2 or 10.0.0.2-10.0.0.9; may be repeated.
    #[arg(long, value_name = "RANGE", value_parser = simurgh_load::toml::address_range)]
    source: Vec<AddressRange>,
    /// Takes any certificate of the server.
    #[arg(long)]
    insecure: bool,
    /// Leaves out the requests and steps with this tag; may be repeated.
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
            insecure: self.insecure,
        }
    }
}

/// The workers of this host.
#[derive(Debug, Clone, Args)]
pub(super) struct WorkerFlags {
    /// Worker threads. Default: one per core, and more if their sockets need it.
    #[arg(long, value_name = "N", value_parser = workers)]
    pub(super) workers: Option<usize>,
    /// Cores to pin workers to in turn, such as 2,3 or 4-7. Default: none.
    #[arg(long, value_name = "LIST", value_parser = cores)]
    pub(super) cores: Option<Cores>,
    /// Asks the kernel when it received what is read, and tells what error the tool adds.
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
    /// Directory for all that is written. Default: ./simurgh-load-NAME-DATE-TIME.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Writes into a directory that is not empty.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Where the live page is, or off. Where the port is taken, the next free one.
    #[arg(long, value_name = "ADDRESS", value_parser = word_or("off", address),
          default_value = "127.0.0.1:8091")]
    pub(super) dashboard: Choice<SocketAddr>,
    /// Shows no progress; the summary comes all the same.
    #[arg(long)]
    pub(super) quiet: bool,
    /// Asks servers once a second what CPU time they have used, and reports it: /metrics of those
    /// that are ours, or say process_cpu_seconds_total. Not over TLS.
    #[arg(long)]
    pub(super) server_cpu: bool,
    /// A condition as in the table `pass`, such as "errors == 0" or "http_p99 < 50ms"; may be
    /// repeated.
    #[arg(long, value_name = "CONDITION", value_parser = threshold)]
    pub(super) pass: Vec<Threshold>,
    /// Takes commands from standard input, one a line: pause, resume, rate FACTOR, stop.
    #[arg(long)]
    pub(super) commands: bool,
}

#[derive(Debug, Args)]
pub(super) struct AgentFlags {
    /// Where the controller finds this host.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(super) listen: SocketAddr,
    /// Secret that the controller has to know; $NAME is an environment variable.
    #[arg(long, value_name = "TOKEN", env = "SIMURGH_LOAD_TOKEN", hide_env_values = true)]
    pub(super) token: String,
}

const AFTER_HELP: &str = "\
Exit status: 0 all conditions of [pass] hold, 1 the run could not be done, its results not be\n\
written, or nothing worked, 2 scenario or flags are wrong, 3 a condition of [pass] does not hold.\n\
The first SIGINT or SIGTERM ends the run in good order, with its reports; a second one at once.";

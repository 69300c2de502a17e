//! The command line: a command for each suite, and the helpers that suites start.

use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use clap::error::{Error, ErrorKind};
use clap::{Args, FromArgMatches, Subcommand};
use simurgh_bench_kit::rounds::{Options, Suite};

use crate::load::Bare;
use crate::{SUITES, bare, server};

/// The parsed command line.
pub(crate) enum Command {
    Measure(&'static Suite, Options),
    Help(Helper),
}

/// Programs that a measurement starts.
#[derive(Debug, PartialEq, Subcommand)]
pub(crate) enum Helper {
    /// The bare server alone, which is the baseline of `simurgh serve`
    BareServer(bare::Options),
    /// The bare client alone, which is the baseline of `simurgh load`
    Bare(Bare),
    /// Clients of a server that do what lines of the input say
    #[command(hide = true)]
    Crowd {
        #[arg(long, value_name = "IP:PORT")]
        server: SocketAddrV4,
    },
    /// The server of `timing`: answers after known delays, and logs when each request came
    #[command(hide = true)]
    Recorder,
    /// Prints the chart of raw files of `latency`, as SVG
    LatencyChart {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Logs when the load generator's core stands still
    #[command(hide = true)]
    Watch,
    /// Pins itself to a core, asks to die with the parent, and becomes another program
    #[command(hide = true)]
    Exec {
        /// The core; any without it
        #[arg(long, value_name = "N")]
        core: Option<usize>,
        /// Bytes of address space it may have; as many as this process without it
        #[arg(long, value_name = "BYTES")]
        address_space: Option<u64>,
        #[arg(last = true)]
        program: Vec<OsString>,
    },
}

fn command() -> clap::Command {
    let suites = SUITES.iter().map(|suite| {
        let about = format!("{}. Rows: {}", suite.about, suite.rows().join(", "));
        Options::augment_args(clap::Command::new(command_of(suite))).about(about)
    });
    let command = Options::augment_args(clap::Command::new("simurgh-bench")).subcommands(suites);
    Helper::augment_subcommands(command)
        .about("Simurgh's benchmark. Without a command it measures what `run` does")
        .args_conflicts_with_subcommands(true)
        .after_help("README.md of this package says how each figure comes about.")
}

fn command_of(suite: &Suite) -> &'static str {
    if suite.name == server::SUITE.name { "run" } else { suite.name }
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    let words = [OsString::from("simurgh-bench")].into_iter().chain(arguments);
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    let (suite, matches) = match matches.subcommand() {
        None => (&server::SUITE, &matches),
        Some((name, options)) => match SUITES.iter().find(|suite| command_of(suite) == name) {
            Some(suite) => (*suite, options),
            None => return Helper::from_arg_matches(&matches).map(Command::Help),
        },
    };
    let options = Options::from_arg_matches(matches)?.for_suite(suite);
    let options = options.map_err(|why| command.error(ErrorKind::ValueValidation, why))?;
    Ok(Command::Measure(suite, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn helper(line: &str) -> Helper {
        match parsed(line) {
            Ok(Command::Help(helper)) => helper,
            Ok(Command::Measure(suite, _)) => panic!("{line}: {}", suite.name),
            Err(error) => panic!("{line}: {error}"),
        }
    }

    #[test]
    fn suites_run_their_default_rows_unless_some_are_selected() {
        for (line, name, rows, runs) in [
            ("", "server", 7, 5),
            ("--clients 2_000 --only=burst", "server", 1, 5),
            ("run --short", "server", 7, 1),
            ("fairness --short --only flood,inbound", "fairness", 2, 1),
            ("attacks", "attacks", 14, 1),
            ("presence --short", "presence", 4, 1),
            ("history", "history", 6, 3),
            ("history --only drops", "history", 1, 3),
            ("cluster", "cluster", 11, 3),
            ("hooks --only waiting", "hooks", 1, 5),
            ("load --short --only connect,stall", "load", 2, 1),
            ("page", "page", 1, 7),
            ("http-load --seconds 2", "http-load", 1, 7),
            ("driver --runs 2", "driver", 2, 2),
        ] {
            let Ok(Command::Measure(suite, options)) = parsed(line) else { panic!("{line}") };
            assert_eq!(
                (suite.name, options.only.len(), options.runs),
                (name, rows, Some(runs)),
                "{line}"
            );
        }
    }

    #[test]
    fn helper_programs_parse_their_flags() {
        let core = Some(1);
        let program = ["serve", "--listen", "x"].map(Into::into).into();
        let exec = Helper::Exec { core, address_space: None, program };
        assert_eq!(helper("exec --core 1 -- serve --listen x"), exec);
        // Those of `simurgh serve`.
        let line = "bare-server --listen 127.77.0.1:0 --idle-timeout off --check-origin off \
                    --max-connections 2_000_100";
        assert!(matches!(helper(line), Helper::BareServer(_)));
    }

    #[test]
    fn argument_errors_name_the_mistake() {
        for (line, part) in [
            ("--client 5", "--client"),
            ("--only speed", "--only takes"),
            ("history --only million", "--only takes"),
            ("--runs", "a value is required"),
            ("--runs 0", "at least"),
            ("--runs many", "no number"),
            ("load --only connects", "--only takes"),
            ("pages", "unrecognized subcommand"),
            ("bare-server --max-connections 5", "--listen"),
            ("bare-server --listen 127.0.0.1:0 --shards 0", "at least 1"),
        ] {
            let Err(error) = parsed(line) else { panic!("{line}") };
            let error = error.to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

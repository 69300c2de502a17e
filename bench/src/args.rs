//! The command line.

use std::ffi::OsString;
use std::net::SocketAddrV4;

use clap::error::{Error, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::load::Bare;
use crate::server::Run;
use crate::{attacks, bare, cluster, fairness, history, http, load, presence, server};
use simurgh_bench_kit::flags::number;
use simurgh_bench_kit::rounds;

/// Simurgh's benchmark. Without a command: measures the bare server and `simurgh serve` in turn,
/// and prints the table
#[derive(Parser)]
#[command(name = "simurgh-bench", args_conflicts_with_subcommands = true)]
#[command(after_help = "README.md of this package says how each figure comes about.")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

/// What is to be done.
#[derive(Debug, PartialEq, Subcommand)]
pub(crate) enum Command {
    /// Measure the bare server and `simurgh serve` in turn, as without a command. Rows: memory,
    /// connect, spaced, burst, heartbeat, join, turn
    Run(Run),
    /// What one client can take from the others: attacks `simurgh serve`. Rows: flood, cursors,
    /// never-reads, inbound, suspended, long-message
    Fairness(rounds::Options),
    /// Runs hostile clients against `simurgh serve`, and measures its memory, its longest turn, the
    /// delay of other clients and the time to its end. bench/README.md lists the rows
    Attacks(rounds::Options),
    /// The cost of presence in `simurgh serve`, beside the bare server. Rows: crowd, leave,
    /// summary, memory
    Presence(rounds::Options),
    /// What it costs that broadcasts are kept and clients resume, beside a server without history.
    /// Rows: kept, members, broadcast, hop, storm, topics, and, only if they are named, drops,
    /// drops-nodes
    History(rounds::Options),
    /// What it costs to be one of several nodes, beside a bare async-nats client and beside one
    /// node, and what is lost when the engine or a node goes; SIMURGH_NATS_SERVER names the
    /// engine. Rows: receive, publish, delay, fanout, topics, frozen, killed, presences, kept,
    /// stored, checked
    Cluster(rounds::Options),
    /// Clients of a server that do what lines of the input say
    Crowd {
        #[arg(long, value_name = "IP:PORT")]
        server: SocketAddrV4,
    },
    /// Joins as Tsung does (V1, JSON in a binary frame), stays without a heartbeat, counts who
    /// stayed
    Hold(Hold),
    /// Measures `simurgh load` beside the bare client. Rows: start, connect, memory, idle,
    /// broadcast, stamp, arrivals, stall
    Load(rounds::Options),
    /// Measures `simurgh load http` beside wrk, both against nginx
    HttpLoad(rounds::Options),
    /// Measures the page of examples/hello_page beside nginx, both asked by `simurgh load http`
    Page(rounds::Options),
    /// The bare server alone, which is the baseline of `simurgh serve`
    BareServer(bare::Options),
    /// The bare client alone, which is the baseline of `simurgh load`
    Bare(Bare),
    /// CPU time of a fixed piece of work with N records: a line of JSON
    Reference {
        #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = number::<usize>)]
        records: usize,
    },
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

/// Options of `hold`.
#[derive(Args, Debug, PartialEq)]
pub(crate) struct Hold {
    /// `http://` or `ws://`, address, optional path
    #[arg(long, value_name = "URL")]
    pub(crate) server: String,
    /// Clients to join
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number::<usize>)]
    pub(crate) clients: usize,
    /// Time they stay after the last has joined
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = number::<u64>)]
    pub(crate) seconds: u64,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    let words = [OsString::from("simurgh-bench")].into_iter().chain(arguments);
    let Arguments { command, run } = Arguments::try_parse_from(words)?;
    let checked = match command.unwrap_or(Command::Run(run)) {
        // A separate measurement that was once a row of this one.
        Command::Run(run) if run.rounds.only == ["fairness"] => {
            let options = rounds::Options { only: Vec::new(), ..run.rounds };
            options.for_suite(&fairness::SUITE).map(Command::Fairness)
        }
        Command::Run(Run { clients, rounds }) => {
            rounds.for_suite(&server::SUITE).map(|rounds| Command::Run(Run { clients, rounds }))
        }
        Command::Attacks(it) => it.for_suite(&attacks::SUITE).map(Command::Attacks),
        Command::Fairness(it) => it.for_suite(&fairness::SUITE).map(Command::Fairness),
        Command::Presence(it) => it.for_suite(&presence::SUITE).map(Command::Presence),
        Command::History(it) => it.for_suite(&history::SUITE).map(Command::History),
        Command::Cluster(it) => it.for_suite(&cluster::SUITE).map(Command::Cluster),
        Command::Load(it) => it.for_suite(&load::SUITE).map(Command::Load),
        Command::Page(it) => it.for_suite(&http::page::SUITE).map(Command::Page),
        Command::HttpLoad(it) => it.for_suite(&http::load::SUITE).map(Command::HttpLoad),
        command => Ok(command),
    };
    checked.map_err(|why| Arguments::command().error(ErrorKind::ValueValidation, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Error> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn defaults_and_overrides() {
        let Command::Run(run) = parsed("").unwrap() else { panic!("no run") };
        assert_eq!((run.clients, run.rounds.runs, run.rounds.only.len()), (18_000, Some(5), 7));
        let Command::Run(run) = parsed("--clients 2_000 --only=burst").unwrap() else {
            panic!("no run")
        };
        assert_eq!((run.clients, run.rounds.only), (2_000, vec!["burst".to_owned()]));
        let hold = parsed("hold --server ws://127.0.0.1:4000 --seconds 5").unwrap();
        let server = "ws://127.0.0.1:4000".to_owned();
        assert_eq!(hold, Command::Hold(Hold { server, clients: 10_000, seconds: 5 }));
        assert_eq!(
            parsed("exec --core 1 -- serve --listen x").unwrap(),
            Command::Exec {
                core: Some(1),
                address_space: None,
                program: ["serve", "--listen", "x"].map(Into::into).into()
            }
        );
    }

    #[test]
    fn suites_have_their_usual_rows_unless_some_are_named() {
        let options = |line: &str| match parsed(line).unwrap() {
            Command::Fairness(options)
            | Command::Attacks(options)
            | Command::Presence(options)
            | Command::History(options)
            | Command::Cluster(options)
            | Command::Load(options)
            | Command::Page(options)
            | Command::HttpLoad(options) => options,
            other => panic!("{line}: {other:?}"),
        };
        for (line, rows, runs) in [
            ("--only fairness --runs 2", fairness::SUITE.usual.len(), 2),
            ("fairness --short --only flood,inbound", 2, 1),
            ("attacks", attacks::SUITE.usual.len(), 1),
            ("presence --short", 4, 1),
            ("history", history::SUITE.usual.len(), 3),
            ("history --only drops", 1, 3),
            ("cluster", cluster::SUITE.usual.len(), 3),
            ("load --short --only connect,stall", 2, 1),
            ("page", 1, 7),
            ("http-load --seconds 2", 1, 7),
        ] {
            let options = options(line);
            assert_eq!((options.only.len(), options.runs), (rows, Some(runs)), "{line}");
        }
        for wrong in ["fairness --only fairness", "history --only million", "cluster --only hop"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bare_server_takes_the_flags_of_serve() {
        let line = "bare-server --listen 127.77.0.1:0 --idle-timeout off --check-origin off \
                    --max-connections 2_000_100";
        assert!(matches!(parsed(line), Ok(Command::BareServer(_))));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("--client 5", "--client"),
            ("--only speed", "--only takes"),
            ("--runs", "a value is required"),
            ("--runs 0", "at least"),
            ("--runs many", "no number"),
            ("hold", "--server"),
            ("hold --short --server x", "--short"),
            ("load --only connects", "--only takes"),
            ("holt", "unrecognized subcommand"),
            ("bare-server --max-connections 5", "--listen"),
            ("bare-server --listen 127.0.0.1:0 --shards 0", "at least 1"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

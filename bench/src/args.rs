//! The command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster;
use crate::fairness;
use crate::history;
use crate::http_load;
use crate::load::{self, Bare};
use crate::measure::MEASURES;
use crate::nginx::{PROGRAM, Site};
use crate::page;
use crate::presence;
use crate::rounds;
use crate::size::{Dial, Pairs, Serve, Task};

/// Shown for `--help` and beside an error.
pub(crate) const USAGE: &str = "\
simurgh-bench [--clients 18000] [--runs 5] [--only NAME] [--server-bin PATH] [--out DIR]
    measures the bare floor and `simurgh serve` in turn and prints the table
    --only     memory | connect | spaced | burst | heartbeat | join | turn
    --server-bin  the simurgh binary; default: beside this one
    --out      where the raw runs go; default: bench/runs/<date>-<machine>
simurgh-bench fairness [--only ROW,...] [--runs 1] [--short] [--server-bin PATH] [--out DIR]
    what one client can take from the others: attacks `simurgh serve` and prints the table; also
    `simurgh-bench --only fairness`
    --only     flood | cursors | never-reads | inbound | suspended | long-message
    --short    fewer and shorter: to see whether all works, not for figures
simurgh-bench presence [--only ROW,...] [--runs 3] [--short] [--server-bin PATH] [--out DIR]
    what presence costs `simurgh serve`, beside a bare loop, and prints the table
    --only     crowd | leave | summary | memory | million (the last one only if it is named)
simurgh-bench history [--only ROW,...] [--runs 3] [--short] [--server-bin PATH] [--out DIR]
    what it costs that broadcasts are kept and clients resume, beside a server without history
    --only     kept | members | broadcast | hop | storm | topics, and, only if they are named,
               drops | drops-nodes
simurgh-bench cluster [--only ROW,...] [--runs 3] [--short] [--server-bin PATH] [--out DIR]
    what it costs to be one of several nodes, beside a bare async-nats client and beside one node,
    and what is lost when the engine or a node goes; SIMURGH_NATS_SERVER names the engine
    --only     receive | publish | delay | fanout | topics | frozen | killed | presences
simurgh-bench crowd --server IP:PORT
    clients of it that do what lines of the input say
simurgh-bench hold --server URL [--clients 10000] [--seconds 120]
    joins as Tsung does (V1, JSON in a binary frame), stays without a heartbeat, counts who stayed
simurgh-bench load [--only ROW,...] [--runs 3] [--users 15000] [--rate 40000] [--tsung PATH|off]
        [--quick] [--server-bin PATH] [--out DIR]
    measures `simurgh load` beside the bare client and Tsung and prints the table
    --only     connect | memory | idle | broadcast | stamp | arrivals | stall | start
    --rate     users per second of `connect`
    --quick    a tenth of the users and of the time: to see whether all works, not for figures
simurgh-bench http-load [--runs 7] [--seconds 4] [--connections 1,32,128] [--nginx PATH]
        [--wrk PATH] [--server-bin PATH] [--out DIR]
    measures `simurgh load http` beside wrk, both against nginx, and prints the table
simurgh-bench page [--runs 7] [--seconds 2] [--cores 1|2] [--server-bin PATH] [--out DIR]
    measures the page of examples/hello_page beside nginx, both asked by wrk, and prints the table
    --cores    1: one for the server, one for wrk; 2: both for both
simurgh-bench nginx --directory DIR [--core N]
    nginx alone, as the two above have it, with the files in DIR/root; says where it listens
simurgh-bench floor --listen IP:PORT
    the bare floor alone
simurgh-bench bare --server IP:PORT [--users 1000] [--rate 1000] [--hold-ms N]
    the bare client alone
simurgh-bench bare-server --listen IP:PORT --max-connections N
    the floor at size: as many threads and descriptor tables as `simurgh serve` has for N; speaks
    enough of Channels for `simurgh load` and `simurgh road`, which also say --idle-timeout and
    --check-origin: both ignored
simurgh-bench bare-pairs --connections N [--runs 1]
    how long N bare connections take from nothing, and what they cost: a line of JSON for each run
simurgh-bench reference [--records 500000]
    CPU time of a fixed piece of work with N records: a line of JSON";

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    /// Print [`USAGE`].
    Help,
    /// Measure.
    Run(Run),
    /// Hold many joined clients.
    Hold(Hold),
    /// Measure what one client can take from others.
    Fairness(fairness::Options),
    /// Measure `simurgh load`.
    Load(load::Options),
    /// Measure `simurgh load http`.
    HttpLoad(http_load::Options),
    /// Be the bare client.
    Bare(Bare),
    /// Be the floor.
    Floor(SocketAddrV4),
    /// The floor at size.
    Size(Task),
    /// nginx with its one configuration.
    Nginx(Site),
    /// Measure a rendered page beside nginx.
    Page(page::Options),
    /// Measure presence.
    Presence(rounds::Options),
    /// Measure history.
    History(rounds::Options),
    /// Measure several nodes.
    Cluster(rounds::Options),
    /// Be clients of that.
    Crowd(SocketAddrV4),
    /// Be the bare loop of presence.
    PresenceFloor(presence::floor::Plan),
    /// A fixed piece of work with so many records.
    Reference(usize),
    /// Pin to a core, die with the parent, become another program (used for servers under test).
    Exec {
        /// The core; any without it.
        core: Option<usize>,
        /// Bytes of address space it may have; as many as this process without it.
        address_space: Option<u64>,
        /// The program and its arguments.
        program: Vec<OsString>,
    },
}

/// Options of a measurement.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    /// Joined clients.
    pub(crate) clients: usize,
    /// Runs of the server under test; the floor has one more.
    pub(crate) runs: usize,
    /// A single measure.
    pub(crate) only: Option<String>,
    /// The server under test.
    pub(crate) server_bin: Option<PathBuf>,
    /// Where raw figures go.
    pub(crate) out: Option<PathBuf>,
}

/// Options of `hold`.
#[derive(Debug, PartialEq)]
pub(crate) struct Hold {
    /// `http://` or `ws://`, address, optional path.
    pub(crate) server: String,
    /// Clients to join.
    pub(crate) clients: usize,
    /// Time they stay after the last has joined.
    pub(crate) seconds: u64,
}

/// Parses everything after the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let (texts, program) = texts(arguments)?;
    if texts.iter().any(|text| text == "--help" || text == "-h") {
        return Ok(Command::Help);
    }
    let named = texts.first().is_some_and(|first| !first.starts_with("--"));
    let (name, rest) = texts.split_at(usize::from(named));
    let (quick, rest): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(|word| word == "--quick");
    let (short, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|word| word == "--short");
    let is_short = !short.is_empty();
    let mut options = options(&rest)?;
    // A row of the whole table that is a measurement of its own.
    let is_fairness = !named && options.get("only").is_some_and(|only| only == "fairness");
    let mut take = |name: &str| options.remove(name).filter(|_| !(is_fairness && name == "only"));
    let name = if is_fairness { Some("fairness") } else { name.first().map(String::as_str) };
    let command = match name {
        None | Some("run") => Command::Run(Run {
            clients: number(take("clients"), 18_000)?,
            runs: number(take("runs"), 5)?,
            only: take("only"),
            server_bin: take("server-bin").map(PathBuf::from),
            out: take("out").map(PathBuf::from),
        }),
        Some("hold") => Command::Hold(Hold {
            server: take("server").context("hold needs --server URL")?,
            clients: number(take("clients"), 10_000)?,
            seconds: u64::try_from(number(take("seconds"), 120)?)?,
        }),
        Some("fairness") => Command::Fairness(fairness(&mut take, is_short)?),
        Some("presence") => Command::Presence(in_rounds(&mut take, is_short, &presence::SUITE)?),
        Some("cluster") => Command::Cluster(in_rounds(&mut take, is_short, &cluster::SUITE)?),
        Some("crowd") => {
            Command::Crowd(take("server").context("crowd needs --server IP:PORT")?.parse()?)
        }
        Some("history") => Command::History(in_rounds(&mut take, is_short, &history::SUITE)?),
        Some("presence-floor") => Command::PresenceFloor(presence::floor::Plan {
            listen: take("listen").context("presence-floor needs --listen IP:PORT")?.parse()?,
            pattern: take("pattern").context("presence-floor needs --pattern FILE")?.into(),
        }),
        Some("load") => Command::Load(load(&mut take, !quick.is_empty())?),
        Some("http-load") => Command::HttpLoad(http_load(&mut take)?),
        Some("bare") => Command::Bare(bare(&mut take)?),
        Some("floor") => {
            Command::Floor(take("listen").context("floor needs --listen IP:PORT")?.parse()?)
        }
        Some(name @ ("bare-server" | "bare-pairs" | "bare-dial")) => {
            Command::Size(size(name, &mut take)?)
        }
        Some("reference") => Command::Reference(number(take("records"), 500_000)?),
        Some("nginx") => Command::Nginx(nginx(&mut take)?),
        Some("page") => Command::Page(page(&mut take)?),
        Some("exec") => {
            let core = core(&mut take)?;
            let bytes = take("address-space").map(|bytes| bytes.parse()).transpose();
            Command::Exec { core, address_space: bytes.context("--address-space")?, program }
        }
        Some(other) => bail!("unknown command {other:?}\n{USAGE}"),
    };
    if let Some(unknown) = options.keys().next() {
        bail!("unknown option --{unknown}\n{USAGE}");
    }
    check(&command, !quick.is_empty(), is_short)?;
    Ok(command)
}

/// Whether what was asked for goes together.
fn check(command: &Command, is_quick: bool, is_short: bool) -> Result<()> {
    ensure!(!is_quick || matches!(command, Command::Load(_)), "--quick goes with load");
    let takes_short = matches!(
        command,
        Command::Fairness(_) | Command::Presence(_) | Command::History(_) | Command::Cluster(_)
    );
    ensure!(takes_short || !is_short, "--short goes with fairness, presence, history and cluster");
    if let Command::Run(Run { only: Some(only), .. }) = command {
        ensure!(MEASURES.contains(&only.as_str()), "--only takes one of {}", MEASURES.join(", "));
    }
    if let Command::Run(Run { runs, clients, .. }) = command {
        ensure!(*runs > 0 && *clients > 1, "at least one run of two clients");
    }
    Ok(())
}

/// All words before `--`, as text, and those behind it.
fn texts(arguments: impl IntoIterator<Item = OsString>) -> Result<(Vec<String>, Vec<OsString>)> {
    let mut words: Vec<OsString> = arguments.into_iter().collect();
    // The program to become may have any arguments, so it is cut off before options are read.
    let program = match words.iter().position(|word| word == "--") {
        Some(at) => words.split_off(at).into_iter().skip(1).collect(),
        None => Vec::new(),
    };
    let text = |word: OsString| word.into_string().ok().context("an argument is not UTF-8");
    Ok((words.into_iter().map(text).collect::<Result<_>>()?, program))
}

/// The rows named by `--only`; all there are without it.
fn rows(only: Option<String>, all: &[&str]) -> Result<Vec<String>> {
    let Some(only) = only else { return Ok(all.iter().map(|row| (*row).to_owned()).collect()) };
    let rows: Vec<String> = only.split(',').map(|row| row.trim().to_owned()).collect();
    let known = |row: &String| all.contains(&row.as_str());
    ensure!(rows.iter().all(known), "--only takes some of {}", all.join(","));
    Ok(rows)
}

fn fairness(
    take: &mut impl FnMut(&str) -> Option<String>,
    short: bool,
) -> Result<fairness::Options> {
    Ok(fairness::Options {
        only: rows(take("only"), &fairness::ROWS)?,
        runs: number(take("runs"), 1)?.max(1),
        short,
        server_bin: take("server-bin").map(PathBuf::from),
        out: take("out").map(PathBuf::from),
    })
}

/// Options of what is measured in rounds.
fn in_rounds(
    take: &mut impl FnMut(&str) -> Option<String>,
    short: bool,
    suite: &rounds::Suite,
) -> Result<rounds::Options> {
    let all: Vec<&str> = suite.jobs.iter().map(|job| job.row).collect();
    let only = take("only").unwrap_or_else(|| suite.usual.join(","));
    Ok(rounds::Options {
        only: rows(Some(only), &all)?,
        runs: number(take("runs"), if short { 1 } else { 3 })?.max(1),
        short,
        server_bin: take("server-bin").map(PathBuf::from),
        out: take("out").map(PathBuf::from),
    })
}

fn load(take: &mut impl FnMut(&str) -> Option<String>, quick: bool) -> Result<load::Options> {
    Ok(load::Options {
        only: rows(take("only"), &load::ROWS)?,
        runs: number(take("runs"), if quick { 1 } else { 3 })?.max(1),
        users: number(take("users"), if quick { 1_500 } else { 15_000 })?.max(2),
        rate: u32::try_from(number(take("rate"), 40_000)?)?.max(1),
        tsung: take("tsung").unwrap_or_else(|| "/usr/bin/tsung".to_owned()),
        quick,
        server_bin: take("server-bin").map(PathBuf::from),
        out: take("out").map(PathBuf::from),
    })
}

fn http_load(take: &mut impl FnMut(&str) -> Option<String>) -> Result<http_load::Options> {
    let program = |text: Option<String>, usual: &str| text.map_or_else(|| usual.into(), Into::into);
    let connections = take("connections").unwrap_or_else(|| "1,32,128".to_owned());
    let connections = connections.split(',').map(|text| number(Some(text.to_owned()), 0));
    let connections: Vec<usize> = connections.collect::<Result<_>>()?;
    ensure!(connections.iter().all(|number| *number > 0), "--connections are at least 1");
    Ok(http_load::Options {
        runs: number(take("runs"), 7)?.max(1),
        seconds: u64::try_from(number(take("seconds"), 4)?.max(1))?,
        connections,
        nginx: program(take("nginx"), PROGRAM),
        wrk: program(take("wrk"), "/usr/bin/wrk"),
        server_bin: take("server-bin").map(PathBuf::from),
        out: take("out").map(PathBuf::from),
    })
}

fn bare(take: &mut impl FnMut(&str) -> Option<String>) -> Result<Bare> {
    let small = |text, default| Ok::<_, anyhow::Error>(u32::try_from(number(text, default)?)?);
    let ms = |text| Ok::<_, anyhow::Error>(Duration::from_millis(u64::try_from(number(text, 0)?)?));
    Ok(Bare {
        server: take("server").context("bare needs --server IP:PORT")?.parse()?,
        users: number(take("users"), 1_000)?,
        rate: small(take("rate"), 1_000)?,
        wait: ms(take("wait-ms"))?,
        first: number(take("first"), 0)?,
        pause: ms(take("pause-ms"))?,
        hold: take("hold-ms").map(|text| ms(Some(text))).transpose()?,
        join: number(take("join"), 1)? != 0,
        say: small(take("say"), 0)?,
        messages: small(take("messages"), 0)?,
    })
}

fn nginx(take: &mut impl FnMut(&str) -> Option<String>) -> Result<Site> {
    let directory = take("directory").context("nginx needs --directory DIR")?;
    Ok(Site::new(&PathBuf::from(directory), core(take)?))
}

/// The core to run on; any without it.
fn core(take: &mut impl FnMut(&str) -> Option<String>) -> Result<Option<usize>> {
    take("core").map(|core| number(Some(core), 0)).transpose()
}

fn page(take: &mut impl FnMut(&str) -> Option<String>) -> Result<page::Options> {
    let cores = number(take("cores"), 1)?;
    ensure!((1..=2).contains(&cores), "--cores is 1 (for the server) or 2 (for both)");
    Ok(page::Options {
        runs: number(take("runs"), 7)?.max(1),
        seconds: u32::try_from(number(take("seconds"), 2)?)?.max(1),
        is_shared: cores == 2,
        server_bin: take("server-bin").map(PathBuf::from),
        out: take("out").map(PathBuf::from),
    })
}

fn size(name: &str, take: &mut impl FnMut(&str) -> Option<String>) -> Result<Task> {
    let many = |text: Option<String>, option: &str| {
        let wanted = number(Some(text.with_context(|| format!("{name} needs {option} N"))?), 0)?;
        ensure!(wanted > 0, "{option} is at least 1");
        Ok::<_, anyhow::Error>(wanted)
    };
    Ok(match name {
        "bare-server" => {
            // What `simurgh serve` is told besides; there is nothing of it here.
            drop((take("idle-timeout"), take("check-origin")));
            Task::Serve(Serve {
                listen: take("listen").context("bare-server needs --listen IP:PORT")?.parse()?,
                connections: many(take("max-connections"), "--max-connections")?,
                tell_at: u64::try_from(number(take("tell-at"), 0)?)?,
            })
        }
        "bare-dial" => Task::Dial(Dial {
            server: take("server").context("bare-dial needs --server IP:PORT")?.parse()?,
            connections: many(take("connections"), "--connections")?,
        }),
        _ => Task::Pairs(Pairs {
            connections: many(take("connections"), "--connections")?,
            runs: number(take("runs"), 1)?.max(1),
        }),
    })
}

/// `--name value` and `--name=value`.
fn options(words: &[String]) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").with_context(|| format!("not an option: {word}"))?;
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = words.next().with_context(|| format!("--{name} needs a value"))?;
                (name, value.clone())
            }
        };
        options.insert(name.to_owned(), value);
    }
    Ok(options)
}

fn number(text: Option<String>, default: usize) -> Result<usize> {
    match text {
        None => Ok(default),
        Some(text) => text.replace('_', "").parse().with_context(|| format!("{text}: no number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn defaults_and_overrides() {
        let Command::Run(run) = parsed("").unwrap() else { panic!("no run") };
        assert_eq!((run.clients, run.runs, run.only), (18_000, 5, None));
        let Command::Run(run) = parsed("--clients 2_000 --only=burst").unwrap() else {
            panic!("no run")
        };
        assert_eq!((run.clients, run.only.as_deref()), (2_000, Some("burst")));
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
    fn fairness_is_a_command_and_what_only_takes() {
        let Command::Fairness(all) = parsed("--only fairness --runs 2").unwrap() else {
            panic!("no fairness")
        };
        assert_eq!((all.only.len(), all.runs, all.short), (fairness::ROWS.len(), 2, false));
        let line = "fairness --short --only flood,inbound";
        let Command::Fairness(some) = parsed(line).unwrap() else { panic!("no fairness") };
        assert_eq!((some.only.len(), some.short), (2, true));
        assert!(parsed("fairness --only fairness").is_err());
        assert!(parsed("--short").is_err() && parsed("hold --only fairness").is_err());
    }

    #[test]
    fn a_million_members_are_measured_only_if_they_are_named() {
        let Command::Presence(usual) = parsed("presence --short").unwrap() else { panic!("none") };
        assert_eq!((usual.only.len(), usual.runs, usual.short), (4, 1, true));
        assert!(!usual.only.iter().any(|row| row == "million"));
        let Command::Presence(one) = parsed("presence --only million").unwrap() else {
            panic!("none")
        };
        assert_eq!((one.only, one.runs), (vec!["million".to_owned()], 3));
        assert!(parsed("presence --only millions").is_err());
    }

    #[test]
    fn history_has_rows_of_its_own() {
        let Command::History(all) = parsed("history").unwrap() else { panic!("none") };
        assert_eq!((all.only.len(), all.runs, all.short), (history::SUITE.usual.len(), 3, false));
        let Command::History(some) = parsed("history --short --only storm,hop").unwrap() else {
            panic!("none")
        };
        assert_eq!((some.only.len(), some.runs, some.short), (2, 1, true));
        assert!(parsed("history --only drops").is_ok_and(|it| it != parsed("history").unwrap()));
        assert!(parsed("history --only million").is_err());
    }

    #[test]
    fn the_cluster_has_rows_and_helpers() {
        let Command::Cluster(all) = parsed("cluster").unwrap() else { panic!("none") };
        assert_eq!((all.only.len(), all.runs, all.short), (cluster::SUITE.usual.len(), 3, false));
        assert!(parsed("cluster --only hop").is_err());
        let crowd = Command::Crowd("127.77.0.1:4000".parse().unwrap());
        assert_eq!(parsed("crowd --server 127.77.0.1:4000").unwrap(), crowd);
        assert!(parsed("crowd").is_err() && parsed("crowd --short --server 1.1.1.1:1").is_err());
    }

    #[test]
    fn the_load_generator_has_rows_and_a_quick_mode() {
        let Command::Load(all) = parsed("load").unwrap() else { panic!("no load") };
        assert_eq!((all.only.len(), all.runs, all.users), (load::ROWS.len(), 3, 15_000));
        let line = "load --quick --only connect,stall --tsung off";
        let Command::Load(some) = parsed(line).unwrap() else { panic!("no load") };
        assert_eq!((some.only, some.runs), (vec!["connect".into(), "stall".into()], 1));
        assert!(some.quick && some.tsung == "off");
    }

    #[test]
    fn the_bare_server_starts_as_serve_does() {
        let line = "bare-server --listen 127.77.0.1:0 --idle-timeout off --check-origin off \
                    --max-connections 2_000_100";
        let listen = "127.77.0.1:0".parse().unwrap();
        let serve = Serve { listen, connections: 2_000_100, tell_at: 0 };
        assert_eq!(parsed(line).unwrap(), Command::Size(Task::Serve(serve)));
        let line = "bare-pairs --connections 30000 --runs 3";
        let pairs = Pairs { connections: 30_000, runs: 3 };
        assert_eq!(parsed(line).unwrap(), Command::Size(Task::Pairs(pairs)));
        let server = "127.77.0.1:4000".parse().unwrap();
        let dial = Command::Size(Task::Dial(Dial { server, connections: 7 }));
        assert_eq!(parsed("bare-dial --server 127.77.0.1:4000 --connections 7").unwrap(), dial);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("--client 5", "--client"),
            ("--only speed", "--only takes"),
            ("--runs", "needs a value"),
            ("--runs 0", "at least"),
            ("--runs many", "no number"),
            ("hold", "--server"),
            ("hold --quick --server x", "--quick"),
            ("load --only connects", "--only takes"),
            ("http-load --connections 1,0", "at least 1"),
            ("http-load --connections 1,x", "no number"),
            ("holt", "unknown command"),
            ("nginx --core 1", "needs --directory"),
            ("bare-server --max-connections 5", "needs --listen"),
            ("bare-server --listen 127.0.0.1:0", "needs --max-connections"),
            ("bare-pairs", "needs --connections"),
            ("bare-pairs --connections 0", "at least 1"),
            ("bare-pairs --connections 5 --idle-timeout off", "unknown option"),
        ] {
            let error = format!("{:#}", parsed(line).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

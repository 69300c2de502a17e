//! The command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::measure::MEASURES;

/// Shown for `--help` and beside an error.
pub(crate) const USAGE: &str = "\
simurgh-bench [--clients 18000] [--runs 5] [--only NAME] [--server-bin PATH] [--out DIR]
    measures the bare floor and `simurgh serve` in turn and prints the table
    --only     memory | connect | spaced | burst | heartbeat | join | turn
    --server-bin  the simurgh binary; default: beside this one
    --out      where the raw runs go; default: bench/runs/<date>-<machine>
simurgh-bench hold --server URL [--clients 10000] [--seconds 120]
    joins as Tsung does (V1, JSON in a binary frame), stays without a heartbeat, counts who stayed
simurgh-bench floor --listen IP:PORT
    the bare floor alone";

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    /// Print [`USAGE`].
    Help,
    /// Measure.
    Run(Run),
    /// Hold many joined clients.
    Hold(Hold),
    /// Be the floor.
    Floor(SocketAddrV4),
    /// Pin to a core, die with the parent, become another program (used for servers under test).
    Exec {
        /// The core.
        core: usize,
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
    let mut words: Vec<OsString> = arguments.into_iter().collect();
    // The program to become may have any arguments, so it is cut off before options are read.
    let program = match words.iter().position(|word| word == "--") {
        Some(at) => words.split_off(at).into_iter().skip(1).collect(),
        None => Vec::new(),
    };
    let mut texts = Vec::new();
    for word in words {
        texts.push(word.into_string().ok().context("an argument is not UTF-8")?);
    }
    if texts.iter().any(|text| text == "--help" || text == "-h") {
        return Ok(Command::Help);
    }
    let named = texts.first().is_some_and(|first| !first.starts_with("--"));
    let (name, rest) = texts.split_at(usize::from(named));
    let mut options = options(rest)?;
    let mut take = |name: &str| options.remove(name);
    let command = match name.first().map(String::as_str) {
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
        Some("floor") => {
            Command::Floor(take("listen").context("floor needs --listen IP:PORT")?.parse()?)
        }
        Some("exec") => Command::Exec { core: number(take("core"), 0)?, program },
        Some(other) => bail!("unknown command {other:?}\n{USAGE}"),
    };
    if let Some(unknown) = options.keys().next() {
        bail!("unknown option --{unknown}\n{USAGE}");
    }
    if let Command::Run(Run { only: Some(only), .. }) = &command {
        ensure!(MEASURES.contains(&only.as_str()), "--only takes one of {}", MEASURES.join(", "));
    }
    if let Command::Run(Run { runs, clients, .. }) = &command {
        ensure!(*runs > 0 && *clients > 1, "at least one run of two clients");
    }
    Ok(command)
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
            Command::Exec { core: 1, program: ["serve", "--listen", "x"].map(Into::into).into() }
        );
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
            ("holt", "unknown command"),
        ] {
            let error = format!("{:#}", parsed(line).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

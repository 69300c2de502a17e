//! `simurgh tune`: what this machine allows against what a number of connections needs, and what
//! to do about it.
//!
//! `machine` reads, `needs` compares without reading anything, `apply` writes settings and puts
//! them back, `dropins` and `table` are texts. Only `--apply` and `--undo` change anything.
//!
//! Another command takes the same steps: `report`, then `apply` with the report's changes, then
//! `undo`.

mod apply;
mod dropins;
mod machine;
#[cfg(test)]
mod made;
mod needs;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

pub(crate) use apply::{Done, apply, undo};
pub(crate) use machine::kilobytes;
pub(crate) use needs::{Report, Wanted};

use crate::{complain, fail, print, units};
use machine::Machine;

/// What can be typed after `simurgh tune`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Tune {
    /// Connections that the server is to hold, such as 2_000_000.
    #[arg(long, value_name = "N", value_parser = units::connections_wanted,
          default_value = "1000000")]
    connections: u64,
    /// The clients run on this machine too: twice the sockets, files and memory, and ports.
    #[arg(long)]
    local_clients: bool,
    /// Raises what is too small and may be changed, until the next boot; needs root.
    #[arg(long, conflicts_with_all = ["undo", "print"])]
    apply: bool,
    /// Where --apply writes what was there before; one that is there already is kept.
    #[arg(long, value_name = "FILE", requires = "apply", default_value = "simurgh-tune-undo.json")]
    undo_file: PathBuf,
    /// Lets --apply replace an undo file, whose values are then lost.
    #[arg(long, requires = "apply")]
    overwrite: bool,
    /// Puts back what such a file says, unless somebody has changed it since; needs root.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["connections", "local_clients", "print", "json"])]
    undo: Option<PathBuf>,
    /// Prints configuration that makes the values last; changes nothing.
    #[arg(long, value_name = "KIND", conflicts_with = "json")]
    print: Option<Print>,
    /// Prints JSON in the place of the table.
    #[arg(long)]
    json: bool,
    /// Where /proc and /sys are, for tests.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// A kind of configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Print {
    /// For /etc/sysctl.d.
    Sysctl,
    /// For /etc/security/limits.d.
    Limits,
    /// For a service's drop-in directory.
    Systemd,
    /// All three.
    All,
}

const AFTER_HELP: &str = "\
Without --apply and --undo nothing is changed. Values are only ever raised.\n\
Exit status: 0 nothing is too small (or all was put back, or printed), 1 it could not be done, 2\n\
flags are wrong, 3 something is too small (or could not be put back).";

/// What something that is too small exits with.
const TOO_SMALL: u8 = 3;

/// Does what was asked for.
pub(crate) fn tune(tune: Tune) -> ExitCode {
    let root = tune.root.as_path();
    if let Some(file) = &tune.undo {
        return put_back(root, file);
    }
    let wanted = Wanted { connections: tune.connections, local_clients: tune.local_clients };
    let mut found = match report(root, wanted) {
        Ok(found) => found,
        Err(why) => return fail(&why),
    };
    if let Some(kind) = tune.print {
        print(&text(kind, &found));
        return ExitCode::SUCCESS;
    }
    if tune.apply {
        let again = match raise(root, &found, &tune) {
            Ok(()) => report(root, wanted),
            Err(why) => return fail(&why),
        };
        found = match again {
            Ok(found) => found,
            Err(why) => return fail(&why),
        };
    }
    print(&if tune.json { table::json(&found) } else { table::text(&found) });
    if found.is_enough() { ExitCode::SUCCESS } else { ExitCode::from(TOO_SMALL) }
}

/// Reads the machine below `root`, which is `/` but in tests, and compares.
pub(crate) fn report(root: &Path, wanted: Wanted) -> Result<Report, String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Report::new(&Machine::read(root, cores as u64)?, wanted))
}

/// Changes what can be changed, and says so line by line.
fn raise(root: &Path, report: &Report, tune: &Tune) -> Result<(), String> {
    let changes = report.changes();
    if changes.is_empty() {
        complain("nothing is too small that could be changed here");
        return Ok(());
    }
    if report.is_root == Some(false) {
        let clients = if tune.local_clients { " --local-clients" } else { "" };
        return Err(format!(
            "--apply changes settings of the system, which needs root; nothing was changed. \
             Run: sudo simurgh tune --apply --connections {}{clients}",
            tune.connections
        ));
    }
    let done = apply(root, &changes, &tune.undo_file, tune.overwrite)?;
    say(&done);
    if done.undo_file_is_there {
        let file = tune.undo_file.display();
        complain(&format!("`simurgh tune --undo {file}` puts that back\n"));
    }
    Ok(())
}

fn put_back(root: &Path, file: &Path) -> ExitCode {
    let done = match undo(root, file) {
        Ok(done) => done,
        Err(why) => return fail(&format!("{why}; nothing was changed")),
    };
    say(&done);
    if done.undo_file_is_there {
        let file = file.display();
        complain(&format!("{file} keeps what was not put back; remove it when it may stay so"));
    }
    match done.steps.iter().all(apply::Step::is_done) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(TOO_SMALL),
    }
}

fn say(done: &Done) {
    for step in &done.steps {
        complain(&step.to_string());
    }
    if let Some(warning) = &done.warning {
        complain(&format!("warning: {warning}"));
    }
}

fn text(kind: Print, report: &Report) -> String {
    match kind {
        Print::Sysctl => dropins::sysctl(report),
        Print::Limits => dropins::limits(report),
        Print::Systemd => dropins::systemd(report),
        Print::All => {
            [dropins::sysctl, dropins::limits, dropins::systemd].map(|part| part(report)).join("\n")
        }
    }
}

//! `simurgh tune`: compares what this machine allows with what a number of connections needs, and
//! raises what is too low.
//!
//! `machine` reads, `needs` compares without reading anything, `apply` writes settings and restores
//! them, `dropins` and `table` write texts. Only `--apply` and `--undo` change anything.
//!
//! Another command may do the same in three steps: [`report`], then [`apply()`] with the report's
//! changes, then [`undo`].

mod apply;
mod dropins;
#[cfg(test)]
mod fake_machine;
mod machine;
mod needs;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use simurgh_text::output::{complain, fail, print};
use simurgh_text::whole;

pub use apply::{Done, Step, apply, undo};
pub use machine::kilobytes;
pub use needs::{Change, Report, Wanted};

use machine::Machine;

/// The most shards that one server may have: with 20,000 descriptors each, enough for 80 million
/// connections.
pub const SHARDS_MAX: u32 = 4_096;

/// The most connections of [`SHARDS_MAX`] shards with 20,000 descriptors each.
pub const CONNECTIONS_MAX: u32 = 80_000_000;

/// The flags of `simurgh tune`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct Tune {
    /// Number of connections to check for, such as 2_000_000.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1, CONNECTIONS_MAX),
          default_value = "1000000")]
    connections: u64,
    /// The clients run on this machine too: checks twice the sockets, files and memory, and ports.
    #[arg(long)]
    local_clients: bool,
    /// Raises the settings that are too low, until the next boot. Needs root.
    #[arg(long, conflicts_with_all = ["undo", "print"])]
    apply: bool,
    /// File in which --apply saves the old values. It is not overwritten.
    #[arg(long, value_name = "FILE", requires = "apply", default_value = "simurgh-tune-undo.json")]
    undo_file: PathBuf,
    /// Lets --apply overwrite an existing undo file and lose its values.
    #[arg(long, requires = "apply")]
    overwrite: bool,
    /// Restores the values of this undo file, except those changed since. Needs root.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["connections", "local_clients", "print", "json"])]
    undo: Option<PathBuf>,
    /// Prints configuration files that make the values permanent; changes nothing.
    #[arg(long, value_name = "KIND", conflicts_with = "json")]
    print: Option<Print>,
    /// Prints JSON instead of the table.
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
    /// For a systemd drop-in directory.
    Systemd,
    /// All three.
    All,
}

const AFTER_HELP: &str = "\
Only --apply and --undo change settings. --apply only raises values.\n\
Exit status: 0 if nothing is too low (or all was restored or printed), 1 on failure, 2 if a flag\n\
is wrong, 3 if something is too low (or could not be restored).";

/// Exit status if something is too small.
const TOO_SMALL: u8 = 3;

/// Runs the command, and returns its exit status.
pub fn tune(flags: &Tune) -> ExitCode {
    run(flags).unwrap_or_else(|why| fail(&why))
}

fn run(flags: &Tune) -> Result<ExitCode, String> {
    let root = flags.root.as_path();
    if let Some(file) = &flags.undo {
        return put_back(root, file);
    }
    let wanted = Wanted { connections: flags.connections, local_clients: flags.local_clients };
    let mut found = report(root, wanted)?;
    if let Some(kind) = flags.print {
        print(&text(kind, &found));
        return Ok(ExitCode::SUCCESS);
    }
    if flags.apply {
        raise(root, &found, flags)?;
        found = report(root, wanted)?;
    }
    print(&if flags.json { table::json(&found) } else { table::text(&found) });
    Ok(status(found.is_enough()))
}

fn status(is_all_right: bool) -> ExitCode {
    if is_all_right { ExitCode::SUCCESS } else { ExitCode::from(TOO_SMALL) }
}

/// Reads the machine below `root`, which is `/` except in tests, and compares.
///
/// # Errors
/// `/proc/sys` does not exist: this is not Linux.
pub fn report(root: &Path, wanted: Wanted) -> Result<Report, String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Report::new(&Machine::read(root, cores as u64)?, wanted))
}

fn raise(root: &Path, report: &Report, flags: &Tune) -> Result<(), String> {
    let changes = report.changes();
    if changes.is_empty() {
        complain("no setting that --apply can change is too low");
        return Ok(());
    }
    if report.is_root == Some(false) {
        let clients = if flags.local_clients { " --local-clients" } else { "" };
        return Err(format!(
            "--apply changes settings of the system, which needs root; nothing was changed. \
             Run: sudo simurgh tune --apply --connections {}{clients}",
            flags.connections
        ));
    }
    let done = apply(root, &changes, &flags.undo_file, flags.overwrite)?;
    print_steps(&done);
    if done.undo_file_is_there {
        let file = flags.undo_file.display();
        complain(&format!("`simurgh tune --undo {file}` restores the old values\n"));
    }
    Ok(())
}

fn put_back(root: &Path, file: &Path) -> Result<ExitCode, String> {
    let done = undo(root, file).map_err(|why| format!("{why}; nothing was changed"))?;
    print_steps(&done);
    if done.undo_file_is_there {
        let file = file.display();
        complain(&format!(
            "{file} still has the values that were not restored; remove it to keep \
            the present ones"
        ));
    }
    Ok(status(done.steps.iter().all(Step::is_done)))
}

fn print_steps(done: &Done) {
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

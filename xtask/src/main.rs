//! The project's own tool: everything that is done to the repository is done by
//! `cargo xtask <command>`, on a developer's machine and in CI alike.

mod bench;
mod crates;
mod dist;
mod engine;
mod fuzz;
mod msrv;
mod mutants;
mod outcome;
mod process;
mod provide;
mod scale;
mod sim;
mod suite;
mod tidy;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, test, measure and ship Simurgh")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing, build, and run every test
    Test(suite::Options),
    /// What CI runs: `test --lints`
    Ci,
    /// Hold the sources against the house rules
    Tidy {
        /// Count instead the lines of each crate, without its tests
        #[arg(long)]
        lines: bool,
    },
    /// Make a release: binary, packages, archives, checksums; and check what was made
    Dist(dist::Options),
    /// Run the fuzz targets, guided by coverage; what they find goes into their corpus
    Fuzz(fuzz::Options),
    /// Change the core one thing at a time, and see whether its tests and the simulator notice
    Mutants(mutants::Options),
    /// Measure, with `bench/` built for release; all arguments are passed on. With --all:
    /// everything a release is judged by; with --instructions: what CI counts (each has --help);
    /// with --tables: docs/BENCHMARKS.md from its raw files again
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Install the engine that tests of clusters need, under target/engine; its path is printed
    Engine,
    /// Plan for a hundred million clients: how many machines, by measured prices, and what breaks
    /// first; all arguments are passed on (it has --help). With --write: the tables of
    /// docs/SCALE.md
    Scale {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run whole servers from seeds in the simulator, built for release; all arguments are passed
    /// on (it has --help)
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Test(options) => suite::run(&options),
        Command::Ci => suite::run(&suite::Options { lints: true, only: Vec::new() }),
        Command::Tidy { lines: true } => tidy::report(tidy::lines(&root())),
        Command::Tidy { lines: false } => tidy::report(tidy::findings(&root())),
        Command::Dist(options) => dist::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Bench { arguments } => bench::run(&arguments),
        Command::Engine => engine::run(),
        Command::Scale { arguments } => scale::run(&arguments),
        Command::Sim { arguments } => sim::run(&arguments),
    }
}

/// The repository: the directory above this crate.
fn root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

/// Where cargo puts the binaries it builds beside this one.
fn bin_dir() -> PathBuf {
    let here = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    here.unwrap_or_else(|| root().join("target/debug"))
}

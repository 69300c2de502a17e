//! The project's own tool: all work on the repository is done by `cargo xtask <command>`, on a
//! developer's machine and in CI alike.

mod bench;
mod crates;
mod dist;
mod engine;
mod failures;
mod files;
mod fuzz;
mod msrv;
mod mutants;
mod outcome;
mod process;
mod provide;
mod rust_tests;
mod sim;
mod site;
mod suite;
mod tidy;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Termination};

use anyhow::Result;
use clap::{Parser, Subcommand};

use process::Task;

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
    /// Check the sources against the house rules
    Tidy {
        /// Count instead the lines of each crate, without its tests
        #[arg(long)]
        lines: bool,
    },
    /// Draw sentences from documents, help and errors, to read them by the rules of English
    Sentences {
        #[arg(long, default_value_t = 25)]
        count: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
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
    /// Compute the machines for a load from measured prices, and which limit comes first; all
    /// arguments are passed on (it has --help)
    Scale {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the documentation site of one version by mdBook, into target/site
    Site {
        /// `--out DIR`, `--version VERSION`, `--repository URL`: docs/RELEASE.md
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
        Command::Ci => suite::run(&suite::Options { lints: true, ..Default::default() }),
        Command::Tidy { lines: false } => ended("tidy", tidy::run(&root())),
        Command::Tidy { lines: true } => ended("tidy", tidy::count_lines(&root())),
        Command::Sentences { count, seed } => ended("sentences", tidy::draw(&root(), count, seed)),
        Command::Dist(options) => ended("dist", dist::run(&options)),
        Command::Fuzz(options) => ended("fuzz", fuzz::run(&options)),
        Command::Mutants(options) => ended("mutants", mutants::run(&options)),
        Command::Bench { arguments } => ended("bench", bench::run(&arguments)),
        Command::Engine => {
            ended("no engine", engine::installed().map(|path| println!("{}", path.display())))
        }
        Command::Scale { arguments } => release("simurgh-scale", &arguments),
        Command::Site { arguments } => ended("site", site::build(&arguments)),
        Command::Sim { arguments } => release(sim::NAME, &arguments),
    }
}

fn ended(command: &str, result: Result<impl Termination>) -> ExitCode {
    match result {
        Ok(done) => done.report(),
        Err(error) => {
            eprintln!("{command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program of the workspace, built for release. A manual run may last a night.
fn release(package: &str, arguments: &[String]) -> ExitCode {
    const MINUTES_MAX: u64 = 24 * 60;
    let done = Task::release(package, arguments, MINUTES_MAX).run();
    ended(package, done.or_fail("it failed").map(drop))
}

fn root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

fn bin_dir() -> PathBuf {
    let here = env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    here.unwrap_or_else(|| root().join("target/debug"))
}

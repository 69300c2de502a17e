//! Builds the fuzz targets.
//!
//! Coverage needs no nightly compiler: the pass that counts edges is part of LLVM, and libFuzzer
//! comes as source with `libfuzzer-sys`. So the targets build with the same compiler as the rest,
//! and a C++ compiler. Only AddressSanitizer needs a nightly one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use simurgh_bench_kit::machine::first_line;

use crate::files;
use crate::outcome::Skipped;
use crate::process::Task;

/// Counts edges, and reports comparisons to the fuzzer.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
];
const ADDRESS: &str = "-Zsanitizer=address";

/// A build from nothing, on two slow cores.
const MINUTES_MAX: u64 = 20;

#[derive(Debug)]
pub(crate) struct Programs {
    directory: PathBuf,
}

impl Programs {
    pub(crate) fn path(&self, target: &str) -> String {
        self.directory.join(target).display().to_string()
    }
}

/// Names of all targets, in the order of `fuzz/Cargo.toml`.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Manifest {
        bin: Vec<Target>,
    }
    #[derive(serde::Deserialize)]
    struct Target {
        name: String,
    }
    let path = root.join("fuzz/Cargo.toml");
    let manifest: Manifest =
        toml::from_str(&files::text(&path)?).with_context(|| path.display().to_string())?;
    Ok(manifest.bin.into_iter().map(|target| target.name).collect())
}

/// Builds `targets`; with AddressSanitizer into a separate directory.
pub(crate) fn build(targets: &[String], address: bool) -> Result<Programs> {
    if first_line("c++", &["--version"]).is_none() {
        bail!(Skipped("no C++ compiler, of which libFuzzer is built".to_owned()));
    }
    let asked = with_compiler(address, "rustc", &["-vV"], 1).quiet().run();
    if !asked.ok() {
        bail!(Skipped(format!("no {}", if address { "nightly" } else { "rustc" })));
    }
    let version = asked.output;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not tell its host")?;
    let kind = if address { "address" } else { "coverage" };
    let directory = super::directory().join("target").join(kind);
    let mut flags = COVERAGE.to_vec();
    flags.extend(Some(ADDRESS).filter(|_| address));
    // With a platform named, build scripts and macros are not affected.
    let mut words = vec!["build", "--release", "--locked", "--target", host];
    targets.iter().for_each(|target| words.extend(["--bin", target]));
    let done = with_compiler(address, "cargo", &words, MINUTES_MAX)
        .directory(&super::directory())
        .env("CARGO_TARGET_DIR", &directory)
        // The linker's own list and the caller's would each replace these.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        // Otherwise calls through `cargo xtask` and of the program itself undo each other's work.
        .without_env("CARGO_MANIFEST_")
        .without_env("CARGO_PKG_")
        .run();
    done.or_fail("the targets do not build")?;
    Ok(Programs { directory: directory.join(host).join("release") })
}

fn with_compiler(nightly: bool, program: &str, arguments: &[&str], minutes: u64) -> Task {
    if !nightly {
        return Task::new(program, arguments, minutes);
    }
    let words = [&["run", "nightly", program], arguments].concat();
    Task::new("rustup", &words, minutes)
}
